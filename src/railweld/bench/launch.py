"""Starts nccl-tests on nodes: inside one node directly, between nodes with mpirun or through Slurm.

Only the variables of the site's NCCL profile go along; nothing of the caller's environment does.
Runs as jobs of the bridge are in railweld.bench.bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from railweld import nccl
from railweld.bench import bridge
from railweld.bench.judge import Run
from railweld.bench.limits import Limit, nvlink_limit, rail_limit
from railweld.bench.results import parse
from railweld.errors import RailweldError
from railweld.names import GROUP_SLURM_HEAD, NCCL_TESTS
from railweld.nodes import Answer
from railweld.site.model import Site
from railweld.slurm.model import placement

Launcher = Literal["mpirun", "slurm", "bridge"]
#: host → argv, each started on its host; host → answer. A host without an answer ran out of time.
Start = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, Answer]]

#: Where the role nccl_tests puts the programs.
PROGRAMS: Final = f"{NCCL_TESTS}/bin"
TEST: Final = "all_reduce_perf"
#: Built with MPI=1 and this suffix, as the project's README names it.
MPI_TEST: Final = "all_reduce_perf_mpi"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a measurement is made.

    Attributes:
        max_bytes: largest message, in nccl-tests' own spelling (8G).
        iterations: repetitions of each size.
        timeout_s: seconds for one run; coreutils' timeout ends it on the node.
        gate: share of the limit that passes; None for the limits' own.
        launcher: how runs between nodes are started.
        programs: folder of nccl-tests on the nodes, or in the image for the bridge; None for the
            role's, and for what is on the image's PATH.
        user: whose jobs runs through the bridge are.
        image: of these jobs; None for the partition's.
    """

    max_bytes: str = "8G"
    iterations: int = 20
    timeout_s: int = 600
    gate: float | None = None
    launcher: Launcher = "mpirun"
    programs: str | None = None
    user: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class Planned:
    """A run before it is started: where its command runs, and the command."""

    nodes: tuple[str, ...]
    limit: Limit
    host: str
    argv: tuple[str, ...]
    shown: str = ""

    @property
    def command(self) -> str:
        """The command, for an operator to repeat."""
        return self.shown or " ".join(self.argv)


def plan_single(site: Site, node: str, options: Options) -> Planned:
    """All GPUs of one node, in one process."""
    count, model = _gpus(site, node)
    # Of the node itself: the other folder is in an image.
    programs = PROGRAMS if options.launcher == "bridge" else options.programs or PROGRAMS
    argv = [
        *_bounded(options),
        *_environment(site, [node]),
        f"{programs}/{TEST}",
        *("-b", "8", "-e", options.max_bytes, "-f", "2", "-g", str(count)),
        *("-n", str(options.iterations), "-w", "5", "-c", "1"),
    ]
    return Planned((node,), _gated(nvlink_limit(model), options), node, tuple(argv))


def plan_nodes(
    site: Site, nodes: Sequence[str], options: Options, *, largest_only: bool = False
) -> Planned:
    """All GPUs of several nodes, a process each, started from the first node or the Slurm head.

    Raises:
        RailweldError: nodes have different numbers of GPUs, no rails, or the launcher cannot
            start anything on them.
    """
    counts = {node: _gpus(site, node)[0] for node in nodes}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{node} {count}" for node, count in counts.items())
        raise RailweldError(
            f"bench: found different numbers of GPUs ({found}), expected the same on every node of "
            "a run. Fix: choose nodes of one kind with --nodes"
        )
    per_node = next(iter(counts.values()))
    first = options.max_bytes if largest_only else "8"
    folder = options.programs or ("" if options.launcher == "bridge" else PROGRAMS)
    program = [
        f"{folder}/{MPI_TEST}" if folder else MPI_TEST,
        *("-b", first, "-e", options.max_bytes, "-f", "2", "-g", "1"),
        *("-n", str(options.iterations), "-w", "5", "-c", "1"),
    ]
    limit = _gated(rail_limit(site, nodes), options)
    if options.launcher == "bridge":
        host, argv, shown = bridge.job(site, nodes, options, ranks=per_node, program=program)
        return Planned(tuple(nodes), limit, host, argv, shown)
    environment = _profile(site, nodes)
    if options.launcher == "slurm":
        host = _slurm_head(site)
        _refuse_virtual(site, nodes)
        start = [
            *("srun", "--job-name=railweld-bench", "--mpi=pmix", "--exclusive", "--label"),
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            f"--ntasks-per-node={per_node}",
            f"--gres={site.gres(nodes[0])}",
            # Slurm's own limit, in minutes, so that a lost controller leaves no job behind.
            f"--time={options.timeout_s // 60 + 1}",
            "--export=NONE",
            *("env", *(f"{name}={value}" for name, value in environment.items())),
        ]
    else:
        host = nodes[0]
        start = [
            *("mpirun", "--allow-run-as-root", "-np", str(per_node * len(nodes))),
            *("--host", ",".join(f"{site.host(node).address}:{per_node}" for node in nodes)),
            *("--map-by", f"ppr:{per_node}:node", "--bind-to", "numa"),
        ]
        for name, value in environment.items():
            start += ["-x", f"{name}={value}"]
    argv = (*_bounded(options), *start, *program)
    return Planned(tuple(nodes), limit, host, argv)


def run(plans: Iterable[Planned], start: Start, timeout_s: float) -> list[Run]:
    """Start runs at the same time; a host starts one of them.

    Args:
        plans: runs of which no two share a host to be started on.
        start: runs commands on hosts.
        timeout_s: seconds to wait for all of them.
    """
    by_host = {planned.host: planned for planned in plans}
    answers = start({host: planned.argv for host, planned in by_host.items()}, timeout_s)
    return [_finish(planned, answers.get(host)) for host, planned in by_host.items()]


def start_with(ask: Callable[..., Mapping[str, Mapping[str, Answer]]]) -> Start:
    """Start commands with `railweld.nodes.ask`, whose first arguments are bound already."""
    name = "Measure"

    def start(commands: Mapping[str, Sequence[str]], timeout_s: float) -> dict[str, Answer]:
        task: dict[str, Any] = {
            "name": name,
            "ansible.builtin.command": {
                "argv": "{{ railweld_bench[inventory_hostname] }}",
                # A `$HOME` in an argument is for whoever reads it there.
                "expand_argument_vars": False,
            },
            "vars": {"railweld_bench": {host: list(argv) for host, argv in commands.items()}},
        }
        # Nodes that share one controller connection still start together.
        found = ask(list(commands), [task], timeout_s=timeout_s, forks=len(commands))
        return {host: answers[name] for host, answers in found.items() if name in answers}

    return start


def _finish(planned: Planned, answer: Answer | None) -> Run:
    if answer is None:
        return Run(planned.nodes, planned.limit, failure="no answer in time")
    if answer.status == "unreachable":
        return Run(planned.nodes, planned.limit, failure=answer.reason)
    result = parse(answer.stdout)
    said = str(answer.result.get("stderr") or "").strip().splitlines()
    if answer.rc in (124, 137):
        # Of a job, its own script says last what became of it.
        own = said[-1].partition("railweld bench: ")[2] if said else ""
        reason = f"no end in time; {own or 'stopped on the node'}"
        return Run(planned.nodes, planned.limit, result, reason)
    if not result.complete:
        last = said[-1].removeprefix("railweld bench: ") if said else answer.reason
        reason = next(iter(result.errors), "") or last
        return Run(planned.nodes, planned.limit, result, f"exit code {answer.rc}: {reason}")
    return Run(planned.nodes, planned.limit, result)


def _bounded(options: Options) -> list[str]:
    # The bound holds on the node, also when the connection is gone.
    return ["timeout", "--kill-after=10", str(options.timeout_s)]


def _profile(site: Site, nodes: Sequence[str]) -> dict[str, str]:
    profile = nccl.profile(nccl.args_for(site, nodes))
    return {each.name: each.value for each in profile.variables}


def _environment(site: Site, nodes: Sequence[str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in _profile(site, nodes).items())]


def _gpus(site: Site, node: str) -> tuple[int, str]:
    gpu = site.host(node).gpu
    if gpu is None or gpu.mig:
        found = "no GPUs" if gpu is None else "GPUs in MIG mode"
        raise RailweldError(
            f"{node}: found {found} in the description, expected whole GPUs to measure. "
            "Fix: choose GPU nodes with --nodes"
        )
    return gpu.count, gpu.model


def _slurm_head(site: Site) -> str:
    heads = site.groups.get(GROUP_SLURM_HEAD, ())
    if not heads:
        raise RailweldError(
            f"site {site.name}: found no host in group {GROUP_SLURM_HEAD}, expected one to start "
            "runs through Slurm. Fix: --launcher mpirun"
        )
    return heads[0]


def _refuse_virtual(site: Site, nodes: Sequence[str]) -> None:
    """Processes of a step would start on the head, where the slurmd of such a node runs."""
    virtual = [node for node in nodes if placement(site, site.host(node)) == "virtual"]
    if virtual:
        named = f"{', '.join(virtual[:3])}{', ...' if len(virtual) > 3 else ''}"
        raise RailweldError(
            f"{named}: found nodes whose jobs are pods, expected a slurmd on each to start "
            "processes through Slurm (see: docs/slurm.md). Fix: --launcher bridge --user NAME"
        )


def _gated(limit: Limit, options: Options) -> Limit:
    if options.gate is None:
        return limit
    return Limit(limit.gb_per_s, limit.source, options.gate)
