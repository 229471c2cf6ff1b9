"""Finds the lines at which a known pattern may stand, at the speed of a multi-pattern search."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from railweld.doctor.catalogue import compile_patterns

#: A line's text around a match: so many bytes before and after it are kept, however long it is.
BEFORE: Final = 4096
AFTER: Final = 4096
#: Carried over where a line is longer than a block, so that a match on the seam is not lost.
_SEAM: Final = 4096
#: How far back a line without a time looks for one.
_LOOK_BACK: Final = 4096
_ANSI: Final = re.compile(
    rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line at which patterns may match.

    Attributes:
        line: number, from 1.
        text: the line, or of a very long one what stands around the match.
        before: what stands before the line in the same block, for a time or a host.
        patterns: numbers of the patterns, ascending.
    """

    line: int
    text: bytes
    before: bytes
    patterns: tuple[int, ...]


@dataclass(slots=True)
class Progress:
    """What has been read so far."""

    lines: int = 0
    bytes: int = 0


class Scanner:
    """Searches any number of streams for one set of patterns; memory stays constant."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._database = compile_patterns(tuple(patterns))
        self._count = len(patterns)

    def scan(self, blocks: Iterable[bytes], progress: Progress) -> Iterator[Hit]:
        """Yield the hits of one stream in order.

        Args:
            blocks: the stream; lines may be cut anywhere.
            progress: counts lines and bytes, also while this runs.
        """
        rest = b""
        seen = 0  # how much of `rest` was searched already (a line longer than a block)
        for block in blocks:
            progress.bytes += len(block)
            data = rest + block if rest else block
            end = data.rfind(b"\n") + 1
            if end == 0:
                yield from self._search(data, progress, seen)
                rest = data[-_SEAM:]
                seen = len(rest)
                continue
            yield from self._search(data[:end] if end < len(data) else data, progress, seen)
            progress.lines += data.count(b"\n", 0, end)
            rest = data[end:]
            seen = 0
        if rest:
            yield from self._search(rest, progress, seen)
            progress.lines += 1

    def _search(self, data: bytes, progress: Progress, seen: int) -> Iterator[Hit]:
        # Colours may stand in the middle of a message. Line ends stay where they are.
        if b"\x1b" in data:
            data = _ANSI.sub(b"", data)
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        seen = min(seen, len(data))
        #: End of a line → end of its first match, and the patterns that may match.
        found: dict[int, tuple[int, set[int]]] = {}
        done = [0] * self._count  # up to where each pattern's line has been noted

        def take(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            # A pattern with an open end matches at every byte of a long word: note a line once.
            if end <= max(done[pattern], seen):
                return
            # The match's last byte, so that an end on a line break belongs to the line before it.
            stop = data.find(b"\n", max(end - 1, 0))
            stop = len(data) if stop < 0 else stop
            done[pattern] = stop + 1
            found.setdefault(stop, (end, set()))[1].add(pattern)

        self._database.scan(data, match_event_handler=take)
        counted, number = 0, progress.lines + 1
        for stop, (end, patterns) in sorted(found.items()):
            start = data.rfind(b"\n", 0, stop) + 1
            number += data.count(b"\n", counted, start)
            counted = start
            text = data[max(start, end - BEFORE) : min(stop, end + AFTER)]
            before = data[max(0, start - _LOOK_BACK) : start]
            yield Hit(number, text, before, tuple(sorted(patterns)))
