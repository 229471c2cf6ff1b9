"""Diagnoses as text for people and as JSON for machines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from railweld.doctor.catalogue import Entry, Severity
from railweld.doctor.diagnosis import CHECK, Diagnosis, Evidence, Finding, Incident
from railweld.errors import ExitCode

#: Form of the JSON; grows only with changes that break readers.
VERSION: Final = 1
_LABEL: Final = 11
_EFFECT: Final = {
    Severity.STOPS: ", stops a job",
    Severity.SLOWS: ", slows a job down or will break it later",
    Severity.UNKNOWN: "",
}
#: Names that are listed before "and N more".
_NAMES: Final = 6

Paint = Callable[[str, str], str]


def exit_code(diagnosis: Diagnosis) -> ExitCode:
    """1: something known was found; 3: nothing found, and not everything was looked at; 0: nothing.

    Effects without a cause count as found: something did go wrong.
    """
    if diagnosis.incidents:
        return ExitCode.FAILED
    return ExitCode.UNKNOWN if diagnosis.unread else ExitCode.OK


def as_text(diagnosis: Diagnosis, *, width: int, entries: int, paint: Paint) -> str:
    """The diagnosis for a terminal.

    Args:
        width: columns.
        entries: size of the catalogue, for the sentence that nothing was found.
        paint: gives a text a colour, or not.
    """
    parts: list[str] = []
    many = len(diagnosis.incidents) > 1
    for number, incident in enumerate(diagnosis.incidents, 1):
        if many:
            when = incident.start
            at = f", from {_time(when)}" if when is not None else ", lines without a time"
            parts.append(paint(f"Incident {number} of {len(diagnosis.incidents)}{at}", "bold"))
        parts += _incident(incident, width, paint)
    if not diagnosis.incidents:
        parts.append(_nothing(diagnosis, entries, width))
    parts += [_wrapped(f"note: {note}", width) for note in diagnosis.notes]
    if diagnosis.unread:
        lines = [paint("Could not be looked at:", "yellow")]
        lines += [_wrapped(each, width, indent="  ") for each in diagnosis.unread]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _incident(incident: Incident, width: int, paint: Paint) -> list[str]:
    parts = []
    for number, cause in enumerate(incident.causes):
        head = "First cause" if number == 0 else "Also found"
        parts.append(_finding(head, cause, incident.followed[cause.entry.id], width, paint))
    if incident.unexplained:
        lines = [paint("After-effects without their cause", "yellow")]
        lines.append(
            _wrapped(
                "Another rank or host failed first, and it is not in what was read. Give the logs "
                "of all ranks and the kernel log of all hosts of the job.",
                width,
                indent="  ",
            )
        )
        lines += [_follower(each, width) for each in incident.unexplained]
        parts.append("\n".join(lines))
    return parts


def _finding(
    head: str, finding: Finding, followed: Iterable[Finding], width: int, paint: Paint
) -> str:
    entry, tally = finding.entry, finding.tally
    lines = [paint(f"{head}: {entry.title}", "red" if head == "First cause" else "yellow")]

    def row(label: str, text: str) -> None:
        lines.append(_wrapped(text, width, indent=f"  {label:<{_LABEL}}", hang=_LABEL + 2))

    row("where", "; ".join(filter(None, [*_places(finding), _when(finding)])) or "not said")
    row("layer", f"{entry.layer.value}{_EFFECT[entry.severity]} [{entry.id}]")
    row("cause", entry.cause)
    if entry.proof:
        row("proof", f"the lines alone do not prove it: {entry.proof}")
    for number, item in enumerate(tally.evidence):
        row("evidence" if number == 0 else "", _line(item))
    rest = tally.count - len(tally.evidence)
    if rest > 0:
        row("", f"and {rest} more like it")
    for number, command in enumerate(entry.confirm):
        row("confirm" if number == 0 else "", filled(command, finding))
    for number, step in enumerate(entry.fix, 1):
        row("fix" if number == 1 else "", f"{number}. {filled(step, finding)}")
    for number, source in enumerate(entry.sources):
        row("source" if number == 0 else "", source)
    followed = list(followed)
    if followed:
        lines.append("  followed by")
        lines += [_follower(each, width) for each in followed]
    return "\n".join(lines)


def _follower(finding: Finding, width: int) -> str:
    tally = finding.tally
    where = f"{finding.first.where}:{finding.first.line}" if finding.first.line else CHECK
    places = ", ".join(_places(finding)) or "origin not said"
    text = f"{finding.entry.title} [{finding.entry.id}]: {tally.count}x, {places}, first {where}"
    return _wrapped(text, width, indent="    - ", hang=6)


def _line(item: Evidence) -> str:
    return f"{item.where}:{item.line}: {item.text}" if item.line else item.text


def _places(finding: Finding) -> list[str]:
    tally = finding.tally
    return [text for text in (_names(tally.origins), _names(tally.subjects)) if text]


def _names(names: Iterable[str]) -> str:
    ordered = sorted(filter(None, names), key=_natural)
    if len(ordered) <= _NAMES:
        return ", ".join(ordered)
    return f"{', '.join(ordered[:_NAMES])} and {len(ordered) - _NAMES} more"


def _natural(text: str) -> list[tuple[int, str]]:
    parts: list[tuple[int, str]] = []
    digits = ""
    for character in text + " ":
        if character.isdecimal():
            digits += character
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, character))
    return parts


def _when(finding: Finding) -> str:
    start = finding.tally.start
    return f"first at {_time(start)}" if start is not None else ""


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).astimezone().isoformat(" ", "seconds")


def filled(text: str, finding: Finding) -> str:
    """A command or step with the host and the object that are meant, where they are known."""
    host = finding.first.origin.host or "NODE"
    subject = finding.first.subject or next(iter(sorted(finding.tally.subjects)), "") or "NAME"
    return text.replace("{host}", host).replace("{subject}", subject)


def _nothing(diagnosis: Diagnosis, entries: int, width: int) -> str:
    looked = []
    if diagnosis.inputs:
        progress = diagnosis.progress
        looked.append(
            f"{_count(progress.lines, 'line')} ({progress.bytes / 1e6:.1f} MB) in "
            f"{_count(len(diagnosis.inputs), 'log')}"
        )
    if diagnosis.checks:
        looked.append(_count(diagnosis.checks, "check"))
    text = f"Nothing known found in {' and '.join(looked) or 'nothing'}, by {entries} entries."
    if diagnosis.inputs:
        text += (
            " That does not prove that nothing is wrong: a fault may be in a log that is not here "
            "(other ranks, the kernel, the switches), or be none that the catalogue knows."
        )
    return _wrapped(text, width)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wrapped(text: str, width: int, *, indent: str = "", hang: int | None = None) -> str:
    if hang is None:
        hang = len(indent)
    return textwrap.fill(
        text,
        max(width, 60),
        initial_indent=indent,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis for machines."""
    return {
        "version": VERSION,
        "found": bool(diagnosis.incidents),
        "first_cause": diagnosis.causes[0].entry.id if diagnosis.causes else None,
        "incidents": [
            {
                "start": _iso(incident.start),
                "causes": [
                    {
                        **_as_dict(each),
                        "followed_by": [_as_dict(f) for f in incident.followed[each.entry.id]],
                    }
                    for each in incident.causes
                ],
                "effects_without_cause": [_as_dict(each) for each in incident.unexplained],
            }
            for incident in diagnosis.incidents
        ],
        "inputs": diagnosis.inputs,
        "lines": diagnosis.progress.lines,
        "bytes": diagnosis.progress.bytes,
        "checks": diagnosis.checks,
        "not_looked_at": diagnosis.unread,
        "notes": diagnosis.notes,
    }


def _as_dict(finding: Finding) -> dict[str, Any]:
    entry, tally = finding.entry, finding.tally
    return {
        "id": entry.id,
        "title": entry.title,
        "layer": entry.layer.value,
        "role": entry.role.value,
        "severity": entry.severity.value,
        "cause": entry.cause,
        "proof": entry.proof,
        "confirm": [filled(each, finding) for each in entry.confirm],
        "fix": [filled(each, finding) for each in entry.fix],
        "sources": list(entry.sources),
        "basis": entry.basis,
        "count": tally.count,
        "start": _iso(tally.start),
        "end": _iso(tally.end),
        "origins": sorted(tally.origins, key=_natural),
        "subjects": sorted(tally.subjects, key=_natural),
        "evidence": [
            {
                "where": item.where,
                "line": item.line or None,
                "text": item.text,
                "time": _iso(item.time),
                "host": item.origin.host or None,
                "rank": item.origin.rank,
                "subject": item.subject or None,
            }
            for item in tally.evidence
        ],
    }


def _iso(when: float | None) -> str | None:
    return None if when is None else datetime.fromtimestamp(when, UTC).isoformat()


def table(entries: Iterable[Entry]) -> str:
    """The catalogue in one line per entry, for `--list`."""
    return "\n".join(
        f"{entry.layer.value:<8} {entry.id:<26} {'effect: ' if entry.role == 'effect' else ''}"
        f"{entry.title}"
        for entry in entries
    )
