"""Targets of a rollback: our lines as they were, other lines as they are."""

from __future__ import annotations

from railweld.fabric.diff import Observed, compare
from railweld.fabric.eos import Facts
from railweld.fabric.model import Ecn, Tuning
from railweld.fabric.push import target_from_backup
from railweld.fabric.render import render

from .fabrics import STRATA, one

FACTS = Facts(STRATA, "4.31.2F")


def config(tuning: Tuning) -> str:
    fabric = one(tuning=tuning)
    return render(fabric, fabric.switches[0], release=FACTS.release).text()


def test_a_switch_that_was_not_pushed_since_has_no_changes() -> None:
    fabric = one()
    plan = target_from_backup(fabric, {})(fabric.switches[0], FACTS, Observed("hostname leaf1\n"))
    assert plan.changes == ()


def test_old_values_come_back_and_todays_foreign_lines_stay() -> None:
    fabric = one(tuning=Tuning(ecn=Ecn(min_kb=400, max_kb=900)))
    now = config(fabric.tuning) + "vlan 9\n"
    target = target_from_backup(fabric, {"leaf1": config(Tuning()) + "vlan 7\n"})
    plan = target(fabric.switches[0], FACTS, Observed(now))
    assert [change.path[-1].split()[2:4] for change in plan.changes] == [
        ["minimum-threshold", "150"]
    ]
    assert "vlan" not in "\n".join(plan.commands())


def test_a_backup_from_before_the_first_push_takes_all_of_our_lines_away() -> None:
    fabric = one()
    bare = "hostname leaf1\ninterface Ethernet1/1\n   description gpu1\n"
    target = target_from_backup(fabric, {"leaf1": bare})
    plan = target(fabric.switches[0], FACTS, Observed(config(fabric.tuning)))
    assert {change.action for change in plan.changes} <= {"remove", "set"}
    commands = plan.commands()
    assert "no qos profile RAILWELD" in commands
    assert commands.index("default service-profile RAILWELD") < commands.index(
        "no qos profile RAILWELD"
    )
    assert compare(render(fabric, fabric.switches[0]), Observed(bare)).changes != ()
