"""The Slurm area of the probe on outputs of Slurm 22.05.8."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CONFIG = """\
Configuration data as of 2026-11-30T03:28:54
BOOT_TIME               = 2026-11-30T03:28:24
ClusterName             = lab
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at head1 is UP
"""
NODES = """\
gpu1|idle|gpu:a100:8|128|1000000|none
gpu2|down*|gpu:a100:8(S:0-1)|128|1000000|Not responding
gpu3|drained|(null)|64|500|admin: fan | noise
"""
UNITS = """\
slurmd@gpu1.service loaded active running Slurm node daemon of virtual node gpu1
slurmd@gpu2.service loaded failed failed Slurm node daemon of virtual node gpu2
"""


def load(name: str) -> ModuleType:
    """Load a file of plugins/ under the name that Ansible gives it."""
    folder, _, module = name.rpartition("/")
    if f"ansible.module_utils.{module}" in sys.modules:
        return sys.modules[f"ansible.module_utils.{module}"]
    spec = importlib.util.spec_from_file_location(
        f"ansible.module_utils.{module}", ROOT / "plugins" / folder / f"{module}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def probe() -> ModuleType:
    load("module_utils/railweld_cluster_probe")
    return load("module_utils/railweld_slurm_probe")


class Node:
    """A machine with given outputs and a root of its own."""

    def __init__(self, root: Path, outputs: dict[str, str]) -> None:
        self.root = root
        self.outputs = outputs

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def names(self, folder: str) -> list[str]:
        path = self.path(folder)
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def glob(self, pattern: str) -> list[str]:
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def output(self, *argv: str) -> str | None:
        words: Sequence[str] = argv[2:] if argv[0] == "timeout" else argv
        return self.outputs.get(" ".join(words[:2]))


def test_slurmctld_that_answers(probe: Any, tmp_path: Path) -> None:
    controller = probe.read_controller(Node(tmp_path, {"scontrol show": CONFIG}))
    assert controller == {
        "up": True,
        "SLURM_VERSION": "22.05.8",
        "ClusterName": "lab",
        "BOOT_TIME": "2026-11-30T03:28:24",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }


@pytest.mark.parametrize(
    "text", [None, "", CONFIG.replace("is UP", "is DOWN"), "slurm_load_ctl_conf error: timed out"]
)
def test_slurmctld_that_does_not(probe: Any, tmp_path: Path, text: str | None) -> None:
    outputs = {} if text is None else {"scontrol show": text}
    assert probe.read_controller(Node(tmp_path, outputs))["up"] is False


def test_nodes_with_their_flags_and_sockets_apart(probe: Any, tmp_path: Path) -> None:
    nodes = probe.read_nodes(Node(tmp_path, {"sinfo --Node": NODES}))
    assert (nodes["gpu2"]["state"], nodes["gpu2"]["responds"]) == ("down", False)
    assert nodes["gpu2"]["gres"] == "gpu:a100:8"
    assert nodes["gpu3"]["reason"] == "admin: fan | noise"
    assert nodes["gpu1"]["cpus"] == 128


def test_virtual_nodes_that_run_and_that_would_run_after_a_boot(probe: Any, tmp_path: Path) -> None:
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    for name in ("gpu1", "gpu3"):
        (wants / f"slurmd@{name}.service").symlink_to("/etc/systemd/system/slurmd@.service")
    assert probe.read_daemons(Node(tmp_path, {"systemctl list-units": UNITS})) == {
        "gpu1": {"active": "active", "enabled": True},
        "gpu2": {"active": "failed", "enabled": False},
        "gpu3": {"active": "inactive", "enabled": True},
    }


def test_daemons_of_a_replaced_package(probe: Any, tmp_path: Path) -> None:
    for number, program in {
        "10": "/usr/sbin/slurmctld-wlm (deleted)",
        "11": "/usr/sbin/slurmd-wlm",
        # Steps of running jobs keep their program, which is right.
        "12": "/usr/sbin/slurmstepd (deleted)",
        "13": "/usr/bin/python3.11 (deleted)",
    }.items():
        (tmp_path / "proc" / number).mkdir(parents=True)
        (tmp_path / "proc" / number / "exe").symlink_to(program)
    assert probe.read_outdated(Node(tmp_path, {})) == ["slurmctld"]
