"""What counts as a Slurm host in its described state, and what is named when it is not."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from railweld.slurm import conf
from tests.unit.slurm.conftest import PLAIN, SiteMaker, bad_on

UP = {"active": "active", "enabled": "enabled"}


def digests(slurm: dict[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in conf.files(slurm).items()
    }


def head_of(slurm: dict[str, Any]) -> dict[str, Any]:
    """What the probe sees on a head that is as described."""
    pins = slurm["hosts"]["head1"]["packages"]["slurm"]
    return {
        "packages": {
            pin["name"]: {"version": pin["version"] or "1-1", "status": "ii", "hold": True}
            for pin in pins
        },
        "slurm": {
            "version": "22.05.8",
            "munge": {
                "key_id": slurm["munge_key_id"],
                "mode": "0400",
                "owner": "munge",
                "stale": False,
                "works": True,
            },
            "units": dict.fromkeys(("slurmctld", "slurmdbd", "mariadb", "munge"), UP),
            "daemons": {name: {"active": "active", "enabled": True} for name in slurm["nodes"]},
            "files": digests(slurm),
            "applied": digests(slurm),
            "controller": {"up": True, "SLURM_VERSION": "22.05.8"},
            "nodes": {
                name: {
                    "state": "idle",
                    "responds": True,
                    "gres": "gpu:a100:8",
                    "cpus": 128,
                    "memory_mib": 1000000,
                    "reason": "none",
                }
                for name in slurm["nodes"]
            },
            "accounting": {"clusters": ["tiny"]},
            "outdated": [],
        },
    }


def bad(site: SiteMaker, *changes: tuple[str, Any]) -> dict[str, str]:
    """Checks that do not pass on the head after these changes, by id, with what was found."""
    return bad_on(site(), "slurm", head_of, *changes)


def test_a_head_as_described_passes(site: SiteMaker) -> None:
    assert bad(site) == {}


@pytest.mark.parametrize(
    ("path", "value", "check", "said"),
    [
        ("munge.key_id", "0123456789ab", "slurm.munge_key", "begins with 0123456789ab"),
        ("munge.key_id", None, "slurm.munge_key", "no key"),
        ("munge.mode", "0440", "slurm.munge_key_mode", "0440 munge"),
        ("munge.stale", True, "slurm.munge", "older key"),
        ("munge.works", False, "slurm.munge", "does not answer"),
        ("files", {}, "slurm.files", "slurm.conf"),
        ("applied", {}, "slurm.applied", "slurm.conf"),
        ("units.slurmctld", None, "slurm.unit.slurmctld", "absent"),
        ("units.slurmdbd", {"active": "failed", "enabled": "enabled"}, "slurm.unit.slurmdbd", "fa"),
        ("accounting", None, "slurm.accounting", "does not answer"),
        ("accounting", {"clusters": ["other"]}, "slurm.accounting", "other"),
        ("controller", {"up": True, "SLURM_VERSION": "21.08.5"}, "slurm.controller", "21.08.5"),
        ("controller", {"up": False}, "slurm.controller", "no answer"),
        ("daemons.gpu2", {"active": "failed", "enabled": True}, "slurm.virtual_nodes", "gpu2"),
        ("daemons.gpu9", {"active": "active", "enabled": True}, "slurm.virtual_nodes", "gpu9"),
        ("nodes.gpu1.gres", "gpu:a100:7", "slurm.nodes", "gpu1 gpu:a100:7"),
        ("nodes.gpu1.cpus", 64, "slurm.nodes", "64 CPUs"),
        ("nodes", {}, "slurm.nodes", "gpu1 missing"),
        ("nodes.gpu3.state", "down", "slurm.node_states", "gpu3 down"),
        ("nodes.gpu3.responds", False, "slurm.node_states", "gpu3 idle"),
    ],
)
def test_what_differs_is_named(
    site: SiteMaker, path: str, value: object, check: str, said: str
) -> None:
    found = bad(site, (path, value))
    assert said in found[check]


def test_a_node_that_is_drained_on_purpose_is_no_finding(site: SiteMaker) -> None:
    assert bad(site, ("nodes.gpu1.state", "drained"), ("nodes.gpu1.reason", "fan")) == {}


#: What scontrol says on a node whose clock is behind.
REFUSED = "scontrol: error: Munge decode failed: Rewound credential slurm_load_ctl_conf error"


def node_of(slurm: dict[str, Any]) -> dict[str, Any]:
    """What the probe sees on a node with a slurmd of its own that is as described."""
    pins = slurm["hosts"]["gpu1"]["packages"]["slurm"]
    seen = head_of(slurm)
    seen["packages"] = {
        pin["name"]: {"version": pin["version"] or "1-1", "status": "ii", "hold": True}
        for pin in pins
    }
    seen["slurm"].update(units=dict.fromkeys(("slurmd", "munge"), UP), daemons={}, nodes={})
    return seen


@pytest.mark.parametrize(
    ("controller", "found"),
    [
        ({"up": True}, {}),
        ({"up": False, "error": REFUSED}, {"slurm.reached": REFUSED}),
        ({"up": False, "error": ""}, {"slurm.reached": "no answer from slurmctld"}),
    ],
)
def test_a_node_that_does_not_get_through_says_why(
    site: SiteMaker, controller: dict[str, Any], found: dict[str, str]
) -> None:
    described = site(everywhere=PLAIN)
    bad = bad_on(described, "slurm", node_of, ("controller", controller), host="gpu1")
    assert bad == found
