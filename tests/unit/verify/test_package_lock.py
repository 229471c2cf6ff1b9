from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railweld.verify.context import Context
from railweld.verify.roles import package_lock

MASKED = {"load": "masked", "active": "inactive", "sub": "dead", "enabled": "masked"}
RUNNING = {"load": "loaded", "active": "active", "sub": "waiting", "enabled": "enabled"}
LOCKED = {
    "site.patching": "held",
    "node.apt": {
        "units": {"apt-daily.timer": MASKED, "unattended-upgrades.service": None},
        "periodic": {"Update-Package-Lists": "0", "Unattended-Upgrade": "0"},
    },
    "node.dpkg": {"audit": [], "interrupted": False, "lock_held_by": None},
    "node.packages": {
        "nvidia-driver-515": {"version": "1", "status": "ii", "hold": True},
        "bash": {"version": "1", "status": "ii", "hold": False},
    },
}
Observed = Callable[..., Context]
Bad = Callable[..., dict[str, str]]


def test_a_locked_node_passes(observed: Observed, bad: Bad) -> None:
    assert bad(package_lock.checks(observed(LOCKED))) == {}


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (
            {"node.packages": {"libnccl2": {"version": "1", "status": "ii", "hold": False}}},
            "package_lock.holds",
            "not held: libnccl2",
        ),
        (
            {"node.dpkg": {"audit": ["nvidia-dkms-515"], "interrupted": True}},
            "package_lock.dpkg",
            "half installed: nvidia-dkms-515; dpkg was interrupted",
        ),
        (
            {
                "node.apt": {
                    "units": {"apt-daily.timer": RUNNING},
                    "periodic": LOCKED["node.apt"]["periodic"],
                }
            },
            "package_lock.unit.apt-daily.timer",
            "found enabled, active, expected masked, inactive",
        ),
        (
            {
                "node.apt": {
                    "units": {},
                    "periodic": {"Update-Package-Lists": "0", "Unattended-Upgrade": "1"},
                }
            },
            "package_lock.periodic.Unattended-Upgrade",
            "found APT::Periodic::Unattended-Upgrade 1",
        ),
    ],
)
def test_what_could_move_the_node_is_found(
    observed: Observed, bad: Bad, change: dict[str, Any], check: str, words: str
) -> None:
    found = bad(package_lock.checks(observed({**LOCKED, **change})))
    assert set(found) == {check}
    assert words in found[check]


def test_given_back_updates_must_not_stay_masked(observed: Observed, bad: Bad) -> None:
    restored = {**LOCKED, "site.patching": "restored"}
    assert set(bad(package_lock.checks(observed(restored)))) == {
        "package_lock.unit.apt-daily.timer"
    }
    restored["node.apt"] = {"units": {"apt-daily.timer": RUNNING}, "periodic": {}}
    assert bad(package_lock.checks(observed(restored))) == {}


def test_a_system_that_apt_does_not_manage_is_refused(observed: Observed, bad: Bad) -> None:
    found = bad(package_lock.guard(observed({"node.os": {"id": "rocky"}})))
    assert "found rocky, expected debian or ubuntu" in found["package_lock.distribution"]
