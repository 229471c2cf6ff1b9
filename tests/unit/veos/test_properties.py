"""Whatever is typed, the switch answers, and what it prints means what it holds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

USEFUL = (
    "interface Ethernet1/1", "interface Ethernet2/1,3/1", "qos profile ROCE", "qos profile B",
    "uc-tx-queue 3", "uc-tx-queue 1", "exit", "mtu 9214", "no mtu", "service-profile ROCE",
    "no switchport", "switchport", "qos trust dscp", "no qos trust", "priority-flow-control on",
    "no priority-flow-control", "priority-flow-control priority 3 no-drop",
    "priority-flow-control priority 3 drop", "no priority-flow-control priority 3",
    "priority-flow-control pause watchdog", "no priority-flow-control pause watchdog",
    "no priority", "priority strict", "bandwidth percent 20", "random-detect ecn count",
    "random-detect ecn minimum-threshold 150 kbytes maximum-threshold 1500 kbytes weight 0",
    "qos map dscp 26 27 48 to traffic-class 5", "no qos map dscp 26", "no qos profile B",
    "qos map traffic-class 5 to tx-queue 2", "no interface Ethernet2/1", "vlan 10", "name x",
    "platform trident mmu queue profile M", "ingress headroom 65536", "ingress threshold 1/8",
    "platform trident mmu queue profile M apply", "description of % it", "end", "configure",
)  # fmt: skip
WORDS = sorted(
    {word for line in USEFUL for word in line.split()}
    | {"abort", "commit", "rollback", "clean-config", "show", "session-config", "diffs"}
    | {"session", "s", "timer", "timeout", "default", "auto", "|", "json", "!", "?", "router"}
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=12))
def test_any_words_are_answered(cli, lines):
    switch = cli(version="4.32.0F")
    switch.send("configure session fuzz")
    for line in lines:
        reply = switch.reply(line)
        assert isinstance(reply.text, str)
        assert switch.prompt.startswith("leaf1") or switch.device.hostname != "leaf1"
        if reply.ask is not None:
            switch.send("EOF")


@pytest.mark.parametrize("version", ["4.31.2F", "4.35.1F"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(st.sampled_from(USEFUL), max_size=40))
def test_what_is_printed_loads_as_the_same_configuration(cli, version, lines):
    switch = cli(version=version)
    for line in ("configure", *lines):
        switch.send(line)
    running = switch.device.running_lines
    assert cli(version=version, startup="\n".join(running)).device.running_lines == running


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(st.sampled_from(USEFUL), max_size=25), fate=st.sampled_from(["abort", "time"])
)
def test_a_session_that_is_not_confirmed_leaves_no_trace(cli, lines, fate):
    switch = cli()
    before = switch.device.running_lines
    switch.send("configure session s")
    for line in lines:
        if line not in {"end", "configure"}:
            switch.send(line)
    switch.send("end")
    if fate == "abort":
        switch.send("configure session s abort")
    else:
        switch.send("configure session s commit timer 00:01:00")
        switch.clock.advance(60)
    assert switch.device.running_lines == before
    assert switch.device.sessions == {}
