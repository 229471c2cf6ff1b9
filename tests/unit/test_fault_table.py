"""Every fault of the lab has a row, and the rows follow from what the fault changes on a node.

The observation is that of a node as described; what the lab's fault takes from it is taken here.
The proof on nodes is tests/proof.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railweld.access import Access
from railweld.doctor.catalogue import load
from railweld.doctor.diagnosis import Doctor
from railweld.lab.faults import FAULTS
from railweld.lab.veos import CATALOGUE
from railweld.nodes import Answer
from railweld.record import Check, Status
from railweld.site import Site, load_site
from railweld.verify import stages
from railweld.verify.stages import OBSERVE, Request
from tests.fault_table import DIALOGUE, NODES, SWITCHES, Row, pattern_of
from tests.observed import healthy
from tests.unit import check_ids

INVENTORIES = ["inventories/lab", "inventories/example-a100"]
ENTRIES = {entry.id: entry for entry in load()}


Change = Callable[[dict[str, Any]], None]


def looked_at(site: Site, name: str, change: Change | None) -> list[Check]:
    """What the stages about nodes say when one of them is changed."""
    fact = site.fact()
    nodes = {host: healthy(fact, host) for host in site.hosts}
    if change is not None:
        change(nodes[name])
    request = Request(Access(), None, site)  # type: ignore[arg-type] # no stage here reads it
    answers = {
        host: {OBSERVE: Answer("ok", {"ansible_facts": {"railweld_node": node}})}
        for host, node in nodes.items()
    }
    request.remember(nodes, answers)
    found = [stages.verify(request, stage) for stage in ("base", "gpu", "links")]
    return [check for each in found for check in each.checks]


@pytest.fixture(scope="module")
def lab() -> Site:
    return load_site(["inventories/lab"])


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_nodes_as_described_pass_everything(inventory: str) -> None:
    found = looked_at(load_site([inventory]), "", None)
    assert len(found) > 100
    assert [check.sentence() for check in found if check.status != "pass"] == []


def test_every_record_says_all_that_an_operator_needs(lab: Site) -> None:
    looks = [looked_at(lab, "gpu1", change) for change in (None, *CHANGES.values())]
    for check in (check for look in looks for check in look):
        told = (check.layer, check.target, check.ran, check.found, check.expected, check.ref)
        assert all(told), check
        assert check.fix or check.status is Status.PASS, check
        assert Path(check.ref).is_file(), check


def test_every_fault_of_a_node_has_a_row() -> None:
    assert set(NODES) == set(FAULTS)


def test_every_fault_of_a_node_is_in_the_lab_s_page() -> None:
    page = Path("docs/lab.md").read_text()
    assert [name for name in FAULTS if f"| `{name}` |" not in page] == []


def test_every_fault_of_a_switch_has_a_row_or_a_suite() -> None:
    assert not set(SWITCHES) & DIALOGUE
    assert set(SWITCHES) | DIALOGUE == set(CATALOGUE)


ROWS = {**NODES, **SWITCHES}


@pytest.mark.parametrize("fault", ROWS)
def test_a_row_is_whole(fault: str) -> None:
    row = ROWS[fault]
    assert bool(row.red) == bool(row.cause) == (not row.why)
    if row.cause:
        assert row.cause in ENTRIES
    for ids in row.red.values():
        for check in ids:
            assert check_ids.exists(check), check
    if fault in FAULTS:
        assert set(row.settings) <= set(FAULTS[fault].settings)


def _down(node: dict[str, Any]) -> None:
    node["hcas"][0].update(state="DOWN", phys_state="Disabled")
    del node["lldp"]["neighbours"]["rail1"]


def _slow(node: dict[str, Any]) -> None:
    node["hcas"][0]["rate_gbps"] = 25


def _moved(node: dict[str, Any]) -> None:
    node["lldp"]["neighbours"]["rail1"] = [{"chassis": "leaf1", "port": "Ethernet9/1"}]


def _stopped(node: dict[str, Any]) -> None:
    node["time"].update(daemon="inactive")


def _behind(node: dict[str, Any]) -> None:
    node["time"].update(offset_s=0.8)


def _unsynchronised(node: dict[str, Any]) -> None:
    node["time"].update(synced=False, leap="Not synchronised")


def _full(node: dict[str, Any]) -> None:
    node["disks"]["free"]["/var"] = 64 * 1024


def _driver(node: dict[str, Any], loaded: str | None) -> None:
    node["driver"].update(loaded=loaded, smi={"ok": False, "installed": True, "error": "failed"})
    if loaded is None:
        # What tells the flavour of the loaded one is gone with it.
        node["driver"].update(kernel_flavour=None)
    node["gpus"] = []
    node["health"].update(gpus=None, nvlink={}, topology={})


def _mismatch(node: dict[str, Any]) -> None:
    _driver(node, "515.85.01")


def _nouveau(node: dict[str, Any]) -> None:
    _driver(node, None)
    node["nouveau"].update(loaded=True, rivals_loaded=["nouveau"])


def _seven(node: dict[str, Any]) -> None:
    node["pci"]["gpus"] = 7
    del node["gpus"][7]
    del node["health"]["gpus"]["0000:07:00.0"]
    del node["health"]["nvlink"]["7"]
    del node["health"]["topology"]["7"]


def _secure_boot(node: dict[str, Any]) -> None:
    node["kernel"].update(secure_boot="on", secure_boot_keys=[])
    node["driver"].update(signer="DKMS module signing key")


#: What a fault changes in an observation.
CHANGES: dict[str, Change] = {
    "cable-moved": _moved,
    "chrony-stopped": _stopped,
    "clock-offset": _behind,
    "disk-full": _full,
    "driver-mismatch": _mismatch,
    "gpu-missing": _seven,
    "hca-down": _down,
    "link-rate": _slow,
    "no-time-source": _unsynchronised,
    "nouveau-loaded": _nouveau,
    "secure-boot": _secure_boot,
}


def test_every_fault_that_a_look_at_a_node_meets_is_tried_here() -> None:
    assert set(CHANGES) == {
        fault for fault, row in NODES.items() if row.red and row.stage == "base"
    }


@pytest.mark.parametrize("fault", CHANGES)
def test_exactly_the_declared_checks_turn_red_and_doctor_names_the_cause(
    fault: str, lab: Site
) -> None:
    row: Row = NODES[fault]
    checks = looked_at(lab, "gpu1", CHANGES[fault])
    red: dict[str, set[str]] = {}
    for check in checks:
        if check.is_bad:
            red.setdefault(check.place[0], set()).add(pattern_of(check.id))
    assert red == {machine: set(ids) for machine, ids in row.red.items()}
    doctor = Doctor(tuple(ENTRIES.values()))
    doctor.judge(checks)
    assert [cause.entry.id for cause in doctor.diagnose().causes] == [row.cause]
