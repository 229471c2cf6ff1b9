"""Every fault of the table, made on the lab: what turns red, what doctor says, and green again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from railweld.record import Check
from tests.fault_table import NODES, SWITCHES, Row, by_checks, pattern_of
from tests.labs import TestLab, answer, command

pytestmark = [pytest.mark.lab, pytest.mark.deep]

ROWS = {name: row for name, row in {**NODES, **SWITCHES}.items() if row.stage == "base"}
#: Seconds that a fault, or its end, may take to show: LLDP, chronyd's first measurements, a boot;
#: on a busy machine a single look takes a minute.
SHOWS_S = 300.0

Red = dict[str, set[str]]


def wrong(lab: TestLab) -> list[Check]:
    """What fails now, or could not be looked at."""
    run = command(["railweld", "verify", "-i", str(lab.inventory), "--json"], check=False)
    found = [Check(**check) for check in answer(run.stdout)["checks"]]
    bad = [check for check in found if check.is_bad]
    assert (run.returncode == 0) is not bool(bad)
    return bad


def red(checks: Iterable[Check]) -> Red:
    """Machine to ids."""
    found: Red = {}
    for check in checks:
        found.setdefault(check.place[0], set()).add(pattern_of(check.id))
    return found


def until_red(lab: TestLab, wanted: Red) -> None:
    """Wait until exactly this is red."""
    deadline = time.monotonic() + SHOWS_S
    while red(found := wrong(lab)) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    assert red(found) == wanted, "\n".join(check.sentence() for check in found)


def diagnosis(lab: TestLab, node: str, since: int) -> dict[str, Any]:
    """What doctor says about a node and the switch ports that it hangs on.

    Journals are read from `since` on, in seconds since 1970: they still have what earlier faults
    made the node say.
    """
    arguments = ("-i", str(lab.inventory), "--json", "--since", f"@{since}")
    return answer(command(["railweld", "doctor", node, *arguments], check=False).stdout)


def test_a_lab_as_described_is_green_and_not_blamed(lab: TestLab) -> None:
    until_red(lab, {})
    said = diagnosis(lab, "gpu1", int(time.time()))
    assert by_checks(said) == set(), said["incidents"]


@pytest.mark.parametrize("fault", ROWS)
def test_exactly_the_declared_checks_turn_red_and_doctor_names_the_cause(
    lab: TestLab, fault: str
) -> None:
    row: Row = ROWS[fault]
    began = int(time.time())
    lab.fault(fault, row.node, *(f"{key}={value}" for key, value in row.settings.items()))
    try:
        until_red(lab, {machine: set(ids) for machine, ids in row.red.items()})
        said = diagnosis(lab, "gpu1", began)
        assert by_checks(said) == ({row.cause} if row.cause else set()), said["incidents"]
    finally:
        lab.clear(fault, row.node)
    if row.red:
        until_red(lab, {})
