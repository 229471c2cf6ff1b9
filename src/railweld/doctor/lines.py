"""What a log line says about itself: when, on which host, by which rank or process."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = tuple(calendar.month_abbr)[1:]
_MONTH: Final = "|".join(_MONTHS)
_CLOCK: Final = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"

#: 2026-11-30T02:57:25.123Z, 2026-11-30 02:57:25,123, [2026-11-30T02:57:25] (Slurm, NCCL, Python,
#: journalctl -o short-iso, CRI, EOS with high-resolution time).
_ISO: Final = re.compile(rf"(?<!\d)(\d{{4}})-(\d\d)-(\d\d)[T ]{_CLOCK}\s?(Z|[+-]\d\d:?\d\d)?")
#: Nov 30 02:57:25 host program[pid]: (syslog, journalctl, EOS), with or without a year.
_SYSLOG: Final = re.compile(
    rf"\b({_MONTH})\s+(\d{{1,2}})\s+(?:(\d{{4}})\s+)?{_CLOCK}(?:\s(\d{{4}})\b)?"
)
#: E1130 02:57:25.123456 (klog of Kubernetes, glog of PyTorch).
_KLOG: Final = re.compile(rf"(?<![A-Za-z0-9])[IWEF](\d\d)(\d\d) {_CLOCK}")
#: Times stand at the front of a line; further back they are part of the message.
_FRONT: Final = 120

_NCCL: Final = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL [A-Z]+")
#: host program[pid]: behind a syslog or ISO time.
_AFTER_TIME: Final = re.compile(
    r"\s+(?P<host>[A-Za-z0-9][\w.-]*)\s+(?:[\w./@()-]+(?:\[\d+\])?|%[A-Z][\w-]+):"
)
_RANK: Final = re.compile(
    r"\[\s*(?:rank|Rank)\s*(\d+)\]|(?:^|\s)\[?(?:rank|RANK)[ =:](\d+)\b|^\s*(\d{1,6}): (?=\S)"
)
_LOCAL_RANK: Final = re.compile(r"^\[(?:default|[\w-]+?)(\d+)\]:")
_RANK_IN_NAME: Final = re.compile(r"(?i)rank[_.-]?(\d+)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who printed a line, as far as the line or its file says.

    Attributes:
        host: host name, or "".
        rank: global rank, or None.
        process: `host:pid` of NCCL's prefix, or "".
    """

    host: str = ""
    rank: int | None = None
    process: str = ""

    def __str__(self) -> str:
        parts = [] if self.rank is None else [f"rank {self.rank}"]
        if self.host:
            parts.append(f"on {self.host}" if parts else self.host)
        return " ".join(parts)


class Clock:
    """Reads times. Those without a zone are this machine's; those without a year are recent.

    Args:
        now: the moment before which a time without a year lies, usually the file's last change.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = (now or datetime.now(UTC)).astimezone()

    def first(self, text: str) -> float | None:
        """Seconds since the epoch of the time at the front of a line, None without one."""
        found = self._find(text[:_FRONT])
        return found[0] if found else None

    def last(self, text: str) -> float | None:
        """The time of the last line of a text that has one."""
        for line in reversed(text.splitlines()[-40:]):
            found = self.first(line)
            if found is not None:
                return found
        return None

    def end(self, text: str) -> int:
        """Where the time at the front of a line ends, 0 without one."""
        found = self._find(text[:_FRONT])
        return found[1] if found else 0

    def _find(self, text: str) -> tuple[float, int] | None:
        readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], datetime]], ...] = (
            (_ISO, self._iso),
            (_SYSLOG, self._syslog),
            (_KLOG, self._klog),
        )
        best: tuple[int, float, int] | None = None
        for pattern, reader in readers:
            match = pattern.search(text)
            if match is None or (best is not None and match.start() >= best[0]):
                continue
            try:
                when = reader(match)
            except ValueError:
                continue  # the 31st of February, the 25th hour: digits, not a time
            best = (match.start(), when.timestamp(), match.end())
        return best[1:] if best else None

    def _iso(self, match: re.Match[str]) -> datetime:
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        text = f"{year}-{month}-{day}T{hour}:{minute}:{second}.{(fraction or '0')[:6]:0<6}"
        return datetime.fromisoformat(text + (zone or "")).astimezone()

    def _syslog(self, match: re.Match[str]) -> datetime:
        month, day, year, hour, minute, second, fraction, year_behind = match.groups()
        return self._dated(
            _MONTHS.index(month) + 1,
            int(day),
            (hour, minute, second, fraction),
            year or year_behind,
        )

    def _klog(self, match: re.Match[str]) -> datetime:
        month, day, hour, minute, second, fraction = match.groups()
        return self._dated(int(month), int(day), (hour, minute, second, fraction), None)

    def _dated(
        self, month: int, day: int, clock: tuple[str, str, str, str | None], year: str | None
    ) -> datetime:
        hour, minute, second, fraction = clock
        micro = int(f"{(fraction or '0')[:6]:0<6}")
        when = datetime(
            int(year or self._now.year), month, day, int(hour), int(minute), int(second), micro
        ).astimezone()
        if year is None and when > self._now + timedelta(days=1):
            when = when.replace(year=when.year - 1)
        return when


def origin(text: str, file: Origin, clock: Clock) -> Origin:
    """Who printed a line; what it does not say comes from its file."""
    found = file
    nccl = _NCCL.search(text)
    if nccl:
        found = replace(found, host=nccl["host"], process=f"{nccl['host']}:{nccl['pid']}")
    else:
        after = _AFTER_TIME.match(text, clock.end(text)) if clock.end(text) else None
        if after and not after["host"].isdigit():
            found = replace(found, host=after["host"])
    rank = _RANK.search(text)
    if rank:
        found = replace(found, rank=int(rank[1] or rank[2] or rank[3]))
    return found


def origin_of_file(name: str) -> Origin:
    """What a file's name says: `rank3.log`, `logs/rank_12/stderr.log`."""
    found = _RANK_IN_NAME.findall(name)
    return Origin(rank=int(found[-1]) if found else None)
