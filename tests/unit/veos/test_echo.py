"""What the running configuration looks like after lines were taken."""

from __future__ import annotations

import json

import pytest

from railweld.lab.veos import Echo

FOREIGN = """\
username admin privilege 15 role network-admin secret sha512 $6$x
vlan 10
   name storage
interface Ethernet1/1
   description to gpu1
   no switchport
   ip address 10.1.1.1/31
   some knob 7
router bgp 65001
   neighbor 10.1.1.0 remote-as 65100
   !
   address-family ipv4
      neighbor 10.1.1.0 activate
event-handler backup
   action bash echo
   delay 5
banner motd
   no entry % ever
EOF
"""


def running(switch):
    return switch.send("show running-config").splitlines()


def test_order_is_the_switchs_own(cli):
    switch = cli()
    switch.accept(
        "configure", "qos map traffic-class 3 to tx-queue 4", "qos map dscp 26 to traffic-class 4",
        "interface Ethernet1/1", "service-profile ROCE", "mtu 9214", "qos profile ROCE",
        "priority-flow-control priority 3 no-drop", "priority-flow-control on", "qos trust dscp",
    )  # fmt: skip
    lines = running(switch)
    places = [
        lines.index(text)
        for text in (
            "qos profile ROCE", "   qos trust dscp", "   priority-flow-control on",
            "   priority-flow-control priority 3 no-drop", "interface Ethernet1/1",
            "   mtu 9214", "   service-profile ROCE", "qos map dscp 26 to traffic-class 4",
            "qos map traffic-class 3 to tx-queue 4",
        )
    ]  # fmt: skip
    assert places == sorted(places)


@pytest.mark.parametrize(
    "line",
    [
        "qos map dscp 26 to traffic-class 3",
        "qos map dscp 48 to traffic-class 6",
        "qos map dscp 0 to traffic-class 1",
        "qos map traffic-class 3 to tx-queue 3",
        "errdisable recovery interval 300",
        "priority-flow-control pause watchdog action errdisable",
    ],
)
def test_defaults_do_not_print(cli, line):
    hiding = cli()
    before = running(hiding)
    hiding.accept("configure", line)
    assert running(hiding) == before
    showing = cli(echo=Echo(hide_defaults=False))
    showing.accept("configure", line)
    assert line in running(showing)


def test_port_defaults_do_not_print(cli):
    switch = cli()
    before = running(switch)
    switch.accept("configure", "interface Ethernet1/1", "flowcontrol receive off", "mtu 1500")
    switch.accept("qos trust cos", "priority-flow-control priority 3 drop")
    assert running(switch) == before
    switch.accept("no switchport", "qos trust dscp")
    assert switch.section("Ethernet1/1$") == ["interface Ethernet1/1", "   no switchport"]


def test_4_35_merges_dscps_and_names_the_hardware_queue(cli):
    lines = (
        "qos map dscp 10 to traffic-class 3", "qos map dscp 12 9 to traffic-class 3",
        "qos map dscp 17 to traffic-class 4", "qos map traffic-class 3 to tx-queue 2",
    )  # fmt: skip
    old, new = cli(version="4.32.0F"), cli(version="4.35.1F")
    sand = cli(model="7280R", version="4.35.1F")
    for switch in (old, new, sand):
        switch.accept("configure", *lines)
    assert [line for line in running(old) if line.startswith("qos")] == [
        "qos map dscp 9 to traffic-class 3",
        "qos map dscp 10 to traffic-class 3",
        "qos map dscp 12 to traffic-class 3",
        "qos map dscp 17 to traffic-class 4",
        "qos map traffic-class 3 to tx-queue 2",
    ]
    assert [line for line in running(new) if line.startswith("qos")] == [
        "qos map dscp 9 10 12 to traffic-class 3",
        "qos map dscp 17 to traffic-class 4",
        "qos map traffic-class 3 to uc-tx-queue 2",
    ]
    assert "qos map traffic-class 3 to tx-queue 2" in running(sand)


def test_what_is_printed_can_be_typed_again(cli):
    switch = cli(version="4.35.1F")
    switch.accept("configure", "qos map dscp 9 10 to traffic-class 3",
                  "qos map traffic-class 3 to tx-queue 2")  # fmt: skip
    lines = running(switch)
    again = cli(version="4.35.1F", startup="\n".join(lines))
    assert running(again) == lines


def test_decimals_and_units_are_printed_in_one_form(cli):
    switch = cli()
    switch.accept(
        "configure", "priority-flow-control pause watchdog default timeout 0.2",
        "priority-flow-control pause watchdog default polling-interval 0.1",
        "platform trident mmu headroom-pool limit 2097152",
        "platform trident mmu queue profile M", "ingress headroom 65536", "ingress resume 18432",
    )  # fmt: skip
    lines = running(switch)
    assert "priority-flow-control pause watchdog default timeout 0.20" in lines
    assert "priority-flow-control pause watchdog default polling-interval 0.10" in lines
    assert "platform trident mmu headroom-pool limit bytes 2097152" in lines
    assert "    ingress headroom bytes 65536" in lines
    assert "    ingress resume 18432" in lines


def test_an_illegal_polling_interval_is_kept_but_not_run(cli):
    switch = cli()
    prefix = "priority-flow-control pause watchdog default"
    switch.accept("configure", f"{prefix} timeout 0.20", f"{prefix} recovery-time 0.20")
    assert switch.send(f"{prefix} polling-interval 0.30").startswith("! polling-interval")
    assert f"{prefix} polling-interval 0.30" in running(switch)
    assert "The PFC watchdog polling-interval is 0.1 second(s)" in switch.send(
        "show priority-flow-control"
    )


def test_weight_zero_prints_on_strata_only(cli):
    ecn = "random-detect ecn minimum-threshold 150 kbytes maximum-threshold 1500 kbytes"
    for model, queue, shown in (
        ("7050X3", "uc-tx-queue 3", f"      {ecn} max-mark-probability 20 weight 0"),
        ("7280R", "tx-queue 3", f"      {ecn} max-mark-probability 20"),
    ):
        switch = cli(model=model)
        switch.accept("configure", "qos profile R", queue)
        switch.accept(f"{ecn} max-mark-probability 20 weight 0")
        assert shown in running(switch)


def test_no_and_default_take_lines_back(cli):
    switch = cli()
    before = running(switch)
    switch.accept(
        "configure", "interface Ethernet1/1", "mtu 9214", "priority-flow-control on",
        "priority-flow-control priority 3 no-drop", "service-profile R", "uc-tx-queue 3",
        "random-detect ecn count", "exit",
        "no priority-flow-control priority 3 no-drop", "no priority-flow-control", "no mtu",
        "no service-profile", "no uc-tx-queue 3", "exit",
        "qos profile R", "exit", "no qos profile R",
        "qos map dscp 26 to traffic-class 4", "no qos map dscp 26",
    )  # fmt: skip
    assert running(switch) == before
    switch.accept("interface Ethernet1/1", "mtu 9000", "default interface Ethernet1/1")
    assert running(switch) == before


def test_no_keeps_a_line_where_the_default_is_on(cli):
    switch = cli()
    switch.accept("configure", "interface Ethernet1/1", "no qos trust", "no switchport")
    assert switch.section("Ethernet1/1$") == [
        "interface Ethernet1/1", "   no switchport", "   no qos trust",
    ]  # fmt: skip
    switch.accept("default qos trust", "default switchport")
    assert switch.section("Ethernet1/1$") == ["interface Ethernet1/1"]


@pytest.mark.parametrize("version", ["4.30.5M", "4.35.0F"])
def test_foreign_configuration_survives_byte_by_byte(cli, version):
    switch = cli(startup=FOREIGN, version=version)
    wanted = [line for line in FOREIGN.splitlines() if line.strip() != "!"]
    lines = running(switch)
    for line in wanted:
        assert line in lines
    switch.accept(
        "configure session roce-1", "qos profile ROCE", "priority-flow-control on", "exit",
        "interface Ethernet1/1", "service-profile ROCE", "commit",
    )  # fmt: skip
    after = running(switch)
    added = [line for line in after if line not in lines]
    assert added == [
        "qos profile ROCE", "   priority-flow-control on", "   service-profile ROCE",
    ]  # fmt: skip
    switch.send("write memory")
    switch.device.reload()
    assert running(switch) == after


def test_running_config_starts_with_the_device(cli):
    lines = running(cli(model="DCS-7050CX3-32S", version="4.31.2F"))
    assert lines[:3] == [
        "! Command: show running-config", "! device: leaf1 (DCS-7050CX3-32S, EOS-4.31.2F)", "!",
    ]  # fmt: skip
    assert lines[-1] == "end"


def test_running_config_as_json_nests_lines(cli):
    switch = cli()
    switch.accept("configure", "qos profile R", "uc-tx-queue 3", "bandwidth percent 80")
    cmds = json.loads(switch.send("show running-config | json"))["cmds"]
    queue = cmds["qos profile R"]["cmds"]["uc-tx-queue 3"]["cmds"]
    assert queue == {"bandwidth percent 80": None}
    assert cmds["hostname leaf1"] is None
