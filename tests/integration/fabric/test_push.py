"""Pushes that succeed: old state to new state, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from railweld.errors import RailweldError
from railweld.fabric.model import Tuning
from railweld.fabric.push import Result, State
from railweld.fabric.stage import Looked, Stage
from railweld.fabric.transport import EosConnection, Login
from railweld.lab.veos import Device, Neighbour

from .conftest import Lab, one_leaf


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


def test_only_a_verification_logs_in_anew(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(one_leaf())
    opened: list[str] = []

    def connect(login: Login) -> EosConnection:
        opened.append(login.switch)
        return EosConnection(login)

    stage = Stage(lab.fabric, lab.logins, settings=lab.settings, connect=connect)
    _, report = stage.push(lambda seen: bool(seen.changed))
    assert report is not None
    assert report.ok
    assert opened == ["leaf1"] * 3, "the first look, and one verification for each pass"


def test_a_kept_connection_that_died_is_replaced(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(one_leaf())
    opened: list[EosConnection] = []

    def connect(login: Login) -> EosConnection:
        opened.append(EosConnection(login))
        return opened[-1]

    def cut(seen: Looked) -> bool:
        opened[0].close()
        return bool(seen.changed)

    stage = Stage(lab.fabric, lab.logins, settings=lab.settings, connect=connect)
    _, report = stage.push(cut)
    assert report is not None
    assert report.ok
    assert len(opened) == 4


def test_a_second_plan_is_empty(lab: Lab) -> None:
    lab.push()
    seen = lab.stage().looks()
    assert {n: s.plan.changes for n, s in seen.looks.items()} == {
        "leaf1": (), "leaf2": (), "spine1": (),
    }  # fmt: skip


def test_a_port_without_a_link_is_warned_about_and_holds_nothing_up(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(one_leaf())
    lab["leaf1"].fault("line-down", ports="Ethernet2/1")
    outcome = lab.push().outcomes[0]
    assert outcome.result is Result.PUSHED, outcome.sentence()
    assert any("Ethernet2/1" in text and "no link" in text for text in outcome.warnings)


def test_a_wrong_cable_is_refused_before_anything_changes(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(one_leaf())
    device = lab["leaf1"].device
    before = device.running_lines
    device.neighbours["Ethernet1/1"] = Neighbour("Ethernet1/1", "gpu9", "rail1")
    outcome = lab.push().outcomes[0]
    assert (outcome.result, outcome.state) == (Result.REFUSED, State.OLD)
    assert "found gpu9 rail1, expected gpu1 rail1" in outcome.text
    assert device.running_lines == before


def test_a_failed_end_takes_the_other_end_of_the_link_back(lab: Lab) -> None:
    lab["spine1"].fault("pfc-inactive", ports="Ethernet1/1")
    report = lab.push()
    states = {outcome.switch: outcome for outcome in report.outcomes}
    assert states["spine1"].result is Result.ROLLED_BACK
    assert "the other end of the link failed" in states["leaf1"].text
    for name, port in (("leaf1", "Ethernet31/1"), ("spine1", "Ethernet1/1")):
        assert lab[name].device.pfc(port).enabled is False, name
        assert lab[name].device.timer_left is None
    lab["spine1"].clear_faults()
    assert lab.push().ok


CONFIRM = r"^configure session railweld-\S+ commit$"
LINK = (("leaf1", "Ethernet31/1"), ("spine1", "Ethernet1/1"))
#: Sessions of each of them before that of the link: the first pass, and its other ports.
BEFORE = 2


def test_an_end_that_was_confirmed_first_is_taken_back_when_the_other_fails(lab: Lab) -> None:
    lab["spine1"].fault("refuse", match=CONFIRM, text="denied", at=BEFORE + 1)
    outcomes = {outcome.switch: outcome for outcome in lab.push().outcomes}
    assert outcomes["spine1"].result is Result.ROLLED_BACK, outcomes["spine1"].sentence()
    assert (outcomes["leaf1"].result, outcomes["leaf1"].state) == (Result.ROLLED_BACK, State.PART)
    assert "(spine1) failed after this one was confirmed" in outcomes["leaf1"].text
    for name, port in LINK:
        assert lab[name].device.pfc(port).enabled is False, name
        assert lab[name].device.timer_left is None
        assert lab[name].device.saved, name
    assert lab["leaf1"].device.pfc("Ethernet1/1").active, "the step before stays"
    lab["spine1"].clear_faults()
    assert lab.push().ok


def test_an_end_that_cannot_be_taken_back_is_named(lab: Lab) -> None:
    lab["spine1"].fault("refuse", match=CONFIRM, text="denied", at=BEFORE + 1)
    lab["leaf1"].fault("refuse", match="^configure session railweld-\\S+$", text="denied",
                       at=BEFORE + 2)  # fmt: skip
    outcomes = {outcome.switch: outcome for outcome in lab.push().outcomes}
    assert outcomes["leaf1"].state is State.NEW
    told = " ".join(outcomes["leaf1"].warnings)
    assert "PFC on one end only (taking this end back failed: refused `configure session" in told
    assert lab["leaf1"].device.pfc("Ethernet31/1").enabled is True
    lab["leaf1"].clear_faults()
    lab["spine1"].clear_faults()
    assert lab.push().ok


def test_an_end_stays_when_the_other_does_not_answer_any_more(lab: Lab) -> None:
    login = lab.logins["spine1"]
    seen: list[str] = []

    def cut(name: str, what: str) -> None:
        seen.append(f"{name} {what}")
        if what == "confirming" and name == "leaf1" and "spine1 verifying" in seen[-4:]:
            lab.logins["spine1"] = replace(login, port=9, connect_timeout_s=0.2)
            lab["spine1"].fault("disconnect", match=CONFIRM, when="before")

    lab.hook = cut
    outcomes = {outcome.switch: outcome for outcome in lab.push().outcomes}
    assert outcomes["spine1"].state is State.UNKNOWN, seen
    assert outcomes["leaf1"].state is State.NEW
    assert any("its state is not known" in text for text in outcomes["leaf1"].warnings)


def test_traffic_in_the_lossless_queue_asks_for_disruptive(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(one_leaf())

    def busy(device: Device) -> None:
        device.counters["Ethernet1/1"].packets[3] += 1000

    lab["leaf1"].fault("call", match="^show interfaces .*counters queue", times=0, function=busy)
    outcome = lab.push().outcomes[0]
    assert (outcome.result, outcome.state) == (Result.REFUSED, State.FIRST_PASS), outcome.sentence()
    assert "--disruptive" in outcome.text
    lab.settings = replace(lab.settings, disruptive=True)
    assert lab.push().ok


def test_the_buffer_profile_needs_disruptive(make_lab: Callable[..., Lab]) -> None:
    fabric = one_leaf().model_copy(update={"tuning": Tuning(mmu=True)})
    lab = make_lab(fabric)
    outcome = lab.push().outcomes[0]
    assert (outcome.result, outcome.state) == (Result.REFUSED, State.OLD)
    assert "re-carves the packet buffers" in outcome.text
    lab.settings = replace(lab.settings, disruptive=True)
    assert lab.push().ok
    assert lab["leaf1"].device.mmu_profile() == "RAILWELD-MMU"


def test_another_model_than_described_is_not_touched(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(one_leaf())
    described = lab.fabric.switches[0].model_copy(update={"model": "DCS-7280CR3-32P4"})
    fabric = lab.fabric.model_copy(update={"switches": (described,)})
    with pytest.raises(RailweldError, match="this may be another switch"):
        lab.push(fabric=fabric)
