"""What runs of playbooks leave for later readers: one JSON file each, in the site's state folder.

The callback `railweld` writes them; `railweld report` reads the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from railweld import state

#: Playbook → the stage that it belongs to, as journal and reports name it.
STAGES: Final = {
    "deploy-base": "base",
    "verify-base": "base",
    "deploy-fabric": "fabric",
    "deploy-cluster": "cluster",
    "upgrade-cluster": "cluster",
    "remove-node": "cluster",
    "deploy-slurm": "slurm",
    "deploy-bench": "bench",
}
#: So many files are opened at most, newest first: one of 1,280 nodes has 85 MB, 0.2 s to read.
_OPENED: Final = 15
#: Of a host's reasons for one role this many are shown.
_REASONS: Final = 1


def stage_of(playbook: str) -> str:
    """Stage of a playbook; a playbook of the site's own is a stage of its own."""
    stem = Path(playbook).stem
    return STAGES.get(stem, stem)


def folder(site: str) -> Path:
    """Where the files of a site's runs are, created if missing."""
    path = state.site_state_dir(site) / "reports"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


class _Read(BaseModel):
    """A part of such a file; what a report does not need is left out."""

    model_config = ConfigDict(frozen=True)


class Plan(_Read):
    """What a host had to do: roles, and by role why."""

    todo: list[str]
    reasons: dict[str, list[str]] = {}


class Failure(_Read):
    """Where a host failed."""

    role: str
    task: str
    reason: str


class Host(_Read):
    """One host of a run."""

    changed: int
    failures: int
    unreachable: int
    plan: Plan | None = None
    failure: Failure | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it did not come to its end."""
        return bool(self.failures or self.unreachable)


class Run(_Read):
    """One run of a playbook."""

    run: str
    stage: str
    playbook: str
    check_mode: bool
    began: datetime
    seconds: float
    hosts: dict[str, Host]

    @property
    def changed(self) -> int:
        """How many steps changed something."""
        return sum(host.changed for host in self.hosts.values())

    @property
    def failed(self) -> list[str]:
        """Hosts that did not come to their end."""
        return [name for name, host in self.hosts.items() if host.is_bad]

    @property
    def had_work(self) -> bool:
        """Whether a host was planned to change, was changed, or failed."""
        planned = any(host.plan and host.plan.todo for host in self.hosts.values())
        return bool(planned or self.changed or self.failed)

    @property
    def work(self) -> list[Work]:
        """What hosts had to do; those with the same plan and the same end together."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for name, host in self.hosts.items():
            todo = host.plan.todo if host.plan else []
            if not todo and not host.is_bad:
                continue
            why = "; ".join(_why(host.plan, name)) if host.plan else ""
            found.setdefault((", ".join(todo), why, _end(name, host)), []).append(name)
        return [Work(tuple(names), *texts) for texts, names in found.items()]


@dataclass(frozen=True)
class Work:
    """What some hosts had to do, why, and where they failed, "" where they did not."""

    hosts: tuple[str, ...]
    todo: str
    why: str
    failure: str


def _why(plan: Plan, name: str) -> Iterator[str]:
    for role, reasons in plan.reasons.items():
        shown = [_without(name, reason) for reason in reasons[:_REASONS]]
        more = len(reasons) - len(shown)
        yield "; ".join(shown) + (f" and {more} more of {role}" if more else "")


def _end(name: str, host: Host) -> str:
    if not host.is_bad:
        return ""
    if host.failure is None:
        return "unreachable" if host.unreachable else "failed"
    where = host.failure.role or host.failure.task
    return f"{where}: {_without(name, host.failure.reason)}"


def _without(name: str, text: str) -> str:
    """A sentence about a host without its name, so that equal ones are equal."""
    return text.removeprefix(f"{name}: ")


def last(site: str) -> list[Run]:
    """Of each stage the last run, and the last one that had work to do; oldest first.

    Runs in check mode changed nothing and do not count. A file that is no such run is left out.
    """
    found: dict[tuple[str, bool], Run] = {}
    # A run is named after its start.
    for path in sorted(folder(site).glob("*.json"), reverse=True)[:_OPENED]:
        run = _read(path)
        if run is None or run.check_mode:
            continue
        found.setdefault((run.stage, False), run)
        if run.had_work:
            found.setdefault((run.stage, True), run)
    each = {run.run: run for run in found.values()}
    return sorted(each.values(), key=lambda run: run.began)


def _read(path: Path) -> Run | None:
    try:
        return Run.model_validate_json(path.read_bytes())
    except ValueError:
        return None
