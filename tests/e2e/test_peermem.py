"""A site that chose nvidia-peermem with DOCA-OFED, from a bare node.

nvidia-peermem takes its symbols from the ib_core that it is built against, so the order of the two
packages decides whether it can ever be loaded: the lab's module refuses like the real one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import TestLab, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

OFED = "mlnx-ofed-kernel-dkms"
DRIVER = "nvidia-dkms-515-open"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    inventory = write_inventory(
        tmp_path_factory.mktemp("peermem"),
        site="peermem",
        third_octet=35,
        variables={"railweld_gpudirect": "peermem", "railweld_rdma_stack": "doca"},
    )
    with running_lab(inventory) as lab:
        yield lab


def dpkg_log(lab: TestLab, node: str) -> list[list[str]]:
    """What dpkg did on a node, line by line, without date and time."""
    return [line.split()[2:] for line in lab.node(node, "cat", "/var/log/dpkg.log").splitlines()]


def is_step(line: list[str], *words: str) -> bool:
    """Whether a line of dpkg's log begins with these words, whatever the architecture."""
    return [word.partition(":")[0] for word in line[: len(words)]] == list(words)


def test_check_mode_on_an_empty_node_is_a_plan(lab: TestLab) -> None:
    before = lab.installed("gpu1")
    lab.play("--check").assert_ok()
    assert lab.installed("gpu1") == before


def test_a_bare_node_gets_ofed_before_the_driver_is_built(lab: TestLab) -> None:
    before = lab.boots("gpu1")
    lab.play().assert_ok()
    log = dpkg_log(lab, "gpu1")
    ofed_ready = next(n for n, line in enumerate(log) if is_step(line, "status", "installed", OFED))
    driver_begun = next(n for n, line in enumerate(log) if is_step(line, "install", DRIVER))
    assert ofed_ready < driver_begun
    assert lab.boots("gpu1") == before + 1


def test_the_module_that_needs_this_order_runs(lab: TestLab) -> None:
    loaded = [line.split()[0] for line in lab.node("gpu1", "lsmod").splitlines()]
    assert "nvidia_peermem" in loaded
    version = lab.node("gpu1", "cat", "/sys/kernel/mm/memory_peers/nv_mem/version").strip()
    assert version == lab.node("gpu1", "cat", "/sys/module/nvidia/version").strip() == "515.86.01"
    assert lab.node("gpu1", "ofed_info", "-s").startswith("OFED-internal-")
    assert {"doca-ofed", OFED, DRIVER} <= lab.holds("gpu1")
    assert lab.node("gpu1", "dpkg", "--audit") == ""


def test_a_second_run_changes_nothing(lab: TestLab) -> None:
    run = lab.play().assert_ok()
    assert set(run.changed().values()) == {0}
