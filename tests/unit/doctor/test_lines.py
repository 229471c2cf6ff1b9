"""Times, hosts and ranks in the forms in which logs write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from railweld.doctor.lines import Clock, Origin, origin

NOW = datetime(2026, 12, 1, tzinfo=UTC)
MOMENT = datetime(2026, 11, 30, 2, 57, 25)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30T02:57:25 x",
        "2026-11-30 02:57:25,000 [INFO] x",
        "[2026-11-30T02:57:25.000] error: x",
        "2026/11/30 02:57:25 x",
        "Nov 30 02:57:25 gpu7 kernel: x",
        "[Mon Nov 30 02:57:25 2026] NVRM: x",
        "E1130 02:57:25.000000 1234 x.go:1] x",
        "[rank3]:[E1130 02:57:25.000000 ProcessGroupNCCL.cpp:1] x",
        "Nov 30 2026 02:57:25 leaf1 Ebra: x",
    ],
)
def test_local_time_is_read(line: str) -> None:
    stamp = Clock(NOW).first(line)
    assert stamp is not None
    assert stamp.time == MOMENT.astimezone().timestamp()


@pytest.mark.parametrize(
    ("line", "hour"),
    [
        ("2026-11-30T02:57:25Z", 2),
        ("2026-11-30T02:57:25+01:00", 1),
        ("2026-11-30T02:57:25-0500", 7),
    ],
)
def test_zone_is_read(line: str, hour: int) -> None:
    stamp = Clock(NOW).first(line)
    assert stamp is not None
    assert stamp.time == datetime(2026, 11, 30, hour, 57, 25, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "line",
    ["no time", "2026-13-45T99:99:99", "Feb 31 02:57:25", "x" * 500 + " 2026-11-30T02:57:25"],
)
def test_what_is_no_time_is_none(line: str) -> None:
    assert Clock(NOW).first(line) is None


def test_december_read_in_january_is_last_year() -> None:
    stamp = Clock(datetime(2027, 1, 2, tzinfo=UTC)).first("Dec 31 23:00:00 gpu7 kernel: x")
    assert stamp is not None
    assert datetime.fromtimestamp(stamp.time, UTC).year == 2026


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpu1:88:99 [0] NCCL INFO x", Origin("gpu1", None, "gpu1:88")),
        ("gpu1:88:99 [0] net.cc:200 NCCL WARN x", Origin("gpu1", None, "gpu1:88")),
        ("12: gpu1:88:99 [0] NCCL INFO x", Origin("gpu1", 12, "gpu1:88")),
        ("[rank3]: Traceback", Origin("", 3)),
        ("Nov 30 02:57:25 gpu7 kernel: x", Origin("gpu7")),
        ("2026-11-30T02:57:25.1Z gpu7 slurmd[12]: x", Origin("gpu7")),
        ("nothing", Origin()),
    ],
)
def test_origin_is_read(line: str, expected: Origin) -> None:
    assert origin(line, Origin(), Clock(NOW).first(line)) == expected
