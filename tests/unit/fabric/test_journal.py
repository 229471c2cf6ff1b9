"""The journal of pushes: what may be gone back to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from railweld.errors import UsageError
from railweld.fabric.journal import Journal, backups_before


def test_a_time_that_is_none_says_what_it_may_be_and_that_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    with pytest.raises(UsageError, match=r"'yesterday', expected a time .* there is none yet"):
        backups_before("lab", "yesterday")


@pytest.mark.parametrize(
    "moment",
    [
        "20261129T234512",
        "20261129-T234512Z",
        "20261329T234512Z",
        "20261129T236012Z",
        "20261129T234512Z-9",
        "2026112999999999",
        "20261129 and more",
        "20261129",
    ],
)
def test_only_a_time_of_the_calendar_or_a_run_is_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    now = datetime(2026, 11, 29, 23, 45, 12, tzinfo=UTC)
    runs = [Journal("lab", now=now) for _ in range(2)]
    for number, run in enumerate(runs):
        run.backup("leaf1", "before", f"configuration {number}")
    with pytest.raises(UsageError, match="20261129T234512Z, 20261129T234512Z-2"):
        backups_before("lab", moment)
    for known, text in (("20261129T234511Z", "0"), (runs[0].run, "0"), (runs[1].run, "1")):
        assert backups_before("lab", known)["leaf1"][1] == f"configuration {text}"
    assert backups_before("lab", "20261129T234513Z") == {}
