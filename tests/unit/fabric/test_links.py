"""Both ends of a link in one row, and the end that is wrong named; InfiniBand says what else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from railweld.errors import RailweldError, UsageError
from railweld.fabric.links import Link, host_checks, join, nccl_checks, table
from railweld.fabric.model import LosslessClass, Tuning
from railweld.fabric.stage import Stage
from railweld.record import Check, Status, judge
from railweld.site import Site, load_site
from railweld.verify.stages import Seen

from .fabrics import one

CABLES = [(("leaf1", f"Ethernet{n}/1"), (f"gpu{n}", "rail1")) for n in (1, 2)]


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site(["inventories/lab"])


def node(number: int, **changes: Any) -> dict[str, Any]:
    """What the probe reads on a node of the lab whose first rail is as described."""
    roce = {
        "trust": "dscp",
        "pfc": [priority == 3 for priority in range(8)],
        "dscp_prio": {"26": 3, "48": 6},
        "cnp_dscp": "48",
        "cnp_priority": "6",
    }
    hca = {
        "name": "mlx5_0",
        "netdev": "rail1",
        "link_layer": "Ethernet",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbps": 100,
        "fw_version": "20.35.1012",
        "board_id": "MT_0000000223",
        "tos": "104",
    }
    heard = {"chassis": "leaf1", "port": f"Ethernet{number}/1", **changes.get("lldp", {})}
    return {
        "hcas": [{**hca, **changes.get("hca", {})}],
        "rdma": {"configfs": False, "roce": {"rail1": {**roce, **changes.get("roce", {})}}},
        "net": {"rail1": {"mtu": changes.get("mtu", 9000)}},
        "lldp": {
            "active": changes.get("lldpd", True),
            "neighbours": {"rail1": [heard]} if heard["chassis"] else {},
        },
    }


def of_switch(number: int, **found: str) -> list[Check]:
    """Records of a switch port as described, but for what is given as found."""
    good = {"pfc": "on, priority 3, active", "trust": "DSCP", "mtu": "9214",
            "lldp": f"gpu{number} rail1"}  # fmt: skip
    return [
        judge(id=f"fabric.{name}", target=f"leaf1 Ethernet{number}/1", ok=name not in found,
              ran="show", found=found.get(name, value), expected=value, fix="", layer="fabric")
        for name, value in good.items()
    ]  # fmt: skip


def links_of(
    site: Site, nodes: Mapping[str, Seen], switch: list[Check] | None = None
) -> list[Link]:
    records = [*of_switch(1), *of_switch(2)] if switch is None else switch
    return join(CABLES, [*records, *host_checks(site, nodes)], nccl_checks(site, nodes))


def wrong(site: Site, changes: Mapping[str, Any], **found: str) -> tuple[str, ...]:
    """What is said about gpu1's link; gpu2's has to be good."""
    nodes = {"gpu1": Seen(node(1, **changes)), "gpu2": Seen(node(2))}
    first, second = links_of(site, nodes, [*of_switch(1, **found), *of_switch(2)])
    assert second.wrong() == ()
    return first.wrong()


def test_a_link_that_agrees_names_no_end_and_shows_both(site: Site) -> None:
    nodes = {"gpu1": Seen(node(1)), "gpu2": Seen(node(2))}
    drawn = table(links_of(site, nodes))
    assert list(drawn.bad) == [False, False]
    assert drawn.rows[0] == {
        "link": "leaf1 Ethernet1/1\n  gpu1 rail1",
        "trust": "DSCP\ndscp",
        "PFC": "on, priority 3, active\npriority 3",
        "CNP DSCP": "-\n48",
        "MTU": "9214\n9000",
        "neighbour": "gpu1 rail1\nleaf1 Ethernet1/1",
        "NCCL": "\nTC 104",
        "wrong": "none",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roce": {"trust": "pcp"}}, "gpu1: trust"),
        ({"roce": {"pfc": [False] * 8}}, "gpu1: pfc"),
        ({"roce": {"pfc": [n in (3, 4) for n in range(8)]}}, "gpu1: pfc"),
        ({"roce": {"cnp_dscp": "46"}}, "gpu1: cnp_dscp"),
        ({"roce": {"dscp_prio": {"26": 4}}}, "gpu1: dscp_priority"),
        ({"mtu": 1500}, "gpu1: mtu"),
        ({"hca": {"rate_gbps": 25}}, "gpu1: rate"),
    ],
)
def test_a_wrong_host_is_named(site: Site, changes: dict[str, Any], words: str) -> None:
    assert wrong(site, changes) == (words,)


def test_a_wrong_switch_port_is_named(site: Site) -> None:
    assert wrong(site, {}, pfc="off, not active") == ("leaf1: pfc",)


def test_a_cable_in_another_port_is_the_cables_fault_and_no_ends(site: Site) -> None:
    assert wrong(site, {"lldp": {"port": "Ethernet2/1"}}, lldp="gpu2 rail1") == (
        "cable: leaf1 Ethernet1/1 leads to gpu2 rail1; gpu1 rail1 leads to leaf1 Ethernet2/1",
    )


def test_one_end_that_hears_the_right_neighbour_proves_the_cable(site: Site) -> None:
    assert wrong(site, {}, lldp="gpu9 rail1") == ("leaf1: lldp",)
    assert wrong(site, {"lldp": {"chassis": "leaf9"}}) == ("gpu1: cabling",)


def test_an_end_that_is_not_heard_is_the_one_that_is_silent(site: Site) -> None:
    assert wrong(site, {"lldpd": False}, lldp="no neighbour") == (
        "gpu1: daemon, not heard by LLDP",
    )


def test_a_switch_wide_difference_concerns_every_link_of_the_switch(site: Site) -> None:
    whole = judge(id="fabric.maps", target="leaf1", ok=False, ran="show qos maps", found="-",
                  expected="-", fix="", layer="fabric")  # fmt: skip
    nodes = {"gpu1": Seen(node(1)), "gpu2": Seen(node(2))}
    links = links_of(site, nodes, [*of_switch(1), *of_switch(2), whole])
    assert [link.wrong() for link in links] == [("leaf1: maps",)] * 2


@pytest.mark.parametrize(
    ("variables", "versions", "words"),
    [
        ({"NCCL_IB_TC": "26"}, "a100-2023", ("NCCL profile: traffic_class",)),
        ({"NCCL_IB_HCA": "=mlx5_1:1"}, "a100-2023", ("NCCL profile: hca",)),
        ({"NCCL_IB_HCA": "^mlx5_0"}, "a100-2023", ("NCCL profile: hca",)),
        ({"NCCL_IB_HCA": "mlx5"}, "a100-2023", ()),
        ({"NCCL_IB_GID_INDEX": "3"}, "a100-2023", ()),
        ({"NCCL_IB_GID_INDEX": "3"}, "current", ("NCCL profile: gid_index",)),
    ],
)
def test_a_profile_that_leaves_the_class_or_the_rail_is_named(
    variables: dict[str, str], versions: str, words: tuple[str, ...]
) -> None:
    site = load_site(["inventories/lab"], {"railweld_nccl_environment": variables,
                                           "railweld_version_set": versions})  # fmt: skip
    nodes = {"gpu1": Seen(node(1)), "gpu2": Seen(node(2))}
    assert [link.wrong() for link in links_of(site, nodes)] == [words] * 2


def test_a_host_that_was_not_read_is_unknown_not_good(site: Site) -> None:
    nodes = {"gpu1": Seen(reason="found no connection"), "gpu2": Seen(node(2))}
    first, second = links_of(site, nodes)
    assert first.wrong() == ("gpu1: reached",)
    assert [c.status for c in first.ends[1].checks] == [Status.UNKNOWN]
    assert "found no connection" in first.ends[1].checks[0].found
    assert second.wrong() == ()


def test_an_observation_that_cannot_be_read_is_unknown_on_every_link_of_the_host(
    site: Site,
) -> None:
    odd = node(1)
    odd["rdma"]["roce"] = {"rail1": "nonsense"}
    first, second = links_of(site, {"gpu1": Seen(odd), "gpu2": Seen(node(2))})
    assert "gpu1: observation" in first.wrong()
    assert second.wrong() == ()


def test_an_infiniband_site_verifies_by_saying_what_is_checked_instead() -> None:
    fabric = one().model_copy(update={"transport": "infiniband"})
    stage = Stage(fabric, {})
    checks = stage.verify()
    assert [check.status for check in checks] == [Status.SKIPPED]
    for what in ("--stage links", "subnet manager", "partition", "iblinkinfo"):
        assert what in checks[0].ref
    with pytest.raises(UsageError, match="expected roce"):
        stage.looks()


def test_a_bad_description_is_refused_before_any_connection() -> None:
    stage = Stage(one(tuning=Tuning(lossless=LosslessClass(priority=8))), {})
    with pytest.raises(RailweldError, match="railweld_lossless_priority: found 8"):
        stage.refuse_bad_description()
