"""From lines and failed checks to a first cause with what followed from it."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

from railweld.doctor import facts, sources
from railweld.doctor.catalogue import CatalogueError, Entry, Role, Severity, compile_one
from railweld.doctor.facts import Facts
from railweld.doctor.layers import layer_of
from railweld.doctor.lines import Clock, Origin, Stamp, origin, origin_of_file
from railweld.doctor.redact import redact
from railweld.doctor.scan import Hit, Progress, Scanner
from railweld.doctor.sources import Source, UnreadableError
from railweld.record import Check, Status

#: Seconds without a known line after which the next one belongs to another incident. Longer than
#: the longest default wait between a fault and its report: PyTorch's ten minutes and retries.
INCIDENT_GAP_S: Final = 1800.0
#: Seconds by which an effect may seem to come before its cause: clocks of hosts differ, logs lag.
CLOCK_TOLERANCE_S: Final = 60.0
#: Lines that are shown of one fault, and characters of each.
EVIDENCE_LINES: Final = 5
EVIDENCE_CHARACTERS: Final = 400
#: Where evidence comes from that is no line of a file.
CHECK: Final = "check"
#: Subjects and origins that are told apart and named; more are only counted.
_GROUPS: Final = 20_000
_NAMES: Final = 4096
_INCIDENTS: Final = 64


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log, or one failed check, that shows a fault.

    Attributes:
        where: file, or `check`.
        line: line number; 0 for a check.
        text: without secrets and control characters, of bounded length.
        time: seconds since the epoch, None if neither the line nor one before it says.
        origin: who printed it.
        subject: the object that it is about, or "".
        order: position among the inputs, for lines without a time.
    """

    where: str
    line: int
    text: str
    time: float | None
    origin: Origin
    subject: str
    order: tuple[int, int]


@dataclass(slots=True)
class Tally:
    """Lines of one fault that belong together."""

    count: int = 0
    first: Evidence | None = None
    start: float | None = None
    end: float | None = None
    evidence: list[Evidence] = field(default_factory=list)
    origins: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)

    def add(self, item: Evidence) -> None:
        """Count a line; keep it if it is early, or the first of its origin."""
        self.count += 1
        if item.time is not None:
            self.start = item.time if self.start is None else min(self.start, item.time)
            self.end = item.time if self.end is None else max(self.end, item.time)
        if self.first is None or _is_earlier(item, self.first):
            self.first = item
            self.evidence.insert(0, item)
        elif len(self.evidence) < 2 or str(item.origin) not in self.origins:
            self.evidence.append(item)
        del self.evidence[EVIDENCE_LINES:]
        self._name(str(item.origin), item.subject)

    def merge(self, other: Tally) -> None:
        """Take in another group of lines of the same fault."""
        count = self.count + other.count
        for item in other.evidence:
            self.add(item)
        self.count = count
        for time in (other.start, other.end):
            if time is not None:
                self.start = time if self.start is None else min(self.start, time)
                self.end = time if self.end is None else max(self.end, time)
        for each in other.origins:
            self._name(each, "")
        for each in other.subjects:
            self._name("", each)

    def _name(self, origin_: str, subject: str) -> None:
        if origin_ and len(self.origins) < _NAMES:
            self.origins.add(origin_)
        if subject and len(self.subjects) < _NAMES:
            self.subjects.add(subject)


def _is_earlier(one: Evidence, other: Evidence) -> bool:
    if one.where != other.where and one.time is not None and other.time is not None:
        return one.time < other.time
    return one.order < other.order


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an incident: an entry of the catalogue and the lines that show it."""

    entry: Entry
    tally: Tally

    @property
    def first(self) -> Evidence:
        """The earliest line."""
        assert self.tally.first is not None  # noqa: S101 - a tally of a finding is never empty
        return self.tally.first


@dataclass(slots=True)
class Incident:
    """What belongs together in time.

    Attributes:
        causes: first cause first, then causes that do not follow from it.
        followed: per cause id, what follows from it: other causes and effects.
        unexplained: effects of an incident of which no cause is in the logs.
    """

    causes: list[Finding] = field(default_factory=list)
    followed: dict[str, list[Finding]] = field(default_factory=dict)
    unexplained: list[Finding] = field(default_factory=list)

    @property
    def start(self) -> float | None:
        """When its first line was printed."""
        found = [each.tally.start for each in self.findings() if each.tally.start is not None]
        return min(found, default=None)

    def findings(self) -> Iterator[Finding]:
        """Everything in it."""
        yield from self.causes
        for each in self.followed.values():
            yield from each
        yield from self.unexplained


@dataclass(slots=True)
class Diagnosis:
    """The result.

    Attributes:
        incidents: in the order of time.
        unread: what could not be looked at, in words.
        notes: what limits the answer, in words.
        inputs: names of what was read.
        progress: lines and bytes that were read.
        checks: number of checks that were judged.
    """

    incidents: list[Incident]
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    checks: int = 0

    @property
    def causes(self) -> list[Finding]:
        """Every cause that was found, the first one first."""
        return [cause for incident in self.incidents for cause in incident.causes]


class Doctor:
    """Reads logs and checks, then tells what is behind them. One use only."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)
        self._rules = [_Rule(entry) for entry in self._entries]
        patterns: list[str] = list(facts.PATTERNS)
        #: Pattern number → rules that it wakes, and what for.
        self._wakes: dict[int, list[tuple[_Rule, Callable[[_Rule, _Line], None]]]] = defaultdict(
            list
        )
        known: dict[str, int] = {}
        for rule in self._rules:
            for group, call in (
                (rule.entry.patterns, _Rule.show),
                (rule.entry.armed_by, _Rule.arm),
                (rule.entry.cleared_by, _Rule.clear),
            ):
                for pattern in group:
                    if pattern not in known:
                        known[pattern] = len(patterns)
                        patterns.append(pattern)
                    self._wakes[known[pattern]].append((rule, call))
        self._scanner = Scanner(patterns)
        self._facts = Facts()
        self._checks: list[Check] = []
        self._inputs: list[str] = []
        self._unread: list[str] = []
        self._progress = Progress()
        self._order = 0

    def read(self, source: Source) -> None:
        """Read one log to its end. What cannot be read is remembered and stops nothing."""
        try:
            self.read_blocks(source.name, sources.blocks(source), _changed(source))
        except UnreadableError as error:
            self._unread.append(str(error))

    def read_blocks(
        self, name: str, blocks: Iterable[bytes], until: datetime | None = None
    ) -> None:
        """Read a log that comes in blocks.

        Args:
            name: what evidence calls it.
            blocks: its content, cut anywhere.
            until: a moment after its last line, for times without a year; None for now.
        """
        self._order += 1
        log = _Log(name, self._order, Clock(until), origin_of_file(name))
        self._inputs.append(name)
        progress = Progress()
        try:
            time: float | None = None
            for hit in self._scanner.scan(blocks, progress):
                line = _Line(hit, log, time)
                self._take(line)
                time = line.known_time
        finally:
            self._progress.lines += progress.lines
            self._progress.bytes += progress.bytes

    def could_not_read(self, reason: str) -> None:
        """Remember something that could not be looked at."""
        self._unread.append(reason)

    def judge(self, checks: Iterable[Check]) -> None:
        """Take the results of railweld's checks."""
        self._checks += checks

    def _take(self, line: _Line) -> None:
        patterns = line.hit.patterns
        if patterns[0] < len(facts.PATTERNS):
            self._facts.learn(line.text, line.origin, line.log.name)
        for rule, call in dict.fromkeys(
            call for number in patterns for call in self._wakes[number]
        ):
            call(rule, line)

    def diagnose(self) -> Diagnosis:
        """Judge everything that was read."""
        findings = [
            Finding(rule.entry, tally) for rule in self._rules for tally in rule.finish(self._facts)
        ]
        findings += self._of_checks()
        self._name_ranks(findings)
        return Diagnosis(
            incidents=[_explain(group) for group in _in_time(findings)],
            unread=self._unread,
            notes=_notes(findings),
            inputs=self._inputs,
            progress=self._progress,
            checks=len(self._checks),
        )

    def _name_ranks(self, findings: Iterable[Finding]) -> None:
        """Where only NCCL's prefix names the process, its rank may be known from another line."""
        for finding in findings:
            known = finding.tally
            for number, item in enumerate(known.evidence):
                rank = self._facts.rank(item.origin.process) if item.origin.process else None
                if item.origin.rank is None and rank is not None:
                    named = replace(item, origin=replace(item.origin, rank=rank))
                    known.evidence[number] = named
                    if known.first is item:
                        known.first = named

    def _entry_of(self, check: Check) -> Entry | None:
        """What a failed check's own words show, else who knows the check."""
        quoted = (e for e in self._entries if check.status is Status.FAIL and is_quoted(e, check))
        return next(quoted, None) or next((e for e in self._entries if claims(e, check)), None)

    def _of_checks(self) -> Iterator[Finding]:
        """Failed checks: under the entry that knows them, else under their own words."""
        tallies: dict[str, Tally] = {}
        entries: dict[str, Entry] = {}
        for number, check in enumerate(self._checks):
            if check.status is Status.UNKNOWN:
                self._unread.append(check.sentence())
            if check.status not in (Status.FAIL, Status.WARN):
                continue
            entry = self._entry_of(check)
            if entry is None:
                if check.status is Status.WARN:
                    continue
                entry = _own_words(check)
            entries[entry.id] = entry
            machine, part = check.place
            tallies.setdefault(entry.id, Tally()).add(
                Evidence(
                    CHECK,
                    0,
                    shown(check.sentence(), 0),
                    None,
                    Origin(host=machine),
                    part,
                    (0, number),
                )
            )
        for id_, tally in tallies.items():
            yield Finding(entries[id_], tally)


def refuse_untrue(entries: Iterable[Entry]) -> None:
    """Try the samples and near misses of entries.

    Raises:
        CatalogueError: an entry is not found in its sample, or is found in its near miss.
    """
    for entry in entries:
        for kind, wanted in (("samples", True), ("near_misses", False)):
            for text in getattr(entry, kind):
                doctor = Doctor([entry])
                doctor.read_blocks(kind, [text.encode()])
                if bool(doctor.diagnose().incidents) is not wanted:
                    raise CatalogueError(
                        f"entry {entry.id}: {kind}: found {'no match' if wanted else 'a match'} "
                        f"in {text.strip()!r:.100}, expected {'one' if wanted else 'none'}. "
                        "Fix: correct the patterns, or the text"
                    )


def claims(entry: Entry, check: Check) -> bool:
    """True if a catalogue entry knows what a failed check, or a warning, means."""
    known = entry.warnings if check.status is Status.WARN else (*entry.checks, *entry.warnings)
    return any(fnmatchcase(check.id, pattern) for pattern in known)


def is_quoted(entry: Entry, check: Check) -> bool:
    """True if what a failed check found is what a log says of this cause.

    A pod that is not ready, or a program that failed, brings its reason along in the words that
    stand in logs too: an image that cannot be pulled, a credential that has expired.
    """
    found = check.found.encode()
    return entry.role is Role.CAUSE and any(compile_one(p).search(found) for p in entry.patterns)


def _own_words(check: Check) -> Entry:
    return Entry.model_construct(
        id=f"check:{check.id}",
        title=f"{check.id}: found {check.found}, expected {check.expected}"[:200],
        layer=layer_of(check),
        role=Role.CAUSE,
        severity=Severity.UNKNOWN,
        cause=f"{check.id}: found {check.found}, expected {check.expected}",
        explains=(),
        confirm=(check.ran,) if check.ran else (),
        fix=(check.fix,) if check.fix else (),
        sources=(check.ref or "the site description",),
        basis="source",
        proof="",
        checks=(check.id,),
        patterns=(),
    )


def shown(text: str, at: int) -> str:
    """A line as evidence: without secrets and control characters, cut around a position."""
    text = redact(text)
    if len(text) > EVIDENCE_CHARACTERS:
        start = max(0, min(at - EVIDENCE_CHARACTERS // 4, len(text) - EVIDENCE_CHARACTERS))
        end = start + EVIDENCE_CHARACTERS
        text = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
    return "".join(c if c.isprintable() else " " if c == "\t" else "�" for c in text).strip()


@dataclass(frozen=True, slots=True)
class _Log:
    """What is known of a log before it is read."""

    name: str
    order: int
    clock: Clock
    origin: Origin


class _Line:
    """A line and where it stands. What few lines need is read only when it is asked for."""

    def __init__(self, hit: Hit, log: _Log, earlier: float | None) -> None:
        self.hit = hit
        self.log = log
        self._earlier = earlier
        # A progress bar writes many states into one line; each is a line of its own to a reader.
        self.parts = hit.text.split(b"\r")

    @cached_property
    def text(self) -> str:
        """The whole line."""
        return self.hit.text.decode(errors="replace")

    @cached_property
    def _stamp(self) -> Stamp | None:
        return self.log.clock.first(self.text)

    @cached_property
    def time(self) -> float | None:
        """Seconds since the epoch: the line's own, else of the nearest line before it."""
        if self._stamp is not None:
            return self._stamp.time
        near = self.log.clock.last(self.hit.before.decode(errors="replace"))
        return near if near is not None else self._earlier

    @property
    def known_time(self) -> float | None:
        """The time if it is known already, else that of the line before."""
        known: float | None = self.__dict__.get("time", self._earlier)
        return known

    @cached_property
    def origin(self) -> Origin:
        """Who printed it."""
        return origin(self.text, self.log.origin, self._stamp)

    def search(self, patterns: Iterable[re.Pattern[bytes]]) -> re.Match[bytes] | None:
        """The first match in any state of the line."""
        for part in self.parts:
            for pattern in patterns:
                if match := pattern.search(part):
                    return match
        return None

    def evidence(self, match: re.Match[bytes]) -> Evidence:
        """The line as it is shown."""
        text = shown(match.string.decode(errors="replace"), match.start())
        return Evidence(
            self.log.name, self.hit.line, text, self.time, self.origin, _subject(match)[:100],
            (self.log.order, self.hit.line),
        )  # fmt: skip


def _subject(match: re.Match[bytes]) -> str:
    return (match.groupdict().get("subject") or b"").decode(errors="replace")


class _Rule:
    """One entry at work: confirms lines, keeps what waits for a condition, tallies the rest."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._patterns = [compile_one(each) for each in entry.patterns]
        self._unless = [compile_one(each) for each in entry.unless]
        self._armed_by = [compile_one(each) for each in entry.armed_by]
        self._cleared_by = [compile_one(each) for each in entry.cleared_by]
        self._waits = bool(
            entry.only_if
            or entry.not_if
            or entry.armed_by
            or entry.cleared_by
            or entry.at_least > 1
        )
        self._armed: set[tuple[str, str]] = set()
        self._per_process = bool(entry.only_if or entry.not_if)
        #: (host or process, subject) → lines that count only if something else holds.
        self._waiting: dict[tuple[str, str], Tally] = {}
        self._times: dict[tuple[str, str], list[float]] = {}
        self._tallies: list[Tally] = []

    def show(self, line: _Line) -> None:
        """Count a line that shows the fault."""
        match = line.search(self._patterns)
        if match is None or any(each.search(match.string) for each in self._unless):
            return
        item = line.evidence(match)
        if not self._waits:
            self._into_tallies(_single(item))
            return
        key = self._key(item.origin, item.subject)
        if self._armed_by and key not in self._armed:
            return
        if key not in self._waiting and len(self._waiting) >= _GROUPS:
            return
        self._waiting.setdefault(key, Tally()).add(item)
        if self.entry.within_s and item.time is not None:
            times = self._times.setdefault(key, [])
            bisect.insort(times, item.time)
            del times[: -4 * self.entry.at_least]

    def arm(self, line: _Line) -> None:
        """From here on, lines about this subject count."""
        match = line.search(self._armed_by)
        if match and len(self._armed) < _GROUPS:
            self._armed.add(self._key(line.origin, _subject(match)))

    def clear(self, line: _Line) -> None:
        """Forget what this line says has passed."""
        if not self._waiting:
            return
        match = line.search(self._cleared_by)
        if match is None:
            return
        if "subject" in match.groupdict():
            self._waiting.pop(self._key(line.origin, _subject(match)), None)
        else:
            host = self._key(line.origin, "")[0]
            for key in [each for each in self._waiting if each[0] == host]:
                del self._waiting[key]

    def finish(self, known: Facts) -> list[Tally]:
        """Judge what waited; return what counts."""
        for key, tally in self._waiting.items():
            if self._counts(key, tally, known):
                self._into_tallies(tally)
        self._waiting.clear()
        return self._tallies

    def _counts(self, key: tuple[str, str], tally: Tally, known: Facts) -> bool:
        process = key[0] if self._per_process else ""
        if self.entry.only_if and not known.hold(self.entry.only_if, process):
            return False
        if self.entry.not_if and known.hold(self.entry.not_if, process):
            return False
        if tally.count < self.entry.at_least:
            return False
        times = self._times.get(key, [])
        if self.entry.within_s is None or len(times) < self.entry.at_least:
            return self.entry.within_s is None or not times
        span = self.entry.at_least - 1
        return any(
            last - first <= self.entry.within_s
            for first, last in zip(times, times[span:], strict=False)
        )

    def _key(self, where: Origin, subject: str) -> tuple[str, str]:
        if self._per_process:
            return (where.process, subject)
        return (where.host, subject)

    def _into_tallies(self, item: Tally) -> None:
        """Join the lines with those near in time; far ones are another incident."""
        for tally in reversed(self._tallies):
            if _is_near(tally, item):
                tally.merge(item)
                return
        if len(self._tallies) >= _INCIDENTS:
            self._tallies[-1].merge(item)
            return
        self._tallies.append(item)


def _single(item: Evidence) -> Tally:
    tally = Tally()
    tally.add(item)
    return tally


def _is_near(one: Tally, other: Tally) -> bool:
    if one.start is None or other.start is None:
        return one.start is other.start
    assert one.end is not None  # noqa: S101 - set together with start
    assert other.end is not None  # noqa: S101 - likewise
    return other.start <= one.end + INCIDENT_GAP_S and one.start <= other.end + INCIDENT_GAP_S


def _in_time(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings into incidents: those without a time join the only one, or stand first."""
    timed = sorted(
        (each for each in findings if each.tally.start is not None),
        key=lambda each: each.tally.start or 0.0,
    )
    untimed = [each for each in findings if each.tally.start is None]
    groups: list[list[Finding]] = []
    end = 0.0
    for finding in timed:
        start = finding.tally.start or 0.0
        if groups and start <= end + INCIDENT_GAP_S:
            groups[-1].append(finding)
        else:
            groups.append([finding])
        end = max(end, finding.tally.end or start)
    if untimed and len(groups) == 1:
        groups[0] += untimed
    elif untimed:
        groups.insert(0, untimed)
    return groups


def _explain(group: Sequence[Finding]) -> Incident:
    """Sort an incident into first cause, other causes and what follows from each."""
    by_id: dict[str, Finding] = {}
    for finding in group:
        if finding.entry.id in by_id:
            by_id[finding.entry.id].tally.merge(finding.tally)
        else:
            by_id[finding.entry.id] = finding
    causes = [each for each in by_id.values() if each.entry.role is Role.CAUSE]
    effects = [each for each in by_id.values() if each.entry.role is Role.EFFECT]
    rank = _order(group)
    parent: dict[str, Finding] = {}
    for finding in causes:
        above = [
            each
            for each in causes
            if finding.entry.id in each.entry.explains and _may_precede(each, finding)
        ]
        if above:
            parent[finding.entry.id] = min(above, key=rank)
    roots = sorted((each for each in causes if each.entry.id not in parent), key=rank)
    if not roots and causes:
        # Entries that explain each other: the first of them is where to begin.
        roots = [min(causes, key=rank)]
        parent.pop(roots[0].entry.id, None)
    incident = Incident(causes=roots, followed={each.entry.id: [] for each in roots})
    for finding in sorted((each for each in causes if each not in roots), key=rank):
        incident.followed[_root(finding, parent, roots)].append(finding)
    for finding in sorted(effects, key=rank):
        owner = next((each for each in roots if _may_precede(each, finding)), None)
        # What comes long before every cause has another one, which the logs do not show.
        if owner is None:
            incident.unexplained.append(finding)
        else:
            incident.followed[owner.entry.id].append(finding)
    return incident


def _root(finding: Finding, parent: dict[str, Finding], roots: Sequence[Finding]) -> str:
    ids = {each.entry.id for each in roots}
    seen = {finding.entry.id}
    here = finding.entry.id
    while here not in ids:
        above = parent.get(here)
        if above is None or above.entry.id in seen:
            return roots[0].entry.id
        here = above.entry.id
        seen.add(here)
    return here


def _may_precede(cause: Finding, effect: Finding) -> bool:
    """False only where the order is known and is the other way round."""
    if cause.tally.start is None or effect.tally.start is None:
        return True
    return cause.tally.start <= effect.tally.start + CLOCK_TOLERANCE_S


Key = tuple[int, float, int, float, int, int]


def _order(findings: Sequence[Finding]) -> Callable[[Finding], Key]:
    """How to sort findings of one incident: what stops a job before what slows it, then by time.

    Where that is not known of all, the order of lines counts within one file. Across files, and
    for checks, which show a state, the lowest layer comes first.
    """
    has_times = all(each.tally.start is not None for each in findings)
    in_one_file = len({each.first.where for each in findings}) == 1
    is_log = all(each.first.where != CHECK for each in findings)

    def key(finding: Finding) -> Key:
        slows = int(finding.entry.severity is not Severity.STOPS)
        time = finding.tally.start or 0.0
        height = finding.entry.layer.height
        if has_times:
            return (slows, time, height, 0.0, *finding.first.order)
        if in_one_file and is_log:
            return (slows, 0.0, 0, 0.0, *finding.first.order)
        return (slows, float(height), int(finding.first.where != CHECK), time, *finding.first.order)

    return key


def _notes(findings: Sequence[Finding]) -> list[str]:
    timed = [each for each in findings if each.tally.start is not None]
    lines = [each for each in findings if each.first.where != CHECK]
    if len(lines) > 1 and 0 < len([each for each in timed if each in lines]) < len(lines):
        return ["some lines carry no time: their order against the others is not known"]
    return []


def _changed(source: Source) -> datetime | None:
    try:
        return datetime.fromtimestamp(Path(source.path).stat().st_mtime, UTC)
    except OSError:
        return None
