"""`railweld verify --stage fabric` on nodes and switches that answer on SSH: one link turns red.

Every fault is made on the machine, as it happens to a site, and mended as the command says.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from railweld.fabric.stage import stage_from_inventory
from railweld.site import load_inventory
from railweld.verify.hosts import REACHED
from tests.labs import TestLab, command, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

#: LLDP frames come every 5 s, and a change shows within two of them.
HEARD_S = 60.0
DCB = "/usr/sbin/dcb"


@pytest.fixture(autouse=True)
def state() -> None:
    """This lab keeps the state folder that `railweld lab up` wrote its keys to."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    inventory = write_inventory(
        tmp_path_factory.mktemp("agreement"), site="agree", third_octet=36, gpu_nodes=2,
        switches=True,
    )  # fmt: skip
    with running_lab(inventory) as lab:
        lab.play().assert_ok()
        arguments = ("--yes", "--observe", "0", "--batch", "all", "-i", str(inventory))
        command(["railweld", "fabric", "push", *arguments])
        yield lab


def look(lab: TestLab, *words: str) -> tuple[int, dict[str, str], list[dict[str, Any]]]:
    """Exit code, what is wrong by link, and all records."""
    words = ("-i", str(lab.inventory), "--stage", "fabric", "--json", *words)
    run = command(["railweld", "verify", *words], check=False)
    found = json.loads(run.stdout)
    wrong = {
        row["link"].replace("\n  ", " - "): row["wrong"]
        for row in found["tables"]["links"]
        if row["wrong"] != "none"
    }
    return run.returncode, wrong, found["checks"]


def test_a_fabric_as_described_is_green_on_every_link(lab: TestLab) -> None:
    code, wrong, checks = look(lab)
    assert (code, wrong) == (0, {})
    ids = {check["id"] for check in checks}
    assert {"rdma.trust", "rdma.pfc", "rdma.cnp_dscp", "rdma.mtu", "lldp.cabling", "fabric.pfc",
            "fabric.lldp", "nccl.traffic_class"} <= ids  # fmt: skip
    run = command(["railweld", "verify", "-i", str(lab.inventory), "--stage", "fabric"])
    rows = [line for line in run.stdout.splitlines() if re.match(r"^ *leaf\d Ethernet", line)]
    assert len(rows) == 10, "two nodes with four rails, and two uplinks"
    assert all(line.rstrip().endswith("none") for line in rows)


#: What an operator, a driver or another tool does to rail1 of gpu1.
HOST_FAULTS = {
    "trust": [DCB, "app", "flush", "dev", "rail1", "dscp-prio"],
    "pfc": [DCB, "pfc", "set", "dev", "rail1", "prio-pfc", "all:off", "4:on"],
    "cnp_dscp": ["sh", "-c", "echo 46 > /sys/kernel/debug/mlx5/0000:0c:00.0/cc_params/np_cnp_dscp"],
    "mtu": ["ip", "link", "set", "rail1", "mtu", "1500"],
}  # fmt: skip


@pytest.mark.parametrize("what", HOST_FAULTS)
def test_a_wrong_host_turns_its_link_red_and_is_named(lab: TestLab, what: str) -> None:
    lab.node("gpu1", *HOST_FAULTS[what])
    code, wrong, checks = look(lab)
    assert code == 1
    assert list(wrong) == ["leaf1 Ethernet1/1 - gpu1 rail1"]
    assert re.match(rf"^gpu1: .*{what}", wrong["leaf1 Ethernet1/1 - gpu1 rail1"])
    assert "leaf1:" not in wrong["leaf1 Ethernet1/1 - gpu1 rail1"]
    fixes = {check["fix"] for check in checks if check["status"] == "fail"}
    assert all(fix.startswith("systemctl restart railweld-roce") for fix in fixes)
    lab.node("gpu1", "systemctl", "restart", "railweld-roce")
    assert look(lab)[:2] == (0, {})


def test_a_switch_port_without_pfc_turns_its_link_red_and_is_named(lab: TestLab) -> None:
    leaf = stage_from_inventory(load_inventory([str(lab.inventory)])).connect("leaf1")
    for line in ("configure", "interface Ethernet2/1", "no priority-flow-control", "end"):
        leaf.run(line)
    leaf.close()
    code, wrong, checks = look(lab)
    assert code == 1
    assert wrong == {"leaf1 Ethernet2/1 - gpu2 rail1": "leaf1: config, pfc, watchdog"}
    fixes = {check["fix"] for check in checks if check["status"] == "fail"}
    assert all(fix.startswith("railweld fabric push --limit leaf1") for fix in fixes)
    arguments = ("--limit", "leaf1", "--yes", "--observe", "0", "-i", str(lab.inventory))
    command(["railweld", "fabric", "push", *arguments])
    assert look(lab)[:2] == (0, {})


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HEARD_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1)


def test_swapped_cables_turn_both_of_their_links_red_and_name_the_cable(lab: TestLab) -> None:
    def heard(node: str) -> str:
        return lab.node(node, "lldpcli", "show", "neighbors", "ports", "rail1", "-f", "keyvalue")

    lab.fault("cables-swapped", "leaf1", "ports=Ethernet1/1,Ethernet2/1")
    for node, port in (("gpu1", "Ethernet2/1"), ("gpu2", "Ethernet1/1")):
        lab.fault("cable-moved", node, "hca=mlx5_0", f"port={port}")
        until(lambda node=node, port=port: f"={port}\n" in heard(node))
    code, wrong, _ = look(lab)
    assert code == 1
    assert wrong == {
        "leaf1 Ethernet1/1 - gpu1 rail1": "cable: leaf1 Ethernet1/1 leads to gpu2 rail1; "
        "gpu1 rail1 leads to leaf1 Ethernet2/1",
        "leaf1 Ethernet2/1 - gpu2 rail1": "cable: leaf1 Ethernet2/1 leads to gpu1 rail1; "
        "gpu2 rail1 leads to leaf1 Ethernet1/1",
    }
    lab.clear("cables-swapped", "leaf1")
    for node, port in (("gpu1", "Ethernet1/1"), ("gpu2", "Ethernet2/1")):
        lab.clear("cable-moved", node)
        until(lambda node=node, port=port: f"={port}\n" in heard(node))
    # The switch hears its new neighbours at their next announcement.
    until(lambda: look(lab)[:2] == (0, {}))


def test_a_node_that_does_not_answer_is_unknown_and_the_others_are_judged(lab: TestLab) -> None:
    lab.fault("power-cut", "gpu2", "seconds=-1")
    code, wrong, checks = look(lab)
    assert code == 3
    assert {name.partition(" - ")[2].partition(" ")[0] for name in wrong} == {"gpu2"}
    unread = [check for check in checks if check["id"] == REACHED]
    assert {check["status"] for check in unread} == {"unknown"}
    assert "unreachable" in unread[0]["found"]
    code, wrong, _ = look(lab, "--limit", "gpu1")
    assert (code, wrong) == (0, {})
    lab.clear("power-cut", "gpu2")
