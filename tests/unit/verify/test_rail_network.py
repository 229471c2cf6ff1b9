"""Rails: what must never be touched, and what must be in the kernel afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import rail_network

HOST: dict[str, Any] = {
    "name": "gpu1",
    "address": "10.213.0.11",
    "hcas": [
        {
            "name": "mlx5_0",
            "netdev": "rail1",
            "rail": 1,
            "address": "10.10.1.1/24",
            "gateway": None,
        },
        {
            "name": "mlx5_1",
            "netdev": "rail2",
            "rail": 2,
            "address": "10.10.2.1/24",
            "gateway": "10.10.2.254",
        },
    ],
}


def rail_device(address: str) -> dict[str, Any]:
    return {
        "mtu": 9000,
        "addresses": [address],
        "master": None,
        "sysctls": {"arp_announce": 2, "arp_ignore": 1, "rp_filter": 2},
    }


NODE: dict[str, Any] = {
    "net": {
        "eth0": {"mtu": 1500, "addresses": ["10.213.0.11/24"], "master": None, "sysctls": {}},
        "rail1": rail_device("10.10.1.1/24"),
        "rail2": rail_device("10.10.2.1/24"),
        "default_route_dev": "eth0",
        "default_route_devs": ["eth0"],
        "tools": {"networkd_enabled": True, "networkd_files": []},
        "rules": [
            {"priority": 1001, "src": "10.10.1.1", "table": "201"},
            {"priority": 1002, "src": "10.10.2.1", "table": "202"},
        ],
        "routes": [
            {"dst": "default", "gateway": "10.213.0.1", "dev": "eth0"},
            {"dst": "10.10.1.0/24", "dev": "rail1", "table": "201"},
            {"dst": "10.10.2.0/24", "dev": "rail2", "table": "202"},
            {"dst": "default", "gateway": "10.10.2.254", "dev": "rail2", "table": "202"},
        ],
    }
}


def context() -> Context:
    return Context(site={"host_mtu": 9000}, host=copy.deepcopy(HOST), node=copy.deepcopy(NODE))


def bad(checks: Iterable[Check]) -> dict[str, str]:
    return {check.id: check.sentence() for check in checks if check.is_bad}


def test_converged_node_passes() -> None:
    assert bad(rail_network.guard(context())) == {}
    assert bad(rail_network.checks(context())) == {}


def test_bare_node_passes_the_guard() -> None:
    ctx = context()
    for name in ("rail1", "rail2"):
        ctx.node["net"][name].update(addresses=[], mtu=1500)
    assert bad(rail_network.guard(ctx)) == {}


def test_rail_with_the_default_route_is_refused() -> None:
    ctx = context()
    ctx.node["net"]["default_route_dev"] = "rail1"
    found = bad(rail_network.guard(ctx))
    assert list(found) == ["rail_network.not_default_route"]
    assert "gpu1/rail1" in found["rail_network.not_default_route"]


def test_rail_below_the_default_routes_bond_is_refused() -> None:
    ctx = context()
    ctx.node["net"].update(default_route_dev="bond0", default_route_devs=["bond0", "rail2"])
    assert "rail_network.not_default_route" in bad(rail_network.guard(ctx))


def test_rail_with_the_management_address_is_refused() -> None:
    ctx = context()
    ctx.node["net"]["rail1"]["addresses"] = ["10.213.0.11/24"]
    assert "rail_network.not_management" in bad(rail_network.guard(ctx))


def test_missing_rail_names_the_devices_that_are_there() -> None:
    ctx = context()
    del ctx.node["net"]["rail2"]
    found = bad(rail_network.guard(ctx))["rail_network.device_present"]
    assert "found eth0, rail1, expected rail2" in found


def test_bonded_rail_is_refused() -> None:
    ctx = context()
    ctx.node["net"]["rail1"]["master"] = "bond0"
    assert "member of bond0" in bad(rail_network.guard(ctx))["rail_network.not_enslaved"]


def test_address_on_another_device_is_refused() -> None:
    ctx = context()
    ctx.node["net"]["eth0"]["addresses"].append("10.10.1.1/16")
    found = bad(rail_network.guard(ctx))
    assert "10.10.1.1 on eth0" in found["rail_network.address_free"]


def test_rail_subnet_around_the_management_address_is_refused() -> None:
    ctx = context()
    ctx.host["hcas"][0]["address"] = "10.213.0.200/24"
    assert "rail_network.management_outside_rails" in bad(rail_network.guard(ctx))


def test_networkd_is_not_started_over_files_of_others() -> None:
    ctx = context()
    ctx.node["net"]["tools"] = {
        "networkd_enabled": False,
        "networkd_files": ["/etc/systemd/network/10-old.network"],
    }
    found = bad(rail_network.guard(ctx))
    assert "10-old.network" in found["rail_network.networkd_unused"]


def test_ifupdown_that_does_not_read_the_directory_is_refused() -> None:
    ctx = context()
    ctx.node["net"]["tools"] = {"ifupdown": True, "ifupdown_enabled": True}
    assert "rail_network.ifupdown_sources_directory" in bad(rail_network.guard(ctx))


@pytest.mark.parametrize(
    ("tools", "backend"),
    [
        ({"netplan": True, "networkd_enabled": True}, "netplan"),
        ({"networkd_enabled": True, "ifupdown": True, "ifupdown_enabled": True}, "networkd"),
        ({"ifupdown": True, "ifupdown_enabled": True}, "ifupdown"),
        ({"ifupdown": True}, "networkd"),
        ({}, "networkd"),
    ],
)
def test_backend_is_the_one_that_the_node_uses(tools: dict[str, bool], backend: str) -> None:
    assert rail_network.backend({"net": {"tools": tools}}) == backend


@pytest.mark.parametrize(
    ("key", "value", "check"),
    [
        ("mtu", 1500, "rail_network.mtu"),
        ("addresses", [], "rail_network.address"),
        ("addresses", ["10.10.1.1/24", "10.9.9.9/24"], "rail_network.address"),
        (
            "sysctls",
            {"arp_announce": 0, "arp_ignore": 1, "rp_filter": 2},
            "rail_network.arp_announce",
        ),
        (
            "sysctls",
            {"arp_announce": 2, "arp_ignore": 0, "rp_filter": 2},
            "rail_network.arp_ignore",
        ),
        ("sysctls", {"arp_announce": 2, "arp_ignore": 1, "rp_filter": 1}, "rail_network.rp_filter"),
    ],
)
def test_setting_that_differs_fails(key: str, value: object, check: str) -> None:
    ctx = context()
    ctx.node["net"]["rail1"][key] = value
    found = bad(rail_network.checks(ctx))
    assert list(found) == [check]
    assert "gpu1/rail1" in found[check]


def test_missing_rule_and_routes_fail() -> None:
    ctx = context()
    ctx.node["net"]["rules"].pop()
    ctx.node["net"]["routes"].pop()
    found = bad(rail_network.checks(ctx))
    assert set(found) == {"rail_network.rule", "rail_network.routes"}
    assert "default via 10.10.2.254 dev rail2" in found["rail_network.routes"]


def test_infiniband_rails_have_no_address_and_ask_for_nothing() -> None:
    ctx = context()
    for hca in ctx.host["hcas"]:
        hca["address"] = None
    assert list(rail_network.guard(ctx)) == []
    assert list(rail_network.checks(ctx)) == []


def test_rails_are_sorted_and_have_tables_of_their_own() -> None:
    rails = rail_network.rails({"hcas": list(reversed(HOST["hcas"]))})
    assert [(rail["netdev"], rail["table"], rail["priority"]) for rail in rails] == [
        ("rail1", 201, 1001),
        ("rail2", 202, 1002),
    ]
    assert rails[0]["subnet"] == "10.10.1.0/24"


def test_every_backend_names_its_files() -> None:
    rails = rail_network.rails(HOST)
    for backend in rail_network.BACKENDS:
        assert rail_network.files(rails, backend)
