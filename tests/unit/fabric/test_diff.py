"""The semantic diff: what counts as equal, what is ours, and what is left alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweld.fabric.diff import Observed, Plan, compare, unexpected
from railweld.fabric.lines import Path, canonical, key, leaves, parse
from railweld.fabric.model import Tuning, Watchdog
from railweld.fabric.render import render

from .fabrics import SAND, STRATA, host, one


def plan_for(
    running: str,
    *,
    model: str = STRATA,
    tuning: Tuning | None = None,
    maps: frozenset[str] | None = None,
    previous: tuple[Path, ...] = (),
) -> Plan:
    fabric = one(model, tuning=tuning)
    wanted = render(fabric, fabric.switches[0], release="4.31.2F")
    return compare(wanted, Observed(running, maps, previous))


def converged(model: str = STRATA, tuning: Tuning | None = None) -> str:
    fabric = one(model, tuning=tuning)
    return render(fabric, fabric.switches[0], release="4.31.2F").text()


def sentences(plan: Plan) -> list[str]:
    return [change.sentence() for change in plan.changes]


def test_nothing_differs_from_itself() -> None:
    assert plan_for(converged()).changes == ()


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("uc-tx-queue 3", "tx-queue 3"),
        ("qos map traffic-class 3 to tx-queue 3", "qos map traffic-class 3 to uc-tx-queue 3"),
        ("timeout 0.20", "timeout 0.2"),
        ("polling-interval 0.10", "polling-interval 0.100"),
        ("   priority-flow-control on", "   priority-flow-control mode on"),
        (" max-mark-probability 20 weight 0", " max-mark-probability 20"),
        ("interface Ethernet1/1", "interface Et1/1"),
        ("   mtu 9214", "   mtu  9214"),
        ("minimum-threshold 150 kbytes maximum-threshold 1500 kbytes",
         "minimum-threshold 150000 bytes maximum-threshold 1500000 bytes"),
    ],
)  # fmt: skip
def test_another_spelling_is_no_difference(typed: str, printed: str) -> None:
    config = converged()
    assert typed in config
    assert sentences(plan_for(config.replace(typed, printed))) == []


@pytest.mark.parametrize(
    "hidden",
    ["   flowcontrol receive off\n", "qos map dscp 26 to traffic-class 3\n",
     "qos map traffic-class 6 to tx-queue 6\n", "      priority strict\n"],
)  # fmt: skip
def test_a_default_that_is_not_printed_is_no_difference(hidden: str) -> None:
    config = converged()
    assert hidden in config
    assert sentences(plan_for(config.replace(hidden, ""))) == []


def test_dscps_on_one_line_are_no_difference() -> None:
    config = converged().replace("qos map dscp 26 to traffic-class 3\n",
                                 "qos map dscp 24-27,30 31 to traffic-class 3\n")  # fmt: skip
    assert sentences(plan_for(config)) == []


def test_a_map_that_the_switch_does_not_apply_is_a_difference() -> None:
    config = converged().replace("qos map dscp 26 to traffic-class 3\n", "")
    maps = frozenset({"qos map dscp 26 to traffic-class 1"})
    assert sentences(plan_for(config, maps=maps)) == [
        "change: qos map dscp 26 to traffic-class 1 -> qos map dscp 26 to traffic-class 3"
    ]


def test_trust_is_a_default_on_a_routed_port_only() -> None:
    config = converged().replace("   qos trust dscp\n   priority-flow-control on",
                                 "   priority-flow-control on")  # fmt: skip
    assert len(plan_for(config).changes) == 2
    routed = config.replace("   mtu 9214\n", "   mtu 9214\n   no switchport\n")
    assert plan_for(routed).changes == ()


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_sections_and_lines_says_nothing(random: object) -> None:
    paths = leaves(parse(converged()))
    random.shuffle(paths)
    text = "\n".join(
        "\n".join("   " * depth + word for depth, word in enumerate(path)) for path in paths
    )
    assert plan_for(text).changes == ()


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("timeout_s", "timeout 0.20 -> priority-flow-control pause watchdog default timeout 0.40"),
        ("recovery_s", ("recovery-time 0.20 -> priority-flow-control pause watchdog default "
                        "recovery-time 0.40")),
    ],
)  # fmt: skip
def test_a_changed_watchdog_shows_just_that_line(field: str, line: str) -> None:
    tuning = Tuning(watchdog=Watchdog(**{field: 0.40}))
    found = sentences(plan_for(converged(), tuning=tuning))
    assert found == [f"change: priority-flow-control pause watchdog default {line}"]


FOREIGN = """\
hostname leaf1
banner motd
interface Ethernet1/1
   priority-flow-control on
EOF
vlan 7
qos profile OTHER
   qos trust cos
interface Ethernet1/1
   description gpu1
   no switchport
   ip address 10.0.0.1/31
   spanning-tree portfast
interface Ethernet9/1
   mtu 1600
   service-profile OTHER
   priority-flow-control on
errdisable recovery interval 60
qos map dscp 10 to traffic-class 2
router bgp 65000
   neighbor 10.0.0.0 remote-as 65001
"""


def test_foreign_lines_are_neither_changed_nor_removed() -> None:
    plan = plan_for(FOREIGN)
    touched = {change.path for change in plan.changes}
    assert not [path for path in touched if path[0] == "interface Ethernet9/1"]
    assert not [c for c in plan.changes if c.action == "remove"]
    commands = "\n".join(plan.commands())
    for line in ("vlan", "description", "bgp", "OTHER", "interval 60", "dscp 10"):
        assert line not in commands


def test_a_banner_is_not_configuration() -> None:
    plan = plan_for(FOREIGN)
    assert "interface Ethernet1/1: add: priority-flow-control on" in sentences(plan)


def test_a_second_lossless_priority_on_a_fabric_port_is_taken_back() -> None:
    config = converged().replace(
        "interface Ethernet1/1\n",
        "interface Ethernet1/1\n   priority-flow-control priority 4 no-drop\n",
    )
    plan = plan_for(config)
    assert sentences(plan) == [
        "interface Ethernet1/1: remove: priority-flow-control priority 4 no-drop"
    ]
    assert plan.commands() == ("interface Ethernet1/1", "priority-flow-control priority 4 drop",
                               "exit")  # fmt: skip


def test_a_line_in_our_profile_that_we_did_not_write_is_removed() -> None:
    config = converged().replace("      bandwidth percent 80\n",
                                 "      bandwidth percent 80\n      shape rate 5\n")  # fmt: skip
    assert plan_for(config).commands() == (
        "qos profile RAILWELD", "uc-tx-queue 3", "default shape rate 5", "exit", "exit",
    )  # fmt: skip


def test_a_port_that_left_the_fabric_lets_go_of_the_profile_and_keeps_the_rest() -> None:
    fabric = one(ports=(host(1), host(2), host(3)))
    before = render(fabric, fabric.switches[0])
    previous = tuple(p for line in before.lines for p in canonical((*line.path, line.text)))
    plan = plan_for(before.text(), previous=previous)
    assert {c.path[0] for c in plan.changes} == {"interface Ethernet3/1"}
    commands = plan.commands()
    assert "default service-profile RAILWELD" in commands
    assert "no priority-flow-control" in commands
    # Link-level pause must not come back by itself, and jumbo frames harm nobody.
    assert not [c for c in commands if "flowcontrol receive" in c or "mtu" in c]


def test_an_interface_is_never_removed_as_a_whole() -> None:
    plan = plan_for("interface Ethernet30/1\n   service-profile RAILWELD\n")
    assert "default interface Ethernet30/1" not in plan.commands()
    assert "no interface Ethernet30/1" not in plan.commands()
    removal = [c for c in plan.changes if c.action == "remove"]
    assert [c.path for c in removal] == [("interface Ethernet30/1", "service-profile RAILWELD")]


def test_foreign_lines_in_the_way_are_named() -> None:
    config = (
        converged()
        + "qos map dscp 40 to traffic-class 3\n"
        + ("interface Ethernet1/1\n   uc-tx-queue 3\n      bandwidth percent 5\n")
    )
    plan = plan_for(config)
    assert any("dscp 40" in text for text in plan.conflicts)
    assert any("bandwidth percent 5" in text for text in plan.conflicts)
    assert plan.changes == ()


def test_every_section_is_left_with_an_exit_of_its_own() -> None:
    depth = 0
    for command in plan_for("").commands():
        depth += bool(re.match(r"^(interface|qos profile|uc-tx-queue)", command))
        depth -= command == "exit"
        assert depth >= 0, "an exit at the top would leave the session"
    assert depth == 0


def test_jericho_gets_its_own_queue_word() -> None:
    commands = plan_for("", model=SAND).commands()
    assert "tx-queue 3" in commands
    assert "uc-tx-queue 3" not in commands


def test_mmu_changes_are_disruptive_and_the_rest_is_not() -> None:
    plan = plan_for("", tuning=Tuning(mmu=True))
    assert {c.path[0].split()[0] for c in plan.disruptive} == {"platform"}


DIFF = """\
--- system:/running-config
+++ session:/railweld-1-session-config
@@ -10,7 +10,7 @@
 interface Ethernet1/1
-   mtu 1500
+   mtu 9214
"""


def test_a_session_diff_with_only_planned_lines_is_expected() -> None:
    assert unexpected(DIFF, plan_for("")) == ()


def test_a_removal_that_nobody_planned_is_unexpected() -> None:
    assert unexpected(DIFF + "-vlan 7\n", plan_for("")) == ("- vlan 7",)


def test_a_line_that_only_moves_is_expected() -> None:
    assert unexpected(DIFF + "-vlan 7\n+vlan 7\n", plan_for("")) == ()


@given(st.integers(0, 63), st.integers(0, 7))
@settings(max_examples=30, deadline=None)
def test_two_values_of_one_setting_have_one_key(dscp: int, traffic_class: int) -> None:
    lines = [f"qos map dscp {dscp} to traffic-class {n}" for n in (traffic_class, 7)]
    assert key(lines[0]) == key(lines[1])
