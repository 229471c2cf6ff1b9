"""Check records as JUnit XML, which CI servers show.

A suite per stage, a case per record. `fail` is a failure; `unknown` is an error, since nothing can
be said about the state; `warn` passes and speaks in `system-out`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final
from xml.etree import ElementTree as ET

from railweld.record import Check, Status

#: What XML 1.0 has no place for, not even escaped; machines print it all the same.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(site: str, found: Mapping[str, Iterable[Check]], made: datetime) -> str:
    """The document: what each stage found at a time."""
    root = ET.Element("testsuites", name=f"railweld verify {_text(site)}")
    total: dict[str, int] = {}
    for stage, checks in found.items():
        listed = list(checks)
        counts = _counts(listed)
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
        suite = ET.SubElement(
            root, "testsuite", name=stage, timestamp=made.isoformat(timespec="seconds")
        )
        suite.attrib.update({name: str(count) for name, count in counts.items()})
        for check in listed:
            _case(suite, stage, check)
    root.attrib.update({name: str(count) for name, count in total.items()})
    ET.indent(root)
    # The declaration's encoding is that of the file, which is written as UTF-8.
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(checks: list[Check]) -> dict[str, int]:
    def count(status: Status) -> int:
        return sum(check.status is status for check in checks)

    return {
        "tests": len(checks),
        "failures": count(Status.FAIL),
        "errors": count(Status.UNKNOWN),
        "skipped": count(Status.SKIPPED),
    }


def _case(suite: ET.Element, stage: str, check: Check) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=f"{stage}.{_text(check.target)}", name=_text(check.id)
    )
    match check.status:
        case Status.FAIL | Status.UNKNOWN:
            element = ET.SubElement(
                case,
                "failure" if check.status is Status.FAIL else "error",
                type=check.layer,
                message=_text(f"found {check.found}, expected {check.expected}"),
            )
            element.text = _text(_told(check))
        case Status.SKIPPED:
            ET.SubElement(case, "skipped", message=_text(check.reason))
        case Status.WARN:
            ET.SubElement(case, "system-out").text = _text(_told(check))
        case Status.PASS:
            pass


def _told(check: Check) -> str:
    return check.sentence() + (f"\n{check.ref}" if check.ref else "")


def _text(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
