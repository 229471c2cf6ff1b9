"""What has to happen for a changed configuration to count: nothing, a reconfigure, a restart.

The data is in `parameters.yml`. What it does not name takes effect with `scontrol reconfigure`,
as the manual says. No action here ends a job; a change that would is refused while jobs are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from railweld.bridge import hook
from railweld.slurm.conf import HOOK
from railweld.slurm.hostlist import unfold

_LINES: Final = ("NodeName", "PartitionName")
#: Attributes of a node line that may list one value per node.
_PER_NODE: Final = frozenset({"NodeAddr", "NodeHostname", "Port"})


@dataclass(frozen=True)
class Blocked:
    """A change that needs nodes or a cluster without jobs.

    Attributes:
        what: the change in one phrase.
        why: what it would do to jobs.
        nodes: nodes that must be free of jobs; empty means all.
        partition: or the partition whose jobs must have ended.
    """

    what: str
    why: str
    nodes: tuple[str, ...] = ()
    partition: str = ""


@dataclass
class Effect:
    """What a change needs.

    Attributes:
        reconfigure: `scontrol reconfigure`.
        controller: a restart of slurmctld.
        nodes: a restart of these nodes' slurmd.
        all_nodes: a restart of every slurmd.
        reasons: key or line → what is done because of it, for people.
        blocked: what must not happen while jobs are there.
    """

    reconfigure: bool = False
    controller: bool = False
    nodes: set[str] = field(default_factory=set)
    all_nodes: bool = False
    reasons: list[str] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True when the files say what the daemons run with."""
        return not (self.reconfigure or self.controller or self.nodes or self.all_nodes)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "reconfigure": self.reconfigure,
            "controller": self.controller,
            "nodes": sorted(self.nodes),
            "all_nodes": self.all_nodes,
            "reasons": self.reasons,
            "blocked": [vars(each) for each in self.blocked],
        }


@cache
def _data() -> dict[str, Any]:
    text = resources.files("railweld.slurm").joinpath("parameters.yml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def effect(before: Mapping[str, str], after: Mapping[str, str]) -> Effect:
    """Compare two sets of files, by name (`slurm.conf`, `gres.conf`, `cgroup.conf`).

    Args:
        before: what the daemons were last told; empty when nobody knows.
        after: what they shall run with.
    """
    found = Effect()
    if not before:
        # A first installation, or a run that was cut off: whatever runs may run with anything.
        found.controller = found.all_nodes = True
        found.reasons.append("nothing is known about what the daemons run with")
        return found
    _slurm_conf(found, before.get("slurm.conf", ""), after.get("slurm.conf", ""))
    for name, why in (
        ("gres.conf", "read by slurmd at its start"),
        ("cgroup.conf", "read by slurmd at its start"),
    ):
        if before.get(name) != after.get(name):
            found.all_nodes = found.reconfigure = True
            found.reasons.append(f"{name}: {why}")
    _bridge(found, before.get(HOOK, ""), after.get(HOOK, ""))
    for name in sorted({*before, *after} - {"slurm.conf", "gres.conf", "cgroup.conf"}):
        if before.get(name) != after.get(name):
            found.reconfigure = True
            found.reasons.append(f"{name}: read again by slurmctld")
    return found


def _bridge(found: Effect, before: str, after: str) -> None:
    """A job that was submitted before its partition became the bridge's, or after, cannot run."""
    old, new = hook.partitions(before), hook.partitions(after)
    for name in sorted({*old, *new}):
        if (name in old) == (name in new):
            continue
        words = ("joins the bridge", "they were submitted as plain ones")
        if name in old:
            words = ("leaves the bridge", "their scripts begin with the bridge's client")
        found.blocked.append(Blocked(f"partition {name} {words[0]}", words[1], partition=name))


def _slurm_conf(found: Effect, before: str, after: str) -> None:
    old, new = parse(before), parse(after)
    for key in sorted({*old.values, *new.values}):
        if old.values.get(key) != new.values.get(key):
            _parameter(found, key, old.values.get(key), new.values.get(key))
    _nodes(found, old.lines["NodeName"], new.lines["NodeName"])
    _partitions(found, old.lines["PartitionName"], new.lines["PartitionName"])


def _parameter(found: Effect, key: str, old: str | None, new: str | None) -> None:
    data = _data()
    said = f"{key}: {old or 'default'} -> {new or 'default'}"
    if key in data["empty"]:
        found.blocked.append(Blocked(what=said, why=data["empty"][key]))
    if key in data["empty"] or key in data["all"]:
        found.controller = found.all_nodes = True
        found.reasons.append(f"{said}: restart of slurmctld and every slurmd")
    elif key in data["controller"]:
        found.controller = True
        found.reasons.append(f"{said}: restart of slurmctld")
    elif key in data["node"]:
        found.all_nodes = found.reconfigure = True
        found.reasons.append(f"{said}: restart of every slurmd")
    else:
        found.reconfigure = True
        found.reasons.append(f"{said}: reconfigure")


def _nodes(
    found: Effect, old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]
) -> None:
    data = _data()
    gone = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    if gone:
        found.blocked.append(
            Blocked(
                what=f"removal of {', '.join(gone)}",
                why="slurmctld ends jobs on nodes that it does not know",
                nodes=tuple(gone),
            )
        )
    if gone or added:
        # Every slurmd passes messages on and so has to know every node.
        found.controller = found.all_nodes = True
        verb = ", ".join([*(f"+{name}" for name in added), *(f"-{name}" for name in gone)])
        found.reasons.append(f"nodes {verb}: restart of slurmctld and every slurmd")
    changed: dict[str, list[str]] = {}
    for name in old:
        if name not in new:
            continue
        for key in sorted({*old[name], *new[name]}):
            if old[name].get(key) != new[name].get(key):
                changed.setdefault(key, []).append(name)
    for key, names in changed.items():
        said = f"{key} of {', '.join(names)}"
        if key in data["node_reconfigure"]:
            found.reconfigure = True
            found.reasons.append(f"{said}: reconfigure")
            continue
        if key in data["node_empty"]:
            found.blocked.append(
                Blocked(
                    what=said,
                    why="jobs there hold what would no longer be counted",
                    nodes=tuple(names),
                )
            )
        found.controller = True
        found.nodes.update(names)
        found.reasons.append(f"{said}: restart of slurmctld and their slurmd")


def _partitions(
    found: Effect, old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]
) -> None:
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        found.reconfigure = True
        found.reasons.append(f"partition {name}: reconfigure")
        if name not in new:
            found.blocked.append(
                Blocked(
                    what=f"removal of partition {name}",
                    why="slurmctld cancels the jobs of a partition that is gone",
                    partition=name,
                )
            )


@dataclass
class Parsed:
    """slurm.conf read as far as a comparison needs it."""

    values: dict[str, str] = field(default_factory=dict)
    #: `NodeName` and `PartitionName` → single name → attributes.
    lines: dict[str, dict[str, dict[str, str]]] = field(
        default_factory=lambda: {name: {} for name in _LINES}
    )


def parse(text: str) -> Parsed:
    """Read a file that railweld wrote: one parameter a line, one node or partition line each."""
    found = Parsed()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        key, _, value = words[0].partition("=")
        if key not in _LINES:
            found.values[key] = line.partition("#")[0].partition("=")[2].strip()
            continue
        attributes = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if key == "PartitionName":
            found.lines[key][value] = attributes
            continue
        names = unfold(value)
        for number, name in enumerate(names):
            found.lines[key][name] = {
                attribute: _own(attribute, each, number, len(names))
                for attribute, each in attributes.items()
            }
    return found


def _own(key: str, value: str, number: int, count: int) -> str:
    """A node's own part of `Port=[17001-17016]`, or the value that all share."""
    if key not in _PER_NODE:
        return value
    each = unfold(value)
    return each[number] if len(each) == count else value
