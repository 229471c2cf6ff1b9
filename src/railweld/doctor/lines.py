"""What a log line says about itself: when, on which host, by which rank or process."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

_MONTHS: Final = tuple(calendar.month_abbr)[1:]
_MONTH: Final = "|".join(_MONTHS)
_CLOCK: Final = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_STAMP: Final = re.compile(
    # 2026-11-30T02:57:25.123Z, 2026-11-30 02:57:25,123, 2026/11/30 02:57:25 (Slurm, NCCL, Python,
    # Go, journalctl -o short-iso, CRI, EOS with high-resolution time).
    r"(?<!\d)(?P<year>\d{4})(?P<cut>[-/])(?P<month>\d\d)(?P=cut)(?P<day>\d\d)"
    rf"[T ](?P<clock>{_CLOCK})"
    r"(?:\s?(?P<zone>Z|[+-]\d\d:?\d\d))?"
    # Nov 30 02:57:25 (syslog, journalctl, EOS), with or without a year on one of its sides.
    rf"|\b(?P<name>{_MONTH})\s+(?P<day2>\d{{1,2}})\s+(?:(?P<year2>\d{{4}})\s+)?(?P<clock2>{_CLOCK})"
    r"(?:\s(?P<year3>\d{4})\b)?"
    # E1130 02:57:25.123456 (klog of Kubernetes, glog of PyTorch).
    rf"|(?<![A-Za-z0-9])[IWEF](?P<month4>\d\d)(?P<day4>\d\d) (?P<clock4>{_CLOCK})"
)
#: Times, hosts and ranks stand at the front of a line; further back they are part of the message.
_FRONT: Final = 160

_NCCL: Final = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL [A-Z]+")
#: host program[pid]: behind a syslog or ISO time.
_AFTER_TIME: Final = re.compile(
    r"\s+(?P<host>[A-Za-z0-9][\w.-]*)\s+(?:[\w./@()-]+(?:\[\d+\])?|%[A-Z][\w-]+):"
)
_RANK: Final = re.compile(
    r"\[\s*(?:rank|Rank)\s*(\d+)\]|(?:^|\s)\[?(?:rank|RANK)[ =:](\d+)\b|^\s*(\d{1,6}): (?=\S)"
)
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


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time at the front of a line.

    Attributes:
        time: seconds since the epoch.
        end: where the message begins behind it.
    """

    time: float
    end: int


class Clock:
    """Reads times. Those without a zone are this machine's; those without a year are recent.

    Args:
        now: the moment before which a time without a year lies, usually the file's last change.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = (now or datetime.now(UTC)).astimezone()
        self._known: dict[str, float | None] = {}

    def first(self, text: str) -> Stamp | None:
        """The time at the front of a line, None without one."""
        at = 0
        front = text[:_FRONT]
        while match := _STAMP.search(front, at):
            if len(self._known) > 1000:
                self._known.clear()
            if match[0] not in self._known:
                self._known[match[0]] = self._read(match)
            time = self._known[match[0]]
            if time is not None:
                return Stamp(time, match.end())
            at = match.end()
        return None

    def last(self, text: str) -> float | None:
        """The time of the last line of a text that has one, in seconds since the epoch."""
        for line in reversed(text.splitlines()[-40:]):
            found = self.first(line)
            if found is not None:
                return found.time
        return None

    def _read(self, match: re.Match[str]) -> float | None:
        part = match.groupdict()
        clock = next(part[name] for name in ("clock", "clock2", "clock4") if part[name])
        hour, minute, rest = clock.replace(",", ".").split(":")
        second, _, fraction = rest.partition(".")
        year = part["year"] or part["year2"] or part["year3"]
        if part["name"]:
            month, day = _MONTHS.index(part["name"]) + 1, part["day2"]
        else:
            month, day = int(part["month"] or part["month4"]), part["day"] or part["day4"]
        try:
            when = datetime(
                int(year or self._now.year), month, int(day), int(hour), int(minute), int(second),
                int(f"{fraction[:6]:0<6}"), _zone(part["zone"]),
            ).astimezone()  # fmt: skip
            if year is None and when > self._now + timedelta(days=1):
                when = when.replace(year=when.year - 1)
        except ValueError:
            return None  # the 31st of February, the 25th hour: digits, not a time
        return when.timestamp()


def _zone(text: str | None) -> timezone | None:
    if not text or text == "Z":
        return UTC if text else None
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def origin(text: str, file: Origin, stamp: Stamp | None) -> Origin:
    """Who printed a line; what it does not say comes from its file."""
    front = text[:_FRONT]
    host, rank, process = file.host, file.rank, file.process
    if nccl := _NCCL.search(front):
        host, process = nccl["host"], f"{nccl['host']}:{nccl['pid']}"
    elif stamp and (after := _AFTER_TIME.match(front, stamp.end)) and not after["host"].isdecimal():
        host = after["host"]
    if found := _RANK.search(front):
        rank = int(found[1] or found[2] or found[3])
    return Origin(host, rank, process)


def origin_of_file(name: str) -> Origin:
    """What a file's name says: `rank3.log`, `logs/rank_12/stderr.log`."""
    found = _RANK_IN_NAME.findall(name)
    return Origin(rank=int(found[-1]) if found else None)
