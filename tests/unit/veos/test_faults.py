"""Every fault of the catalogue, without a socket where none is needed."""

from __future__ import annotations

import json

import pytest

from railweld.lab.veos import CATALOGUE, TEXTS, FaultError

CHANGE = ("interface Ethernet1/1", "mtu 9214", "exit")
ROCE = (
    "configure", "qos profile ROCE", "priority-flow-control on",
    "priority-flow-control priority 3 no-drop", "priority-flow-control pause watchdog",
    "uc-tx-queue 3", "exit", "exit",
    "interface Ethernet1/1", "service-profile ROCE", "uc-tx-queue 3", "random-detect ecn count",
    "end",
)  # fmt: skip


# ------------------------------------------------------------------ (1) refusals


@pytest.mark.parametrize("text", sorted(TEXTS))
def test_every_text_can_be_answered_to_any_line_and_the_line_is_not_run(cli, text):
    switch = cli()
    switch.accept("configure session roce-1", "interface Ethernet1/1")
    switch.device.faults.add("refuse", match="^mtu", text=text)
    assert switch.send("mtu 9214") == TEXTS[text]
    switch.accept("mtu 9214", "exit")
    assert "mtu 9214" in switch.send("show session-config diffs")


def test_a_refusal_can_wait_for_the_third_line_of_a_session(cli):
    switch = cli()
    switch.device.faults.add("refuse", mode="session", at=3, text="unavailable")
    switch.accept("configure session roce-1", "interface Ethernet1/1", "mtu 9214")
    assert switch.send("service-profile ROCE") == TEXTS["unavailable"]
    switch.accept("service-profile ROCE")


def test_a_warning_does_not_stop_the_line(cli):
    switch = cli()
    switch.device.faults.add("warn", match="mtu", text="! mtu ignored")
    switch.accept("configure", "interface Ethernet1/1")
    assert switch.send("mtu 9214") == "! mtu ignored"
    assert "   mtu 9214" in switch.section("Ethernet1/1$")


# ------------------------------------------------------------------ (3) other people


def test_session_limit_is_reached_by_others(cli):
    switch = cli()
    switch.device.faults.add("session-limit")
    assert switch.send("configure session roce-1") == TEXTS["session-limit"]
    assert switch.prompt == "leaf1#"


def test_foreign_pending_and_own_leftover_are_pending(cli):
    switch = cli()
    switch.device.faults.add("foreign-pending", name="ops-1", lines=["hostname other"])
    switch.device.faults.add("own-leftover", name="railweld-0")
    assert switch.device.pending_sessions == ["ops-1", "railweld-0"]
    assert "+hostname other" in switch.send("show session-config named ops-1 diffs")


def test_foreign_timer_blocks_and_runs_out(cli):
    switch = cli(version="4.32.0F")
    switch.device.faults.add("foreign-timer", name="ops-1", lines=["hostname other"], seconds=60)
    assert switch.device.hostname == "other"
    shown = json.loads(switch.send("show configuration sessions detail | json"))
    assert shown["commitTimerSessionName"] == "ops-1"
    switch.accept("configure session roce-1", *CHANGE)
    assert switch.send("commit").startswith("% Cannot commit")
    switch.clock.advance(60)
    assert switch.device.hostname == "leaf1"
    switch.accept("commit")


def test_a_lock_of_somebody_else_refuses_configuration(cli):
    switch = cli()
    switch.device.faults.add("lock", name="upgrade")
    assert "upgrade" in switch.send("configure session roce-1")


# ------------------------------------------------------------------ (4) around the timer


def test_the_timer_may_run_out_during_verification(cli):
    switch = cli()
    before = switch.device.running_lines
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    switch.device.faults.add("expire", match="^show lldp")
    assert "mtu 9214" in switch.send("show running-config")
    switch.send("show lldp neighbors")
    assert switch.device.running_lines == before
    assert switch.send("configure session roce-1 commit") == "% Session roce-1 does not exist"


@pytest.mark.parametrize(("when", "armed"), [("before", False), ("after", True)])
def test_the_connection_may_drop_around_commit(cli, when, armed):
    switch = cli()
    switch.device.faults.add("disconnect", match="commit timer", when=when)
    switch.accept("configure session roce-1", *CHANGE)
    assert switch.reply("commit timer 00:05:00").close
    assert (switch.device.timer is not None) is armed
    assert (switch.device.pending_sessions == ["roce-1"]) is not armed


def test_abort_may_be_refused_every_time(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "end")
    switch.device.faults.add("abort-refused")
    for _ in range(2):
        assert switch.send("configure session roce-1 abort") == TEXTS["denied"]
    switch.device.faults.clear("abort-refused")
    switch.accept("configure session roce-1 abort")


def test_the_switch_may_hang_or_reboot(cli):
    switch = cli()
    switch.device.faults.add("hang", match="show session-config")
    switch.accept("configure session roce-1", *CHANGE)
    assert switch.reply("show session-config diffs").hang
    switch.device.faults.add("reload", match="^commit")
    reply = switch.reply("commit")
    assert (reply.close, reply.reload) == (True, True)
    assert "mtu 9214" not in "\n".join(switch.device.running_lines)


# ------------------------------------------------------------------ (5), (6) looks


def test_prompt_cut_and_session_output_can_be_changed(cli):
    switch = cli(version="4.30.5M")
    switch.device.faults.add("prompt-chars", chars=10)
    switch.device.faults.add("session-output", release="4.32")
    switch.accept("configure session roce-123456789")
    assert switch.prompt == "leaf1(config-s-roce-12345)#"
    switch.accept(*CHANGE, "commit timer 00:05:00")
    assert "commitTimerSessionName" in switch.send("show configuration sessions detail | json")


def test_prompts_may_carry_a_clock_or_a_supervisor(cli):
    switch = cli()
    switch.device.faults.add("supervisor")
    assert switch.prompt == "leaf1(s1)#"
    switch.device.faults.clear()
    switch.device.faults.add("clock-prompt")
    assert switch.prompt != switch.prompt
    switch.device.faults.clear()
    switch.device.faults.add("hostname", name="a-name-of-twenty-four-ch")
    assert switch.prompt == "a-name-of-twenty-four-ch#"


@pytest.mark.parametrize(("answer", "mtu"), [("y", True), ("n", False)])
def test_a_question_waits_for_an_answer(cli, answer, mtu):
    switch = cli()
    switch.device.faults.add("confirm", match="^mtu")
    switch.accept("configure", "interface Ethernet1/1")
    assert switch.reply("mtu 9214").ask == "Proceed [y/n]"
    switch.send(answer)
    assert ("   mtu 9214" in switch.section("Ethernet1/1$")) is mtu


def test_slow_lines_say_how_slow(cli):
    switch = cli()
    switch.device.faults.add("slow", match="^show version", seconds=2)
    switch.device.faults.add("slow-save", seconds=30)
    assert switch.reply("show version").delay == 2
    assert switch.reply("show hostname").delay == 0
    reply = switch.reply("copy running-config startup-config")
    assert (reply.delay, reply.text) == (30, "Copy completed successfully.")


# ------------------------------------------------------------------ (7) to (11)


def test_somebody_may_change_the_switch_under_the_session(cli):
    switch = cli()
    switch.device.faults.add(
        "running-change", match="^commit", lines=["interface Ethernet2/1", "   mtu 9000"]
    )
    switch.accept("configure session roce-1", *CHANGE)
    switch.accept("commit timer 00:05:00")
    switch.send("configure session roce-1 abort")
    assert "   mtu 9000" in switch.section("Ethernet2/1$")


def test_accepted_is_not_active(cli):
    switch = cli()
    switch.accept(*ROCE)
    assert switch.device.pfc("Ethernet1/1").active
    assert switch.device.pfc("Ethernet1/1").watchdog_active
    switch.device.faults.add("pfc-inactive", ports=["Ethernet1/1"])
    switch.device.faults.add("watchdog-inactive")
    switch.device.faults.add("ecn-not-counting", ports="Ethernet1/1,Ethernet2/1")
    state = switch.device.pfc("Ethernet1/1")
    assert (state.enabled, state.active, state.watchdog_active) == (True, False, False)
    shown = json.loads(switch.send("show qos interfaces Et1/1 ecn counters queue | json"))
    assert shown["intfQueueCounters"]["Ethernet1/1"]["queueCounters"]["3"] == "-"


def test_drops_and_pauses_may_rise_with_a_commit(cli):
    switch = cli()
    switch.device.faults.add("drops-after-commit", count=50, ports=["Ethernet1/1"])
    switch.device.faults.add("pause-after-commit", count=7)
    assert switch.device.counters["Ethernet1/1"].drops[3] == 0
    switch.accept("configure session roce-1", *CHANGE, "commit")
    assert switch.device.counters["Ethernet1/1"].drops[3] == 50
    assert switch.device.counters["Ethernet2/1"].drops[3] == 0
    assert switch.device.counters["Ethernet2/1"].pfc_rx[3] == 7


def test_show_may_be_refused_empty_or_without_a_model(cli):
    switch = cli()
    switch.device.faults.add("show-refused", match="show lldp", text="denied")
    switch.device.faults.add("show-empty", match="show version$")
    switch.device.faults.add("no-json", match=r"show version.*json")
    assert switch.send("show lldp neighbors") == TEXTS["denied"]
    assert switch.send("show version") == ""
    assert switch.send("show version | json") == "% This is an unconverted command"


def test_saving_may_fail(cli):
    switch = cli()
    switch.accept("configure", *CHANGE, "end")
    switch.device.faults.add("save-fails")
    for line in ("write memory", "copy running-config startup-config"):
        assert switch.send(line) == TEXTS["flash-full"]
    assert not switch.device.saved


def test_a_function_may_run_before_or_after_a_line(cli):
    switch = cli()
    seen = []
    switch.device.faults.add(
        "call", match="commit", when="after", function=lambda d: seen.append(d.timer is not None)
    )
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    assert seen == [True]


def test_a_link_may_go_down(cli):
    switch = cli()
    switch.accept(*ROCE)
    switch.device.faults.add("line-down", ports=["Ethernet1/1"])
    assert not switch.device.pfc("Ethernet1/1").active
    assert "Ethernet1/1" not in {
        row["port"]
        for row in json.loads(switch.send("show lldp neighbors | json"))["lldpNeighbors"]
    }


def test_a_link_comes_back_with_the_end_of_its_fault(cli):
    switch = cli()
    switch.accept(*ROCE)
    faults = switch.device.faults
    faults.replace([{"fault": "line-down", "ports": "Ethernet1/1"}])
    assert not switch.device.link_up("Ethernet1/1")
    faults.replace([])
    assert switch.device.link_up("Ethernet1/1")
    assert switch.device.pfc("Ethernet1/1").active


def test_swapped_cables_are_heard_on_each_other_s_port(cli):
    switch = cli()
    device = switch.device
    before = {port: item.device for port, item in device.neighbours.items()}
    one, two = list(before)[:2]
    device.faults.add("cables-swapped", ports=f"{one},{two}")
    heard = json.loads(switch.send("show lldp neighbors | json"))["lldpNeighbors"]
    assert {row["port"]: row["neighborDevice"] for row in heard} == {
        **before, one: before[two], two: before[one],
    }  # fmt: skip
    device.faults.clear("cables-swapped")
    assert {port: device.heard(port).device for port in before} == before


# ------------------------------------------------------------------ the catalogue


def test_faults_that_lack_something_are_refused(cli):
    faults = cli().device.faults
    with pytest.raises(FaultError, match="found 'rain', expected one of refuse"):
        faults.add("rain")
    with pytest.raises(FaultError, match="running-change: missing lines"):
        faults.add("running-change")
    with pytest.raises(FaultError, match="found mode 'shell'"):
        faults.add("refuse", mode="shell")


def test_a_list_of_faults_replaces_the_last_one_and_fires_once(cli):
    switch = cli()
    faults = switch.device.faults
    faults.replace([{"fault": "foreign-pending", "name": "ops-1"}, {"fault": "save-fails"}])
    switch.accept("configure session ops-1 abort")
    faults.replace([{"fault": "foreign-pending", "name": "ops-1"}])
    assert switch.device.pending_sessions == []
    assert faults.names() == []


def test_every_fault_says_what_it_does():
    assert all(known.about for known in CATALOGUE.values())
