"""What a report is made of: the description, what was found, and the last measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

from railweld.bench.output import MeasuredRun, Measurement
from railweld.errors import UsageError
from railweld.record import Check, Status
from railweld.runs import Run
from railweld.site.model import Site
from railweld.verify.stages import Table

#: Statuses from worst to best, as findings are listed.
ORDER: Final = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.SKIPPED, Status.PASS)
#: The same for the state of a thing: one pass says more than something that was not looked at.
ORDER_OF_STATE: Final = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS, Status.SKIPPED)
#: Component → the checks that read its version on a machine.
_READ: Final = {
    "driver": ("nvidia_driver.loaded", "nvidia_driver.on_disk", "nvidia_driver.package.*"),
    "fabric_manager": ("fabric_manager.version", "fabric_manager.package.*"),
    "cuda": ("cuda.nvcc", "cuda.package.*"),
    "nccl": ("nccl.library", "nccl.header", "nccl.package.*"),
    "doca": ("rdma.ofed",),
    "rdma": ("rdma.package.*",),
    "container_toolkit": ("containerd.package.*nvidia-container*",),
    "kubernetes": ("kubernetes.package.*", "kubernetes.version"),
    "containerd": ("containerd.package.containerd*", "containerd.package.runc"),
    "slurm": ("slurm.package.*",),
}
#: What switches have instead of packages.
_LINES: Final = ("switch configuration", "as described", ("fabric.config",))
#: Instead of a port: the machine with all of them.
_ALL: Final = "*"


@dataclass(frozen=True)
class Link:
    """A cable as described: two ends, each a machine and its port, and what was found on it."""

    ends: tuple[str, str]
    ports: tuple[str, str]
    rail: int | None
    state: Status


@dataclass(frozen=True)
class Version:
    """What is described of a component, and what machines have.

    Attributes:
        name: the component.
        described: its version.
        same: how many machines have it as described.
        drift: machine → what it has instead, or why that is not known.
    """

    name: str
    described: str
    same: int
    drift: Mapping[str, str]


@dataclass(frozen=True)
class Data:
    """A report's content.

    Attributes:
        site: the description.
        checks: what `railweld verify` found.
        tables: its tables, one per comparison.
        bench: what `railweld bench --json` printed, or None.
        made: when the machines were looked at.
        runs: the last runs of playbooks from this controller, with what hosts had to do.
    """

    site: Site
    checks: Sequence[Check]
    tables: Sequence[Table]
    bench: Measurement | None
    made: datetime
    runs: Sequence[Run] = ()

    @cached_property
    def _worst(self) -> dict[tuple[str, str], Status]:
        """The worst that was found, by machine and port, and by machine with all its ports."""
        found: dict[tuple[str, str], Status] = {}
        for check in self.checks:
            machine, port = check.place
            for place in {(machine, port), (machine, _ALL)}:
                known = found.get(place, Status.SKIPPED)
                found[place] = min(known, check.status, key=ORDER_OF_STATE.index)
        return found

    def state(self, machine: str, port: str | None = None) -> Status:
        """The worst that was found on a machine and its ports, or on one port; else skipped."""
        return self._worst.get((machine, _ALL if port is None else port), Status.SKIPPED)

    @cached_property
    def links(self) -> list[Link]:
        """Every described cable once."""
        found = []
        for switch in self.site.switches.values():
            for port in switch.ports:
                if port.kind == "uplink" and (port.peer, port.peer_port) < (switch.name, port.name):
                    continue
                ends = (switch.name, port.name), (port.peer, port.peer_port)
                state = min((self.state(*end) for end in ends), key=ORDER_OF_STATE.index)
                found.append(
                    Link((switch.name, port.peer), (port.name, port.peer_port), port.rail, state)
                )
        return found

    @property
    def versions(self) -> list[Version]:
        """Each component as described, beside the machines that have something else."""
        by_id: dict[str, list[Check]] = {}
        for check in self.checks:
            by_id.setdefault(check.id, []).append(check)
        components = self.site.versions.versions.components()
        rows = [(name, each.version, _READ.get(name, ())) for name, each in components.items()]
        if _LINES[2][0] in by_id:
            rows.append(_LINES)
        return [
            _version(name, described, [
                check
                for id_, checks in by_id.items()
                if any(fnmatchcase(id_, pattern) for pattern in patterns)
                for check in checks
            ])
            for name, described, patterns in rows
        ]  # fmt: skip

    @property
    def findings(self) -> list[Check]:
        """Everything that is not a pass, worst first, then by machine."""
        return sorted(
            (check for check in self.checks if check.status is not Status.PASS),
            key=lambda check: (ORDER.index(check.status), check.target, check.id),
        )

    @property
    def counts(self) -> dict[str, int]:
        """Records by status, in the order of findings."""
        return {
            str(status): sum(check.status is status for check in self.checks) for status in ORDER
        }


def _version(name: str, described: str, checks: Iterable[Check]) -> Version:
    drift: dict[str, list[str]] = {}
    machines = set()
    for check in checks:
        machine = check.place[0]
        machines.add(machine)
        if check.is_bad:
            drift.setdefault(machine, []).append(check.found)
    told = {machine: "; ".join(dict.fromkeys(found)) for machine, found in sorted(drift.items())}
    return Version(name, described, len(machines) - len(told), told)


def read_bench(path: Path, site: Site) -> Measurement:
    """Read what `railweld bench --json` printed.

    Raises:
        UsageError: the file cannot be read, is something else, or is of another site.
    """
    try:
        found = Measurement.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        first = " ".join(str(error).split("[type=")[0].split())
        raise UsageError(
            f"{path}: found {first}, expected the output of: railweld bench --json > {path.name}"
        ) from error
    if found.site != site.name:
        raise UsageError(f"{path}: found site {found.site!r}, expected {site.name!r}")
    return found


def now() -> datetime:
    """The present, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def pairs(runs: Iterable[MeasuredRun]) -> dict[tuple[str, str], float | None]:
    """Bus bandwidth in GB/s by pair of nodes; None where the run gave none."""
    return {(run.nodes[0], run.nodes[1]): run.busbw_gb_per_s for run in runs if len(run.nodes) == 2}
