"""CUDA: refused over the wrong driver, judged by its own compiler."""

from __future__ import annotations

from railweld.verify.roles import cuda

NO_COMPAT = {
    "host.cuda.compat": False,
    "host.packages.cuda": [{"name": "cuda-toolkit-12-1", "version": "12.1.1-1"}],
}


def test_converged_node_passes_guard_and_checks(observed, bad):
    ctx = observed()
    assert bad(cuda.guard(ctx)) == {}
    assert bad(cuda.checks(ctx)) == {}


def test_guard_refuses_before_the_reboot_into_the_driver(observed, bad):
    found = bad(cuda.guard(observed({"node.driver.loaded": "510.108.03"})))
    assert "nvidia_driver.loaded" in found
    assert "found driver 510.108.03, expected driver 515.86.01" in found["nvidia_driver.loaded"]


def test_guard_refuses_while_nvlink_is_not_up(observed, bad):
    assert list(bad(cuda.guard(observed({"node.fabric_manager.active": False})))) == [
        "fabric_manager.service"
    ]


def test_guard_asks_for_no_fabric_manager_without_switches(observed, bad):
    changes = {"node.pci.nvswitches": 0, "node.fabric_manager.active": False}
    assert bad(cuda.guard(observed(changes))) == {}


def test_compiler_of_another_release_is_refused_whatever_dpkg_says(observed, bad):
    found = bad(cuda.checks(observed({"node.cuda.release": "11.8", "node.cuda.nvcc": "11.8.89"})))
    assert list(found) == ["cuda.nvcc"]
    assert "found nvcc of CUDA 11.8 (11.8.89), expected nvcc of CUDA 12.1" in found["cuda.nvcc"]


def test_absent_compiler_is_refused(observed, bad):
    found = bad(cuda.toolkit(observed({"node.cuda": {"nvcc": None, "release": None}})))
    assert "found no nvcc" in found["cuda.nvcc"]


def test_missing_compat_is_refused_where_the_set_needs_it(observed, bad):
    assert list(bad(cuda.checks(observed({"node.cuda.compat": None})))) == ["cuda.compat"]


def test_compat_before_a_driver_that_needs_none_is_refused(observed, bad):
    found = bad(cuda.checks(observed(NO_COMPAT)))
    assert list(found) == ["cuda.compat"]
    assert "cuda-compat-12-1 530.30.02-1" in found["cuda.compat"]


def test_no_compat_where_none_is_wanted_passes(observed, bad, absent):
    changes = {**NO_COMPAT, "node.cuda.compat": None, "node/packages/cuda-compat-12-1": absent}
    assert bad(cuda.checks(observed(changes))) == {}


def test_toolkit_of_another_build_is_named(observed, bad):
    package = {"version": "12.1.0-1", "status": "ii", "hold": True}
    found = bad(cuda.checks(observed({"node/packages/cuda-toolkit-12-1": package})))
    assert list(found) == ["cuda.package.cuda-toolkit-12-1"]
