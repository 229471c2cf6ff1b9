"""Faults of a node, as the roles' own checks see them in an observation, and the name they get.

The observation is that of the converged A100 node in tests/unit/verify.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railweld.doctor.catalogue import load
from railweld.doctor.diagnosis import Diagnosis, Doctor
from railweld.record import Check, Status
from railweld.verify import registry
from railweld.verify.context import Context

OBSERVED = Path(__file__).parents[1] / "verify/observations/a100-base.json"
ROLES = ("chrony", "nvidia_driver", "fabric_manager", "cuda", "nccl")


def diagnose(changes: dict[str, Any]) -> Diagnosis:
    tree = json.loads(OBSERVED.read_text())
    for path, value in changes.items():
        *parents, last = path.split(".")
        here = tree["node"]
        for key in parents:
            here = here[key]
        here[last] = value
    ctx = Context(site=tree["site"], host=tree["host"], node=tree["node"])
    doctor = Doctor(load())
    doctor.judge(registry.evaluate(ctx, ROLES))
    return doctor.diagnose()


def test_healthy_node_gets_no_blame() -> None:
    assert diagnose({}).incidents == []


FAULTS = [
    ("chrony-unsynced", {"time.daemon": "inactive"}),
    ("chrony-unsynced", {"time.synced": False, "time.leap": "Not synchronised"}),
    ("clock-offset", {"time.offset_s": 0.8}),
    ("driver-mismatch", {
        "driver.loaded": "515.65.01",
        "driver.smi": {"ok": False, "installed": True, "error": "Driver/library version mismatch"},
    }),
    ("gpu-missing", {"gpus": json.loads(OBSERVED.read_text())["node"]["gpus"][:7]}),
    ("nouveau", {"nouveau.rivals_loaded": ["nouveau"]}),
    ("nouveau-not-blocked", {"nouveau.rivals_blacklisted": []}),
    ("holds", {"packages.libnccl2.hold": False}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "changes"), FAULTS, ids=[f"{c}-{n}" for n, (c, _) in enumerate(FAULTS)]
)
def test_fault_is_named(cause: str, changes: dict[str, Any]) -> None:
    assert diagnose(changes).causes[0].entry.id == cause


#: Checks that the other stages emit, and the name that one of them alone gets.
CHECKS = {
    "rdma.link": "link-down",
    "rdma.rate": "link-rate",
    "lldp.cabling": "cabling",
    "fabric.lldp": "cabling",
    "fabric.pfc": "pfc-off",
    "rdma.pfc": "host-pfc-off",
    "rdma.adapter_present": "hca-missing",
    "rdma.acs_off": "gdr-blocked",
    "rdma.dmabuf_kernel": "gdr-registration",
    "rdma.memlock": "memlock",
    "rail_network.address": "rail-address",
    "gpu.xid.0000:3b:00.79": "xid-hardware",
    "gpu.nvlink.0": "gpu-link",
    "nvme_cache.mounted": "nvme-cache",
    "nccl.traffic_class": "nccl-profile",
    "nccl.library": "cuda-package",
    "slurm.nodes": "slurm-gres",
}


@pytest.mark.parametrize(("check", "cause"), CHECKS.items())
def test_check_has_a_name(check: str, cause: str) -> None:
    doctor = Doctor(load())
    doctor.judge(
        [
            Check(
                id=check,
                layer="host",
                target="gpu7",
                status=Status.FAIL,
                ran="look",
                found="bad",
                expected="good",
            )
        ]
    )
    assert [each.entry.id for each in doctor.diagnose().causes] == [cause]


#: Checks that only warn, since a counter may be old, and what they show all the same.
WARNINGS = {"fabric.drops": "pfc-buffers", "fabric.watchdog_events": "pfc-storm"}


@pytest.mark.parametrize(("check", "cause"), [*WARNINGS.items(), ("lldp.neighbours", None)])
def test_a_warning_has_a_name_only_where_an_entry_asks_for_it(
    check: str, cause: str | None
) -> None:
    doctor = Doctor(load())
    doctor.judge(
        [
            Check(
                id=check,
                layer="fabric",
                target="leaf1",
                status=Status.WARN,
                ran="look",
                found="bad",
                expected="good",
            )
        ]
    )
    assert [each.entry.id for each in doctor.diagnose().causes] == ([cause] if cause else [])


#: The five classic faults as a user meets them: in a log.
CLASSIC = {
    "clock": ("munge-clock", "slurmd: error: Munge decode failed: Expired credential"),
    "data loading": (
        "dataloader-died",
        "[rank3]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
    ),
    "gres name": (
        "slurm-gres",
        "error: Batch job submission failed: Invalid generic resource (gres) specification",
    ),
    "PFC buffers": ("pfc-buffers", "     rx_prio3_discards: 18221"),
    "wrong interface": (
        "bootstrap-no-iface",
        "train-0:88:99 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    ),
}


@pytest.mark.parametrize("fault", CLASSIC)
def test_classic_fault_is_named(fault: str) -> None:
    cause, log = CLASSIC[fault]
    doctor = Doctor(load())
    doctor.read_blocks("log", [log.encode()])
    assert doctor.diagnose().causes[0].entry.id == cause
