"""Reads the text that nccl-tests prints. Formats from 2.0 (2016) to 2.19 are told apart by header.

Units as in the text: bytes, microseconds, GB/s (1e9 bytes per second).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: mpirun --tag-output and srun -l put the rank in front of every line.
_TAG: Final = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\d+: )")
_VERSION: Final = re.compile(r"#\s*nccl-tests version (\S+)(?:.*nccl-library=(\d+))?")
_START: Final = re.compile(r"#\s*Collective test starting: (\S+)")
_RANK: Final = re.compile(
    r"#\s*Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)"
    r"\s+\[([^\]]+)\]\s+(.+?)\s*$"
)
_FOOTER: Final = re.compile(
    r"#\s*(Out of bounds values|Avg bus bandwidth)\s*:\s*(\S+)(?:\s+(\S+))?"
)
#: Columns that end a group: each group is one of out-of-place and in-place, in this order.
_WRONG: Final = ("#wrong", "error")
_LOG: Final = re.compile(r"NCCL (?:INFO|WARN|TRACE)")
_ERROR: Final = re.compile(
    r"Test (?:NCCL|CUDA|CUDA Driver) failure|Test failure|NCCL WARN|unhandled (?:system|cuda) error"
    r"|invalid usage|Invalid number of GPUs|out of memory|mpirun (?:noticed|was unable)|ORTE"
    r"|PRTE ERROR|srun: error|command not found|No such file",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Timing:
    """One measurement: microseconds, GB/s, and the elements that were wrong (None: not checked)."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One message size in bytes."""

    size: int
    count: int
    type: str
    redop: str
    out_of_place: Timing
    in_place: Timing | None


@dataclass(frozen=True)
class Rank:
    """A GPU that took part."""

    rank: int
    host: str
    device: int
    bus_id: str
    model: str


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        program: e.g. `all_reduce_perf`; empty when this version does not print it.
        tests_version: version of nccl-tests; empty when it does not print it.
        nccl: NCCL that was loaded, e.g. `2.28.9`; empty when not printed.
        ranks: the GPUs in rank order.
        rows: sizes in the order that they ran.
        out_of_bounds: wrong values over the whole run; None if the run did not reach its end.
        validated: whether results were compared at all; the footer says 0 wrong either way.
        average: the program's own mean over all sizes, GB/s. No measure: small sizes pull it down.
        errors: lines that say why a run broke off.
    """

    program: str
    tests_version: str
    nccl: str
    ranks: tuple[Rank, ...]
    rows: tuple[Row, ...]
    out_of_bounds: int | None
    validated: bool
    average: float | None
    errors: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the run reached its end."""
        return bool(self.rows) and self.average is not None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that took part, in rank order, each once."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def largest(self) -> Row | None:
        """The row that is judged: the largest message."""
        return max(self.rows, key=lambda row: row.size, default=None)

    @property
    def wrong(self) -> int:
        """Wrong elements over all rows."""
        counted = [
            timing.wrong
            for row in self.rows
            for timing in (row.out_of_place, row.in_place)
            if timing is not None and timing.wrong
        ]
        return max(sum(counted), self.out_of_bounds or 0)


def version_of(code: int) -> str:
    """NCCL's version code as a version: 22809 is 2.28.9, 2804 (before 2.9) is 2.8.4."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"


def parse(text: str) -> Result:
    """Read one run's output; log lines of NCCL and MPI between the rows are passed over."""
    program = tests_version = nccl = ""
    ranks: list[Rank] = []
    rows: list[Row] = []
    errors: list[str] = []
    out_of_bounds: int | None = None
    average: float | None = None
    columns: list[str] = []
    for line in _lines(text):
        if match := _VERSION.match(line):
            tests_version = match[1]
            nccl = version_of(int(match[2])) if match[2] else ""
        elif match := _START.match(line):
            program = match[1].rsplit("/", 1)[-1]
        elif match := _RANK.match(line):
            ranks.append(Rank(int(match[1]), match[3], int(match[4]), match[5], match[6].strip()))
        elif match := _FOOTER.match(line):
            if match[1].startswith("Out"):
                out_of_bounds = _integer(match[2])
            else:
                average = _number(match[2])
        elif line.startswith("#") and set(line.split()) >= _HEADER:
            columns = line.lstrip("#").split()
        elif row := _row(line, columns):
            rows.append(row)
        elif _ERROR.search(line):
            errors.append(line.strip())
    return Result(
        program=program,
        tests_version=tests_version,
        nccl=nccl,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        rows=tuple(rows),
        out_of_bounds=out_of_bounds,
        validated="#wrong" not in columns
        or any(row.out_of_place.wrong is not None for row in rows),
        average=average,
        errors=tuple(dict.fromkeys(errors)),
    )


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\r\n", "\n").splitlines():
        yield _TAG.sub("", line)


def _row(line: str, columns: Sequence[str]) -> Row | None:
    """One line of the table, read by the names above its columns."""
    words = line.split()
    # A timestamp (-T) may follow; fewer words than columns is half a line of a run that was cut.
    if not columns or len(words) < len(columns) or not words[0].isdecimal() or _LOG.search(line):
        return None
    head = {name: words[place] for place, name in enumerate(columns) if name not in _TIMED}
    groups = list(_groups(columns, words))
    if not groups or not head["count"].isdecimal():
        return None
    return Row(
        size=int(head["size"]),
        count=int(head["count"]),
        type=head.get("type", ""),
        redop=head.get("redop", ""),
        out_of_place=groups[0],
        in_place=groups[1] if len(groups) > 1 else None,
    )


_TIMED: Final = frozenset({"time", "algbw", "busbw", *_WRONG})
#: Names that the line above the rows has in every release.
_HEADER: Final = frozenset({"size", "count", "time", "algbw", "busbw"})


def _groups(columns: Sequence[str], words: Sequence[str]) -> Iterator[Timing]:
    found: dict[str, str] = {}
    for name, word in zip(columns, words, strict=False):
        if name not in _TIMED:
            continue
        found[name] = word
        if name in _WRONG:
            time, algbw, busbw = (_number(found.get(key, "")) for key in ("time", "algbw", "busbw"))
            if time is not None and algbw is not None and busbw is not None:
                # `error` of old versions is the largest deviation, not a number of elements.
                wrong = _integer(word) if name == "#wrong" else None
                yield Timing(time, algbw, busbw, wrong)
            found = {}


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _integer(word: str) -> int | None:
    value = _number(word)
    return None if value is None else int(value)
