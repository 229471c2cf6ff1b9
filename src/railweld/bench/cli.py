"""`railweld bench`: what the GPUs and the fabric give, against what they could."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from railweld.access import Access, given
from railweld.errors import ExitCode, UsageError
from railweld.options import AsJson, grouped

if TYPE_CHECKING:
    from railweld.bench.judge import Culprits, Run
    from railweld.bench.launch import Options, Planned, Start
    from railweld.bench.output import Measurement
    from railweld.record import Check
    from railweld.site.model import Site

#: Seconds beyond the runs' own bound for connections and the programs' start.
_SPARE_S = 120


def register(app: typer.Typer) -> None:
    """Add the command of this stage."""
    app.command("bench")(bench)


@grouped(access=given)
def bench(
    *,
    access: Access,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Only these nodes, by name, comma-separated.")
    ] = None,
    single_node: Annotated[
        bool, typer.Option("--single-node", help="Only inside each node (NVLink).")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Only every pair of nodes; names slow nodes and links.")
    ] = False,
    all_nodes: Annotated[bool, typer.Option("--all", help="Only all nodes together.")] = False,
    gate: Annotated[
        float | None,
        typer.Option(
            "--gate",
            min=0.01,
            max=1.5,
            help="Share of the limit that passes; default 0.8 between nodes, 0.7 inside one.",
        ),
    ] = None,
    baseline: Annotated[
        Literal["save", "compare"] | None,
        typer.Option("--baseline", help="Keep the figures, or compare with those kept."),
    ] = None,
    launcher: Annotated[
        Literal["mpirun", "slurm", "bridge"],
        typer.Option("--launcher", help="Starts runs between nodes; bridge: as jobs in pods."),
    ] = "mpirun",
    user: Annotated[
        str | None, typer.Option("--user", help="Whose jobs they are, with --launcher bridge.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="Of these jobs; default the partition's."),
    ] = None,
    max_bytes: Annotated[str, typer.Option("--max-bytes", help="Largest message.")] = "8G",
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Of each size.")] = 20,
    timeout: Annotated[int, typer.Option("--timeout", min=1, help="Seconds for one run.")] = 600,
    programs: Annotated[
        str | None,
        typer.Option("--programs", help="Folder of nccl-tests on nodes, or in the image."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Measure with nccl-tests inside nodes and between them; find the slow node or link.

    Without a mode: each node by itself, then all together, then the pairs if that was too slow.
    Exit codes: 0 everything passed, 1 something is slow or wrong, 3 something could not be
    measured.
    """
    from railweld.bench import bridge
    from railweld.bench.launch import Options, start_with
    from railweld.nodes import ask

    modes = [name for name, on in _modes(single_node, pairs, all_nodes).items() if on]
    if len(modes) > 1:
        raise UsageError(f"bench: found {' and '.join(modes)}, expected one of them or none")
    if not re.fullmatch(r"[1-9][0-9]*[KMG]?", max_bytes):
        raise UsageError(f"--max-bytes: found {max_bytes!r}, expected bytes such as 512M or 8G")
    if launcher != "bridge" and (user or image):
        name = "--user" if user else "--image"
        raise UsageError(
            f"{name}: found --launcher {launcher}, expected bridge, whose jobs have a user and an "
            f"image. Fix: --launcher bridge, or no {name}"
        )
    site = access.site()
    options = Options(
        max_bytes=max_bytes,
        iterations=iterations,
        timeout_s=timeout,
        gate=gate,
        launcher=launcher,
        programs=programs,
        user=user,
        image=image,
    )
    if launcher == "bridge":
        bridge.check(site, options)
    start = start_with(functools.partial(ask, access))
    session = _Session(site, options, start, quiet=as_json)
    session.measure(_chosen(site, nodes), modes[0] if modes else None)
    return session.report(baseline, as_json=as_json)


def _modes(single_node: bool, pairs: bool, all_nodes: bool) -> dict[str, bool]:
    return {"--single-node": single_node, "--pairs": pairs, "--all": all_nodes}


def _chosen(site: Site, nodes: str | None) -> list[str]:
    gpu_nodes = [host.name for host in site.hosts.values() if host.is_gpu_node and host.gpu]
    if nodes is None:
        if not gpu_nodes:
            raise UsageError(f"site {site.name}: found no GPU nodes, expected one to measure")
        return gpu_nodes
    chosen = list(dict.fromkeys(name.strip() for name in nodes.split(",") if name.strip()))
    unknown = [name for name in chosen if name not in gpu_nodes]
    if unknown or not chosen:
        raise UsageError(
            f"--nodes: found {', '.join(unknown) or 'no name'}, expected GPU nodes of site "
            f"{site.name}: {', '.join(gpu_nodes[:8])}{', ...' if len(gpu_nodes) > 8 else ''}"
        )
    return chosen


class _Session:
    """The runs of one command and what follows from them."""

    def __init__(self, site: Site, options: Options, start: Start, *, quiet: bool) -> None:
        self._site = site
        self._options = options
        self._start = start
        self._quiet = quiet
        self._runs: list[tuple[Planned, Run]] = []
        self._pairs: dict[tuple[str, str], Run] = {}

    def measure(self, nodes: Sequence[str], mode: str | None) -> None:
        """Make the runs of a mode; plans of all runs exist before the first is started."""
        from railweld.bench.launch import plan_nodes, plan_single

        if mode in ("--pairs", "--all") and len(nodes) < 2:
            raise UsageError(f"{mode}: found one node, {nodes[0]}, expected two or more")
        singles = together = None
        if mode in (None, "--single-node"):
            singles = [
                plan_single(self._site, node, self._options)
                for node in nodes
                if (gpu := self._site.host(node).gpu) and gpu.count > 1
            ]
        if mode in (None, "--all") and len(nodes) > 1:
            together = plan_nodes(self._site, nodes, self._options)
        if singles:
            self._round(singles, "inside each node")
        slow = False
        if together:
            self._round([together], f"all {len(nodes)} nodes")
            run = self._runs[-1][1]
            slow = run.busbw is None or run.is_slow
        if mode == "--pairs" or (mode is None and slow and len(nodes) > 2):
            self._measure_pairs(nodes)

    def _measure_pairs(self, nodes: Sequence[str]) -> None:
        from railweld.bench.launch import plan_nodes
        from railweld.bench.schedule import rounds

        plans = [
            [plan_nodes(self._site, pair, self._options, largest_only=True) for pair in pairs]
            for pairs in rounds(nodes)
        ]
        # Through Slurm every run starts on the head, so it takes them one after the other there.
        for number, planned in enumerate(plans, 1):
            for batch in _without_shared_hosts(planned):
                self._round(batch, f"pairs, round {number} of {len(plans)}")
        self._pairs = {
            (planned.nodes[0], planned.nodes[1]): run
            for planned, run in self._runs
            if len(planned.nodes) == 2
        }

    def _round(self, plans: Sequence[Planned], what: str) -> None:
        from railweld.bench.launch import run

        if not self._quiet:
            typer.echo(
                f"bench: {what}: {', '.join('-'.join(p.nodes) for p in plans[:6])}", err=True
            )
        runs = run(plans, self._start, self._options.timeout_s + _SPARE_S)
        self._runs += zip(plans, runs, strict=True)

    def report(self, baseline: str | None, *, as_json: bool) -> int:
        """Judge, print, and keep the figures if asked to; returns the exit code."""
        from railweld.bench import baseline as stored
        from railweld.bench.judge import Culprits, checks, culprits
        from railweld.record import Status, worst

        judged: list[Check] = []
        known = stored.load(self._site.name) if baseline == "compare" else None
        for planned, run in self._runs:
            judged += checks(run, command=planned.command)
            if known is not None:
                judged.append(stored.compare(run, known, command=planned.command))
        named = culprits(self._pairs) if self._pairs else Culprits()
        if as_json:
            typer.echo(self._measurement(judged, named).model_dump_json(indent=2))
        else:
            self._print(judged, named)
        if baseline == "save":
            file = stored.save(self._site.name, [run for _, run in self._runs])
            typer.echo(f"bench: figures kept in {file}", err=True)
        if any(check.status is Status.FAIL for check in judged):
            return ExitCode.FAILED
        return ExitCode.UNKNOWN if worst(judged) is Status.UNKNOWN else ExitCode.OK

    def _measurement(self, judged: Iterable[Check], named: Culprits) -> Measurement:
        from railweld.bench.output import MeasuredRun, Measurement, Size

        return Measurement(
            site=self._site.name,
            runs=[
                MeasuredRun(
                    nodes=list(run.nodes),
                    busbw_gb_per_s=run.busbw,
                    needed_gb_per_s=run.needed,
                    limit_gb_per_s=run.limit.gb_per_s,
                    limit_source=run.limit.source,
                    nccl=run.result.nccl if run.result else "",
                    failure=run.failure,
                    rows=[
                        Size(bytes=row.size, busbw_gb_per_s=row.out_of_place.busbw)
                        for row in (run.result.rows if run.result else ())
                    ],
                )
                for _, run in self._runs
            ],
            slow_nodes=list(named.nodes),
            slow_links=[list(pair) for pair in named.links],
            checks=[check.to_dict() for check in judged],
        )

    def _print(self, judged: Sequence[Check], named: Culprits) -> None:
        from rich.console import Console
        from rich.table import Table

        from railweld.bench.judge import typical

        table = Table("nodes", "GB/s", "needed", "limit", "of", "result")
        for _, run in self._runs:
            table.add_row(
                run.name if len(run.nodes) <= 4 else f"{run.nodes[0]} ... {len(run.nodes)} nodes",
                "-" if run.busbw is None else f"{run.busbw:.2f}",
                "-" if run.needed is None else f"{run.needed:.2f}",
                "-" if run.limit.gb_per_s is None else f"{run.limit.gb_per_s:g}",
                run.limit.source,
                _verdict(run),
            )
        Console(width=None).print(table)
        for check in judged:
            if check.is_bad:
                typer.echo(check.sentence())
        middle = typical(self._pairs)
        if middle is not None:
            typer.echo(f"pairs: median {middle:.2f} GB/s over {len(self._pairs)} pairs")
        for node in named.nodes:
            typer.echo(f"slow node: {node}: slow with at least half of its partners")
        for one, other in named.links:
            typer.echo(f"slow link: {one} - {other}: both are fast with others")


def _verdict(run: Run) -> str:
    if run.busbw is None:
        return f"unknown: {run.failure}"
    if run.result is not None and run.result.wrong:
        return f"{run.result.wrong} wrong values"
    if run.needed is None:
        return "no reference"
    return "slow" if run.is_slow else "ok"


def _without_shared_hosts(plans: Sequence[Planned]) -> list[list[Planned]]:
    """Split runs so that each part starts at most one of them on a host."""
    parts: list[dict[str, Planned]] = []
    for planned in plans:
        part = next((part for part in parts if planned.host not in part), None)
        if part is None:
            part = {}
            parts.append(part)
        part[planned.host] = planned
    return [list(part.values()) for part in parts]
