"""The switches' rows of the fault table, on virtual switches: what is red, and what doctor says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from railweld.doctor.catalogue import load
from railweld.doctor.diagnosis import Doctor
from railweld.fabric.push import Settings
from railweld.record import Check
from tests.fault_table import SWITCHES, pattern_of

from .conftest import Lab, one_leaf

#: One leaf with two nodes on it: every port that the rows name.
SETTINGS = Settings(observe_s=0.0, retry_s=1.0, reach_s=5.0)


def red(checks: list[Check]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for check in checks:
        if check.is_bad:
            found.setdefault(check.place[0], set()).add(pattern_of(check.id))
    return found


@pytest.mark.parametrize("fault", SWITCHES)
def test_exactly_the_declared_checks_turn_red_and_doctor_names_the_cause(
    make_lab: Callable[..., Lab], fault: str
) -> None:
    row = SWITCHES[fault]
    lab = make_lab(one_leaf(), settings=SETTINGS)
    lab.push()
    assert red(lab.stage().verify()) == {}
    lab[row.node].fault(fault, **row.settings)
    checks = lab.stage().verify()
    assert red(checks) == {machine: set(ids) for machine, ids in row.red.items()}
    doctor = Doctor(load())
    doctor.judge(checks)
    assert [each.entry.id for each in doctor.diagnose().causes] == (
        [row.cause] if row.cause else []
    )
