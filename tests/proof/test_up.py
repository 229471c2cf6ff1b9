"""`railweld up` on a lab: from bare nodes to a report, and a second run that changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from railweld.state import site_state_dir
from tests.labs import TestLab, command

pytestmark = [pytest.mark.lab, pytest.mark.deep]


def test_the_chain_ends_green_and_its_second_run_changes_nothing(
    lab: TestLab, tmp_path: Path
) -> None:
    """The fixture was the first run; a site without a cluster skips its stages by name."""
    report, junit = tmp_path / "report.html", tmp_path / "verify.xml"
    journal = site_state_dir("proof") / "journal.jsonl"
    before = len(journal.read_text().splitlines())
    run = command(
        [
            *("railweld", "up", "-i", str(lab.inventory)),
            *("--report", str(report), "--junit", str(junit)),
        ],
        timeout=1800,
    )
    assert re.search(r"^\d+ hosts: \d+ ok, 0 failed; changed=0;", run.stdout, re.MULTILINE)
    for stage in ("cluster", "stack", "slurm"):
        assert re.search(rf"{stage} +. skipped: no host in group", run.stdout)
    assert "default-src 'none'" in report.read_text()
    root = ET.parse(junit).getroot()  # noqa: S314 - railweld wrote it
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    assert int(root.get("tests", "0")) > 100
    # The journal of a site outlives its lab: other lines are those of earlier runs of this suite.
    lines = journal.read_text().splitlines()[before:]
    done = [line for line in map(json.loads, lines) if line["target"] == "site"]
    assert [line["stage"] for line in done] == ["check", "base", "fabric", "fabric", "proof"]
    assert {line["result"] for line in done} == {"done"}
