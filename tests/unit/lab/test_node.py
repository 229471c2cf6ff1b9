"""Stand-ins of a node, on a root folder of the test's own."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from railweld.lab.node import bootfiles, faults, hardware, modules, ntp_shift, standins, state
from railweld.lab.node.switch_lldp import frame
from railweld.lab.profiles import Rail
from railweld.lab.profiles import hardware as profile_of
from tests.unit.base.conftest import load

KERNEL = "6.1.0-20-amd64"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An eight-GPU node as it comes from the factory."""
    monkeypatch.setattr(state, "ROOT", tmp_path)
    for folder in ("sys/module", "sys/bus/pci/devices", "sys/class", "proc/driver", "boot"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / f"boot/vmlinuz-{KERNEL}").touch()
    profile = profile_of("a100x8", node="gpu1", rails=[Rail(netdev="rail1", hca="mlx5_0")])
    state.write_file(state.lib_dir() / "profile.json", json.dumps({**profile, "kernel": KERNEL}))
    hardware.refresh({})
    return tmp_path


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(node: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a stand-in: exit code, output, errors."""
    assert node.is_dir()

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        code = standins.main(name, arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def install_driver(version: str = "515.86.01", **fields: Any) -> None:
    state.install_module("nvidia", version=version, **{"flavour": "proprietary", **fields})


# --- modules ---------------------------------------------------------------------------------


def test_modprobe_loads_what_a_module_needs(call: Call) -> None:
    assert call("modprobe", "rdma_ucm")[0] == 0
    names = [line.split()[0] for line in call("lsmod")[1].splitlines()[1:]]
    assert set(names) == {"rdma_ucm", "rdma_cm", "ib_cm", "iw_cm", "ib_uverbs", "ib_core"}
    assert names[0] == "rdma_ucm"


def test_modprobe_of_an_absent_module_says_where_it_looked(call: Call) -> None:
    code, _, error = call("modprobe", "nvidia")
    assert code == 1
    assert error == f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{KERNEL}\n"


def test_driver_cannot_load_while_nouveau_has_the_gpus(call: Call) -> None:
    install_driver()
    call("modprobe", "nouveau")
    code, _, error = call("modprobe", "nvidia")
    assert code == 1
    assert "could not insert 'nvidia': No such device" in error
    call("rmmod", "nouveau")
    assert call("modprobe", "nvidia")[0] == 0


def test_loaded_driver_is_seen_where_programs_look(call: Call, node: Path) -> None:
    install_driver()
    call("modprobe", "nvidia")
    assert (node / "sys/module/nvidia/version").read_text() == "515.86.01\n"
    assert "x86_64 Kernel Module  515.86.01 " in (node / "proc/driver/nvidia/version").read_text()
    gpu = node / "sys/bus/pci/devices/0000:07:00.0"
    assert (gpu / "driver").readlink().name == "nvidia"


def test_open_driver_says_so(call: Call, node: Path) -> None:
    install_driver("580.173.02", flavour="open")
    call("modprobe", "nvidia")
    assert "Open Kernel Module" in (node / "proc/driver/nvidia/version").read_text()
    assert call("modinfo", "-F", "license", "nvidia")[1] == "Dual MIT/GPL\n"


def test_an_upgrade_on_disk_leaves_the_loaded_version(call: Call, node: Path) -> None:
    install_driver()
    call("modprobe", "nvidia")
    install_driver("580.173.02")
    call("modprobe", "nvidia")
    assert (node / "sys/module/nvidia/version").read_text() == "515.86.01\n"
    assert call("modinfo", "-F", "version", "nvidia")[1] == "580.173.02\n"


def test_a_module_in_use_is_not_unloaded(call: Call) -> None:
    install_driver()
    call("modprobe", "nvidia_uvm")
    code, _, error = call("rmmod", "nvidia")
    assert code == 1
    assert error == "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm\n"


def test_peermem_needs_the_peer_memory_of_ofed(call: Call) -> None:
    install_driver()
    code, _, error = call("modprobe", "nvidia_peermem")
    assert code == 1
    assert "could not insert 'nvidia_peermem': Invalid argument" in error
    state.install_module("ib_core", version="5.8-2.0.3")
    assert call("modprobe", "nvidia_peermem")[0] == 0


def test_faults_of_the_driver_show_where_the_probe_looks_and_are_gone_when_cleared(
    call: Call, node: Path
) -> None:
    load("module_utils", "railweld_locks")
    probe = load("modules", "railweld_probe")

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return call(*argv) if argv[0] in ("modinfo", "lsmod") else (127, "", "not installed")

    def seen() -> tuple[str | None, str | None, str | None, list[str]]:
        reader = probe.Node(node, run, KERNEL)
        driver = probe.read_driver(reader, {})
        rivals = probe.read_rivals(reader, probe.read_modules(reader))
        return (
            driver["loaded"], driver["on_disk"], driver["kernel_flavour"], rivals["rivals_loaded"],
        )  # fmt: skip

    install_driver(flavour="open")
    call("modprobe", "nvidia_uvm")
    whole = ("515.86.01", "515.86.01", "open", [])
    assert seen() == whole
    for fault, broken in (
        ("driver-mismatch", ("515.85.01", "515.86.01", "open", [])),
        ("nouveau-loaded", (None, "515.86.01", None, ["nouveau"])),
    ):
        faults.turn_on(fault, {})
        assert seen() == broken
        faults.turn_off(fault)
        assert seen() == whole
        assert state.faults()["active"] == {}


@pytest.mark.parametrize(
    ("signer", "enrolled", "error"),
    [
        (None, [], "Key was rejected by service"),
        ("site key", [], "Required key not available"),
        ("site key", ["site key"], ""),
    ],
)
def test_secure_boot_wants_a_signature_of_an_enrolled_key(
    call: Call, signer: str | None, enrolled: list[str], error: str
) -> None:
    install_driver(signer=signer)
    faults.set_effect(secure_boot="on", enrolled_keys=enrolled)
    code, _, text = call("modprobe", "nvidia")
    assert (code == 0) == (error == "")
    assert error in text


def test_an_install_line_that_refuses_keeps_a_module_out(call: Call, node: Path) -> None:
    state.write_file(node / "etc/modprobe.d/x.conf", "install nouveau /bin/false\n")
    code, _, error = call("modprobe", "nouveau")
    assert code == 1
    assert "Error running install command '/bin/false' for module nouveau: retcode 1" in error


# --- boot ------------------------------------------------------------------------------------


def boot(command_line: str = "") -> list[str]:
    packed = modules.rules(text=bootfiles.initramfs_modprobe(KERNEL))
    return modules.autoload(packed, command_line)


def test_a_bare_node_boots_with_nouveau_and_the_adapters(call: Call) -> None:
    assert call("update-initramfs", "-c", "-k", KERNEL)[0] == 0
    assert boot() == [
        "drm", "ttm", "nouveau", "mlxfw", "mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib",
    ]  # fmt: skip


def test_a_blacklist_counts_once_it_is_in_the_initramfs_too(call: Call, node: Path) -> None:
    call("update-initramfs", "-c", "-k", KERNEL)
    state.write_file(node / "etc/modprobe.d/x.conf", "blacklist nouveau\n")
    assert "nouveau" in boot()
    for name in list(state.loaded_modules()):
        (state.run_dir() / "modules" / name).unlink()
    call("update-initramfs", "-u")
    assert "nouveau" not in boot()


def test_the_initramfs_is_an_archive_with_its_modprobe_files(call: Call, node: Path) -> None:
    state.write_file(node / "etc/modprobe.d/x.conf", "blacklist nouveau\n")
    call("update-initramfs", "-u")
    listing = call("lsinitramfs", str(node / f"boot/initrd.img-{KERNEL}"))[1]
    assert "etc/modprobe.d/x.conf\n" in listing


def test_cpio_round_trip() -> None:
    files = {"a": b"", "b/c": b"12345", "d": bytes(range(256))}
    assert dict(bootfiles.unpack(bootfiles.pack(files))) == files


def test_a_cut_archive_is_refused() -> None:
    with pytest.raises(ValueError, match="cut short"):
        list(bootfiles.unpack(bootfiles.pack({"a": b"123"})[:-100]))


def test_update_grub_writes_what_the_settings_ask_for(call: Call, node: Path) -> None:
    state.write_file(node / "etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    state.write_file(
        node / "etc/default/grub.d/z.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n'
    )
    assert "iommu=pt" not in bootfiles.command_line(KERNEL)
    assert call("update-grub")[0] == 0
    assert bootfiles.command_line(KERNEL).split()[-2:] == ["iommu=pt", "quiet"]


# --- firmware and adapters -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        ("on", 0, "SecureBoot enabled\n"),
        ("off", 0, "SecureBoot disabled\n"),
        ("unsupported", 1, "EFI variables are not supported on this system\n"),
    ],
)
def test_mokutil(call: Call, value: str, code: int, text: str) -> None:
    faults.set_effect(secure_boot=value)
    found, out, error = call("mokutil", "--sb-state")
    assert (found, out + error) == (code, text)


def test_missing_gpus_are_off_the_bus(node: Path) -> None:
    faults.set_effect(gpu_missing=2)
    vendors = [
        (device / "device").read_text().strip()
        for device in (node / "sys/bus/pci/devices").iterdir()
    ]
    assert vendors.count("0x20b2") == 6
    assert len(state.gpus()) == 6


def test_a_port_without_link_is_down_and_slow_ports_say_so(call: Call, node: Path) -> None:
    call("modprobe", "mlx5_ib")
    faults.set_effect(hca_down=["mlx5_1"], link_rate={"mlx5_0": 25})
    base = node / "sys/class/infiniband"
    assert (base / "mlx5_1/ports/1/state").read_text() == "1: DOWN\n"
    assert (base / "mlx5_0/ports/1/rate").read_text() == "25 Gb/sec (1X EDR)\n"
    assert "mlx5_1/1 state DOWN" in call("rdma", "link")[1]


@pytest.mark.usefixtures("node")
def test_a_moved_cable_leads_to_another_switch_port() -> None:
    before = state.hcas()
    faults.cable_moved({"hca": "mlx5_1", "port": "Ethernet9/1"})
    moved = {hca["name"]: (hca["switch"], hca["port"]) for hca in state.hcas()}
    assert moved["mlx5_1"] == (before[1]["switch"], "Ethernet9/1")
    assert state.hcas()[0] == before[0]
    faults.cables_back()
    assert state.hcas() == before


def test_rdma_devices_go_with_their_module(call: Call, node: Path) -> None:
    call("modprobe", "mlx5_ib")
    assert (node / "sys/class/infiniband/mlx5_3").is_dir()
    call("rmmod", "mlx5_ib")
    assert not (node / "sys/class/infiniband").exists()


def test_dcb_keeps_what_was_set(call: Call) -> None:
    call("dcb", "pfc", "set", "dev", "rail1", "prio-pfc", "all:off", "3:on")
    call("dcb", "app", "replace", "dev", "rail1", "dscp-prio", "26:3")
    pfc = json.loads(call("dcb", "-j", "pfc", "show", "dev", "rail1")[1])
    assert pfc["prio_pfc"] == [False, False, False, True, False, False, False, False]
    app = json.loads(call("dcb", "-j", "-N", "app", "show", "dev", "rail1", "dscp-prio")[1])
    assert app == {"dscp_prio": [[26, 3]]}
    call("dcb", "app", "del", "dev", "rail1", "dscp-prio", "26:3")
    assert call("dcb", "app", "show", "dev", "rail1")[1] == ""


def test_dcb_refuses_what_this_iproute2_does_not_know(call: Call) -> None:
    code, _, error = call("dcb", "apptrust", "show", "dev", "rail1")
    assert code == 255
    assert 'Object "apptrust" is unknown' in error
    assert call("dcb", "pfc", "show", "dev", "eth0")[0] == 2


def test_dcb_and_mlnx_qos_share_one_adapter(call: Call, node: Path) -> None:
    call("dcb", "app", "add", "dev", "rail1", "dscp-prio", "26:3")
    shared = json.loads((node / "run/railweld-lab/qos/rail1.json").read_text())
    assert (shared["trust"], shared["dscp2prio"]) == ("dscp", {"26": 3})


def test_verbs_programs_come_with_their_package(call: Call, node: Path) -> None:
    assert call("ibv_devinfo") == (127, "", "ibv_devinfo: command not found\n")
    state.write_file(node / "var/lib/dpkg/info/ibverbs-utils.list", "")
    assert call("ibv_devinfo")[2] == "No IB devices found\n"
    call("modprobe", "mlx5_ib")
    assert "hca_id:\tmlx5_0\n" in call("ibv_devinfo")[1]


def test_bridges_have_acs_in_their_configuration_space() -> None:
    bridge = {"vendor": 0x10B5, "device": 0x8747, "class": hardware.CLASS_PCI_BRIDGE}
    space = hardware.configuration_space(bridge)
    (header,) = struct.unpack_from("<I", space, hardware.ACS_CAPABILITY)
    assert header & 0xFFFF == 0x000D
    assert struct.unpack_from("<H", space, 0x0A)[0] == 0x0604


# --- protocols -------------------------------------------------------------------------------


def test_ntp_answers_are_shifted_but_not_the_clients_own_time() -> None:
    packet = struct.pack("!16xQQQQ", 100 << 32, 7 << 32, 200 << 32, 300 << 32)
    shifted = struct.unpack("!16xQQQQ", ntp_shift.shift(packet, -0.5))
    assert [value / 2**32 for value in shifted] == [99.5, 7, 199.5, 299.5]


def test_an_unsynchronised_answer_keeps_its_zero() -> None:
    packet = struct.pack("!16xQQQQ", 0, 7 << 32, 200 << 32, 300 << 32)
    assert struct.unpack_from("!Q", ntp_shift.shift(packet, 1.0), 16) == (0,)


def test_lldp_frame_names_switch_and_port() -> None:
    content = frame("leaf1", "Ethernet17/1")
    assert content[:6] == bytes.fromhex("0180c200000e")
    assert content[12:14] == bytes.fromhex("88cc")
    assert b"\x05Ethernet17/1" in content
    assert b"leaf1" in content
    assert content.endswith(b"\0\0")
