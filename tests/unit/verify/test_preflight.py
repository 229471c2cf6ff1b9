from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railweld.record import Status
from railweld.verify.context import Context
from railweld.verify.roles import preflight

GIB = 1024**3
FIT = {
    "node.os": {
        "id": "ubuntu",
        "version_id": "22.04",
        "arch": "x86_64",
        "python": "3.10.12",
    },
    "node.disks.free": {"/": 50 * GIB, "/usr": 50 * GIB, "/var": 50 * GIB},
    "node.reach": {},
    "node.dpkg": {"audit": [], "interrupted": False, "lock_held_by": None},
    "node.time.skew_to_controller_s": 0.1,
}
Observed = Callable[..., Context]
Bad = Callable[..., dict[str, str]]


def test_a_fit_node_passes(observed: Observed, bad: Bad) -> None:
    assert bad(preflight.guard(observed(FIT))) == {}


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"node.os/version_id": "20.04"}, "preflight.system", "found ubuntu 20.04"),
        ({"node.os/arch": "aarch64"}, "preflight.architecture", "found aarch64, expected x86_64"),
        ({"node.os/python": "3.6.9"}, "preflight.python", "expected Python 3.8 or newer"),
        ({"node.pci.gpus": 7}, "nvidia_driver.pci_gpus", "found 7 GPUs on PCI, expected 8 GPUs"),
        ({"node.kernel.newest_installed": "9.9.9-1"}, "nvidia_driver.kernel", "newest installed"),
        (
            {"node.kernel.secure_boot": "on", "host.secure_boot_signer": None},
            "nvidia_driver.secure_boot",
            "found Secure Boot on",
        ),
        (
            {"node.kernel.headers_installed": False},
            "nvidia_driver.headers",
            "neither installed nor in any repository",
        ),
        (
            {"node.reach": {"http://m/cuda/Release": {"ok": False, "error": "timed out"}}},
            "preflight.repository",
            "found http://m/cuda/Release: timed out",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_found_expected_and_fix(
    observed: Observed, bad: Bad, change: dict[str, Any], check: str, words: str
) -> None:
    tree = dict(FIT)
    for path, value in change.items():
        if "/" in path:
            base, key = path.split("/")
            tree[base] = {**tree[base], key: value}
        else:
            tree[path] = value
    found = bad(preflight.guard(observed(tree)))
    assert set(found) == {check}
    assert words in found[check]
    assert "Fix:" in found[check]


def test_a_full_disk_is_refused_before_the_toolkit_is_unpacked(
    observed: Observed, bad: Bad
) -> None:
    bare = {**FIT, "node.records": {}, "node.disks.free": {"/": GIB, "/usr": GIB, "/var": 9 * GIB}}
    assert set(bad(preflight.guard(observed(bare)))) == {"preflight.disk./", "preflight.disk./usr"}


def test_a_node_that_has_its_packages_needs_little_space(observed: Observed, bad: Bad) -> None:
    later = {**FIT, "node.records": {"cuda": {}}, "node.disks.free": {"/": GIB, "/var": GIB}}
    assert bad(preflight.guard(observed(later))) == {}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"audit": ["dkms"], "interrupted": True, "lock_held_by": None}, "preflight.dpkg"),
        (
            {"audit": [], "interrupted": False, "lock_held_by": "apt-get (pid 7)"},
            "preflight.package_lock",
        ),
    ],
)
def test_what_the_run_repairs_or_waits_for_is_said_not_refused(
    observed: Observed, bad: Bad, change: dict[str, Any], check: str
) -> None:
    checks = list(preflight.guard(observed({**FIT, "node.dpkg": change})))
    assert bad(checks) == {}
    assert [each.id for each in checks if each.status is Status.WARN] == [check]


def test_a_clock_far_from_the_controllers_is_said(observed: Observed, bad: Bad) -> None:
    checks = list(preflight.guard(observed({**FIT, "node.time.skew_to_controller_s": -90.0})))
    assert bad(checks) == {}
    assert any(each.id == "preflight.clock" and "-90 s" in each.found for each in checks)


def test_packages_of_another_system_are_said_not_refused(observed: Observed, bad: Bad) -> None:
    debian = {**FIT, "node.os": {**FIT["node.os"], "id": "debian", "version_id": "12"}}
    checks = list(preflight.guard(observed(debian)))
    assert bad(checks) == {}
    assert any(each.id == "preflight.vendor_repository" for each in checks)


def test_a_node_without_gpus_is_not_asked_for_them(observed: Observed, bad: Bad) -> None:
    head = {**FIT, "host.is_gpu_node": False, "node.pci.gpus": 0}
    assert bad(preflight.guard(observed(head))) == {}
