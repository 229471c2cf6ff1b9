"""From the reference's 2023 set to today's and back, on nodes that were provisioned before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs import running_lab, write_inventory
from tests.watched import UNPACK, FaultLab

pytestmark = [pytest.mark.lab, pytest.mark.deep]

NODES = ("gpu1", "gpu2", "gpu3")
OLD, NEW = "515.86.01", "580."
TO_CURRENT = ("-e", "railweld_version_set=current", "-e", "railweld_serial=1")
BACK = ("-e", "package_lock_allow_downgrade=true")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    inventory = write_inventory(
        tmp_path_factory.mktemp("upgrade"), site="upgrade", third_octet=33, gpu_nodes=len(NODES)
    )
    with running_lab(inventory) as plain:
        lab = FaultLab(plain.inventory)
        lab.play().assert_ok()
        yield lab


def driver(lab: FaultLab, node: str) -> str:
    """The version that runs."""
    return lab.node(node, "cat", "/sys/module/nvidia/version").strip()


def test_failing_batch_stops_the_upgrade_and_leaves_the_rest_as_it_was(lab: FaultLab) -> None:
    lab.fault("build-fails", "gpu1")
    run = lab.play(*TO_CURRENT)
    lab.clear("build-fails", "gpu1")
    assert run.returncode != 0
    # Said, and not left to be found: which package is not whole.
    broken = "nvidia-dkms-580-open"
    assert f"half installed: {broken}" in run.host("gpu1")["failure"]["reason"]
    assert broken in lab.node("gpu1", "dpkg", "--audit")
    assert driver(lab, "gpu2") == driver(lab, "gpu3") == OLD


def test_power_cut_in_the_middle_of_a_batch_stops_the_upgrade(
    lab: FaultLab, tmp_path: Path
) -> None:
    # gpu1 has the new packages already: the batch that is cut is gpu2's.
    run = lab.cut_run(
        "gpu2",
        tmp_path / "run.log",
        lambda: lab.fault("power-cut", "gpu2"),
        *TO_CURRENT,
        moment=UNPACK,
    )
    assert run.returncode != 0
    assert "iH" in lab.node("gpu2", "dpkg-query", "-W", "-f", "${db:Status-Abbrev}\n")
    assert driver(lab, "gpu1").startswith(NEW)
    assert driver(lab, "gpu3") == OLD
    assert lab.unheld("gpu1") == lab.unheld("gpu3") == set()


def test_upgrade_by_batches_ends_on_the_new_version_with_everything_held(lab: FaultLab) -> None:
    before = {node: lab.boots(node) for node in NODES}
    run = lab.play(*TO_CURRENT).assert_ok()
    assert "an earlier run was cut off" in run.output
    for node in NODES:
        assert driver(lab, node).startswith(NEW)
        assert lab.node(node, "nvidia-smi", "-L").count("GPU ") == 8
        assert "release 13.0" in lab.node(node, "/usr/local/cuda/bin/nvcc", "--version")
        assert not [name for name in lab.installed(node) if "515" in name]
    booted = {node: lab.boots(node) - before[node] for node in NODES}
    # gpu1 was upgraded and rebooted before the run was cut. gpu2 lost its power then: where it came
    # up without a driver, the new one needs no reboot.
    assert (booted["gpu1"], booted["gpu3"]) == (0, 1)
    assert booted["gpu2"] <= 1


def test_second_run_with_the_new_set_changes_nothing(lab: FaultLab) -> None:
    run = lab.play(*TO_CURRENT).assert_ok()
    assert set(run.changed().values()) == {0}


def test_way_back_is_refused_unless_asked_for(lab: FaultLab) -> None:
    run = lab.play()
    assert run.returncode != 0
    assert "package_lock_allow_downgrade" in run.output
    assert all(driver(lab, node).startswith(NEW) for node in NODES)


def test_one_command_goes_back_to_the_old_version(lab: FaultLab) -> None:
    before = {node: lab.boots(node) for node in NODES}
    lab.play(*BACK).assert_ok()
    for node in NODES:
        assert driver(lab, node) == OLD
        assert lab.boots(node) == before[node] + 1
        assert "release 12.1" in lab.node(node, "/usr/local/cuda/bin/nvcc", "--version")
        assert not [name for name in lab.installed(node) if "580" in name]
