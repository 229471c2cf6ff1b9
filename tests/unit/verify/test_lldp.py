"""LLDP: the daemon, the adapters' own agents, and the cabling that neighbours show."""

from __future__ import annotations

from typing import Any

from railweld.record import Status
from railweld.verify.context import Context
from railweld.verify.roles import lldp

HOST = {
    "name": "gpu1",
    "hcas": [{"name": "mlx5_0", "netdev": "rail1", "switch": "leaf1", "port": "Ethernet1/1"}],
}


def run(observed: dict[str, Any]) -> dict[str, tuple[Status, str]]:
    ctx = Context(site={}, host=HOST, node={"lldp": observed})
    return {check.id: (check.status, check.sentence()) for check in lldp.checks(ctx)}


def neighbour(chassis: str, port: str) -> dict[str, Any]:
    return {
        "active": True,
        "firmware_agents": {},
        "neighbours": {"rail1": [{"chassis": chassis, "port": port}]},
    }


def test_described_neighbour_passes_with_or_without_domain() -> None:
    for name in ("leaf1", "leaf1.dc.example.org", "LEAF1"):
        found = run(neighbour(name, "Ethernet1/1"))
        assert {status for status, _ in found.values()} == {Status.PASS}


def test_cable_in_another_port_names_both() -> None:
    status, sentence = run(neighbour("leaf1", "Ethernet7/1"))["lldp.cabling"]
    assert status is Status.FAIL
    assert "found leaf1 Ethernet7/1, expected leaf1 Ethernet1/1" in sentence


def test_cable_in_another_switch_fails() -> None:
    assert run(neighbour("leaf2", "Ethernet1/1"))["lldp.cabling"][0] is Status.FAIL


def test_no_neighbour_yet_is_one_warning() -> None:
    status, sentence = run({"active": True, "neighbours": {}})["lldp.neighbours"]
    assert status is Status.WARN
    assert "no neighbour on rail1" in sentence


def test_entry_of_a_moved_cable_beside_the_described_neighbour_is_a_warning() -> None:
    observed = neighbour("leaf1", "Ethernet1/1")
    observed["neighbours"]["rail1"].append({"chassis": "leaf1", "port": "Ethernet7/1"})
    for entries in (observed["neighbours"]["rail1"], observed["neighbours"]["rail1"][::-1]):
        found = run(observed | {"neighbours": {"rail1": entries}})
        assert found["lldp.cabling"][0] is Status.PASS
        status, sentence = found["lldp.neighbours"]
        assert status is Status.WARN
        assert "leaf1 Ethernet1/1" in sentence
        assert "leaf1 Ethernet7/1" in sentence


def test_several_neighbours_without_the_described_one_fail() -> None:
    observed = neighbour("leaf2", "Ethernet1/1")
    observed["neighbours"]["rail1"].append({"chassis": "leaf1", "port": "Ethernet7/1"})
    found = run(observed)
    assert found["lldp.cabling"][0] is Status.FAIL
    assert "lldp.neighbours" not in found


def test_stopped_daemon_fails_and_says_nothing_about_cables() -> None:
    found = run({"active": False})
    assert found["lldp.daemon"][0] is Status.FAIL
    assert "lldp.cabling" not in found


def test_firmware_agent_that_still_runs_fails() -> None:
    observed = neighbour("leaf1", "Ethernet1/1") | {"firmware_agents": {"eno1": "on"}}
    status, sentence = run(observed)["lldp.firmware_agent"]
    assert status is Status.FAIL
    assert "gpu1/eno1" in sentence


def test_guard_asks_for_nothing() -> None:
    assert list(lldp.guard(Context(site={}, host=HOST, node={}))) == []
