from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from railweld.bench.results import parse, version_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nccl_tests"
H200 = (FIXTURES / "h200x2-2.19.6.txt").read_text()
#: No version line, no root column, the largest error in place of a count.
OLD = (FIXTURES / "before-2.11.txt").read_text()
#: Real, with -I 1: four more columns behind each group.
PER_ITERATION = (FIXTURES / "per-iteration.txt").read_text()
#: Through mpirun --tag-output, with a log line between the rows.
LOGGED = (FIXTURES / "tagged.txt").read_text()


def test_a_real_run_of_two_gpus_over_nvlink() -> None:
    result = parse(H200)
    assert result.complete
    assert result.validated
    assert (result.program, result.tests_version, result.nccl) == (
        "all_reduce_perf",
        "2.19.6",
        "2.28.9",
    )
    assert [rank.model for rank in result.ranks] == ["NVIDIA H200", "NVIDIA H200"]
    assert result.largest is not None
    assert (result.largest.size, result.largest.out_of_place.busbw) == (536870912, 312.45)
    assert (result.wrong, result.average) == (0, 78.9438)


def test_old_releases_have_other_columns_and_count_no_errors() -> None:
    result = parse(OLD)
    assert result.complete
    assert result.largest is not None
    assert result.largest.out_of_place.busbw == 132.88
    assert result.largest.out_of_place.wrong is None
    assert result.wrong == 0
    assert result.hosts == ("node-a",)


def test_results_that_were_not_compared_are_not_taken_for_right() -> None:
    result = parse((FIXTURES / "unchecked.txt").read_text())
    assert result.complete
    assert (result.validated, result.out_of_bounds) == (False, 0)
    assert parse(OLD).validated


def test_per_iteration_columns_do_not_shift_the_second_group() -> None:
    (row,) = parse(PER_ITERATION).rows
    assert row.in_place is not None
    assert (row.out_of_place.busbw, row.in_place.busbw) == (328.10, 328.78)


def test_tags_logs_and_unchecked_rows_are_read_for_what_they_are() -> None:
    result = parse(LOGGED.replace("\n", "\r\n"))
    assert [row.out_of_place.wrong for row in result.rows] == [3, None]
    assert (result.out_of_bounds, result.wrong, result.average) == (1, 3, 42.655)


@pytest.mark.parametrize("cut", [1400, 1700, 2200])
def test_a_run_that_was_cut_is_not_complete(cut: int) -> None:
    result = parse(H200[:cut])
    assert not result.complete
    assert all(row.in_place is not None for row in result.rows)


@pytest.mark.parametrize(
    "line",
    [
        "gpu3: Test NCCL failure common.cu:958 'unhandled system error'",
        "mpirun was unable to launch the specified application as it could not access",
        "gpu1:99:120 [0] transport/net_ib.cc:88 NCCL WARN NET/IB : Got completion with error 12",
    ],
)
def test_the_reason_of_a_failure_is_kept(line: str) -> None:
    assert parse(f"# nThread 1\n{line}\n").errors == (line,)


@pytest.mark.parametrize(
    ("code", "version"), [(22809, "2.28.9"), (21403, "2.14.3"), (2804, "2.8.4")]
)
def test_nccls_version_code(code: int, version: str) -> None:
    assert version_of(code) == version


# A digit for isdigit(), and no number for int().
@example("\n²  ² float sum -1 1 1 1 0 1 1 1 0\n", len(H200))
@given(st.text(max_size=400), st.integers(0, len(H200)))
def test_no_text_breaks_the_reader(noise: str, place: int) -> None:
    assert parse(H200[:place] + noise + H200[place:]).wrong >= 0
