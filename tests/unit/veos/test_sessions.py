"""Configuration sessions, commit timers and checkpoints, in both output generations."""

from __future__ import annotations

import json

import pytest

OLD, NEW = "4.31.2F", "4.32.1F"
BOTH = pytest.mark.parametrize("version", [OLD, NEW])
CHANGE = ("interface Ethernet1/1", "mtu 9214", "exit")


def detail(switch):
    return json.loads(switch.send("show configuration sessions detail | json"))


def test_a_session_changes_nothing_until_it_is_committed(cli):
    switch = cli()
    before = switch.device.running_lines
    switch.accept("configure session roce-1", *CHANGE)
    assert switch.device.running_lines == before
    switch.accept("commit")
    assert switch.prompt == "leaf1#"
    assert "   mtu 9214" in switch.section("Ethernet1/1$")
    assert detail(switch)["sessions"]["roce-1"]["state"] == "completed"
    assert not switch.device.saved


def test_diff_is_empty_for_a_change_that_is_none(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "commit")
    switch.accept("configure session roce-2", *CHANGE)
    assert switch.send("show session-config diffs") == ""


def test_diff_has_headers_and_hunks_and_can_be_read_from_exec(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE)
    lines = switch.send("show session-config diffs").splitlines()
    assert lines[:2] == ["--- system:/running-config", "+++ session:/roce-1-session-config"]
    assert lines[2].startswith("@@ ")
    assert "+   mtu 9214" in lines
    switch.accept("end")
    assert switch.send("show session-config named roce-1 diffs").splitlines() == lines


def test_diff_misses_the_block_that_is_still_open(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "interface Ethernet2/1", "mtu 9000")
    diff = switch.send("show session-config diffs")
    assert "+   mtu 9214" in diff
    assert "mtu 9000" not in diff
    switch.accept("exit")
    assert "+   mtu 9000" in switch.send("show session-config diffs")


def test_end_and_exit_leave_a_session_pending(cli):
    for word in ("end", "exit"):
        switch = cli()
        switch.accept("configure session roce-1", "hostname other", word)
        assert switch.prompt == "leaf1#"
        assert switch.device.pending_sessions == ["roce-1"]


def test_abort_in_a_sub_mode_leaves_the_session_pending(cli):
    switch = cli()
    switch.accept("configure session roce-1", "interface Ethernet1/1", "mtu 9214", "abort")
    assert switch.device.pending_sessions == ["roce-1"]
    switch.accept("configure session roce-1 abort")
    assert switch.device.pending_sessions == []


def test_abort_in_the_session_drops_it(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "abort")
    assert switch.prompt == "leaf1#"
    assert detail(switch)["sessions"] == {}
    assert switch.send("end") == "% Invalid input (at token 0: 'end')"


def test_a_lost_connection_leaves_its_session_pending(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE)
    switch.terminal.hang_up()
    assert detail(switch)["sessions"]["roce-1"] == {
        "state": "pending", "commitUser": "", "description": "", "instances": {},
    }  # fmt: skip


def test_the_sixth_session_is_refused_and_the_line_stays_in_exec(cli):
    switch = cli()
    for number in range(5):
        switch.accept(f"configure session s{number}", "end")
    assert switch.send("configure session s5") == (
        "Maximum number of pending sessions has been reached"
    )
    assert switch.prompt == "leaf1#"
    switch.accept("configure session s4")
    assert switch.prompt == "leaf1(config-s-s4)#"


def test_a_session_left_for_a_day_expires(cli):
    switch = cli()
    switch.accept("configure session roce-1", "end")
    switch.clock.advance(24 * 3600)
    assert switch.device.pending_sessions == []


def test_the_last_commit_wins_over_changes_made_since_the_snapshot(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE)
    switch.device.change_by_other(["interface Ethernet2/1", "   mtu 9000"])
    switch.accept("commit")
    assert "   mtu 9000" not in switch.section("Ethernet2/1$")


def test_rollback_clean_config_empties_the_session(cli):
    switch = cli(startup="vlan 10\n   name storage\n")
    switch.accept("configure session roce-1", "rollback clean-config")
    assert "-vlan 10" in switch.send("show session-config diffs")


def test_a_finished_session_cannot_be_entered_again(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "commit")
    assert switch.send("configure session roce-1").startswith("% Cannot enter session roce-1")
    assert switch.send("configure session gone abort") == "% Session gone does not exist"


# ------------------------------------------------------------------------------ commit timer


@BOTH
def test_a_commit_with_a_timer_is_live_and_undoes_itself(cli, version):
    switch = cli(version=version)
    before = switch.device.running_lines
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    assert switch.prompt == "leaf1#"
    assert "   mtu 9214" in switch.section("Ethernet1/1$")
    switch.clock.advance(299.9)
    assert switch.device.timer_left == pytest.approx(0.1)
    switch.clock.advance(0.1)
    assert switch.device.timer_left is None
    assert switch.device.running_lines == before
    assert detail(switch)["sessions"] == {}
    assert "CONFIG_REPLACE_SUCCESS" in switch.send("show logging")


@BOTH
def test_another_connection_confirms(cli, version):
    switch = cli(version=version)
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    switch.terminal.hang_up()
    other = switch.another()
    assert other.receive("configure session roce-1 commit").text == ""
    switch.clock.advance(3600)
    assert "   mtu 9214" in switch.section("Ethernet1/1$")
    assert detail(switch)["sessions"]["roce-1"]["state"] == "completed"


@BOTH
def test_another_connection_rolls_a_timed_commit_back(cli, version):
    switch = cli(version=version)
    before = switch.device.running_lines
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    assert switch.another().receive("configure session roce-1 abort").text == ""
    assert switch.device.running_lines == before
    assert switch.device.timer is None


@BOTH
def test_no_other_commit_while_a_timer_runs(cli, version):
    switch = cli(version=version)
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    switch.accept("configure session roce-2", "hostname other")
    assert switch.send("commit").startswith("% Cannot commit session roce-2")
    assert switch.device.hostname == "leaf1"


def test_timer_shows_as_a_state_up_to_4_31(cli):
    switch = cli(version=OLD)
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    switch.clock.advance(4)
    data = detail(switch)
    assert data["sessions"]["roce-1"]["state"] == "pendingCommitTimer"
    assert data["sessions"]["roce-1"]["commitBy"] == pytest.approx(86400 + 300)
    assert "commitTimerSessionName" not in data
    text = switch.send("show configuration sessions detail")
    assert "  roce-1  pendingCommitTimer" in text
    assert "4m56s" in text


def test_timer_shows_at_top_level_from_4_32_on(cli):
    switch = cli(version=NEW)
    switch.accept("configure session roce-1", *CHANGE)
    assert "commitTimerSessionName" not in detail(switch)
    switch.accept("commit timer 00:05:00")
    switch.clock.advance(1)
    data = detail(switch)
    assert data["sessions"]["roce-1"]["state"] == "committed"
    assert "commitBy" not in data["sessions"]["roce-1"]
    assert data["commitTimerSessionName"] == "roce-1"
    assert data["commitTimerExpireTime"] == pytest.approx(86400 + 300)
    text = switch.send("show configuration sessions detail")
    assert "Session with pending commit timer: roce-1" in text
    assert "Time left until commit timer expiry: in 0:04:59" in text
    switch.accept("configure session roce-1 commit")
    assert "commitTimerSessionName" not in detail(switch)


def test_exec_form_commits_with_a_timer(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "end")
    switch.accept("configure session roce-1 commit timer 01:00:00")
    assert switch.device.timer_left == 3600


@pytest.mark.parametrize("time", ["5", "00:00:00", "00:60:00", "x"])
def test_a_timer_needs_hours_minutes_and_seconds(cli, time):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE)
    assert switch.send(f"commit timer {time}").startswith("% Invalid input")
    assert switch.device.pending_sessions == ["roce-1"]


def test_the_current_session_is_marked(cli):
    switch = cli()
    switch.accept("configure session roce-1")
    assert "* roce-1" in switch.send("show configuration sessions")
    (entry,) = detail(switch)["sessions"]["roce-1"]["instances"].values()
    assert entry["currentTerminal"] is True


# ------------------------------------------------------------------------------ the rest


def test_a_lock_stops_the_diff_of_another_session(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE)
    other = switch.another()
    other.receive("configure lock transaction maintenance")
    assert switch.send("show session-config diffs").startswith("% ")
    assert switch.another().receive("configure").text.startswith("% Configuration is locked")
    other.hang_up()
    assert switch.send("show session-config diffs").startswith("---")


def test_checkpoints_restore_at_once(cli):
    switch = cli()
    before = switch.device.running_lines
    switch.accept("configure checkpoint save before-roce")
    switch.accept("configure session roce-1", *CHANGE, "commit")
    assert "before-roce" in switch.send("show configuration checkpoints")
    assert len(json.loads(switch.send("show configuration checkpoints | json"))["checkpoints"]) == 2
    switch.accept("configure checkpoint restore before-roce")
    assert switch.device.running_lines == before
    assert switch.send("configure checkpoint restore nothing").startswith("% ")


def test_replace_takes_a_whole_file(cli):
    switch = cli(startup="vlan 10\n   name storage\n")
    before = switch.device.running_lines
    switch.accept("copy running-config flash:before", "configure", *CHANGE, "end")
    assert switch.device.running_lines != before
    switch.accept("configure replace flash:before")
    assert switch.device.running_lines == before
    assert switch.send("configure replace flash:nothing").startswith("% Error opening")


@pytest.mark.parametrize("line", ["write", "write memory", "copy running-config startup-config"])
def test_only_saving_survives_a_reboot(cli, line):
    switch = cli()
    switch.accept("configure", *CHANGE, "end")
    assert "mtu 9214" not in switch.send("show startup-config")
    assert switch.send("show running-config diffs").splitlines()[0] == "--- flash:/startup-config"
    assert switch.send(line) == "Copy completed successfully."
    switch.accept("configure", "interface Ethernet2/1", "mtu 9000", "end")
    switch.device.reload()
    assert "   mtu 9214" in switch.section("Ethernet1/1$")
    assert "   mtu 9000" not in switch.section("Ethernet2/1$")
    assert switch.device.saved


def test_a_reboot_forgets_sessions_and_timer(cli):
    switch = cli()
    switch.accept("configure session roce-1", *CHANGE, "commit timer 00:05:00")
    assert switch.reply("reload now").close
    assert switch.device.timer is None
    assert detail(switch)["sessions"] == {}
    assert json.loads(switch.send("show version | json"))["uptime"] == 0
