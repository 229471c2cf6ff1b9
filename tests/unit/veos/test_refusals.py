"""What each platform and release refuses, word by word."""

from __future__ import annotations

import pytest

from railweld.lab.veos import Behaviour

UNAVAILABLE = "% Unavailable command (not supported on this hardware platform)"
NO_PFC = (
    "% The hardware does not support priority flow control, "
    "or forwarding agent is still initializing."
)
ECN = "random-detect ecn minimum-threshold {u} maximum-threshold {u} max-mark-probability 20"
PROFILE = ["configure", "qos profile ROCE"]


@pytest.mark.parametrize(
    ("switch_of", "before", "line", "answer"),
    [
        (("veos", "4.30"), PROFILE, "priority-flow-control on", NO_PFC),
        (("ceos", "4.30"), ["configure", "interface Ethernet1"], "priority-flow-control on",
         NO_PFC),
        (("ceos", "4.30"), PROFILE, "tx-queue 3", f"{UNAVAILABLE} (at token 0: 'tx-queue')"),
        (("ceos", "4.30"), ["configure", "interface Ethernet1"],
         "storm-control broadcast level 1", f"{UNAVAILABLE} (at token 0: 'storm-control')"),
        (("ceos", "4.30"), ["configure"], "policy-map type quality-of-service X",
         f"{UNAVAILABLE} (at token 2: 'quality-of-service')"),
        (("7050X3", "4.30"), PROFILE, "tx-queue 3", f"{UNAVAILABLE} (at token 0: 'tx-queue')"),
        (("7280R", "4.30"), PROFILE, "uc-tx-queue 3", f"{UNAVAILABLE} (at token 0: 'uc-tx-queue')"),
        (("7010T", "4.30"), [*PROFILE, "tx-queue 3"], "bandwidth percent 20",
         f"{UNAVAILABLE} (at token 1: 'percent')"),
        (("7280R", "4.30"), [*PROFILE, "tx-queue 3"], ECN.format(u="150 segments"),
         f"{UNAVAILABLE} (at token 4: 'segments')"),
        (("7050X3", "4.30"), [*PROFILE, "uc-tx-queue 3"], ECN.format(u="3 milliseconds"),
         f"{UNAVAILABLE} (at token 4: 'milliseconds')"),
        (("7050X3", "4.30"), [*PROFILE, "uc-tx-queue 3"], "random-detect ecn count",
         f"{UNAVAILABLE} (at token 2: 'count')"),
        (("7050X3", "4.30"), PROFILE, "bandwidth guaranteed 100",
         f"{UNAVAILABLE} (at token 1: 'guaranteed')"),
        (("7280R", "4.30"), ["configure"], "platform trident mmu headroom-pool limit bytes 1",
         f"{UNAVAILABLE} (at token 1: 'trident')"),
        (("veos", "4.30"), ["configure"], "platform trident mmu queue profile X",
         f"{UNAVAILABLE} (at token 1: 'trident')"),
        (("7050X3", "4.30"), ["configure"], "queue-monitor length notifying",
         f"{UNAVAILABLE} (at token 2: 'notifying')"),
        (("7050X3", "4.30"), ["configure", "interface Ethernet1/1"], "l2 mtu 9214",
         f"{UNAVAILABLE} (at token 1: 'mtu')"),
        (("7050X3", "4.30"), ["configure"], "hardware counter feature ecn out",
         f"{UNAVAILABLE} (at token 3: 'ecn')"),
    ],
)  # fmt: skip
def test_platform_refuses_with_the_public_text(cli, switch_of, before, line, answer):
    model, version = switch_of
    switch = cli(model=model, version=version, neighbours=())
    switch.accept(*before)
    running = switch.device.running_lines
    assert switch.send(line) == answer
    assert switch.device.running_lines == running


@pytest.mark.parametrize(
    ("model", "version", "before", "line"),
    [
        ("7050X3", "4.31", [*PROFILE, "uc-tx-queue 3"], "random-detect ecn count"),
        ("7280R", "4.30", [*PROFILE, "tx-queue 3"], "random-detect ecn count"),
        ("7050X3", "4.30", ["configure", "interface Ethernet1/1", "uc-tx-queue 3"],
         "random-detect ecn count"),
        ("7060X", "4.30", [*PROFILE, "uc-tx-queue 3"], ECN.format(u="150 segments")),
        ("7280R", "4.30", [*PROFILE, "tx-queue 3"], ECN.format(u="3 milliseconds")),
        ("7280R", "4.30", ["configure"], "queue-monitor length notifying"),
        ("7280R", "4.30", ["configure"], "hardware counter feature ecn out"),
        ("7010T", "4.30", ["configure", "interface Ethernet1", "tx-queue 3"],
         "bandwidth guaranteed 100"),
        ("7060X", "4.30", ["configure"], "platform trident mmu headroom-pool limit cells 131072"),
    ],
)  # fmt: skip
def test_platform_accepts_what_it_is_known_to_accept(cli, model, version, before, line):
    switch = cli(model=model, version=version, neighbours=())
    switch.accept(*before, line)


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("hardware flowcontrol receive off", 1),
        ("priority-flow-control pfc enable", 1),
        ("priority-flow-control pfc priority 3 pause", 1),
        ("hardware profile tcam region pfc 1024", 1),
        ("priority-flow-control pfc priority 3 buffer-size 2048", 1),
        ("qos map dscp 64 to traffic-class 3", 3),
        ("qos map dscp 26 to traffic-class 8", 6),
        ("priority-flow-control pause watchdog action no-drop", 4),
        ("priority-flow-control pause watchdog default timeout 0.005", 5),
        ("priority-flow-control pause watchdog default timeout 0.123", 5),
        ("priority-flow-control pause watchdog default polling-interval 0.004", 5),
        ("priority-flow-control pause watchdog default polling-interval 31", 5),
        ("policy-map type tx-queue X", 2),
    ],
)
def test_words_that_are_not_eos_are_invalid(cli, line, token):
    switch = cli()
    switch.accept("configure")
    word = line.split()[token]
    assert switch.send(line) == f"% Invalid input (at token {token}: '{word}')"


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("mtu 9216", 1),
        ("priority-flow-control priority 8 no-drop", 2),
        ("priority-flow-control mode on", 1),
        ("qos trust both", 2),
        ("uc-tx-queue 8", 1),
    ],
)
def test_port_values_out_of_range_are_invalid(cli, line, token):
    switch = cli(behaviour=Behaviour(parent_fallback=False))
    switch.accept("configure", "interface Ethernet1/1")
    assert switch.send(line) == f"% Invalid input (at token {token}: '{line.split()[token]}')"


@pytest.mark.parametrize(
    "line",
    [
        "random-detect ecn minimum-threshold 150KB maximum-threshold 1500KB",
        "random-detect ecn minimum-threshold 150 kbytes maximum-threshold 2 mbytes",
        "random-detect ecn threshold 150",
        "bandwidth percent 101",
    ],
)
def test_queue_values_that_do_not_fit_are_invalid(cli, line):
    switch = cli(behaviour=Behaviour(parent_fallback=False))
    switch.accept(*PROFILE, "uc-tx-queue 3")
    assert switch.send(line).startswith("% Invalid input (at token")


def test_ecn_minimum_above_maximum_is_refused(cli):
    switch = cli()
    switch.accept(*PROFILE, "uc-tx-queue 3")
    answer = switch.send(
        "random-detect ecn minimum-threshold 1500 kbytes maximum-threshold 150 kbytes"
    )
    assert answer.startswith("% Minimum threshold")


def test_pfc_is_refused_while_the_forwarding_agent_starts(cli):
    switch = cli()
    switch.device.faults.add("agent-initialising", seconds=60)
    switch.accept("configure", "interface Ethernet1/1")
    assert switch.send("priority-flow-control on") == NO_PFC
    switch.clock.advance(61)
    switch.accept("priority-flow-control on")


def test_the_dot_of_the_hardware_text_is_optional(cli):
    switch = cli(model="veos", behaviour=Behaviour(hardware_text_dot=False), neighbours=())
    switch.accept(*PROFILE)
    assert switch.send("priority-flow-control on") == NO_PFC.removesuffix(".")


def test_a_refused_show_is_refused_in_json_too(cli):
    switch = cli(model="7050X3")
    assert switch.send("show interfaces counters queue drops") == UNAVAILABLE
    assert switch.send("show interfaces counters queue drops | json") == UNAVAILABLE
    assert switch.send("show qos maps | json") == "% This is an unconverted command"
    assert cli(model="veos", neighbours=()).send("show priority-flow-control") == UNAVAILABLE
