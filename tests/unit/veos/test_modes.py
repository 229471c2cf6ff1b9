"""Modes, prompts and the words that move between them."""

from __future__ import annotations

import pytest

from railweld.lab.veos import Behaviour, Terminal


def test_login_lands_in_exec_mode_and_enable_needs_the_secret(cli):
    device = cli().device
    terminal = Terminal(device, enable_secret="s3")
    assert terminal.prompt() == "leaf1>"
    assert terminal.receive("configure").text == "% Invalid input (privileged mode required)"
    assert terminal.receive("enable").ask == "Password: "
    assert terminal.receive("wrong").ask == "Password: "
    assert terminal.receive("wrong").ask == "Password: "
    assert terminal.receive("wrong").text == "% Bad secret"
    assert terminal.prompt() == "leaf1>"
    terminal.receive("enable")
    assert terminal.receive("s3").text == ""
    assert terminal.prompt() == "leaf1#"


def test_running_config_is_privileged(cli):
    terminal = Terminal(cli().device)
    assert terminal.receive("show running-config").text.startswith("% Invalid input (privileged")
    assert terminal.receive("show version").text.startswith("Arista ")


@pytest.mark.parametrize(
    ("lines", "prompt"),
    [
        (["configure"], "leaf1(config)#"),
        (["conf t", "int et1/1"], "leaf1(config-if-Et1/1)#"),
        (["configure", "interface Ethernet1/1,2/1"], "leaf1(config-if-Et1/1,2/1)#"),
        (["configure", "interface Ethernet 1/1"], "leaf1(config-if-Et1/1)#"),
        (["configure", "interface Ethernet1/1", "uc-tx-queue 3"],
         "leaf1(config-if-Et1/1-uc-txq-3)#"),
        (["configure", "qos profile ROCE"], "leaf1(config-qos-profile-ROCE)#"),
        (["configure", "qos profile ROCE", "uc-tx-queue 3"],
         "leaf1(config-qos-profile-ROCE-uc-txq-3)#"),
        (["configure", "platform trident mmu queue profile ROCE-MMU"],
         "leaf1(config-queue-ROCE-MMU)#"),
        (["configure", "qos profile ROCE", "exit"], "leaf1(config)#"),
        (["configure", "qos profile ROCE", "uc-tx-queue 3", "end"], "leaf1#"),
        (["configure", "exit"], "leaf1#"),
        (["disable"], "leaf1>"),
    ],
)  # fmt: skip
def test_prompt_shows_the_mode(cli, lines, prompt):
    switch = cli()
    switch.accept(*lines)
    assert switch.prompt == prompt


@pytest.mark.parametrize(("version", "shown"), [("4.31.2F", "roce-1"), ("4.32.0F", "roce-1a2b3")])
def test_prompt_cuts_the_session_name_to_6_or_10_characters(cli, version, shown):
    switch = cli(version=version)
    switch.accept("configure session roce-1a2b3c4d5e", "interface Ethernet1/1")
    assert switch.prompt == f"leaf1(config-s-{shown}-if-Et1/1)#"


def test_prompt_width_can_be_chosen(cli):
    switch = cli(version="4.32.0F", behaviour=Behaviour(prompt_session_chars=6))
    switch.accept("configure session roce-1a2b3c")
    assert switch.prompt == "leaf1(config-s-roce-1)#"


def test_a_configuration_line_in_exec_mode_is_invalid(cli):
    switch = cli()
    assert switch.send("qos profile ROCE") == "% Invalid input (at token 0: 'qos')"
    assert switch.send("interface Ethernet1/1") == "% Invalid input (at token 0: 'interface')"


def test_errors_name_the_token_only_where_the_release_does(cli):
    switch = cli(behaviour=Behaviour(error_suffix=False))
    switch.accept("configure")
    assert switch.send("hardware profile tcam region pfc 1024") == "% Invalid input"


def test_short_lines_are_incomplete_or_ambiguous(cli):
    switch = cli()
    switch.accept("configure", "qos profile ROCE")
    assert switch.send("priority-flow-control priority") == "% Incomplete command"
    assert switch.send("priority-flow-control p") == "% Ambiguous command"
    assert switch.send("show") == "% Incomplete command"


def test_keywords_may_be_cut(cli):
    switch = cli()
    switch.accept("conf", "int et1/1", "service-pr ROCE", "flowc rec on")
    assert switch.section("Ethernet1/1$")[:3] == [
        "interface Ethernet1/1",
        "   flowcontrol receive on",
        "   service-profile ROCE",
    ]


def test_parent_mode_fallback_can_be_switched_off(cli):
    lenient = cli()
    lenient.accept("configure", "qos profile ROCE", "uc-tx-queue 3", "qos trust dscp")
    assert lenient.prompt == "leaf1(config-qos-profile-ROCE)#"
    strict = cli(behaviour=Behaviour(parent_fallback=False))
    strict.accept("configure", "qos profile ROCE", "uc-tx-queue 3")
    assert strict.send("qos trust dscp") == "% Invalid input (at token 0: 'qos')"
    assert strict.send("interface Ethernet1/1") == "% Invalid input (at token 0: 'interface')"
    strict.accept("exit", "qos trust dscp")


def test_show_and_save_work_in_configuration_mode(cli):
    switch = cli()
    switch.accept("configure", "interface Ethernet1/1", "mtu 9214")
    assert "mtu 9214" in switch.send("show running-config")
    assert not switch.device.saved
    assert switch.send("write memory") == "Copy completed successfully."
    assert switch.device.saved
    assert switch.prompt == "leaf1(config-if-Et1/1)#"


def test_banner_takes_lines_up_to_eof(cli):
    switch = cli()
    assert switch.reply("configure").text == ""
    assert "EOF" in switch.send("banner motd")
    for line in ("  Property of % us", "interface Ethernet1/1", "EOF"):
        assert switch.send(line) == ""
    assert switch.prompt == "leaf1(config)#"
    assert "banner motd\n  Property of % us\ninterface Ethernet1/1\nEOF" in switch.send(
        "show running-config"
    )


def test_port_ranges_run_over_lanes_not_ports(cli):
    switch = cli()
    switch.accept("configure", "interface Ethernet1/1-4", "mtu 9000")
    assert switch.send("interface Ethernet1/1-16") == (
        "% Invalid input (at token 1: 'Ethernet1/1-16')"
    )
    assert switch.send("interface Ethernet99/1").startswith("% Invalid input")
    assert "   mtu 9000" in switch.section("Ethernet1/4$")


def test_terminal_settings_answer_as_netmiko_expects(cli):
    switch = cli()
    assert switch.send("terminal width 511") == "Width set to 511 columns."
    assert switch.send("terminal length 0") == "Pagination disabled."
