"""The stages that `railweld verify` knows, and what each of them is given and gives back.

A stage is a module with `verify_site(request) -> Verified`. To add one, put its name and module
into `STAGES`; it is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any, Final

from railweld.access import Access
from railweld.names import GROUP_CONTROL_PLANE, GROUP_SLURM_HEAD
from railweld.nodes import Answer, ask
from railweld.record import Check, Status
from railweld.site import RawInventory, Site
from railweld.site.build import require_site

#: Seconds that observing all nodes may take.
_OBSERVE_S: Final = 600
#: The task whose answer is a node's observation.
OBSERVE: Final = "Observe the node"

#: Stage → module with its `verify_site`, in the order in which they build on each other.
STAGES: Final = {
    "base": "railweld.verify.base",
    "gpu": "railweld.verify.gpu",
    "links": "railweld.verify.links",
    "fabric": "railweld.fabric.links",
    "cluster": "railweld.cluster.verify",
    "slurm": "railweld.slurm.verify",
}
#: Stage → what the probe has to read for it beyond what it always reads.
AREAS: Final = {"gpu": "health", "cluster": "cluster", "slurm": "slurm"}
#: Area of a check's id → the page about it, for records that name none themselves.
_PAGES: Final = {
    **dict.fromkeys(
        ("chrony", "cuda", "fabric_manager", "lldp", "nccl", "nvidia_driver", "nvme_cache",
         "package_lock", "preflight", "rail_network", "rdma"),
        "docs/base.md",
    ),
    "bridge": "docs/bridge.md",
    **dict.fromkeys(("cluster", "cni", "containerd", "job", "kubernetes"), "docs/cluster.md"),
    "fabric": "docs/fabric.md",
    "nccl_tests": "docs/bench.md",
    "slurm": "docs/slurm.md",
    "stack": "docs/stack.md",
}  # fmt: skip
#: The page about everything that a stage looks at by itself.
PAGE: Final = "docs/verify.md"
#: Area → the group without which a site has none of it.
_GROUPS: Final = {"cluster": GROUP_CONTROL_PLANE, "slurm": GROUP_SLURM_HEAD}


@dataclass(frozen=True)
class Seen:
    """One node: what the probe read (`railweld_node`), or why there is nothing."""

    node: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Table:
    """Rows that one look compares. A cell with a fault starts with `!`."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, str]]
    bad: Sequence[bool]  #: which rows have a fault


@dataclass(frozen=True)
class Verified:
    """What one stage found."""

    checks: Sequence[Check]
    tables: Sequence[Table] = ()


@dataclass
class Request:
    """The site, and how a stage looks at it.

    Attributes:
        access: the command line's inventories and variables.
        raw: the inventory as read.
        site: the description.
        limit: names, patterns or groups of hosts and switches; empty for all.
        jobs: how many switches or nodes at the same time.
        timeout_s: seconds that observing all nodes may take.
        pods: whether a stage may start pods that look, and take them away again.
        areas: what is read on nodes, for all stages of the run in one round trip.
    """

    access: Access
    raw: RawInventory
    site: Site
    limit: tuple[str, ...] = ()
    jobs: int = 32
    timeout_s: float = _OBSERVE_S
    pods: bool = False
    areas: frozenset[str] = frozenset(AREAS.values())
    _nodes: dict[str, Seen] = field(default_factory=dict)

    def selects(self, name: str) -> bool:
        """Whether `--limit` names this host or switch."""
        wanted = [part for text in self.limit for part in text.split(",") if part]
        return not wanted or any(
            fnmatch(name, pattern) or name in self.site.groups.get(pattern, ())
            for pattern in wanted
        )

    def nodes(self, names: Iterable[str]) -> dict[str, Seen]:
        """Observe these nodes; those that an earlier stage of this run observed are not asked."""
        wanted = sorted(set(names))
        missing = [name for name in wanted if name not in self._nodes]
        self.remember(missing, ask(self.access, missing, self._tasks(), timeout_s=self.timeout_s))
        return {name: self._nodes[name] for name in wanted}

    def _tasks(self) -> list[dict[str, Any]]:
        """What the role `observe` does: the site description once, the probe on each node."""
        load = {"railweld_site": {}, "register": "railweld", "run_once": True}
        areas = dict.fromkeys(sorted(self.areas), True)
        return [
            {"name": "Load the description", **load},
            {"name": OBSERVE, "railweld_probe": areas},
        ]

    def remember(self, names: Iterable[str], answers: Mapping[str, Mapping[str, Answer]]) -> None:
        """Take what nodes answered; those of whom nothing came did not answer in time."""
        for name in names:
            given = answers.get(name, {})
            answer = given.get(OBSERVE) or next(iter(given.values()), None)
            if answer is None:
                seen = Seen(reason=f"no answer within {self.timeout_s:g} s")
            elif answer.status == "ok":
                seen = Seen(node=answer.result["ansible_facts"]["railweld_node"])
            else:
                seen = Seen(reason=f"{answer.status}: {answer.reason}")
            self._nodes[name] = seen


def verify(request: Request, stage: str) -> Verified:
    """Look at one stage."""
    module: Any = importlib.import_module(STAGES[stage])
    verified: Verified = module.verify_site(request)
    return replace(verified, checks=[_with_page(check) for check in verified.checks])


def _with_page(check: Check) -> Check:
    """The record with the page that explains it; of a skipped one the reference is the reason."""
    if check.ref or check.status is Status.SKIPPED:
        return check
    return replace(check, ref=_PAGES.get(check.id.partition(".")[0], PAGE))


def records(found: Mapping[str, Verified]) -> list[Check]:
    """What several stages found, each record once: some of them look at the same thing."""
    return list(dict.fromkeys(check for each in found.values() for check in each.checks))


def request_for(
    access: Access,
    *,
    looks: Iterable[str] = STAGES,
    limit: Sequence[str] | None = None,
    jobs: int = 32,
    pods: bool = False,
) -> Request:
    """Read and check the description that a command line names.

    Args:
        access: what the command line says.
        looks: the stages that will be looked at: they share one observation of each node.
        limit: as in `Request`.
        jobs: as in `Request`.
        pods: as in `Request`.

    Raises:
        SiteError: everything that is wrong with it.
    """
    raw = access.load()
    site = require_site(raw)
    areas = {AREAS[stage] for stage in looks if stage in AREAS}
    absent = {area for area, group in _GROUPS.items() if not site.groups.get(group)}
    return Request(
        access, raw, site, limit=tuple(limit or ()), jobs=jobs, pods=pods,
        areas=frozenset(areas - absent),
    )  # fmt: skip
