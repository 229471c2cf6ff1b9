from __future__ import annotations

import json
from pathlib import Path

import pytest

from railweld.bench import baseline
from railweld.errors import RailweldError
from railweld.record import Status
from tests.unit.bench.made import run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))


@pytest.mark.parametrize(
    ("busbw", "status"), [(42.3, Status.PASS), (38.1, Status.PASS), (38.0, Status.FAIL)]
)
def test_a_tenth_less_than_the_stored_figure_is_a_regression(busbw: float, status: Status) -> None:
    baseline.save("site", [run("a", "b", busbw=42.3)])
    known = baseline.load("site")
    assert baseline.compare(run("a", "b", busbw=busbw), known, command="x").status is status


def test_other_sizes_and_unknown_runs_are_not_compared() -> None:
    baseline.save("site", [run("a", "b")])
    known = baseline.load("site")
    for one in (run("a", "c"), run("a", "b", size=1 << 20)):
        assert baseline.compare(one, known, command="x").status is Status.SKIPPED


def test_saving_some_runs_keeps_the_others() -> None:
    baseline.save("site", [run("a", "b"), run("a", "c")])
    baseline.save("site", [run("a", "b", busbw=44)])
    known = baseline.load("site")
    assert (known["a,b"].busbw, known["a,c"].busbw) == (44, 42.3)


def test_wrong_sums_are_no_reference() -> None:
    baseline.save("site", [run("a", "b")])
    with pytest.raises(RailweldError, match="wrong values"):
        baseline.save("site", [run("a", "b", busbw=50, wrong="2")])
    assert baseline.load("site")["a,b"].busbw == 42.3


def test_a_file_holds_figures_only_and_is_the_owners() -> None:
    file = baseline.save("site", [run("a", "b")])
    assert file.stat().st_mode & 0o777 == 0o600
    data = json.loads(file.read_text())
    assert data["runs"] == {"a,b": {"busbw": 42.3, "size": 1 << 30}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 9, "saved": "", "runs": {}}',
        '{"format": 1, "saved": "", "runs": {"a,b": 5}}',
        '{"format": 1, "saved": "", "runs": {"a,b": {"busbw": "x", "size": 1}}}',
        '{"format": 1, "saved": "", "runs": {"a,b": {"busbw": 1.0}}}',
    ],
)
def test_a_broken_file_is_named(text: str) -> None:
    file = baseline.path("site")
    file.write_text(text)
    with pytest.raises(RailweldError, match=str(file)):
        baseline.load("site")


def test_no_baseline_says_how_to_make_one() -> None:
    with pytest.raises(RailweldError, match="--baseline save"):
        baseline.load("site")
