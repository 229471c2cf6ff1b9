"""Judges runs against their limits, and tells a slow node from a slow link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from railweld.bench.limits import Limit
from railweld.bench.results import Result, Row
from railweld.record import Check, Status

#: Bytes that the largest message should have: below, the number says latency more than bandwidth.
ENOUGH_BYTES: Final = 1 << 30
#: A node is slow, not one of its links, when at least this share of its pairs is.
_NODE_SHARE: Final = 0.5
_REF: Final = "docs/bench.md"


@dataclass(frozen=True)
class Run:
    """One measurement: who took part, what came out, what could have.

    `failure` says why there is no result.
    """

    nodes: tuple[str, ...]
    limit: Limit
    result: Result | None = None
    failure: str = ""

    @property
    def name(self) -> str:
        """The nodes, as tables and check targets show them."""
        return ",".join(self.nodes)

    @property
    def busbw(self) -> float | None:
        """Out-of-place bus bandwidth of the largest message in GB/s, if the run came to its end."""
        if self.result is None or not self.result.complete or self.result.largest is None:
            return None
        return self.result.largest.out_of_place.busbw

    @property
    def needed(self) -> float | None:
        """GB/s that pass, or None where no limit is known."""
        return None if self.limit.gb_per_s is None else self.limit.gb_per_s * self.limit.gate

    @property
    def is_slow(self) -> bool:
        """Whether it ended and gave less than it needs."""
        return self.busbw is not None and self.needed is not None and self.busbw < self.needed


def checks(run: Run, *, command: str) -> list[Check]:
    """Correctness and bandwidth of one run; a run without a result is unknown, not slow."""
    layer = "gpu" if len(run.nodes) == 1 else "link"
    found = run.result
    if run.busbw is None or found is None or found.largest is None:
        reason = run.failure or (found.errors[0] if found and found.errors else "an unfinished run")
        return [
            Check(
                id="bench.ran",
                layer=layer,
                target=run.name,
                status=Status.UNKNOWN,
                ran=command,
                found=reason,
                expected="a run to its end",
                fix="run the command by hand on the first node; railweld doctor reads its output",
                ref=_REF,
            )
        ]
    largest = found.largest
    return [_wrong(run, found, layer, command), _bandwidth(run, largest, layer, command)]


def _wrong(run: Run, found: Result, layer: str, command: str) -> Check:
    unchecked = not found.validated
    status = Status.FAIL if found.wrong else Status.WARN if unchecked else Status.PASS
    return Check(
        id="bench.wrong",
        layer=layer,
        target=run.name,
        status=status,
        ran=command,
        found="results were not checked" if unchecked else f"{found.wrong} wrong values",
        expected="0 wrong values",
        fix=""
        if status is Status.PASS
        else "run without -c 0"
        if unchecked
        else "take the node or pair out of service: railweld doctor NODE looks at ECC, Xid and "
        "links; wrong sums are broken hardware or a broken driver until shown otherwise",
        ref=_REF,
    )


def _bandwidth(run: Run, row: Row, layer: str, command: str) -> Check:
    text = f"{row.out_of_place.busbw:.2f} GB/s at {row.size} bytes"
    if run.needed is None or run.limit.gb_per_s is None:
        status, expected = Status.SKIPPED, f"a reference: {run.limit.source}"
        fix = "keep this run as the reference: --baseline save"
    else:
        expected = (
            f"at least {run.needed:.2f} GB/s ({run.limit.gate:g} of {run.limit.gb_per_s:g}: "
            f"{run.limit.source})"
        )
        fix = (
            "railweld doctor NODE (PCIe width, NVLink state, clocks)"
            if len(run.nodes) == 1
            else "railweld bench --pairs names the slow node or link; railweld verify --stage "
            "fabric shows PFC, ECN and MTU of each link"
        )
        status = Status.FAIL if run.is_slow else Status.PASS
        if status is Status.PASS and row.size < ENOUGH_BYTES:
            status = Status.WARN
            expected += f", measured with messages of at least {ENOUGH_BYTES} bytes"
            fix = "measure again with --max-bytes 1G or more"
    return Check(
        id="bench.busbw",
        layer=layer,
        target=run.name,
        status=status,
        ran=command,
        found=text,
        expected=expected,
        fix="" if status is Status.PASS else fix,
        ref=_REF,
    )


@dataclass(frozen=True)
class Culprits:
    """Which nodes are slow with everyone, and which pairs are slow although both nodes are not."""

    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    #: Pairs without a result, which nothing is concluded from.
    unknown: tuple[tuple[str, str], ...] = field(default=())


def culprits(runs: Mapping[tuple[str, str], Run]) -> Culprits:
    """Explain the slow pairs by as few slow nodes as possible, then by links.

    With two nodes a pair says nothing about either, so it stays a link.
    """
    known = {pair for pair, run in runs.items() if run.busbw is not None}
    slow = {pair for pair in known if runs[pair].is_slow}
    nodes: list[str] = []
    while slow:
        partners = _count(known - _with(known, nodes))
        bad = _count(slow)
        worst = max(bad, key=lambda node: (bad[node] / partners[node], bad[node], node))
        # One slow pair of a node with a single partner is as much the partner's.
        if partners[worst] < 2 or bad[worst] < 2 or bad[worst] / partners[worst] < _NODE_SHARE:
            break
        nodes.append(worst)
        slow = {pair for pair in slow if worst not in pair}
    return Culprits(
        nodes=tuple(sorted(nodes)),
        links=tuple(sorted(slow)),
        unknown=tuple(sorted(set(runs) - known)),
    )


def _with(pairs: set[tuple[str, str]], nodes: list[str]) -> set[tuple[str, str]]:
    return {pair for pair in pairs if set(pair) & set(nodes)}


def _count(pairs: set[tuple[str, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in pairs:
        for node in pair:
            counts[node] = counts.get(node, 0) + 1
    return counts


def typical(runs: Mapping[tuple[str, str], Run]) -> float | None:
    """Median bus bandwidth of the pairs in GB/s."""
    values = [run.busbw for run in runs.values() if run.busbw is not None]
    return median(values) if values else None
