"""The base stage end to end, as the README shows it, on three bare SSH nodes.

One chain: plan on empty nodes, first run, observed state, second run, one bad node among good ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import TestLab, command, running_lab, write_inventory

pytestmark = pytest.mark.lab

GPU_NODES = ("gpu1", "gpu2", "gpu3")
#: Never to be seen in any output: the value of a variable that only a vault would hold.
CANARY = "canary-5f1c9d"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    inventory = write_inventory(
        tmp_path_factory.mktemp("e2e"),
        site="e2e",
        third_octet=30,
        gpu_nodes=4,
        variables={"railweld_switch_enable_secret": CANARY},
    )
    with running_lab(inventory) as lab:
        yield lab


def test_the_description_is_accepted(lab: TestLab) -> None:
    run = command(["railweld", "check", "-i", str(lab.inventory), "--json"], check=False)
    assert run.returncode == 0, run.stdout


def test_check_mode_on_empty_nodes_is_a_plan_and_changes_nothing(lab: TestLab) -> None:
    before = {node: lab.installed(node) for node in GPU_NODES}
    run = lab.play("--check", "--diff", "--limit", "head1,gpu1,gpu2,gpu3").assert_ok()
    assert "515.86.01" in run.output
    assert {node: lab.installed(node) for node in GPU_NODES} == before


def test_one_bad_node_of_four_does_not_stop_the_others(lab: TestLab) -> None:
    lab.fault("gpu-missing", "gpu4")
    run = lab.play()
    assert run.returncode != 0
    assert "found 7" in run.host("gpu4")["failure"]["reason"]
    assert [run.host(node)["failure"] for node in GPU_NODES] == [None] * 3
    summary = run.output[run.output.rindex("hosts: ") :]
    assert "gpu4 at" in summary
    assert "found 7" in summary


@pytest.mark.parametrize("node", GPU_NODES)
def test_every_good_node_runs_what_was_described(lab: TestLab, node: str) -> None:
    assert lab.node(node, "cat", "/sys/module/nvidia/version").strip() == "515.86.01"
    smi = lab.node(node, "nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
    assert smi.splitlines() == ["515.86.01, NVIDIA A100-SXM4-80GB"] * 8
    assert "V12.1.105" in lab.node(node, "/usr/local/cuda-12.1/bin/nvcc", "--version")
    installed = lab.installed(node)
    assert installed["libnccl2"] == "2.14.3-1+cuda11.7"
    assert installed["nvidia-fabricmanager-515"] == "515.86.01-1"
    tracking = lab.node(node, "chronyc", "-c", "tracking").strip().split(",")
    assert tracking[-1] == "Normal"
    assert abs(float(tracking[4])) < 0.1
    assert lab.node(node, "dpkg", "--audit") == ""
    held = lab.holds(node)
    assert {"libnccl2", "cuda-toolkit-12-1", "nvidia-fabricmanager-515"} <= held


def test_a_power_cut_leaves_no_work_and_wakes_no_udev(lab: TestLab) -> None:
    """udevd hears of devices of the whole machine: on lab nodes it costs, on many a core each."""
    lab.node("gpu1", "test", "-x", "/lib/systemd/systemd-udevd")
    lab.fault("power-cut", "gpu1", "seconds=0")
    state = lab.node("gpu1", "sh", "-c", "systemctl is-active systemd-udevd || true")
    assert state.strip() == "inactive"


def test_second_run_changes_nothing(lab: TestLab) -> None:
    run = lab.play("--limit", "head1,gpu1,gpu2,gpu3").assert_ok()
    assert set(run.changed().values()) == {0}


def test_the_run_leaves_a_report_that_a_machine_can_read(lab: TestLab) -> None:
    run = lab.play("--limit", "head1,gpu1").assert_ok()
    assert set(run.report["hosts"]) == {"head1", "gpu1"}
    assert run.report["site"] == lab.inventory.name
    statuses = {check["status"] for check in run.host("gpu1")["checks"]}
    assert "pass" in statuses
    assert "fail" not in statuses


def test_no_secret_of_the_description_is_printed(lab: TestLab) -> None:
    run = lab.play("--limit", "gpu1", "-vvv").assert_ok()
    assert CANARY not in run.output


def test_a_healed_node_joins_on_the_next_run(lab: TestLab) -> None:
    lab.clear("gpu-missing", "gpu4")
    run = lab.play().assert_ok()
    assert [node for node, changed in run.changed().items() if changed] == ["gpu4"]
