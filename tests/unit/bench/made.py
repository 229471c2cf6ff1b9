"""Runs with given figures, from text as nccl-tests prints it."""

from __future__ import annotations

from pathlib import Path

from railweld.bench.judge import Run
from railweld.bench.limits import Limit
from railweld.bench.results import Result, parse

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nccl_tests"
#: A real run between two H200.
PRINTED = (FIXTURES / "h200x2-2.19.6.txt").read_text()
LIMIT = Limit(50.0, "4 rails of a", 0.8)


def measured(busbw: float, *, size: int = 1 << 30, wrong: str = "0", end: bool = True) -> Result:
    text = (
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        f" {size} {size // 4} float sum -1 10 {busbw} {busbw} {wrong} 10 {busbw} {busbw} {wrong}\n"
    )
    total = wrong if wrong.isdigit() else "0"
    footer = f"# Out of bounds values : {total} x\n# Avg bus bandwidth : {busbw}\n"
    return parse(text + (footer if end else ""))


def run(*nodes: str, busbw: float = 42.3, limit: Limit = LIMIT, **row: object) -> Run:
    return Run(nodes, limit, measured(busbw, **row))
