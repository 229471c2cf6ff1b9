"""Fabric manager on hosts without NVSwitch, with A100, H100 and fifth-generation NVLink."""

from __future__ import annotations

import pytest

from railweld.verify.roles import fabric_manager

NO_PACKAGES = {"node.packages": {}}
H100 = {"host.gpu.model": "H100-SXM5-80GB", "node.pci.nvswitches": 4}
B200 = {"host.gpu.model": "B200", "node.pci.nvswitches": 0}


def test_a100_with_a_running_manager_passes_without_a_fabric_state(observed, bad):
    ctx = observed()
    assert bad(fabric_manager.guard(ctx)) == {}
    assert bad(fabric_manager.checks(ctx)) == {}


def test_host_without_switches_asks_for_nothing(observed, bad):
    ctx = observed({"node.pci.nvswitches": 0, "node.driver.loaded": None, **NO_PACKAGES})
    assert not fabric_manager.is_wanted(ctx)
    assert bad(fabric_manager.guard(ctx)) == {}
    assert bad(fabric_manager.checks(ctx)) == {}


def test_manager_on_a_host_without_switches_is_refused(observed, bad):
    ctx = observed({"node.pci.nvswitches": 0})
    found = bad(fabric_manager.checks(ctx))
    assert list(found) == ["fabric_manager.only_where_needed"]
    assert "nvidia-fabricmanager-515 515.86.01-1" in found["fabric_manager.only_where_needed"]


def test_unseen_bus_is_not_taken_for_a_host_without_switches(observed, bad, absent):
    found = bad(fabric_manager.guard(observed({"node.pci.nvswitches": absent})))
    assert list(found) == ["fabric_manager.nvswitches"]


def test_guard_refuses_while_another_driver_is_loaded(observed, bad):
    found = bad(fabric_manager.guard(observed({"node.driver.loaded": "510.108.03"})))
    assert list(found) == ["nvidia_driver.loaded"]


def test_guard_refuses_a_set_whose_manager_is_not_the_drivers(observed, bad):
    pins = [{"name": "nvidia-fabricmanager-515", "version": "515.105.01-1"}]
    found = bad(fabric_manager.guard(observed({"host.packages.fabric_manager": pins})))
    assert list(found) == ["fabric_manager.pin"]
    assert "expected a fabric manager package of exactly 515.86.01" in found["fabric_manager.pin"]


def test_guard_refuses_a_set_without_a_manager(observed, bad):
    found = bad(fabric_manager.guard(observed({"host.packages.fabric_manager": []})))
    assert list(found) == ["fabric_manager.pin"]


def test_manager_of_another_version_than_the_driver_is_refused(observed, bad):
    found = bad(fabric_manager.checks(observed({"node.fabric_manager.version": "515.65.01"})))
    assert list(found) == ["fabric_manager.version"]
    assert "fabric manager 515.65.01, driver 515.86.01" in found["fabric_manager.version"]


def test_stopped_manager_is_refused(observed, bad):
    found = bad(fabric_manager.ready(observed({"node.fabric_manager.active": False})))
    assert list(found) == ["fabric_manager.service"]


def test_manager_of_another_branch_is_a_stray(observed):
    package = {"version": "470.256.02-1", "status": "ii", "hold": True}
    ctx = observed({"node/packages/nvidia-fabricmanager-470": package})
    assert fabric_manager.strays(ctx) == {"nvidia-fabricmanager-470": "470.256.02-1"}


@pytest.mark.parametrize("state", ["Completed/Success", "Completed"])
def test_h100_in_the_fabric_passes(observed, bad, state):
    assert (
        bad(fabric_manager.ready(observed({**H100, "node.fabric_manager.fabric_state": state})))
        == {}
    )


@pytest.mark.parametrize("state", ["In Progress/N/A", "Not Started", "Completed/Failure", None])
def test_h100_outside_the_fabric_is_refused(observed, bad, state):
    ctx = observed({**H100, "node.fabric_manager.fabric_state": state})
    assert list(bad(fabric_manager.ready(ctx))) == ["fabric_manager.fabric_state"]


def test_fifth_generation_needs_the_subnet_manager_and_its_modules(observed, bad):
    found = bad(fabric_manager.guard(observed({**B200, "node.modules": ["nvidia"]})))
    assert list(found) == ["fabric_manager.nvlsm", "fabric_manager.management_modules"]
    assert "ib_umad" in found["fabric_manager.management_modules"]


def test_fifth_generation_with_all_it_needs_passes_the_guard(observed, bad):
    pins = [
        {"name": "nvidia-fabricmanager-515", "version": "515.86.01-1"},
        {"name": "nvlsm", "version": "2025.03.1-1"},
    ]
    assert bad(fabric_manager.guard(observed({**B200, "host.packages.fabric_manager": pins}))) == {}
