"""Both ends of a link in one row, and the end that is wrong named; InfiniBand says what else."""

from __future__ import annotations

from typing import Any

import pytest

from railweld.errors import RailweldError, UsageError
from railweld.fabric.model import LosslessClass, Tuning
from railweld.fabric.stage import Stage
from railweld.fabric.verify import link_table
from railweld.record import Status, judge

from .fabrics import one

NAMES = ("gpu1", "gpu2")
DESCRIBED = {
    name: {"hcas": [{"netdev": "rail1", "switch": "leaf1", "port": f"Ethernet{n}/1"}]}
    for n, name in enumerate(NAMES, start=1)
}


def node(**changes: Any) -> dict[str, Any]:
    roce = {"trust": "dscp", "pfc": [False] * 3 + [True] + [False] * 4, "cnp_dscp": 48}
    return {
        "rdma": {"roce": {"rail1": {**roce, **changes.get("roce", {})}}},
        "net": {"rail1": {"mtu": changes.get("mtu", 9000)}},
        "lldp": {"neighbours": {"rail1": {"system": changes.get("switch", "leaf1")}}},
    }


def row(gpu1: dict[str, Any] | None, checks: list[Any], nccl: dict[str, str]) -> dict[str, str]:
    hosts = {"gpu2": node(), **({"gpu1": gpu1} if gpu1 is not None else {})}
    table = link_table(one(), checks, hosts, DESCRIBED, nccl)
    assert table[1]["host_state"] == "ok"
    return table[0]


GOOD = {"NCCL_IB_TC": "104"}


def test_a_link_that_agrees_names_no_end() -> None:
    assert row(node(), [], GOOD)["wrong_end"] == "none"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roce": {"trust": "pcp"}}, "trust pcp, expected dscp"),
        ({"roce": {"pfc": [False] * 8}}, "PFC on none, expected 3"),
        ({"roce": {"pfc": [False] * 4 + [True] + [False] * 3}}, "PFC on 4, expected 3"),
        ({"roce": {"cnp_dscp": 46}}, "cnp_dscp 46, expected 48"),
        ({"mtu": 1500}, "mtu 1500, expected 9000"),
        ({"switch": "leaf2.example.com"}, "cabled to leaf2.example.com"),
    ],
)
def test_a_wrong_host_is_named(changes: dict[str, Any], words: str) -> None:
    found = row(node(**changes), [], GOOD)
    assert found["wrong_end"] == "gpu1"
    assert words in found["host_state"]


def test_a_wrong_switch_is_named() -> None:
    check = judge(id="fabric.pfc", target="leaf1 Ethernet1/1", ok=False, ran="show", found="off",
                  expected="on", fix="push", layer="fabric")  # fmt: skip
    found = row(node(), [check], GOOD)
    assert (found["wrong_end"], found["switch_state"]) == ("leaf1", "pfc: off")


@pytest.mark.parametrize(
    ("nccl", "words"),
    [({"NCCL_IB_TC": "26"}, "NCCL_IB_TC 26, expected 104"), ({}, "NCCL_IB_TC unset, expected 104")],
)
def test_a_wrong_nccl_profile_is_named(nccl: dict[str, str], words: str) -> None:
    found = row(node(), [], nccl)
    assert found["wrong_end"] == "NCCL profile"
    assert found["nccl"] == words


def test_a_host_that_was_not_read_is_not_called_good() -> None:
    assert row(None, [], GOOD)["host_state"] == "host not read"


def test_an_infiniband_site_verifies_by_saying_what_is_checked_instead() -> None:
    fabric = one().model_copy(update={"transport": "infiniband"})
    stage = Stage(fabric, {})
    checks = stage.verify()
    assert [check.status for check in checks] == [Status.SKIPPED]
    for tool in ("ibstat", "iblinkinfo", "sminfo", "partition keys"):
        assert tool in checks[0].ref
    with pytest.raises(UsageError, match="expected roce"):
        stage.looks()


def test_a_bad_description_is_refused_before_any_connection() -> None:
    stage = Stage(one(tuning=Tuning(lossless=LosslessClass(priority=8))), {})
    with pytest.raises(RailweldError, match="railweld_lossless_priority: found 8"):
        stage.refuse_bad_description()
