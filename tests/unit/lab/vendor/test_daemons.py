"""Daemons refuse what the real ones refuse, and leave a process with its pid file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railweld.lab.vendor.programs import daemons, nvcc
from railweld.lab.vendor.programs.machine import Build

RECORDED = Path(__file__).resolve().parents[3] / "fixtures/nvidia_smi"
Start = Callable[..., int]


@pytest.fixture
def started(node: Any) -> Any:
    """Pid of a started daemon's pid file; ends the process afterwards."""
    pids: list[int] = []

    def read(path: str) -> int:
        pid = int((node.root / path).read_text())
        pids.append(pid)
        return pid

    yield read
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_fabric_manager_starts_with_its_own_driver(a100_node: Any, started: Any) -> None:
    assert daemons.fabricmanager([], {"version": "515.86.01"}, a100_node.machine) == 0
    pid = started("run/nvidia-fabricmanager/nv-fabricmanager.pid")
    assert b"nv-fabricmanager" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda node: node.load_driver("515.65.01"), "don't match with driver version 515.65.01"),
        (lambda node: node.profile(gpus=[], nvswitches=0), "NV_WARN_NOTHING_TO_DO"),
        (lambda node: (node.root / "sys/module/nvidia/version").unlink(), "is not loaded"),
    ],
)
def test_fabric_manager_refuses(
    a100_node: Any, capsys: pytest.CaptureFixture[str], prepare: Any, text: str
) -> None:
    prepare(a100_node)
    assert daemons.fabricmanager([], {"version": "515.86.01"}, a100_node.machine) == 1
    assert text in capsys.readouterr().err
    assert not (a100_node.root / "run/nvidia-fabricmanager").exists()


def test_persistenced_needs_a_driver(node: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert daemons.persistenced([], {"version": "515.86.01"}, node.machine) == 1
    assert "failed to initialize" in capsys.readouterr().err


def test_persistenced_leaves_a_process(a100_node: Any, started: Any) -> None:
    argv = ["--user", "nvidia-persistenced", "--persistence-mode"]
    assert daemons.persistenced(argv, {"version": "515.86.01"}, a100_node.machine) == 0
    assert Path(f"/proc/{started('run/nvidia-persistenced/nvidia-persistenced.pid')}").exists()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (daemons.fabricmanager, "Fabric Manager version is : 515.86.01\n"),
        (daemons.persistenced, "nvidia-persistenced:  version 515.86.01\n"),
        (daemons.hostengine, "Version : 515.86.01\n"),
        (daemons.dcgmi, "dcgmi  version: 515.86.01\n"),
    ],
)
def test_versions(node: Any, capsys: pytest.CaptureFixture[str], program: Start, text: str) -> None:
    build: Build = {"version": "515.86.01"}
    assert program(["--version"], build, node.machine) == 0
    assert capsys.readouterr().out == text


def test_dcgmi_without_its_daemon_cannot_connect(
    a100_node: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert daemons.dcgmi(["discovery", "-l"], {"version": "3.1.8"}, a100_node.machine) == 255
    assert "unable to establish a connection" in capsys.readouterr().out


def test_dcgmi_lists_the_gpus(a100_node: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a100_node.write("run/nvhostengine.pid", "4711\n")
    (a100_node.root / "proc/4711").mkdir()
    assert daemons.dcgmi(["discovery", "-l"], {"version": "3.1.8"}, a100_node.machine) == 0
    assert capsys.readouterr().out.startswith("8 GPUs found.")


def test_nvcc_of_13_0_is_the_recorded_one(node: Any, capsys: pytest.CaptureFixture[str]) -> None:
    build: Build = {"release": "13.0", "nvcc": "13.0.88"}
    assert nvcc.main(["--version"], build, node.machine) == 0
    assert capsys.readouterr().out == (RECORDED / "nvcc-13.0.txt").read_text()


def test_nvcc_of_12_1_1_says_its_true_build(node: Any, capsys: pytest.CaptureFixture[str]) -> None:
    build: Build = {"release": "12.1", "nvcc": "12.1.105"}
    nvcc.main(["--version"], build, node.machine)
    assert "Cuda compilation tools, release 12.1, V12.1.105" in capsys.readouterr().out


def test_nvcc_compiles_nothing(node: Any) -> None:
    build: Build = {"release": "12.1", "nvcc": "12.1.105"}
    assert nvcc.main(["x.cu"], build, node.machine) == 1
