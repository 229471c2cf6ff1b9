"""What switches print, read into values; what they refuse to print stays unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from railweld.fabric import eos
from railweld.fabric.transport import RefusedError


class Switch:
    """Answers commands from a table; anything else is refused, as EOS does."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers

    @property
    def prompt(self) -> str:
        return "leaf1#"

    def run(self, command: str, *, patience: float = 1.0) -> str:
        del patience
        if command not in self.answers:
            raise RefusedError("leaf1", command, "% Invalid input")
        answer = self.answers[command]
        return answer if isinstance(answer, str) else json.dumps(answer)

    def close(self) -> None:
        """Nothing is open."""


SESSIONS = "show configuration sessions detail | json"
OLD = {
    "sessions": {"a": {"state": "pendingCommitTimer", "commitBy": 9.0}, "b": {"state": "pending"}}
}
NEW = {"sessions": {"a": {"state": "committed"}}, "commitTimerSessionName": "a",
       "commitTimerExpireTime": 9}  # fmt: skip


def test_the_armed_session_is_found_in_both_forms_of_the_answer() -> None:
    old, new = (eos.sessions(Switch({SESSIONS: answer})) for answer in (OLD, NEW))
    assert old.armed == new.armed == "a"
    assert old.foreign() == ("a", "b")
    assert new.foreign() == ("a",)


TEXT_OLD = """\
Maximum number of completed sessions: 1
Maximum number of pending sessions: 5

  Name    State               User   Terminal   Time Left
------- ------------------- ------ ---------- -----------
* railweld-1 pendingCommitTimer admin vty2 4m56s
  other   pending             ops    vty3
"""
TEXT_NEW = """\
Session with pending commit timer: railweld-1
Time left until commit timer expiry: in 0:04:59
  Name    State     User
  railweld-1 committed admin
"""


@pytest.mark.parametrize("text", [TEXT_OLD, TEXT_NEW])
def test_sessions_without_json_are_read_from_text(text: str) -> None:
    found = eos.sessions(Switch({SESSIONS.removesuffix(" | json"): text}))
    assert found.armed == "railweld-1"
    assert found.own() == ("railweld-1",)


def test_a_completed_session_is_nobodys_work() -> None:
    answer = {"sessions": {"x": {"state": "completed"}, "y": {"state": "aborted"}}}
    assert eos.sessions(Switch({SESSIONS: answer})).foreign() == ()


DETAIL = "show interfaces counters queue detail | json"
DROPS = "show interfaces counters queue drops | json"


def test_strata_and_jericho_drops_are_read_from_their_own_trees() -> None:
    level = {"DP0": {"droppedPackets": 3, "enqueuedPackets": 9}, "DP1": {"droppedPackets": 2}}
    strata = {"egressQueueCounters": {"interfaces": {"Ethernet1/1": {"ucastQueues": {
        "trafficClasses": {"TC3": {"dropPrecedences": level}}}}}}}  # fmt: skip
    found = eos.counters(Switch({DETAIL: strata}), ["Ethernet1/1"], 3)
    assert found.drops == {"Ethernet1/1": 5}
    assert found.packets == {"Ethernet1/1": 9}

    def counted(number: int) -> dict[str, object]:
        return {"countersSum": {"droppedPackets": number}}

    sand = {"interfaces": {"Ethernet1/1": {"trafficClasses": {
        "TC0-5": {"ingressVoqCounters": counted(4), "egressQueueCounters": counted(1)},
        "TC6-7": {"ingressVoqCounters": counted(90), "egressQueueCounters": counted(90)},
    }}}}  # fmt: skip
    assert eos.counters(Switch({DROPS: sand}), ["Ethernet1/1"], 3).drops == {"Ethernet1/1": 5}


def test_what_is_refused_or_empty_is_not_collected_and_never_zero() -> None:
    for switch in (Switch({}), Switch({DETAIL: "", DROPS: ""}), Switch({DETAIL: {}, DROPS: {}})):
        found = eos.counters(switch, ["Ethernet1/1"], 3)
        assert (found.drops, found.pauses, found.ecn, found.watchdog) == (None, None, None, None)


def test_an_ecn_dash_is_not_zero() -> None:
    answer = {"intfQueueCounters": {"Ethernet1/1": {"queueCounters": {"3": "-"}},
                                    "Ethernet2/1": {"queueCounters": {"3": "17"}}}}  # fmt: skip
    switch = Switch({"show qos interfaces ecn counters queue | json": answer})
    found = eos.counters(switch, ["Ethernet1/1", "Ethernet2/1"], 3)
    assert found.ecn == {"Ethernet1/1": None, "Ethernet2/1": 17}


def test_counters_that_grow_are_worse_and_unknown_ones_are_not_judged() -> None:
    before = eos.Counters(drops={"Ethernet1/1": 1}, pauses={"Ethernet1/1": 0})
    after = eos.Counters(drops={"Ethernet1/1": 4}, pauses={"Ethernet1/1": 50})
    assert eos.worse(before, after) == (
        "Ethernet1/1: drops in the lossless queue rose by 3",
        "Ethernet1/1: PFC pause frames rose by 50",
    )
    assert len(eos.worse(before, after, pause_allowance=50)) == 1
    assert eos.worse(before, eos.Counters()) == ()


PFC = """\
The hardware supports PFC on priorities 0 1 2 3 4 5 6 7

Port       Enabled Priorities Active Note
---------- ------- ---------- ------ -------------
Et1/1      Yes     3          Yes    DCBX disabled
Ethernet2  Yes     3,4        No     DCBX disabled
Et3/1      No                 No     DCBX disabled
"""


def test_pfc_is_read_by_port() -> None:
    found = eos.pfc_ports(Switch({"show priority-flow-control": PFC}))
    assert found is not None
    assert found["Ethernet1/1"] == eos.PfcPort(True, (3,), True, "DCBX disabled")
    assert found["Ethernet2"].priorities == (3, 4)
    for several in ("3 4", "34", "3-4", "3, 4", "3 - 4"):
        row = PFC.replace("3,4        ", f"{several:<11}")
        again = eos.pfc_ports(Switch({"show priority-flow-control": row}))
        assert again is not None
        assert again["Ethernet2"].priorities == (3, 4), several
    assert found["Ethernet3/1"] == eos.PfcPort(False, (), False, "DCBX disabled")
    assert eos.pfc_ports(Switch({})) is None


@pytest.mark.parametrize(
    "text",
    ["Port  Status  Priorities Action\nEt1/1 E A W   3   drop\nEt2/1 E A     3   drop\n",
     "Port         Enabled   Watchdog\nEt1/1        Yes       Yes\nEt2/1        Yes       No\n"],
)  # fmt: skip
def test_the_watchdog_is_read_from_letters_or_from_a_column(text: str) -> None:
    assert eos.parse_watchdog(text) == {"Ethernet1/1": True, "Ethernet2/1": False}


def test_a_status_that_says_nothing_of_ports_is_unknown() -> None:
    assert eos.parse_watchdog("Global PFC : Enabled\n") is None


MAPS = """\
   Dscp-tc map:
     d1 :  d2 0  1  2  3  4  5  6  7  8  9
     --------------------------------------
      0 :     1  1  1  1  1  1  1  1  0  0
      2 :     2  2  2  2  3  3  5  3  3  3
   Tc - uc-tx-queue map:
     tc:        0  1  2  3  4  5  6  7
     ---------------------------------
     tx-queue:  0  1  2  4  4  5  6  7
"""


def test_maps_in_effect_come_from_the_tables() -> None:
    found = eos.parse_maps(MAPS)
    assert found is not None
    assert "qos map dscp 26 to traffic-class 5" in found
    assert "qos map dscp 8 to traffic-class 0" in found
    assert "qos map traffic-class 3 to tx-queue 4" in found
    assert eos.parse_maps("% nothing here") is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [("3        kbytes    150   1500", (150, 1500)), ("UC3  bytes 150000 1500000", (150, 1500)),
     ("3 mbytes 1 2", (1000, 2000))],
)  # fmt: skip
def test_ecn_thresholds_are_read_in_kilobytes(row: str, expected: tuple[float, float]) -> None:
    assert eos.ecn_thresholds(f"Tx-Queue Threshold Unit ECN Min ECN Max\n{row}\n") == {3: expected}


def test_a_switch_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(RefusedError.__mro__[1], match="expected an EOS switch"):
        eos.facts(Switch({"show version | json": {}}), "leaf1")
