"""Pushes that succeed: old state to new state, and nothing else changes."""

from __future__ import annotations

from railweld.fabric.push import Result, State

from .conftest import Lab


def test_a_push_ends_in_the_new_state_confirmed_and_saved(lab: Lab) -> None:
    report = lab.push()
    assert [(o.switch, o.result, o.state) for o in report.outcomes] == [
        ("leaf1", Result.PUSHED, State.NEW),
        ("leaf2", Result.PUSHED, State.NEW),
        ("spine1", Result.PUSHED, State.NEW),
    ], [o.sentence() for o in report.outcomes]
    for name, switch in lab.switches.items():
        assert switch.device.timer_left is None, name
        assert switch.device.pending_sessions == [], name
        assert switch.device.saved, name
        for port in lab.fabric.switch(name).ports:
            state = switch.device.pfc(port.name)
            assert (state.active, state.priorities, state.watchdog_active) == (True, (3,), True)


def test_a_second_plan_is_empty(lab: Lab) -> None:
    lab.push()
    seen = lab.stage().looks()
    assert {n: s.plan.changes for n, s in seen.looks.items()} == {
        "leaf1": (), "leaf2": (), "spine1": (),
    }  # fmt: skip
