"""Carries the state of Kubernetes nodes to Slurm, never the other way.

Only what the bridge itself has set is taken back: every reason of its own begins with its prefix,
and a node that anyone else drained or downed is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from railweld import names
from railweld.bridge.observed import NodeView
from railweld.bridge.slurm import SlurmNode

DOWN: Final = "down"
DRAIN: Final = "drain"


@dataclass(frozen=True)
class Change:
    """One update of a Slurm node."""

    node: str
    state: str
    reason: str | None


@dataclass(frozen=True)
class Wanted:
    """What a Slurm node should be because of its Kubernetes node; `state` is empty for usable."""

    state: str
    reason: str


def wanted(view: NodeView | None, expected: Mapping[str, int], *, away: bool) -> Wanted:
    """What follows from a Kubernetes node.

    Args:
        view: of the node, None when there is none.
        expected: devices that it must offer.
        away: whether it has been unready for longer than a kubelet's restart takes.
    """
    if view is None:
        return Wanted(DOWN, "no such node in Kubernetes")
    if not view.ready and away:
        return Wanted(DOWN, f"NotReady: {view.reason}")
    if view.cordoned:
        return Wanted(DRAIN, "cordoned")
    if view.ready:
        for resource, count in sorted(expected.items()):
            found = view.devices.get(resource, 0)
            if found < count:
                return Wanted(DRAIN, f"{found} of {count} {resource} allocatable")
    return Wanted("", "")


def plan(
    slurm: Mapping[str, SlurmNode],
    views: Mapping[str, NodeView],
    hostnames: Mapping[str, str],
    expected: Mapping[str, Mapping[str, int]],
    *,
    away: Set[str],
    occupied: Set[str],
) -> Iterator[Change]:
    """The updates that Slurm's nodes need.

    Args:
        slurm: nodes of the bridge partitions, by name.
        views: Kubernetes nodes by `kubernetes.io/hostname`.
        hostnames: that label of each Slurm node.
        expected: devices of each Slurm node.
        away: hostnames of nodes that have been unready for too long.
        occupied: hostnames where a pod of an ended job may still run.
    """
    for name, node in sorted(slurm.items()):
        host = hostnames.get(name, name)
        want = wanted(views.get(host), expected.get(name, {}), away=host in away)
        reason = f"{names.BRIDGE_REASON}{want.reason}"
        ours = node.reason.startswith(names.BRIDGE_REASON)
        if (node.down or node.drained) and not ours:
            # An administrator's, or Slurm's own.
            continue
        if want.state == DOWN:
            if not node.down or node.reason != reason:
                yield Change(name, "DOWN", reason)
        elif want.state == DRAIN:
            if node.down:
                if host not in occupied:
                    yield Change(name, "RESUME", None)
            elif not node.drained or node.reason != reason:
                yield Change(name, "DRAIN", reason)
        elif (node.down or node.drained) and host not in occupied:
            view = views.get(host)
            if view is not None and view.ready:
                yield Change(name, "RESUME", None)
