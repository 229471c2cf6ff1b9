"""`show` commands, judged by ANTA and ntc-templates where those know the command."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anta.device import AntaDevice
from anta.models import AntaTest
from anta.result_manager.models import AntaTestStatus
from anta.tests.interfaces import (
    VerifyInterfacesECNCounters,
    VerifyInterfacesEgressQueueDrops,
    VerifyInterfacesPFCCounters,
    VerifyInterfacesVoqAndEgressQueueDrops,
)
from ntc_templates.parse import parse_output

ECN = "random-detect ecn minimum-threshold 150 kbytes maximum-threshold 1500 kbytes"
ROCE = (
    "configure", "qos profile ROCE", "qos trust dscp", "priority-flow-control on",
    "priority-flow-control priority 3 no-drop", "priority-flow-control pause watchdog",
    "{queue} 3", "no priority", "bandwidth percent 80",
    f"{ECN} max-mark-probability 20 weight 0", "random-detect ecn count", "exit", "exit",
    "interface Ethernet1/1", "service-profile ROCE", "no switchport", "end",
)  # fmt: skip


def roce(cli, model="7050X3", version="4.31.2F"):
    switch = cli(model=model, version=version)
    queue = "tx-queue" if model == "7280R" else "uc-tx-queue"
    switch.accept(*(line.format(queue=queue) for line in ROCE))
    return switch


def data(switch, command: str) -> Any:
    return json.loads(switch.send(f"{command} | json"))


class Switch(AntaDevice):
    """Enough of a device for ANTA to judge data that was collected elsewhere."""

    @property
    def _keys(self) -> tuple[Any, ...]:
        return (self.name,)

    async def _collect(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    async def refresh(self) -> None:
        raise NotImplementedError


def anta(test: type[AntaTest], output: Any, **inputs: Any) -> AntaTestStatus:
    device = Switch("leaf1", disable_cache=True)
    device.hw_model = "DCS-7050CX3-32S"
    judged = test(device, inputs=inputs or None, eos_data=[output])
    asyncio.run(judged.test())
    return judged.result.result


def table(text: str, port: str) -> list[str]:
    """The cells of a port's row."""
    return next(line.split() for line in text.splitlines() if line.startswith(f"{port} "))


def test_version_gives_model_release_and_uptime(cli):
    switch = cli(model="DCS-7050CX3-32S", version="4.31.2F")
    shown = data(switch, "show version")
    assert (shown["modelName"], shown["version"]) == ("DCS-7050CX3-32S", "4.31.2F")
    switch.clock.advance(60)
    assert data(switch, "show version")["uptime"] == pytest.approx(shown["uptime"] + 60)
    (parsed,) = parse_output("arista_eos", "show version", switch.send("show version"))
    assert (parsed["model"], parsed["image"]) == ("DCS-7050CX3-32S", "4.31.2F")


@pytest.mark.parametrize(
    ("asked", "model"),
    [("7050X3", "DCS-7050CX3-32S"), ("7280R", "DCS-7280QR-C36"), ("7010T", "DCS-7010T-48"),
     ("veos", "vEOS-lab"), ("ceos", "cEOSLab"), ("DCS-7050CX3-32S-F", "DCS-7050CX3-32S-F"),
     ("DCS-7060PX5-64", "DCS-7060PX5-64")],
)  # fmt: skip
def test_family_names_stand_for_a_model(cli, asked, model):
    assert data(cli(model=asked, neighbours=()), "show version")["modelName"] == model


def test_lldp_shows_the_cabling(cli):
    switch = cli()
    neighbours = data(switch, "show lldp neighbors")["lldpNeighbors"]
    assert neighbours[0] == {
        "port": "Ethernet1/1", "neighborDevice": "gpu1", "neighborPort": "rail1", "ttl": 120,
    }  # fmt: skip
    parsed = parse_output("arista_eos", "show lldp neighbors", switch.send("show lldp neighbors"))
    assert [row["neighbor_name"] for row in parsed] == ["gpu1", "gpu2"]
    assert "Neighbor gpu1/rail1" in switch.send("show lldp neighbors detail")
    switch.accept("configure", "interface Ethernet1/1", "shutdown")
    assert len(data(switch, "show lldp neighbors")["lldpNeighbors"]) == 1


def test_pfc_is_active_only_where_it_is_on_and_the_link_is_up(cli):
    switch = roce(cli)
    text = switch.send("show priority-flow-control")
    assert table(text, "Et1/1") == ["Et1/1", "Yes", "3", "Yes", "DCBX", "disabled"]
    assert table(text, "Et2/1")[1:3] == ["No", "No"]
    status = switch.send("show priority-flow-control status")
    assert "E A W" in status
    switch.accept("configure", "interface Ethernet3/1", "service-profile ROCE", "end")
    assert table(switch.send("show priority-flow-control"), "Et3/1")[1:4] == ["Yes", "3", "No"]
    switch.accept("configure", "interface Ethernet1/1", "dcbx mode ieee", "end")
    assert table(switch.send("show priority-flow-control"), "Et1/1")[-1] == "Yes"


def test_pfc_all_off_wins(cli):
    switch = roce(cli)
    switch.accept("configure", "priority-flow-control all off", "end")
    text = switch.send("show priority-flow-control")
    assert "Global PFC : Disabled" in text
    assert table(text, "Et1/1")[1:3] == ["No", "No"]


def test_pfc_suspends_pause_frames_and_gives_them_back(cli):
    switch = roce(cli)
    switch.accept("configure", "interface Ethernet1/1", "flowcontrol receive on", "end")
    command = "show interfaces Ethernet1/1 flow-control"
    shown = data(switch, command)["interfaceFlowControls"]["Ethernet1/1"]
    assert (shown["rxAdminState"], shown["rxOperState"]) == ("on", "off")
    switch.accept("configure", "interface Ethernet1/1", "no service-profile", "end")
    shown = data(switch, command)["interfaceFlowControls"]["Ethernet1/1"]
    assert shown["rxOperState"] == "on"


def test_pfc_counters_add_up_the_priorities(cli):
    switch = roce(cli)
    switch.device.counters["Ethernet1/1"].pfc_rx.update({3: 40, 4: 2})
    shown = data(switch, "show priority-flow-control counters")
    assert shown["interfaceCounters"]["Ethernet1/1"] == {"rxFrames": 42, "txFrames": 0}
    assert table(switch.send("show priority-flow-control counters"), "Et1/1")[1] == "42"
    assert anta(VerifyInterfacesPFCCounters, shown) is AntaTestStatus.FAILURE
    switch.accept("clear counters")
    shown = data(switch, "show priority-flow-control counters")
    assert anta(VerifyInterfacesPFCCounters, shown) is AntaTestStatus.SUCCESS


def test_watchdog_counters_list_ports_with_events_only(cli):
    switch = roce(cli)
    command = "show priority-flow-control counters watchdog"
    assert data(switch, command) == {"interfaces": {}}
    assert table(switch.send(command), "Et1/1") == ["Et1/1", "UC3", "0", "0"]
    switch.device.counters["Ethernet1/1"].stuck[3] += 1
    assert data(switch, command)["interfaces"]["Ethernet1/1"]["txQueues"]["3"]["stuckCount"] == 1


def test_ecn_counters_are_text_and_dashes_where_nothing_counts(cli):
    switch = roce(cli)
    switch.device.counters["Ethernet1/1"].ecn[3] = 7
    shown = data(switch, "show qos interfaces ecn counters queue")
    queues = shown["intfQueueCounters"]["Ethernet1/1"]["queueCounters"]
    assert (queues["3"], queues["1"]) == ("7", "-")
    assert anta(VerifyInterfacesECNCounters, shown) is AntaTestStatus.FAILURE


@pytest.mark.parametrize("command", ["show interfaces counters queue detail"])
def test_queue_drops_are_read_by_anta(cli, command):
    switch = roce(cli)
    assert anta(VerifyInterfacesEgressQueueDrops, data(switch, command)) is AntaTestStatus.SUCCESS
    switch.device.counters["Ethernet1/1"].drops[3] = 5
    assert anta(VerifyInterfacesEgressQueueDrops, data(switch, command)) is AntaTestStatus.FAILURE
    assert "UC3" in switch.send(command)


def test_jericho_counts_drops_on_both_sides(cli):
    switch = roce(cli, "7280R")
    command = "show interfaces counters queue drops"
    judge = VerifyInterfacesVoqAndEgressQueueDrops
    assert anta(judge, data(switch, command)) is AntaTestStatus.SUCCESS
    switch.device.counters["Ethernet1/1"].ingress_drops[3] = 9
    assert anta(judge, data(switch, command)) is AntaTestStatus.FAILURE
    switch.device.faults.add("class-ranges")
    classes = data(switch, command)["interfaces"]["Ethernet1/1"]["trafficClasses"]
    assert list(classes) == ["TC0-5", "TC6-7"]


def test_qos_text_follows_the_configuration(cli):
    switch = roce(cli)
    assert table(switch.send("show qos interfaces Ethernet1/1 trust"), "Ethernet1/1") == [
        "Ethernet1/1", "DSCP", "DSCP",
    ]  # fmt: skip
    assert table(switch.send("show qos interfaces trust"), "Ethernet2/1") == [
        "Ethernet2/1", "COS", "DEFAULT",
    ]  # fmt: skip
    ecn = switch.send("show qos interfaces Ethernet1/1 ecn").splitlines()
    assert ecn[0] == "Ethernet1/1:"
    assert ecn[3].split() == ["3", "kbytes", "150", "1500", "20"]
    assert switch.send("show qos profile summary").splitlines() == [
        "Qos Profile: ROCE", "  Configured on: Et1/1",
    ]  # fmt: skip
    assert switch.send("show qos profile ROCE").splitlines()[1] == "   qos trust dscp"
    switch.accept("configure", "qos map dscp 10 to traffic-class 5",
                  "qos map traffic-class 5 to tx-queue 2", "end")  # fmt: skip
    maps = switch.send("show qos maps").splitlines()
    assert next(m for m in maps if m.startswith("      1 :")).split()[2:] == list("5000002222")
    assert next(m for m in maps if "tx-queue:" in m).split()[1:] == list("01234267")


def test_interface_status_and_mtu_follow_the_configuration(cli):
    switch = roce(cli)
    switch.accept("configure", "interface Ethernet1/1", "mtu 9214", "description to gpu1", "end")
    shown = data(switch, "show interfaces status")["interfaceStatuses"]
    assert shown["Ethernet1/1"]["linkStatus"] == "connected"
    assert shown["Ethernet3/1"]["linkStatus"] == "notconnect"
    assert data(switch, "show interfaces Ethernet1/1")["interfaces"]["Ethernet1/1"]["mtu"] == 9214
    rows = parse_output(
        "arista_eos", "show interfaces status", switch.send("show interfaces Et1/1 status")
    )
    assert (rows[0]["status"], rows[0]["name"]) == ("connected", "to gpu1")


def test_mmu_status_names_the_applied_profile(cli):
    switch = cli()
    command = "show platform trident mmu queue status"
    assert "Hardware Profile : default" in switch.send(command)
    switch.accept("configure", "platform trident mmu queue profile M", "ingress threshold 1/8",
                  "exit", "platform trident mmu queue profile M apply", "end")  # fmt: skip
    assert switch.send(command).splitlines() == ["Hardware Profile : M", "ingress threshold 1/8"]


def test_pipes_filter_lines(cli):
    switch = roce(cli)
    assert switch.send("show version | include image version") == (
        "Software image version: 4.31.2F"
    )
    assert switch.send("show running-config | section qos profile").splitlines()[0] == (
        "qos profile ROCE"
    )
    assert switch.send("show running-config | begin qos profile").splitlines()[0] == (
        "qos profile ROCE"
    )
    assert "Arista" not in switch.send("show version | exclude Arista")
    assert switch.send("show version | no-more").startswith("Arista")
    assert switch.send("show version | frobnicate") == "% Invalid input"


def test_errdisable_recovery_and_dcbx_are_shown(cli):
    switch = cli()
    switch.accept("configure", "errdisable recovery cause stuck-queue", "interface Et1/1",
                  "dcbx mode ieee", "end")  # fmt: skip
    assert "stuck-queue        Enabled       300" in switch.send("show errdisable recovery")
    assert "DCBX mode: IEEE" in switch.send("show dcbx Ethernet1/1")
