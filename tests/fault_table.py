"""What each fault of the lab turns red, and the cause that doctor names: the one place for it.

A row is about a lab with base and fabric, on which everything is as described. `red` has, by
machine, the ids of the checks that fail or cannot look while the fault is there; nothing else may
turn red. No check for a fault that passes by itself, or that only the next installation or a
measurement would meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        red: machine, or SITE → ids of checks, without what is filled in at run time
            (`gpu.nvlink.*`).
        cause: id of doctor's entry; empty where nothing is wrong with the node now.
        settings: how the fault is made; short where it passes by itself.
        node: where it is made.
        stage: `base` for what a deployed base and fabric show, `cluster` for what needs a cluster
            with its stack (tests/integration/cluster), `slurm` for what needs a Slurm with a node
            that has a slurmd of its own (tests/integration/slurm).
        why: why nothing turns red.
    """

    red: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cause: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    node: str = "gpu1"
    stage: str = "base"
    why: str = ""


#: In place of a machine: checks about the cluster as a whole.
SITE: Final = "site"


def _gpu1(*ids: str) -> dict[str, frozenset[str]]:
    return {"gpu1": frozenset(ids)}


#: What a member cannot show without an API server.
_MEMBER: Final = frozenset({"kubernetes.member", "cni.config", "cni.ready", "cni.routes"})
_INSTALLATION: Final = "only an installation would meet it; tests/faults/test_base.py does"

#: Faults of nodes: every name of `railweld lab fault`.
NODES: Final[dict[str, Row]] = {
    "api-stopped": Row(
        {
            SITE: frozenset({"cluster.reached"}),
            "head1": _MEMBER | {"kubernetes.api"},
            "gpu1": _MEMBER,
            "gpu2": _MEMBER,
        },
        "apiserver-down",
        node="head1",
        stage="cluster",
    ),
    "apt-lock": Row(settings={"seconds": 5}, why="somebody installs; that passes"),
    "build-fails": Row(why=_INSTALLATION),
    "cable-moved": Row(
        _gpu1("lldp.cabling"), "cabling", {"hca": "mlx5_0", "port": "Ethernet9/1"}
    ),
    "chrony-stopped": Row(_gpu1("chrony.daemon"), "chrony-unsynced"),
    "clock-offset": Row(_gpu1("chrony.offset"), "clock-offset", {"ms": 800}),
    "device-plugin-gone": Row(
        _gpu1("cluster.gpus"), "gpu-unhealthy", {"resource": "gpu"}, stage="cluster"
    ),
    "disk-full": Row(_gpu1("preflight.disk.*"), "disk-full", {"path": "/var"}),
    "driver-mismatch": Row(
        _gpu1("nvidia_driver.loaded", "fabric_manager.version", "gpu.health"), "driver-mismatch"
    ),
    "gpu-missing": Row(
        _gpu1("nvidia_driver.pci_gpus", "nvidia_driver.gpu_count", "gpu.nvlink.*"),
        "gpu-missing",
        {"count": 1},
    ),
    "gpu-unhealthy": Row(
        _gpu1("cluster.gpus"), "gpu-unhealthy", {"count": 1}, stage="cluster"
    ),
    "hca-down": Row(_gpu1("rdma.link"), "link-down", {"hca": "mlx5_0"}),
    "headers-missing": Row(why=_INSTALLATION),
    "image-missing": Row(_gpu1("containerd.images", "stack.agent"), "image-pull", stage="cluster"),
    "kubelet-stopped": Row(
        _gpu1("kubernetes.kubelet", "cni.addons", "cni.ready", "stack.agent"),
        "kubelet-lost",
        stage="cluster",
    ),
    "link-rate": Row(_gpu1("rdma.rate"), "link-rate", {"hca": "mlx5_0", "gbps": 25}),
    "munge-skew": Row(
        {"gpu2": frozenset({"slurm.reached"})}, "munge-clock", node="gpu2", stage="slurm"
    ),
    "no-time-source": Row(_gpu1("chrony.synchronised"), "chrony-unsynced"),
    "node-drained": Row(node="gpu2", stage="slurm", why="an administrator's decision, not a fault"),
    "nouveau-loaded": Row(
        _gpu1(
            "nvidia_driver.nouveau", "nvidia_driver.loaded", "fabric_manager.version", "gpu.health"
        ),
        "nouveau",
    ),
    "power-cut": Row(settings={"seconds": 1}, why="the node is back, and boots to what it was"),
    "repository-down": Row(why=_INSTALLATION),
    "repository-version": Row(settings={"hide": "libnccl2"}, why=_INSTALLATION),
    "secure-boot": Row(
        _gpu1("nvidia_driver.secure_boot_key"), "secure-boot", {"state": "on"}
    ),
    "slow-build": Row(why=_INSTALLATION),
    "slurmctld-restart": Row(
        node="head1", stage="slurm", why="it comes back with the state that it saved"
    ),
    "slow-link": Row(
        settings={"peer": "gpu2"}, why="only a measurement sees it: tests/proof/test_wire_speed.py"
    ),
    "slow-unpack": Row(why=_INSTALLATION),
    "ssh-cut": Row(settings={"seconds": 5}, why="sessions break for seconds; that passes"),
    "unattended-upgrade": Row(settings={"seconds": 1}, why="an upgrade that ends"),
}  # fmt: skip

_PORT: Final = {"ports": "Ethernet1/1"}

#: Faults of switches that a look at a fabric meets.
SWITCHES: Final[dict[str, Row]] = {
    "cables-swapped": Row(
        {"leaf1": frozenset({"fabric.lldp"})},
        "cabling",
        {"ports": "Ethernet1/1,Ethernet2/1"},
        node="leaf1",
    ),
    "ecn-not-counting": Row(settings=_PORT, node="leaf1", why="a warning: nothing is lost yet"),
    "line-down": Row(
        {"leaf1": frozenset({"fabric.link", "fabric.lldp", "fabric.pfc", "fabric.watchdog"})},
        "link-down",
        _PORT,
        node="leaf1",
    ),
    "pfc-inactive": Row(
        {"leaf1": frozenset({"fabric.pfc"})}, "pfc-off", _PORT, node="leaf1"
    ),
    "watchdog-inactive": Row(
        {"leaf1": frozenset({"fabric.watchdog"})}, "fabric-config", _PORT, node="leaf1"
    ),
}  # fmt: skip

#: Faults of switches that happen to a push, a login or a reader: proved in tests/integration/fabric
#: and tests/unit/veos, where the switch's clock and lines are the test's own.
DIALOGUE: Final = frozenset(
    {
        *("abort-refused", "agent-initialising", "banner", "call", "class-ranges", "clock-prompt"),
        *("confirm", "denied", "disconnect", "drops-after-commit", "duplicate-echo", "expire"),
        *("foreign-pending", "foreign-timer", "hang", "hostname", "lock", "no-json"),
        *("own-leftover", "pause-after-commit", "prompt-chars", "refuse", "reload"),
        *("running-change", "save-fails", "session-limit", "session-output", "show-empty"),
        *("show-refused", "slow", "slow-echo", "slow-save", "supervisor", "warn"),
    }
)


def pattern_of(check: str) -> str:
    """A check's id with what was filled in at run time as `*`."""
    area, _, rest = check.partition(".")
    what, dot, _ = rest.partition(".")
    return f"{area}.{what}.*" if dot else check


def by_checks(said: Mapping[str, Any]) -> set[str]:
    """Causes in doctor's answer that a check shows; what else a journal says is no row's matter."""
    return {
        cause["id"]
        for incident in said["incidents"]
        for cause in incident["causes"]
        if any(line["where"] == "check" for line in cause["evidence"])
    }
