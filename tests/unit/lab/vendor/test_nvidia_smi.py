"""nvidia-smi as the real one: recorded outputs, error texts, modes that wait for a reboot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from railweld.lab.vendor.programs.nvidia_smi import main

RECORDED = Path(__file__).resolve().parents[3] / "fixtures/nvidia_smi"


@pytest.fixture
def smi(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(node: Any, *argv: str) -> tuple[int, str]:
        code = main(list(argv), node.build, node.machine)
        return code, capsys.readouterr().out

    return run


def without_measurements(text: str) -> list[str]:
    """The table's lines without time, temperature and power."""
    lines = [re.sub(r"\d+C ", "TTC ", line) for line in text.splitlines()[1:]]
    return [re.sub(r" \d\dW /", " PPW /", line).rstrip() for line in lines]


def test_table_is_the_recorded_one(h200_node: Any, smi: Any) -> None:
    smi(h200_node, "-pm", "1")
    code, out = smi(h200_node)
    assert code == 0
    recorded = (RECORDED / "h200-table.txt").read_text()
    assert without_measurements(out) == without_measurements(recorded)


def test_list_is_the_recorded_one(h200_node: Any, smi: Any) -> None:
    assert smi(h200_node, "-L") == (0, (RECORDED / "h200-list.txt").read_text())


def test_query_is_the_recorded_one(h200_node: Any, smi: Any) -> None:
    command, *rows = (RECORDED / "h200-query.csv").read_text().splitlines()
    smi(h200_node, "-pm", "1")
    code, out = smi(h200_node, *command.removeprefix("# nvidia-smi ").split())
    assert code == 0
    assert out.splitlines() == rows


def test_topology_is_the_recorded_one(h200_node: Any, smi: Any) -> None:
    code, out = smi(h200_node, "topo", "-m")
    assert code == 0
    assert out.rstrip() == (RECORDED / "h200-topo.txt").read_text().rstrip()


def test_topology_pairs_each_nic_with_the_gpus_of_its_switch(a100_node: Any, smi: Any) -> None:
    _, out = smi(a100_node, "topo", "-m")
    rows = [line.split("\t") for line in out.splitlines() if line.startswith("GPU")]
    assert [row[9:13] for row in rows[:3]] == [
        ["PXB", "NODE", "SYS", "SYS"],
        ["PXB", "NODE", "SYS", "SYS"],
        ["NODE", "PXB", "SYS", "SYS"],
    ]
    assert "NV12" in rows[0]


def test_old_branch_has_the_old_table(a100_node: Any, smi: Any) -> None:
    _, out = smi(a100_node)
    lines = out.splitlines()
    assert lines[2] == (
        "| NVIDIA-SMI 515.86.01    Driver Version: 515.86.01    CUDA Version: 11.7     |"
    )
    assert "NVIDIA A100-SXM..." in out
    assert {len(line) for line in lines[1:] if line} == {79}


def test_without_library_the_program_says_so(a100_node: Any, smi: Any) -> None:
    (a100_node.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink()
    code, out = smi(a100_node)
    assert code == 12
    assert "couldn't find libnvidia-ml.so" in out


def test_without_loaded_driver_it_cannot_communicate(a100_node: Any, smi: Any) -> None:
    (a100_node.root / "sys/module/nvidia/version").unlink()
    code, out = smi(a100_node, "-L")
    assert code == 9
    assert out.startswith(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running."
    )


def test_driver_of_before_the_upgrade_is_a_mismatch_until_the_reboot(
    a100_node: Any, smi: Any
) -> None:
    a100_node.library("580.173.02")
    code, out = smi(a100_node)
    assert code == 18
    assert out == (
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.173\n"
    )
    a100_node.load_driver("580.173.02")
    assert smi(a100_node)[0] == 0


def test_old_library_names_no_version_in_the_mismatch(a100_node: Any, smi: Any) -> None:
    a100_node.load_driver("580.173.02")
    assert smi(a100_node) == (18, "Failed to initialize NVML: Driver/library version mismatch\n")


def test_missing_gpus_are_missing_everywhere(a100_node: Any, smi: Any) -> None:
    a100_node.fault(gpu_missing=1)
    _, out = smi(a100_node, "-L")
    assert len(out.splitlines()) == 7
    a100_node.fault(gpu_missing=8)
    assert smi(a100_node) == (6, "No devices were found\n")


def test_compat_libraries_first_on_the_path_raise_the_cuda_version(
    a100_node: Any, smi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a100_node.root / "usr/local/cuda-12.1/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.530.30.02")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda-12.1/compat")
    assert "CUDA Version: 12.1" in smi(a100_node)[1]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ("csv", ["index, memory.total [MiB]", "0, 81920 MiB"]),
        ("csv,noheader", ["0, 81920 MiB"]),
        ("csv,noheader,nounits", ["0, 81920"]),
        ("csv,nounits", ["index, memory.total", "0, 81920"]),
    ],
)
def test_query_formats(a100_node: Any, smi: Any, options: str, lines: list[str]) -> None:
    _, out = smi(a100_node, "-i", "0", "--query-gpu=index,memory.total", f"--format={options}")
    assert out.splitlines() == lines


def test_unknown_field_is_refused(a100_node: Any, smi: Any) -> None:
    code, out = smi(a100_node, "--query-gpu=index,colour", "--format=csv")
    assert code == 2
    assert out.startswith('Field "colour" is not a valid field to query.')


@pytest.mark.parametrize("word", ["9", "GPU-nope", "00000000:FF:00.0"])
def test_unknown_gpu_is_refused(a100_node: Any, smi: Any, word: str) -> None:
    assert smi(a100_node, "-i", word) == (6, "No devices were found\n")


def query(smi: Any, node: Any, field: str) -> list[str]:
    return smi(node, f"--query-gpu={field}", "--format=csv,noheader")[1].split()


def test_ecc_waits_for_the_reboot(a100_node: Any, smi: Any) -> None:
    code, out = smi(a100_node, "--id=0,1", "--ecc-config=0")
    assert code == 0
    assert "Disabled ECC support for GPU 00000000:07:00.0." in out
    assert query(smi, a100_node, "ecc.mode.current") == ["Enabled"] * 8
    assert query(smi, a100_node, "ecc.mode.pending") == ["Disabled"] * 2 + ["Enabled"] * 6
    a100_node.reboot()
    assert query(smi, a100_node, "ecc.mode.current") == ["Disabled"] * 2 + ["Enabled"] * 6


def test_mig_is_pending_while_a_client_holds_the_gpu(a100_node: Any, smi: Any) -> None:
    smi(a100_node, "-pm", "1")
    code, out = smi(a100_node, "-i", "0", "-mig", "1")
    assert code == 0
    assert "pending enable state" in out
    assert query(smi, a100_node, "mig.mode.current")[0] == "Disabled"
    assert query(smi, a100_node, "mig.mode.pending")[0] == "Enabled"


def test_mig_is_on_at_once_on_a_free_gpu(a100_node: Any, smi: Any) -> None:
    _, out = smi(a100_node, "-i", "0", "--multi-instance-gpu=1")
    assert "Enabled MIG Mode for GPU 00000000:07:00.0" in out
    assert query(smi, a100_node, "mig.mode.current")[:2] == ["Enabled", "Disabled"]


def test_persistence_mode_is_lost_at_reboot(a100_node: Any, smi: Any) -> None:
    smi(a100_node, "-pm", "1")
    assert query(smi, a100_node, "persistence_mode") == ["Enabled"] * 8
    assert "already Enabled" in smi(a100_node, "-pm", "1")[1]
    a100_node.reboot()
    assert query(smi, a100_node, "persistence_mode") == ["Disabled"] * 8


@pytest.mark.parametrize("argv", [["-pm", "2"], ["--what"], ["-i"], ["topo", "-x"]])
def test_wrong_usage_is_refused(a100_node: Any, smi: Any, argv: list[str]) -> None:
    assert smi(a100_node, *argv)[0] == 2


def fabric(smi: Any, node: Any) -> list[str]:
    lines = smi(node, "-q")[1].splitlines()
    at = lines.index("    Fabric")
    return [line.split(":")[1].strip() for line in lines[at + 1 : at + 3]]


def test_hopper_is_in_progress_until_the_fabric_manager_runs(h200_node: Any, smi: Any) -> None:
    assert fabric(smi, h200_node) == ["In Progress", "N/A"]
    h200_node.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", "4711\n")
    (h200_node.root / "proc/4711").mkdir()
    assert fabric(smi, h200_node) == ["Completed", "Success"]


def test_ampere_on_an_old_branch_reports_no_fabric(a100_node: Any, smi: Any) -> None:
    assert "Fabric" not in smi(a100_node, "-q")[1]


def test_ampere_on_a_new_branch_reports_none(a100_node: Any, smi: Any) -> None:
    a100_node.library("580.173.02")
    a100_node.load_driver("580.173.02")
    assert fabric(smi, a100_node) == ["N/A", "N/A"]


def test_xml_names_every_gpu(a100_node: Any, smi: Any) -> None:
    root = ET.fromstring(smi(a100_node, "-q", "-x")[1])  # noqa: S314 - our own output
    assert root.findtext("driver_version") == "515.86.01"
    assert [gpu.findtext("product_name") for gpu in root.iter("gpu")] == [
        "NVIDIA A100-SXM4-80GB"
    ] * 8
