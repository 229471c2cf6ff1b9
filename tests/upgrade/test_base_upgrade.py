"""From the reference's 2023 set to today's and back, on nodes that were provisioned before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import TestLab, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

NODES = ("gpu1", "gpu2", "gpu3")
TO_CURRENT = ("-e", "railweld_version_set=current")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    inventory = write_inventory(
        tmp_path_factory.mktemp("upgrade"), site="upgrade", third_octet=33, gpu_nodes=len(NODES)
    )
    with running_lab(inventory) as lab:
        lab.play().assert_ok()
        yield lab


def driver(lab: TestLab, node: str) -> str:
    """The version that runs."""
    return lab.node(node, "cat", "/sys/module/nvidia/version").strip()


def unheld(lab: TestLab, node: str) -> set[str]:
    """Installed packages of the GPU families that are not on hold."""
    families = ("nvidia-", "libnvidia-", "cuda-", "libnccl")
    names = {name for name in lab.installed(node) if name.startswith(families)}
    # The keyring carries repository keys, not a member of a family.
    return names - lab.holds(node) - {"cuda-keyring"}


def test_failing_batch_stops_the_upgrade_and_leaves_the_rest_as_it_was(lab: TestLab) -> None:
    lab.fault("build-fails", "gpu1")
    run = lab.play(*TO_CURRENT, "-e", "railweld_serial=1")
    lab.clear("build-fails", "gpu1")
    assert run.returncode != 0
    assert run.host("gpu1")["failure"]["role"] == "nvidia_driver"
    assert driver(lab, "gpu2") == driver(lab, "gpu3") == "515.86.01"
    assert {node: unheld(lab, node) for node in NODES} == {node: set() for node in NODES}
    assert lab.node("gpu1", "dpkg", "--audit") == ""


def test_upgrade_by_batches_ends_on_the_new_version_with_everything_held(lab: TestLab) -> None:
    lab.play(*TO_CURRENT, "-e", "railweld_serial=1").assert_ok()
    for node in NODES:
        assert driver(lab, node).startswith("580.")
        assert "release 13.0" in lab.node(node, "/usr/local/cuda/bin/nvcc", "--version")
        assert not [name for name in lab.installed(node) if "515" in name]
        assert unheld(lab, node) == set()


def test_second_run_with_the_new_set_changes_nothing(lab: TestLab) -> None:
    run = lab.play(*TO_CURRENT).assert_ok()
    assert set(run.changed().values()) == {0}


def test_way_back_is_refused_unless_asked_for(lab: TestLab) -> None:
    run = lab.play()
    assert run.returncode != 0
    assert "package_lock_allow_downgrade" in run.output
    assert all(driver(lab, node).startswith("580.") for node in NODES)


def test_one_command_goes_back_to_the_old_version(lab: TestLab) -> None:
    lab.play("-e", "package_lock_allow_downgrade=true").assert_ok()
    for node in NODES:
        assert driver(lab, node) == "515.86.01"
        assert "release 12.1" in lab.node(node, "/usr/local/cuda/bin/nvcc", "--version")
        assert unheld(lab, node) == set()
