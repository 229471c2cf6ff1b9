"""JUnit XML of check records, read back as a CI server would."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from railweld.record import Check, Status
from railweld.verify.junit import render
from tests.unit.sites import SMALL

ROOT = Path(__file__).parents[3]
RAILWELD = Path(sys.executable).parent / "railweld"
MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(status: Status, **values: str) -> Check:
    given = {
        "id": f"rdma.{status}", "layer": "link", "target": "gpu1/rail1", "ran": "ip link",
        "found": "mtu 1500", "expected": "mtu 9000", "fix": "set it", "ref": "docs/base.md",
    }  # fmt: skip
    return Check(status=status, **{**given, **values})


def parse(*checks: Check, stage: str = "links") -> ET.Element:
    text = render("lab", {stage: checks, "empty": []}, MADE)
    return ET.fromstring(text.encode())  # noqa: S314 - this project wrote it


@pytest.mark.parametrize(
    ("status", "element", "attributes"),
    [
        (Status.PASS, None, {}),
        (Status.FAIL, "failure", {"type": "link", "message": "found mtu 1500, expected mtu 9000"}),
        (Status.UNKNOWN, "error", {"type": "link", "message": "found mtu 1500, expected mtu 9000"}),
        (Status.SKIPPED, "skipped", {"message": "mtu 1500: docs/base.md"}),
        (Status.WARN, "system-out", {}),
    ],
)
def test_each_status_has_its_element(
    status: Status, element: str | None, attributes: dict[str, str]
) -> None:
    (case,) = parse(record(status)).iter("testcase")
    assert case.attrib == {"classname": "links.gpu1/rail1", "name": f"rdma.{status}"}
    assert [(child.tag, child.attrib) for child in case] == (
        [(element, attributes)] if element else []
    )
    if status in (Status.FAIL, Status.UNKNOWN, Status.WARN):
        text = case[0].text or ""
        for words in ("gpu1/rail1: rdma.", "(see: ip link)", "Fix: set it", "docs/base.md"):
            assert words in text


def test_suites_and_document_are_counted() -> None:
    root = parse(*map(record, Status), record(Status.FAIL))
    counts = {"tests": "6", "failures": "2", "errors": "1", "skipped": "1"}
    assert root.attrib == {"name": "railweld verify lab", **counts}
    assert [suite.attrib for suite in root] == [
        {"name": "links", "timestamp": "2026-01-02T03:04:05+00:00", **counts},
        {"name": "empty", "timestamp": "2026-01-02T03:04:05+00:00", **dict.fromkeys(counts, "0")},
    ]


def test_what_machines_print_stays_well_formed() -> None:
    odd = 'a \x1b[31m<b>&"\x00 \ud800 \uffff \U0001f600'
    (case,) = parse(record(Status.FAIL, found=odd, target=odd)).iter("testcase")
    kept = 'a \ufffd[31m<b>&"\ufffd \ufffd \ufffd \U0001f600'
    assert case.get("classname") == f"links.{kept}"
    assert case[0].get("message") == f"found {kept}, expected mtu 9000"


def run(*argv: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, capture_output=True, check=False, cwd=ROOT)


def test_the_command_writes_it_and_an_early_end_leaves_no_old_one(tmp_path: Path) -> None:
    file = tmp_path / "verify.xml"
    file.write_text("of the run before")
    verify = [RAILWELD, "verify", "--junit", str(file)]
    assert run(*verify, "-i", str(tmp_path / "none")).returncode != 0
    assert not file.exists()
    # No switches and no Slurm: both stages skip without asking anybody.
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(SMALL)
    done = run(*verify, "--stage", "fabric,slurm", "-i", str(inventory))
    assert done.returncode == 0, done.stdout + done.stderr
    root = ET.parse(file).getroot()  # noqa: S314 - this project wrote it
    assert {suite.get("name"): suite.get("skipped") for suite in root} == {
        "fabric": "1", "slurm": "1",
    }  # fmt: skip
    assert file.stat().st_mode & 0o777 == 0o644
