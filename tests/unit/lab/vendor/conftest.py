"""A lab node below a temporary folder, with the files that stand-in programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railweld.lab.vendor.programs.machine import Machine
from railweld.versions import load_rules

LIBRARIES = "usr/lib/x86_64-linux-gnu"
KERNEL = "6.1.0-18-amd64"


def a100(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "model": "A100-SXM4-80GB",
        "uuid": f"GPU-00000000-0000-0000-0000-00000000000{index}",
        "bus_id": f"00000000:{7 + index:02X}:00.0",
        "device": "20b2",
        "memory_mib": 81920,
        "architecture": "Ampere",
        "nvlinks": 12,
        "serial": f"132000000000{index}",
    }


def h200(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "model": "H200",
        "uuid": f"GPU-00000000-0000-0000-0000-00000000000{index}",
        "bus_id": f"00000000:00:0{6 + index}.0",
        "device": "2335",
        "memory_mib": 143771,
        "architecture": "Hopper",
        "nvlinks": 18,
        "serial": "1600000000000",
    }


def hca(index: int) -> dict[str, Any]:
    return {
        "name": f"mlx5_{index}",
        "netdev": f"rail{index + 1}",
        "link_layer": "Ethernet",
        "rate_gbps": 100,
        "fw_version": "20.35.1012",
        "board_id": "MT_0000000223",
        "part": "MCX653105A-ECAT",
        "model": "ConnectX-6",
        "device": "101b",
        "guid": f"b8ce:f603:0012:340{index}",
        "mac": f"b8:ce:f6:12:34:0{index}",
        "bus_id": f"0000:0{index + 1}:00.0",
    }


class FakeNode:
    """Builds the node's state; `machine` is what a program gets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root)
        for folder in ("run", "var/lib/railweld-lab", LIBRARIES, "proc"):
            (root / folder).mkdir(parents=True)
        self.write("run/railweld-lab/kernel", KERNEL)
        (root / f"lib/modules/{KERNEL}").mkdir(parents=True)
        self.build = {"cuda": dict(load_rules().driver_cuda)}

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def profile(self, **values: Any) -> None:
        self.write("var/lib/railweld-lab/profile.json", json.dumps(values))

    def fault(self, **values: Any) -> None:
        self.write("var/lib/railweld-lab/faults.json", json.dumps(values))

    def library(self, version: str) -> None:
        link = self.root / LIBRARIES / "libnvidia-ml.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"libnvidia-ml.so.{version}")

    def load_driver(self, version: str) -> None:
        self.write("sys/module/nvidia/version", f"{version}\n")

    def headers(self) -> None:
        self.write(f"lib/modules/{KERNEL}/build/Makefile", "")

    def reboot(self) -> None:
        """What a reboot takes away from the GPUs' state."""
        (self.root / "run/railweld-lab/gpu-modes.json").unlink(missing_ok=True)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def a100_node(node: FakeNode) -> FakeNode:
    node.profile(
        gpus=[a100(index) for index in range(8)], nvswitches=6, hcas=[hca(n) for n in range(4)]
    )
    node.library("515.86.01")
    node.load_driver("515.86.01")
    return node


@pytest.fixture
def h200_node(node: FakeNode) -> FakeNode:
    node.profile(gpus=[h200(0), h200(1)], nvswitches=4, hcas=[])
    node.library("580.159.04")
    node.load_driver("580.159.04")
    return node
