"""A fault at every step of a push: the switch ends in old or new, and the command says which.

Every case ends with the same questions: is anything of ours still pending or armed, was anything
saved that was not confirmed, are other people's sessions untouched, and does the next push finish
the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from railweld.errors import RailweldError
from railweld.fabric.journal import fabric_dir
from railweld.fabric.push import Outcome, Result, Settings, State
from railweld.fabric.transport import Login
from railweld.lab.veos import Device, VirtualSwitch

from .conftest import SITE, Lab, one_leaf

pytestmark = pytest.mark.deep

MakeLab = Callable[..., Lab]
TIMER = r"commit timer"
CONFIRM = r"^configure session railweld-\S+ commit$"


@dataclass(frozen=True)
class Case:
    """A fault, and what the operator must be told."""

    fault: str
    result: Result
    state: State
    words: str
    values: dict[str, Any] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    finish: bool = False

    def __str__(self) -> str:
        text = self.values.get("text", self.values.get("when", ""))
        return "-".join(
            str(part) for part in (self.fault, text, self.values.get("match", "")) if part
        )


REFUSED, BACK, OLD = Result.REFUSED, Result.ROLLED_BACK, State.OLD
FIRST = State.FIRST_PASS
IN_SESSION = {"mode": "session"}


def refused(text: str, words: str, **values: Any) -> Case:
    """A line of ours is refused within the session."""
    return Case("refuse", REFUSED, OLD, words, {"text": text, "mode": "session", "at": 7, **values})


def commit_for_good(device: Device) -> None:
    """A commit whose timer does not run: the change is there to stay."""
    assert device.timer is not None
    device.commit(device.timer.session, None, "admin")


CASES = (
    # (1) every refusal text, in the session and at the commit
    refused("invalid", "% Invalid input"),
    refused("incomplete", "% Incomplete command"),
    refused("ambiguous", "% Ambiguous command"),
    refused("unavailable", "this model or a line before it does not allow it"),
    Case("refuse", REFUSED, FIRST, "try again in a minute",
         {"text": "no-pfc", "match": "^priority-flow-control pause", "mode": "session"}),
    refused("prefix-length", "% Prefix length must be less than 32"),
    refused("invalid-at-line", "% Invalid input at line 3"),
    refused("error", "% Error"),
    refused("user-not-present", "% User not present"),
    refused("bad-secret", "% Bad secret"),
    refused("overlap", "% Subnet 10.0.0.0/24 overlaps"),
    refused("not-found", "ROCE not found"),
    refused("denied", "the right to change the configuration"),
    Case("refuse", REFUSED, OLD, "% Invalid input",
         {"match": "^configure session", "text": "invalid"}),
    Case("refuse", BACK, OLD, "% Error", {"match": TIMER, "text": "error"}),
    Case("refuse", BACK, OLD, "Authorization denied", {"match": CONFIRM, "text": "denied"}),
    # (2)
    Case("agent-initialising", REFUSED, FIRST, "initializing", {"seconds": 30}),
    # (3)
    Case("session-limit", REFUSED, OLD, "other-0", foreign=tuple(f"other-{n}" for n in range(5))),
    Case("foreign-pending", REFUSED, OLD, "other-session", foreign=("other-session",)),
    Case("foreign-timer", REFUSED, OLD, "other-session under a commit timer",
         foreign=("other-session",)),
    # (4)
    Case("expire", BACK, OLD, "still to be done", {"match": "^show running-config", "at": 4}),
    Case("disconnect", BACK, OLD, "connection was lost", {"match": TIMER, "when": "before"}),
    Case("disconnect", BACK, OLD, "connection was lost", {"match": TIMER, "when": "after"},
         finish=True),
    Case("disconnect", REFUSED, OLD, "connection was lost", {"at": 12, **IN_SESSION}),
    Case("disconnect", BACK, OLD, "connection was lost", {"match": CONFIRM, "when": "before"}),
    Case("disconnect", Result.PUSHED, State.NEW, "", {"match": CONFIRM, "when": "after"}),
    Case("hang", REFUSED, OLD, "no end of the answer", {"at": 9, **IN_SESSION}, finish=True),
    Case("reload", REFUSED, OLD, "", {"at": 9, **IN_SESSION}),
    Case("reload", BACK, OLD, "", {"match": TIMER}, finish=True),
    Case("call", Result.NOT_VERIFIED, FIRST, "without our confirmation",
         {"match": TIMER, "when": "after", "function": commit_for_good}),
    # (6)
    Case("confirm", REFUSED, OLD, "maintenance window",
         {"match": "^service-profile", "text": "WARNING! This may disrupt. Proceed [y/n]"}),
    Case("clock-prompt", REFUSED, OLD, "prompt"),
    Case("supervisor", Result.PUSHED, State.NEW, ""),
    Case("duplicate-echo", Result.PUSHED, State.NEW, "", {"match": "^(show version|mtu)"}),
    Case("slow-echo", Result.PUSHED, State.NEW, "", {"match": "^mtu", "seconds": 0.3}),
    Case("slow-save", Result.PUSHED, State.NEW, "", {"seconds": 0.3}),
    Case("banner", Result.PUSHED, State.NEW, "", {"text": "*** # authorised use only > ***"}),
    # (7)
    Case("running-change", REFUSED, OLD, "lines in the session's diff that the plan does not have",
         {"match": "diffs$", "lines": ["vlan 99"]}),
    Case("running-change", REFUSED, OLD, "changed by somebody else",
         {"match": "^show configuration sessions", "at": 2, "lines": ["vlan 99"]}, finish=True),
    # (8)
    Case("pfc-inactive", BACK, FIRST, "not active"),
    Case("watchdog-inactive", BACK, FIRST, "not active"),
    # (9)
    Case("drops-after-commit", BACK, OLD, "drops in the lossless queue rose", {"count": 5},
         finish=True),
    Case("pause-after-commit", BACK, OLD, "PFC pause frames rose", {"count": 5}),
    # (10)
    Case("show-refused", BACK, FIRST, "fabric.pfc", {"match": "^show priority-flow-control$"}),
    Case("show-empty", BACK, FIRST, "fabric.pfc", {"match": "^show priority-flow-control$"}),
    Case("show-refused", REFUSED, OLD, "show version", {"match": "^show version"}),
    Case("show-empty", REFUSED, OLD, "show version", {"match": "^show version"}),
    # (11)
    Case("save-fails", Result.NOT_SAVED, FIRST, "free flash space", {"text": "flash-full"}),
    # privilege
    Case("denied", REFUSED, OLD, "denied", {"match": "^configure session"}),
)  # fmt: skip


def state_of(switch: VirtualSwitch, before: list[str]) -> State:
    """What a switch runs, seen from itself."""
    if switch.running_lines == before:
        return OLD
    return State.NEW if switch.device.pfc("Ethernet1/1").enabled else FIRST


def run(lab: Lab) -> Outcome:
    """Push; a refusal before the first change has no report but a text."""
    try:
        return lab.push().outcomes[0]
    except RailweldError as error:
        return Outcome("leaf1", REFUSED, OLD, str(error))


def assert_settled(switch: VirtualSwitch, foreign: tuple[str, ...] = ()) -> None:
    device = switch.device
    assert [n for n in device.pending_sessions if n.startswith("railweld-")] == []
    assert device.timer is None or device.timer.session in foreign
    assert set(foreign) <= set(device.sessions)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault_ends_in_old_or_new_and_says_which(make_lab: MakeLab, case: Case) -> None:
    lab = make_lab(one_leaf())
    switch = lab["leaf1"]
    before, started = switch.running_lines, lab.clock()
    switch.fault(case.fault, **case.values)
    outcome = run(lab)
    assert (outcome.result, outcome.state) == (case.result, case.state), outcome.sentence()
    if case.fault not in ("expire", "hang"):
        assert lab.clock() - started < lab.settings.commit_timer_s, "it waited for the timer"
    if case.fault != "running-change":
        assert state_of(switch, before) is case.state
    assert case.words in outcome.sentence()
    assert_settled(switch, case.foreign)
    unsaved = outcome.result in (Result.NOT_SAVED, Result.NOT_VERIFIED)
    assert switch.device.saved is not (unsaved or case.fault == "running-change")
    if case.finish:
        switch.clear_faults()
        assert run(lab).result is Result.PUSHED
        assert lab.stage().looks().changed == {}


def kinds_of_lines(lab: Lab) -> list[str]:
    """What a push types, as expressions: each kind of line once, without names of sessions."""
    run_ = lab.push().run
    said = (fabric_dir(SITE) / run_ / "leaf1.log").read_text()
    typed = re.findall(r"^leaf1\S*# (.+)$", said, re.MULTILINE)
    kinds = (re.sub(r"railweld\\-\w+", r"railweld-\\w+", re.escape(line)) for line in typed)
    return list(dict.fromkeys(f"^{kind}$" for kind in kinds))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_drops_at_any_line_ends_in_old_or_new(
    make_lab: MakeLab, when: str
) -> None:
    """The table has chosen faults; this cuts the connection at every kind of line of a push."""
    kinds = kinds_of_lines(make_lab(one_leaf()))
    assert len(kinds) > 40
    wrong: list[str] = []
    for kind in kinds:
        lab = make_lab(one_leaf())
        switch = lab["leaf1"]
        before = switch.running_lines
        switch.fault("disconnect", match=kind, when=when)
        outcome = run(lab)
        device = switch.device
        state = state_of(switch, before)
        if outcome.state is not state or device.timer is not None or device.pending_sessions:
            wrong.append(f"{kind}: {state}, {outcome.sentence()}, {device.pending_sessions}")
        switch.clear_faults()
        if not lab.stage().looks().changed:
            continue
        if run(lab).result is not Result.PUSHED or lab.stage().looks().changed:
            wrong.append(f"{kind}: the next push did not finish")
    assert wrong == []


def test_a_session_of_a_dead_run_is_cleared_and_named(make_lab: MakeLab) -> None:
    lab = make_lab(one_leaf())
    lab["leaf1"].device.open_session("railweld-dead", "admin", -1, "vty7")
    outcome = run(lab)
    assert outcome.result is Result.PUSHED
    assert "aborted session railweld-dead of an earlier run" in outcome.warnings
    assert_settled(lab["leaf1"])


def test_a_commit_timer_of_a_dead_run_is_rolled_back_first(make_lab: MakeLab) -> None:
    lab = make_lab(one_leaf())
    device = lab["leaf1"].device
    before = device.running_lines
    session = device.open_session("railweld-dead", "admin", -1, "vty7")
    session.config.lines["mtu"] = "ip routing"
    device.commit("railweld-dead", 300, "admin")
    outcome = run(lab)
    assert outcome.result is Result.PUSHED, outcome.sentence()
    assert "ip routing" not in device.running_lines
    assert "ip routing" not in before


def test_a_configuration_lock_of_somebody_else_leaves_the_old_state(make_lab: MakeLab) -> None:
    lab = make_lab(one_leaf())
    lab["leaf1"].device.lock = ("someone", -1)
    outcome = run(lab)
    assert (outcome.result, outcome.state) == (REFUSED, OLD), outcome.sentence()
    assert_settled(lab["leaf1"])


@pytest.mark.parametrize("name", ["a-very-long-host-name-24", "leaf1.example.com"])
def test_long_host_names_do_not_hide_the_end_of_an_answer(make_lab: MakeLab, name: str) -> None:
    lab = make_lab(one_leaf())
    lab["leaf1"].device.running.lines["hostname"] = f"hostname {name}"
    lab["leaf1"].device.save()
    assert run(lab).result is Result.PUSHED


def test_a_host_name_that_changes_during_the_push_ends_in_the_old_state(make_lab: MakeLab) -> None:
    lab = make_lab(one_leaf())

    def rename(device: Device) -> None:
        device.running.lines["hostname"] = "hostname renamed"

    lab["leaf1"].fault("call", match="^show priority-flow-control counters", at=2, function=rename)
    outcome = run(lab)
    assert outcome.state is OLD, outcome.sentence()
    assert "no end of the answer" in outcome.text
    assert lab["leaf1"].device.hostname == "renamed"
    assert_settled(lab["leaf1"])


@pytest.mark.parametrize(
    "version", ["4.30.5M", "4.31.2F", "4.32.1F", "4.33.2F", "4.34.1F", "4.35.1F"]
)
def test_every_release_reaches_the_new_state_and_an_empty_plan(
    make_lab: MakeLab, version: str
) -> None:
    lab = make_lab(one_leaf(), versions={"leaf1": version})
    assert run(lab).result is Result.PUSHED
    assert lab.stage().looks().changed == {}


@pytest.mark.parametrize("version", ["4.31.2F", "4.32.1F"])
def test_an_abort_that_is_refused_is_left_to_the_timer(make_lab: MakeLab, version: str) -> None:
    patient = Settings(observe_s=1.0, retry_s=100.0, reach_s=5.0)
    lab = make_lab(one_leaf(), versions={"leaf1": version}, settings=patient)
    lab["leaf1"].fault("abort-refused", text="denied")
    lab["leaf1"].fault("drops-after-commit", count=3)
    started = lab.clock()
    outcome = run(lab)
    assert (outcome.result, outcome.state) == (BACK, OLD), outcome.sentence()
    assert lab.clock() - started >= lab.settings.commit_timer_s
    assert_settled(lab["leaf1"])


def test_a_switch_that_stays_away_is_called_unknown(make_lab: MakeLab) -> None:
    lab = make_lab(one_leaf())
    switch = lab["leaf1"]
    login = lab.logins["leaf1"]

    def cut(name: str, what: str) -> None:
        if what == "verifying":
            lab.logins[name] = Login(**{**login.__dict__, "port": 9, "connect_timeout_s": 0.2})

    lab.hook = cut
    outcome = run(lab)
    assert (outcome.result, outcome.state) == (Result.LOST, State.UNKNOWN), outcome.sentence()
    assert "gone back by itself" in outcome.text
    assert switch.device.timer_left is None, "the commit timer has rolled the switch back"


STEPS = ("reading", "loading", "committing", "verifying", "confirming")


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_at_any_step_ends_in_old_or_new(make_lab: MakeLab, step: str) -> None:
    lab = make_lab(one_leaf())
    switch = lab["leaf1"]
    stage = lab.stage()

    def stop(_: str, what: str) -> None:
        if what.startswith(step):
            stage.interrupt.set()

    lab.hook = stop
    before = switch.running_lines
    _, report = stage.push(lambda seen: bool(seen.looks))
    assert report is not None
    assert report.interrupted
    outcome = report.outcomes[0]
    if step == "confirming":
        # The confirmation was under way, so the first pass is there and the second never began.
        assert (outcome.result, outcome.state) == (Result.SKIPPED, State.FIRST_PASS)
    else:
        assert outcome.state is OLD, outcome.sentence()
        assert switch.running_lines == before
    assert switch.device.saved
    assert_settled(switch)
