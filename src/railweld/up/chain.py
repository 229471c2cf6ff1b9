"""The stages of a site in order, each as the commands that do it, plan it and need something.

Nothing here knows how a stage works. A stage is done when its commands say so, and running it
again when it is done changes nothing: that is why `railweld up` needs no memory to continue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from railweld.access import Access, shown
from railweld.errors import UsageError
from railweld.names import GROUP_CONTROL_PLANE, GROUP_SLURM_HEAD, KUBECONFIG
from railweld.site.model import Site
from railweld.slurm.model import bridged
from railweld.state import site_state_dir

#: Exit codes that a plan ends with when it found something to do.
_CHANGES: Final = 2
#: Seconds that a gate gives what settles by itself: neighbours that are heard, pods that start.
_WAIT_S: Final = "300"


@dataclass(frozen=True)
class Command:
    """One program to run in the repository's folder; these exit codes are fine."""

    argv: tuple[str, ...]
    fine: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        return shown(self.argv)


@dataclass(frozen=True)
class Context:
    """What the commands of all stages are made from."""

    site: Site
    access: Access
    repository: Path
    report: Path
    junit: Path | None = None
    disruptive: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What commands without Ansible's options are told: Pulumi's program reads a vault too."""
        file = self.access.vault_password_file
        return {"ANSIBLE_VAULT_PASSWORD_FILE": file} if file else {}

    def railweld(self, *words: str, fine: tuple[int, ...] = (0,)) -> Command:
        """A railweld command about this site."""
        return Command(("railweld", *words, *self.access.options), fine)

    def playbook(self, name: str, *words: str) -> Command:
        """A playbook on this site."""
        return Command(("ansible-playbook", *self.access.options, f"playbooks/{name}", *words))

    def pulumi(self, *words: str, fine: tuple[int, ...] = (0,)) -> Command:
        """A Pulumi command on this site's stack."""
        return Command(("pulumi", "--cwd", "pulumi", *words), fine)


Commands = Callable[[Context], Sequence[Command]]


@dataclass(frozen=True)
class Stage:
    """One link of the chain.

    Attributes:
        name: as `--to` and `--from` take it.
        what: what it brings, for the operator.
        apply: commands that do it.
        plan: commands that show what apply would do.
        programs: what has to be on PATH.
        skip: why this site has no such stage; empty if it has.
        not_yet: why there can be no plan yet; empty if there can.
    """

    name: str
    what: str
    apply: Commands
    plan: Commands
    programs: tuple[str, ...] = ()
    skip: Callable[[Site], str] = field(default=lambda _: "")
    not_yet: Callable[[Site], str] = field(default=lambda _: "")


def _without(group: str) -> Callable[[Site], str]:
    return lambda site: "" if site.groups.get(group) else f"no host in group {group}"


def _no_switches(site: Site) -> str:
    if site.transport == "infiniband":
        return "an InfiniBand fabric is managed by its subnet manager"
    return "" if site.switches else "no switches described"


def _no_cluster_yet(site: Site) -> str:
    path = site_state_dir(site.name) / KUBECONFIG
    return "" if path.exists() else "needs the cluster, which stage cluster makes"


def _no_cluster_for_jobs(site: Site) -> str:
    return _no_cluster_yet(site) if bridged(site) else ""


def _stack(context: Context) -> list[Command]:
    for found, what in (
        (context.access.inventory[1:], "inventories, expected one: its settings name one"),
        (context.access.extra_vars, "variables, expected none: its program reads the inventory"),
    ):
        if found:
            raise UsageError(
                f"stage stack: found more {what}. Fix: put all into one folder and give that with "
                "-i, or stop earlier with --to cluster"
            )
    inventory = os.path.relpath(context.access.inventory[0], context.repository / "pulumi")
    name = context.site.name
    return [
        context.pulumi("stack", "select", "--create", name),
        context.pulumi("config", "set", "--stack", name, "railweld:site", inventory),
        context.pulumi("up", "--stack", name, "--yes", "--skip-preview", "--suppress-progress"),
        context.railweld("verify", "--stage", "cluster", "--wait", _WAIT_S),
    ]


def _fabric(context: Context) -> list[Command]:
    push = context.railweld("fabric", "push", "--yes", *_if(context.disruptive, "--disruptive"))
    return [push, context.railweld("verify", "--stage", "fabric", "--wait", _WAIT_S)]


def _proof(context: Context) -> list[Command]:
    junit = _if(context.junit, "--junit", str(context.junit))
    return [context.railweld("report", "--output", str(context.report), *junit)]


def _if(wanted: object, *words: str) -> tuple[str, ...]:
    return words if wanted else ()


def _playbook(
    name: str,
    what: str,
    playbook: str,
    skip: Callable[[Site], str] = lambda _: "",
    not_yet: Callable[[Site], str] = lambda _: "",
) -> Stage:
    """A stage that is one playbook: its plan is check mode."""
    return Stage(
        name,
        what,
        lambda context: [context.playbook(playbook)],
        lambda context: [context.playbook(playbook, "--check", "--diff")],
        programs=("ansible-playbook",),
        skip=skip,
        not_yet=not_yet,
    )


CHAIN: Final = (
    Stage(
        "check",
        "the description agrees with itself",
        lambda context: [context.railweld("check")],
        lambda context: [context.railweld("check")],
    ),
    _playbook("base", "driver, CUDA, NCCL, time and rails on every node", "deploy-base.yml"),
    Stage(
        "fabric",
        "switches that are lossless for the class that the hosts use",
        _fabric,
        lambda context: [context.railweld("fabric", "plan", fine=(0, _CHANGES))],
        skip=_no_switches,
    ),
    _playbook(
        "cluster", "a Kubernetes cluster", "deploy-cluster.yml", _without(GROUP_CONTROL_PLANE)
    ),
    Stage(
        "stack",
        "the cluster's add-ons",
        _stack,
        lambda context: [context.railweld("stack", "diff", fine=(0, _CHANGES))],
        programs=("pulumi",),
        skip=_without(GROUP_CONTROL_PLANE),
        not_yet=_no_cluster_yet,
    ),
    _playbook(
        "slurm",
        "sbatch, and pods on the nodes that Slurm allocated",
        "deploy-slurm.yml",
        _without(GROUP_SLURM_HEAD),
        _no_cluster_for_jobs,
    ),
    Stage(
        "proof",
        "everything observed, and a report",
        _proof,
        lambda _: [],
        not_yet=lambda _: "looks at what the other stages leave",
    ),
)


def chosen(first: str | None, last: str | None) -> list[Stage]:
    """The stages from one to another, both included.

    Raises:
        UsageError: no such stage, or they are the wrong way round.
    """
    names = [stage.name for stage in CHAIN]
    for option, name in (("--from", first), ("--to", last)):
        if name is not None and name not in names:
            raise UsageError(f"{option}: found {name!r}, expected one of {', '.join(names)}")
    start = names.index(first) if first else 0
    end = names.index(last) if last else len(names) - 1
    if start > end:
        raise UsageError(f"found --from {first} after --to {last}, expected it before or the same")
    return list(CHAIN[start : end + 1])
