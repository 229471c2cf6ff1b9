"""Every fault of the table, made on the lab: what turns red, what doctor says, and green again."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from railweld.record import Check
from tests.fault_table import NODES, SWITCHES, Row, pattern_of
from tests.labs import TestLab, command

pytestmark = [pytest.mark.lab, pytest.mark.deep]

ROWS = {name: row for name, row in {**NODES, **SWITCHES}.items() if row.stage == "base"}
#: Seconds that a fault, or its end, may take to show: LLDP, chronyd's first measurements, a boot.
SHOWS_S = 180.0


def red(lab: TestLab) -> dict[str, set[str]]:
    """What is wrong now: machine to ids."""
    run = command(["railweld", "verify", "-i", str(lab.inventory), "--json"], check=False)
    found: dict[str, set[str]] = {}
    for check in json.loads(run.stdout)["checks"]:
        if check["status"] in ("fail", "unknown"):
            found.setdefault(Check(**check).place[0], set()).add(pattern_of(check["id"]))
    assert (run.returncode == 0) is not bool(found)
    return found


def until_red(lab: TestLab, wanted: dict[str, set[str]]) -> None:
    """Wait until exactly this is red."""
    deadline = time.monotonic() + SHOWS_S
    while (found := red(lab)) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    assert found == wanted


def diagnosis(lab: TestLab, node: str) -> dict[str, Any]:
    """What doctor says about a node and the switch ports that it hangs on."""
    arguments = ("-i", str(lab.inventory), "--json")
    run = command(["railweld", "doctor", node, *arguments], check=False)
    said: dict[str, Any] = json.loads(run.stdout)
    return said


def by_checks(said: dict[str, Any]) -> set[str]:
    """Causes that a check shows; journals of a machine have a history of their own."""
    return {
        cause["id"]
        for incident in said["incidents"]
        for cause in incident["causes"]
        if any(line["where"] == "check" for line in cause["evidence"])
    }


def test_a_lab_as_described_is_green_and_not_blamed(lab: TestLab) -> None:
    until_red(lab, {})
    assert by_checks(diagnosis(lab, "gpu1")) == set()


@pytest.mark.parametrize("fault", ROWS)
def test_exactly_the_declared_checks_turn_red_and_doctor_names_the_cause(
    lab: TestLab, fault: str
) -> None:
    row: Row = ROWS[fault]
    lab.fault(fault, row.node, *(f"{key}={value}" for key, value in row.settings.items()))
    try:
        until_red(lab, {machine: set(ids) for machine, ids in row.red.items()})
        assert by_checks(diagnosis(lab, "gpu1")) == ({row.cause} if row.cause else set())
    finally:
        lab.clear(fault, row.node)
    until_red(lab, {})
