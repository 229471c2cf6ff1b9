"""What the hardware shows in /sys and /proc, written as plain files where tmpfs is mounted.

`refresh` is called whenever a module or a fault changes what is to be seen. It knows three trees:
PCI devices (they are there from the start), RDMA devices (with mlx5_ib), /proc/driver/nvidia
(with nvidia).
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railweld.lab.node import state
from railweld.lab.node.mounts import mount

NVIDIA_VENDOR = 0x10DE
MELLANOX_VENDOR = 0x15B3
PLX_VENDOR = 0x10B5
#: PCI class codes.
CLASS_3D, CLASS_BRIDGE_OTHER, CLASS_NETWORK, CLASS_PCI_BRIDGE = (
    0x030200,
    0x068000,
    0x020000,
    0x060400,
)
#: Offsets in PCI configuration space.
PCIE_CAPABILITY, ACS_CAPABILITY = 0x40, 0x100
#: One port of the PCIe switch above each pair of devices; the lab has two, enough to be seen.
BRIDGES = ("0000:05:00.0", "0000:06:00.0")


def write_attribute(file: Path, value: Any) -> None:
    """Write one attribute in place, as a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{value}\n")


def link(file: Path, target: str) -> None:
    """Make a symbolic link, replacing one that is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink():
        file.unlink()
    file.symlink_to(target)


def remove_tree(folder: Path) -> None:
    """Remove a folder if it is there."""
    shutil.rmtree(folder, ignore_errors=True)  # the first boot has none


def refresh(loaded: Mapping[str, str]) -> None:
    """Bring all trees in line with the hardware, the faults and the loaded modules."""
    write_pci(loaded)
    write_infiniband(loaded)
    write_congestion(loaded)
    write_nvidia_proc(loaded)
    write_memory_peers(loaded)


# --- PCI -------------------------------------------------------------------------------------


def pci_devices() -> dict[str, dict[str, Any]]:
    """Devices on the bus by address: vendor, device, class, the drivers that can take them."""
    devices: dict[str, dict[str, Any]] = {}
    profile = state.profile()
    if profile.get("gpus") or profile.get("hcas"):
        for address in BRIDGES:
            devices[address] = {
                "vendor": PLX_VENDOR, "device": 0x8747, "class": CLASS_PCI_BRIDGE, "drivers": (),
            }  # fmt: skip
    for gpu in state.gpus():
        devices[pci_address(gpu["bus_id"])] = {
            "vendor": NVIDIA_VENDOR, "device": int(gpu["device"], 16), "class": CLASS_3D,
            "drivers": ("nvidia", "nouveau", "nova_core"),
        }  # fmt: skip
    for bus in profile.get("nvswitch_bus_ids", []):
        devices[pci_address(bus)] = {
            "vendor": NVIDIA_VENDOR, "device": int(profile["nvswitch_device"], 16),
            "class": CLASS_BRIDGE_OTHER, "drivers": ("nvidia",),
        }  # fmt: skip
    for hca in profile.get("hcas", []):
        devices[pci_address(hca["bus_id"])] = {
            "vendor": MELLANOX_VENDOR, "device": int(hca["device"], 16), "class": CLASS_NETWORK,
            "drivers": ("mlx5_core",),
        }  # fmt: skip
    return devices


def pci_address(bus_id: str) -> str:
    """`00000000:07:00.0` as sysfs writes it: `0000:07:00.0`."""
    domain, rest = bus_id.lower().split(":", 1)
    return f"{domain[-4:]}:{rest}"


def write_pci(loaded: Mapping[str, str]) -> None:
    """/sys/bus/pci/devices and drivers. Configuration space is real enough for lspci and setpci."""
    base = state.path("/sys/bus/pci/devices")
    if not base.is_dir():
        return
    devices = pci_devices()
    for folder in base.iterdir():
        if folder.name not in devices:
            remove_tree(folder)
    for address, device in devices.items():
        folder = base / address
        config = folder / "config"
        if not config.exists():
            for key in ("vendor", "device"):
                write_attribute(folder / key, f"0x{device[key]:04x}")
            write_attribute(folder / "class", f"0x{device['class']:06x}")
            write_attribute(folder / "numa_node", 0 if int(address[5:7], 16) < 0x80 else 1)
            write_attribute(folder / "irq", 0)
            write_attribute(folder / "enable", 1)
            write_attribute(folder / "resource", "\n".join(["0x0 0x0 0x0"] * 13))
            write_attribute(
                folder / "modalias",
                f"pci:v{device['vendor']:08X}d{device['device']:08X}sv00000000sd00000000"
                f"bc{device['class'] >> 16:02X}sc{device['class'] >> 8 & 0xFF:02X}i00",
            )
            config.write_bytes(configuration_space(device))
        driver = next((name for name in device["drivers"] if name in loaded), None)
        place = folder / "driver"
        if driver is None:
            if place.is_symlink():
                place.unlink()
        else:
            state.path(f"/sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            link(place, f"../../drivers/{driver}")


def configuration_space(device: Mapping[str, Any]) -> bytes:
    """4 KiB of configuration space: ids, class, a PCIe capability, ACS on bridges."""
    is_bridge = device["class"] == CLASS_PCI_BRIDGE
    space = bytearray(4096)
    struct.pack_into("<HHHH", space, 0x00, device["vendor"], device["device"], 0x0006, 0x0010)
    space[0x08:0x0C] = struct.pack("<I", device["class"] << 8)
    space[0x0E] = 1 if is_bridge else 0
    space[0x34] = PCIE_CAPABILITY
    # Capability id, no next one, version 2 and type: downstream switch port or endpoint.
    port_type = 0x6 if is_bridge else 0x0
    struct.pack_into("<BBH", space, PCIE_CAPABILITY, 0x10, 0x00, 0x0002 | port_type << 4)
    if is_bridge:
        # Extended capability 13, version 1; all features present and switched on by the firmware.
        struct.pack_into("<IHH", space, ACS_CAPABILITY, 0x0001000D, 0x005F, 0x001D)
    return bytes(space)


# --- RDMA ------------------------------------------------------------------------------------

#: Lanes and name of a link by its rate in Gb/s.
RATES = {
    400: "4X NDR", 200: "4X HDR", 100: "4X EDR", 56: "4X FDR", 50: "2X EDR", 40: "4X QDR",
    25: "1X EDR", 10: "4X SDR",
}  # fmt: skip
PORT_STATES = {True: ("4: ACTIVE", "5: LinkUp"), False: ("1: DOWN", "3: Disabled")}


def write_infiniband(loaded: Mapping[str, str]) -> None:
    """/sys/class/infiniband and what belongs to it; there while mlx5_ib is loaded."""
    base = state.path("/sys/class/infiniband")
    if not base.parent.is_dir() or not state.profile().get("hcas"):
        return
    if "mlx5_ib" not in loaded:
        for name in ("infiniband", "infiniband_verbs", "infiniband_mad"):
            remove_tree(base.with_name(name))
        return
    with_ofed = is_ofed(loaded)
    for number, hca in enumerate(state.hcas()):
        write_hca(base / hca["name"], hca, with_ofed=with_ofed)
        verbs = base.with_name("infiniband_verbs") / f"uverbs{number}"
        write_attribute(verbs / "ibdev", hca["name"])
        write_attribute(verbs / "abi_version", 1)
        if "ib_umad" in loaded:
            mad = base.with_name("infiniband_mad")
            write_attribute(mad / "abi_version", 5)
            write_attribute(mad / f"umad{number}" / "ibdev", hca["name"])
            write_attribute(mad / f"umad{number}" / "port", 1)
    write_attribute(base.with_name("infiniband_verbs") / "abi_version", 6)


def write_hca(folder: Path, hca: Mapping[str, Any], *, with_ofed: bool) -> None:
    """One RDMA device with its port."""
    words = hca["guid"].split(":")
    port = folder / "ports/1"
    logical, physical = PORT_STATES[hca["is_up"]]
    prefix = "fe80:0000:0000:0000"
    is_ethernet = hca["link_layer"] == "Ethernet"
    values: dict[str, Any] = {
        "node_type": "1: CA",
        "node_guid": hca["guid"],
        "sys_image_guid": hca["guid"],
        "node_desc": f"{os.uname().nodename} {hca['name']}",
        "fw_ver": hca["fw_version"],
        "board_id": hca["board_id"],
        "hca_type": f"MT{int(hca['device'], 16)}",
        "hw_rev": 0,
        "ports/1/state": logical,
        "ports/1/phys_state": physical,
        "ports/1/rate": f"{hca['rate_gbps']} Gb/sec ({RATES.get(hca['rate_gbps'], '4X')})",
        "ports/1/link_layer": hca["link_layer"],
        "ports/1/lid": "0x0" if is_ethernet else "0x1",
        "ports/1/sm_lid": "0x0" if is_ethernet else "0x1",
        "ports/1/lid_mask_count": 0,
        "ports/1/sm_sl": 0,
        "ports/1/cap_mask": "0x00010000" if is_ethernet else "0x2651e848",
        "ports/1/gids/0": f"{prefix}:{':'.join(words)}",
        "ports/1/pkeys/0": "0xffff",
    }
    if is_ethernet:
        values["ports/1/gid_attrs/ndevs/0"] = hca["netdev"]
        values["ports/1/gid_attrs/types/0"] = "IB/RoCE v1"
        values["ports/1/gids/1"] = values["ports/1/gids/0"]
        values["ports/1/gid_attrs/ndevs/1"] = hca["netdev"]
        values["ports/1/gid_attrs/types/1"] = "RoCE v2"
    for key, value in values.items():
        write_attribute(folder / key, value)
    for name in (
        "link_downed",
        "symbol_error",
        "port_rcv_errors",
        "port_xmit_data",
        "port_rcv_data",
    ):
        if not (port / "counters" / name).exists():
            write_attribute(port / "counters" / name, 0)
    for name in ("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "out_of_sequence"):
        if not (port / "hw_counters" / name).exists():
            write_attribute(port / "hw_counters" / name, 0)
    link(folder / "device", f"../../../bus/pci/devices/{pci_address(hca['bus_id'])}")
    function = state.path(f"/sys/bus/pci/devices/{pci_address(hca['bus_id'])}")
    for kind, name in (("net", hca["netdev"]), ("infiniband", hca["name"])):
        (function / kind / name).mkdir(parents=True, exist_ok=True)
    traffic_class = folder / "tc/1/traffic_class"
    if with_ofed and not traffic_class.exists():
        write_attribute(traffic_class, "")


def is_ofed(loaded: Mapping[str, str]) -> bool:
    """True if the loaded adapter driver is OFED's: the kernel's own has no version."""
    return bool(loaded.get("mlx5_core"))


def write_congestion(loaded: Mapping[str, str]) -> None:
    """Congestion notification settings in debugfs, where the kernel's own driver has them."""
    base = state.path("/sys/kernel/debug")
    if not os.path.ismount(base):
        return
    if "mlx5_core" not in loaded or is_ofed(loaded):
        remove_tree(base / "mlx5")
        return
    for hca in state.profile().get("hcas", []):
        folder = base / "mlx5" / pci_address(hca["bus_id"]) / "cc_params"
        if not folder.exists():
            for key, value in CONGESTION_DEFAULTS.items():
                write_attribute(folder / f"np_{key}", value)


#: What an adapter marks its congestion notifications with after power-on.
CONGESTION_DEFAULTS = {"cnp_dscp": 48, "cnp_prio": 6, "cnp_prio_mode": 1}


def dress_netdev(hca: Mapping[str, Any], loaded: Mapping[str, str]) -> None:
    """Give a rail's folder in /sys/class/net what its adapter's driver adds.

    That is its PCI function, its speed, and with OFED the congestion settings. A layer over the
    folder keeps everything of the real interface below it.
    """
    folder = state.path(f"/sys/devices/virtual/net/{hca['netdev']}")
    layers = state.run_dir() / "net" / hca["netdev"]
    if not folder.is_dir() or layers.exists():
        return
    extra, upper, work = (layers / name for name in ("extra", "upper", "work"))
    for layer in (extra, upper, work):
        layer.mkdir(parents=True)
    link(extra / "device", f"/sys/bus/pci/devices/{pci_address(hca['bus_id'])}")
    write_attribute(extra / "speed", int(hca["rate_gbps"]) * 1000)
    if is_ofed(loaded):
        write_attribute(extra / "ecn/roce_np/cnp_dscp", CONGESTION_DEFAULTS["cnp_dscp"])
        write_attribute(extra / "ecn/roce_np/cnp_802p_prio", CONGESTION_DEFAULTS["cnp_prio"])
        for side in ("roce_np", "roce_rp"):
            for priority in range(8):
                write_attribute(extra / "ecn" / side / "enable" / str(priority), 1)
    options = f"lowerdir={extra}:{folder},upperdir={upper},workdir={work}"
    mount("railweld-lab", str(folder), "overlay", options=options)


# --- NVIDIA driver ---------------------------------------------------------------------------


def write_nvidia_proc(loaded: Mapping[str, str]) -> None:
    """/proc/driver/nvidia; there while the driver is loaded."""
    base = state.path("/proc/driver")
    if not base.is_dir():
        return
    folder = base / "nvidia"
    if "nvidia" not in loaded:
        remove_tree(folder)
        return
    version = loaded["nvidia"]
    known = folder / "version"
    if known.exists() and f" {version} " in known.read_text():
        return
    remove_tree(folder)
    own = state.installed_modules().get("nvidia", {})
    if own.get("flavour") == "open":
        line = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build"
            "  (dvs-builder@U22-I3-AE18-09-6)  "
        )
    else:
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build  "
    write_attribute(known, f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)")
    for gpu in state.gpus():
        write_attribute(
            folder / "gpus" / pci_address(gpu["bus_id"]) / "information",
            f"Model: \t\t NVIDIA {gpu['model']}\nGPU UUID: \t {gpu['uuid']}\n"
            f"Bus Type: \t PCIe\nBus Location: \t {pci_address(gpu['bus_id'])}\n"
            f"Device Minor: \t {gpu['index']}",
        )
    write_attribute(folder / "params", "")


def write_memory_peers(loaded: Mapping[str, str]) -> None:
    """/sys/kernel/mm/memory_peers: who can give the HCA memory that is not the host's."""
    base = state.path("/sys/kernel/mm")
    if not (state.run_dir() / "real/mm").is_dir():
        return  # nothing of ours is mounted there
    if "nvidia_peermem" in loaded:
        write_attribute(base / "memory_peers/nv_mem/version", loaded["nvidia_peermem"])
    else:
        remove_tree(base / "memory_peers")
