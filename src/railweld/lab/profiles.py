"""What hardware a lab node shows: GPUs, NVSwitches and HCAs, as the node's stand-ins read it.

The identifiers are those of the real parts, so that readers of PCI and sysfs see what they would.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rail:
    """One HCA port as the inventory describes it; empty fields come from the profile."""

    netdev: str = ""
    hca: str = ""
    rate_gbps: int = 100
    is_infiniband: bool = False
    switch: str = ""
    port: str = ""


@dataclass(frozen=True)
class GpuPart:
    """A GPU model: the name that nvidia-smi prints, PCI device id, memory, architecture."""

    name: str
    device: str
    memory_mib: int
    architecture: str
    nvswitch_device: str | None = None
    nvlinks: int = 12


@dataclass(frozen=True)
class HcaPart:
    """An adapter model."""

    name: str
    device: str
    board_id: str
    fw_version: str
    part: str


A100 = GpuPart("A100-SXM4-80GB", "20b2", 81920, "Ampere", "1af1", 12)
H100 = GpuPart("H100 80GB HBM3", "2330", 81559, "Hopper", "22a3", 18)
H200 = GpuPart("H200", "2335", 143771, "Hopper", "22a3", 18)
A100_PCIE = GpuPart("A100-PCIE-40GB", "20f1", 40960, "Ampere", None, 0)

CONNECTX6 = HcaPart("ConnectX-6", "101b", "MT_0000000223", "20.35.1012", "MCX653105A-ECAT")
CONNECTX7 = HcaPart("ConnectX-7", "1021", "MT_0000000838", "28.39.1002", "MCX75310AAS-NEAT")


@dataclass(frozen=True)
class Profile:
    """A server model."""

    gpu: GpuPart | None
    gpus: int
    nvswitches: int
    hca: HcaPart
    hcas: int


PROFILES: dict[str, Profile] = {
    "head": Profile(None, 0, 0, CONNECTX6, 0),
    "a100x8": Profile(A100, 8, 6, CONNECTX6, 4),
    "a100x4": Profile(A100, 4, 0, CONNECTX6, 4),
    "a100pcie2": Profile(A100_PCIE, 2, 0, CONNECTX6, 1),
    "h100x8": Profile(H100, 8, 4, CONNECTX7, 8),
    "h200x8": Profile(H200, 8, 4, CONNECTX7, 8),
}

#: PCI buses of an eight-GPU HGX baseboard, in nvidia-smi's order.
GPU_BUSES = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
NVSWITCH_BUSES = ("c4", "c5", "c6", "c7", "c8", "c9")
HCA_BUSES = ("0c", "12", "4b", "54", "8d", "94", "ba", "cc")


def hardware(
    profile_name: str,
    *,
    node: str,
    rails: Sequence[Rail] = (),
    secure_boot: str = "off",
    kernel_parameters: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of a node's profile.json.

    Rails of the inventory name the adapters; a profile with more adapters than rails has the rest
    under default names, without a network interface of their own.
    """
    profile = PROFILES[profile_name]
    gpu = profile.gpu
    count = max(profile.hcas, len(rails))
    given = list(rails) + [Rail()] * (count - len(rails))
    return {
        "profile": profile_name,
        "gpus": []
        if gpu is None
        else [
            {
                "index": index,
                "model": gpu.name,
                "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.gpu{index}')}",
                "bus_id": f"00000000:{GPU_BUSES[index].upper()}:00.0",
                "device": gpu.device,
                "memory_mib": gpu.memory_mib,
                "architecture": gpu.architecture,
                "nvlinks": gpu.nvlinks if profile.nvswitches else 0,
                "serial": str(1_320_000_000_000 + _number(f"{node}.gpu{index}", 9)),
            }
            for index in range(profile.gpus)
        ],
        "nvswitches": profile.nvswitches,
        "nvswitch_bus_ids": [f"00000000:{bus.upper()}:00.0" for bus in NVSWITCH_BUSES][
            : profile.nvswitches
        ],
        "nvswitch_device": gpu.nvswitch_device if gpu else None,
        "hcas": [
            {
                "name": rail.hca or f"mlx5_{index}",
                "netdev": rail.netdev or f"rail{index + 1}",
                "link_layer": "InfiniBand" if rail.is_infiniband and rails else "Ethernet",
                "rate_gbps": rail.rate_gbps,
                "fw_version": profile.hca.fw_version,
                "board_id": profile.hca.board_id,
                "part": profile.hca.part,
                "model": profile.hca.name,
                "device": profile.hca.device,
                "guid": _guid(f"{node}.hca{index}"),
                "mac": _mac(f"{node}.hca{index}"),
                "bus_id": f"0000:{HCA_BUSES[index]}:00.0",
                "switch": rail.switch,
                "port": rail.port,
            }
            for index, rail in enumerate(given)
        ],
        "secure_boot": secure_boot,
        "kernel_parameters": list(kernel_parameters),
    }


def _number(seed: str, digits: int) -> int:
    return int(hashlib.sha256(seed.encode()).hexdigest(), 16) % int(f"1{'0' * digits}")


def _mac(seed: str) -> str:
    """A MAC address in the range of the adapter's vendor."""
    tail = hashlib.sha256(seed.encode()).hexdigest()[:6]
    return ":".join(["b8", "ce", "f6", tail[0:2], tail[2:4], tail[4:6]])


def _guid(seed: str) -> str:
    """The node GUID that belongs to that MAC address, as sysfs writes it."""
    octets = _mac(seed).split(":")
    text = "".join([*octets[:3], "03", "00", *octets[3:]])
    return ":".join(text[i : i + 4] for i in range(0, 16, 4))
