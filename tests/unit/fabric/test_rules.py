"""Bad input is refused with its variable, before any connection."""

from __future__ import annotations

from typing import Any

import pytest

from railweld.fabric import platforms
from railweld.fabric.model import (
    CnpClass,
    Ecn,
    Fabric,
    LosslessClass,
    Port,
    Switch,
    Tuning,
    Watchdog,
)
from railweld.fabric.rules import findings

from .fabrics import STRATA, host, one

WATCHDOG = "railweld_pfc_watchdog"


def errors(fabric: Fabric) -> set[str]:
    return {f.id for f in findings(fabric) if f.severity == "error"}


def test_the_defaults_have_no_finding() -> None:
    assert findings(one()) == ()


@pytest.mark.parametrize(
    ("tuning", "id_", "key"),
    [
        ({"lossless": LosslessClass(priority=8)}, "priority_range", "railweld_lossless_priority"),
        ({"lossless": LosslessClass(priority=7)}, "control_queue", "railweld_lossless_priority"),
        ({"lossless": LosslessClass(dscp=64)}, "dscp_range", "railweld_lossless_dscp"),
        ({"cnp": CnpClass(dscp=26)}, "dscp_shared", "railweld_cnp_dscp"),
        ({"cnp": CnpClass(priority=3)}, "cnp_lossless", "railweld_cnp_priority"),
        ({"lossless": LosslessClass(queue=6)}, "queue_shared", "railweld_lossless_queue"),
        ({"lossless": LosslessClass(queue=1)}, "queue_shared", "railweld_lossless_queue"),
        ({"lossless": LosslessClass(percent=100)}, "wrr_percent", "railweld_wrr_lossless_percent"),
        ({"ecn": Ecn(min_kb=1500, max_kb=1500)}, "ecn_order", "railweld_ecn_min_kb"),
        ({"ecn": Ecn(probability=101)}, "ecn_probability", "railweld_ecn_probability"),
        ({"watchdog": Watchdog(polling_s=0.11)}, "watchdog_polling", f"{WATCHDOG}_polling_s"),
        ({"watchdog": Watchdog(timeout_s=61)}, "watchdog_range", f"{WATCHDOG}_timeout_s"),
        ({"watchdog": Watchdog(timeout_s=0.201)}, "watchdog_range", f"{WATCHDOG}_timeout_s"),
        ({"watchdog": Watchdog(action="no-drop")}, "watchdog_action", f"{WATCHDOG}_action"),
        ({"switch_mtu": 9216}, "switch_mtu", "railweld_switch_mtu"),
        ({"host_mtu": 9300}, "host_mtu", "railweld_host_mtu"),
        ({"storm_control": 0}, "storm_control", "railweld_switch_storm_control"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_variable(tuning: dict[str, Any], id_: str, key: str) -> None:
    found = [f for f in findings(one(tuning=Tuning(**tuning))) if f.severity == "error"]
    assert (id_, key) in {(f.id, f.key) for f in found}
    assert all(f.found and f.expected and f.fix for f in found)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("N9K-C9336C", "no platform data"),
        ("DCS-7010T-48", "bandwidth percent"),
        ("vEOS-lab", "no data plane"),
        ("cEOSLab", "tx-queue"),
        ("", "no platform data"),
    ],
)
def test_an_unknown_or_unfit_model_is_refused_with_its_reason(model: str, words: str) -> None:
    found = findings(one(model))
    assert [f.id for f in found] == ["switch_model"]
    assert words in found[0].fix


@pytest.mark.parametrize("release", ["8.4.1.1", "4.36.0F", "4.9.1", "nonsense"])
def test_an_unknown_release_is_refused(release: str) -> None:
    assert "eos_version" in errors(one(eos_version=release))


@pytest.mark.parametrize("release", ["4.30.5M", "4.31.2F", "4.35.0F"])
def test_a_tested_release_is_accepted(release: str) -> None:
    assert errors(one(eos_version=release)) == set()


def test_an_older_release_is_a_warning() -> None:
    found = findings(one(eos_version="4.28.3M"))
    assert [(f.id, f.severity) for f in found] == [("eos_version", "warning")]


@pytest.mark.parametrize(
    "name", ["Ethernet1/16/2/9", "Et1/1", "Ethernet1/9", "Port-Channel1", "Ethernet64/1"]
)
def test_a_port_that_the_model_cannot_have_is_refused(name: str) -> None:
    port = Port(name=name, kind="host", peer="gpu1")
    assert "port_name" in errors(one(ports=(port,)))


@pytest.mark.parametrize(
    ("model", "last"),
    [("DCS-7050CX3-32S", 40), ("DCS-7050SX3-48YC8", 64), ("DCS-7280CR3-32P4-F", 44),
     ("7060CX2-32S", 40), ("7050X3", None), ("DCS-7388", None)],
)  # fmt: skip
def test_the_name_of_a_model_counts_its_ports(model: str, last: int | None) -> None:
    assert platforms.last_port(model) == last


def test_a_port_with_two_uses_is_refused_and_both_are_named() -> None:
    twice = (host(1), Port(name="Ethernet1/1", kind="uplink", peer="spine1"))
    found = [f for f in findings(one(ports=twice)) if f.id == "port_twice"]
    assert len(found) == 1
    assert "gpu1" in found[0].found
    assert "spine1" in found[0].found


def test_a_pool_beyond_the_chip_is_refused_and_a_large_one_warned_about() -> None:
    def pool(ports: int, metres: float) -> list[str]:
        switch = Switch(
            name="leaf1", model=STRATA,
            ports=tuple(host(n, cable_m=metres, rate_gbps=400) for n in range(1, ports + 1)),
        )  # fmt: skip
        fabric = Fabric(site="t", tuning=Tuning(mmu=True), switches=(switch,))
        return [f.severity for f in findings(fabric) if f.id == "headroom_pool"]

    assert pool(2, 5) == []
    assert pool(32, 300) == ["warning"]
    assert pool(32, 3000) == ["error"]


def test_ecn_that_marks_after_pfc_pauses_is_warned_about() -> None:
    found = findings(one(tuning=Tuning(ecn=Ecn(min_kb=150, max_kb=9000))))
    assert [(f.id, f.severity) for f in found] == [("ecn_after_pfc", "warning")]


def test_an_infiniband_site_has_no_rule_here() -> None:
    fabric = one(tuning=Tuning(lossless=LosslessClass(priority=8)))
    assert findings(fabric.model_copy(update={"transport": "infiniband"})) == ()
