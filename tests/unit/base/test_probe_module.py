"""The probe against a folder that looks like a node, and recorded outputs of its tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RELEASE = "6.8.0-50-generic"


class Machine:
    """Files below a root and recorded answers of commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[str, tuple[int, str, str]] = {}

    def file(self, name: str, text: str = "") -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def answer(self, command: str, out: str, code: int = 0, err: str = "") -> None:
        self.answers[command] = (code, out, err)

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        line = " ".join(argv)
        fitting = [start for start in self.answers if line.startswith(start)]
        if not fitting:
            return 127, "", f"{argv[0]}: not installed"
        return self.answers[max(fitting, key=len)]


@pytest.fixture
def probe(plugin: Callable[[str, str], ModuleType]) -> ModuleType:
    plugin("module_utils", "railweld_locks")
    return plugin("modules", "railweld_probe")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def observe(probe: ModuleType, machine: Machine) -> Callable[..., dict[str, Any]]:
    def look(**arguments: Any) -> dict[str, Any]:
        node = probe.Node(machine.root, machine.run, RELEASE)
        result: dict[str, Any] = probe.observe(node, arguments)
        return result

    return look


def test_a_bare_machine_is_observed_without_an_error(
    observe: Callable[..., dict[str, Any]],
) -> None:
    found = observe()
    assert found["driver"]["loaded"] is None
    assert found["gpus"] == []
    assert found["time"]["daemon"] == "absent"
    assert found["nccl"]["version"] is None
    assert found["reboot"]["reasons"] == []
    json.dumps(found)


def test_the_system_is_read_from_os_release(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n')
    found = observe()["os"]
    assert (found["id"], found["version_id"], found["codename"]) == ("ubuntu", "22.04", "jammy")


def test_a_loaded_driver_that_is_not_the_installed_one_asks_for_a_reboot(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/sys/module/nvidia/version", "515.86.01\n")
    machine.file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  515.86.01  Release Build\n",
    )
    machine.answer(
        "modinfo nvidia", "version:  580.95.05\nlicense:  NVIDIA\nsigner:  DKMS module\n"
    )
    found = observe()
    assert found["driver"]["loaded"] == "515.86.01"
    assert found["driver"]["on_disk"] == "580.95.05"
    assert found["driver"]["kernel_flavour"] == "open"
    assert found["driver"]["disk_flavour"] == "proprietary"
    assert found["reboot"]["reasons"] == ["driver 515.86.01 is loaded, 580.95.05 is installed"]


def test_nouveau_on_the_gpus_asks_for_a_reboot_once_a_driver_is_installed(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer("lsmod", "Module  Size  Used by\nnouveau  1  0\n")
    assert observe()["reboot"]["reasons"] == []
    machine.answer("modinfo nvidia", "version:  515.86.01\n")
    assert "nouveau holds the GPUs" in observe()["reboot"]["reasons"][0]


def test_a_kernel_parameter_that_waits_for_the_boot_asks_for_one(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/etc/default/grub", 'GRUB_CMDLINE_LINUX="quiet"\n')
    machine.file(
        "/etc/default/grub.d/60-railweld.cfg",
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n',
    )
    machine.file("/proc/cmdline", "root=/dev/sda1 ro\n")
    assert observe()["reboot"]["reasons"] == [
        "kernel parameters configured but not active: iommu=pt"
    ]
    machine.file("/proc/cmdline", "root=/dev/sda1 ro iommu=pt\n")
    assert observe()["reboot"]["reasons"] == []


def test_huge_pages_are_read_by_size(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    assert observe()["kernel"]["huge_pages"] == {"reserved": {}, "transparent": None}
    machine.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64\n")
    machine.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    found = observe()["kernel"]["huge_pages"]
    assert found == {"reserved": {"2048": 64}, "transparent": "madvise"}


def test_gpus_are_read_from_a_recorded_answer(probe: ModuleType) -> None:
    line = (
        "0, NVIDIA A100-SXM4-80GB, GPU-1, 00000000:07:00.0, 515.86.01, Enabled, Enabled, Enabled, "
        "Disabled, [N/A]"
    )
    gpu = probe.parse_gpus(line + "\nnonsense\n")[0]
    assert gpu["name"] == "A100-SXM4-80GB"
    assert (gpu["persistence"], gpu["ecc"], gpu["mig"], gpu["mig_pending"]) == (
        True,
        True,
        False,
        None,
    )


def test_what_nvidia_smi_says_when_it_fails_is_kept(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    smi = observe()["driver"]["smi"]
    assert not smi["ok"]
    assert "version mismatch" in smi["error"]


def test_pci_devices_are_counted_by_vendor_and_class(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    for name, vendor, kind in (
        ("0000:07:00.0", "0x10de", "0x030200"),
        ("0000:08:00.0", "0x10de", "0x030200"),
        ("0000:c4:00.0", "0x10de", "0x068000"),
        ("0000:0c:00.0", "0x15b3", "0x020000"),
        ("0000:00:1f.0", "0x8086", "0x060100"),
    ):
        machine.file(f"/sys/bus/pci/devices/{name}/vendor", vendor + "\n")
        machine.file(f"/sys/bus/pci/devices/{name}/class", kind + "\n")
    found = observe()["pci"]
    assert (found["gpus"], found["nvswitches"], found["hcas"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a\t1\tii ", {"version": "1", "status": "ii", "hold": False}),
        ("a\t1\thi ", {"version": "1", "status": "ii", "hold": True}),
        ("a\t1\tiF ", {"version": "1", "status": "iF", "hold": False}),
        ("a\t1\tiU ", {"version": "1", "status": "iU", "hold": False}),
        ("a\t1\tiiR", {"version": "1", "status": "iiR", "hold": False}),
        ("a\t\tun ", None),
        ("b\t1\tii ", None),
    ],
)
def test_only_complete_packages_count_as_installed(
    probe: ModuleType, line: str, expected: dict[str, Any] | None
) -> None:
    assert probe.parse_packages(line, ["a"]).get("a") == expected


def test_tracking_of_chrony_is_read(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer(
        "systemctl show --property=Id",
        "Id=chrony.service\nLoadState=loaded\nActiveState=active\nSubState=running\n"
        "UnitFileState=enabled\n",
    )
    machine.answer(
        "chronyc -c tracking",
        "0AD50010,10.213.0.10,11,1700000000.0,0.812000000,0.1,0.2,1.0,0.0,0.1,0.0005,0.001,64.0,Normal",
    )
    found = observe()["time"]
    assert (found["daemon"], found["synced"], found["offset_s"]) == ("active", True, 0.812)
    assert found["stratum"] == 11


def test_a_clock_without_a_source_has_no_offset_rather_than_a_good_one(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer(
        "systemctl show --property=Id",
        "Id=chrony.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n",
    )
    machine.answer(
        "chronyc -c tracking",
        "00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised",
    )
    found = observe()["time"]
    assert not found["synced"]
    assert found["offset_s"] is None


def test_a_record_reports_files_that_changed_since(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/etc/same", "a")
    machine.file("/etc/changed", "b")
    digest = hashlib.sha256(b"a").hexdigest()
    machine.file(
        "/var/lib/railweld/roles/chrony.json",
        json.dumps(
            {
                "inputs": "x",
                "files": {"/etc/same": digest, "/etc/changed": digest, "/etc/gone": digest},
            }
        ),
    )
    assert observe()["records"]["chrony"]["drifted"] == ["/etc/changed", "/etc/gone"]


@pytest.mark.parametrize("text", ["", '{"inputs": "x"', "[1]"])
def test_half_a_record_is_no_record(
    machine: Machine, observe: Callable[..., dict[str, Any]], text: str
) -> None:
    machine.file("/var/lib/railweld/roles/chrony.json", text)
    assert observe()["records"] == {}


def test_an_rdma_port_is_read_from_sysfs(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    base = "/sys/class/infiniband/mlx5_0"
    machine.file(f"{base}/fw_ver", "20.32.1010\n")
    machine.file(f"{base}/ports/1/state", "4: ACTIVE\n")
    machine.file(f"{base}/ports/1/phys_state", "5: LinkUp\n")
    machine.file(f"{base}/ports/1/rate", "100 Gb/sec (4X EDR)\n")
    machine.file(f"{base}/ports/1/link_layer", "Ethernet\n")
    machine.file(f"{base}/ports/1/gid_attrs/ndevs/0", "rail1\n")
    (port,) = observe()["hcas"]
    assert (port["state"], port["phys_state"], port["rate_gbps"]) == ("ACTIVE", "LinkUp", 100)
    assert (port["link_layer"], port["netdev"], port["fw_version"]) == (
        "Ethernet",
        "rail1",
        "20.32.1010",
    )


def test_an_infiniband_port_tells_its_subnet_and_partitions(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    folder = "/sys/class/infiniband/mlx5_0/ports/1"
    machine.file(f"{folder}/link_layer", "InfiniBand\n")
    machine.file(f"{folder}/lid", "0x1b\n")
    machine.file(f"{folder}/sm_lid", "0x1\n")
    for row, key in enumerate(("0xffff", "0x0000", "0x8001")):
        machine.file(f"{folder}/pkeys/{row}", f"{key}\n")
    (port,) = observe()["hcas"]
    assert (port["lid"], port["sm_lid"], port["pkeys"]) == ("0x1b", "0x1", ["0x8001", "0xffff"])


def test_pfc_is_read_from_mlnx_qos_and_from_dcb(probe: ModuleType) -> None:
    text = (
        "Priority trust state: dscp\nPFC configuration:\n"
        "\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0\n"
    )
    values = probe.parse_mlnx_qos(text)
    assert values["trust"] == "dscp"
    assert [number for number, on in enumerate(values["pfc"]) if on] == [3]
    listed = probe.parse_dcb_pfc({"prio-pfc": [False] * 3 + [True] + [False] * 4})
    assert listed == values["pfc"]
    assert probe.parse_dcb_pfc({}) is None


def test_nccl_is_known_by_its_library_not_by_dpkg(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/usr/lib/x86_64-linux-gnu/libnccl.so.2.14.3")
    machine.file(
        "/usr/include/nccl.h",
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 14\n#define NCCL_PATCH 3\n",
    )
    assert observe()["nccl"] == {"version": "2.14.3", "header": "2.14.3"}


def test_an_interrupted_dpkg_is_seen(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/var/lib/dpkg/updates/0001")
    machine.answer(
        "dpkg --audit",
        "The following packages are only half configured\n nvidia-dkms-515     the driver\n",
    )
    assert observe()["dpkg"] == {
        "audit": ["nvidia-dkms-515"],
        "interrupted": True,
        "lock_held_by": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("SecureBoot enabled", "on"), ("SecureBoot disabled", "off")],
)
def test_secure_boot_is_what_the_firmware_says(
    machine: Machine, observe: Callable[..., dict[str, Any]], text: str, expected: str
) -> None:
    machine.answer("mokutil --sb-state", text)
    assert observe()["kernel"]["secure_boot"] == expected


def test_a_machine_without_efi_has_no_secure_boot(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer("mokutil --sb-state", "", 255, "EFI variables are not supported on this system")
    assert observe()["kernel"]["secure_boot"] == "unsupported"


def test_an_address_that_nobody_serves_is_reported(probe: ModuleType) -> None:
    found = probe.read_reachable(["http://127.0.0.1:1/Release", "ftp://x"], 2)
    assert not found["http://127.0.0.1:1/Release"]["ok"]
    assert found["ftp://x"]["error"] == "not an http or https address"


def test_areas_that_the_caller_carries_are_not_read_again(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.answer("modinfo nvidia", "version:  515.86.01\n")
    first = observe()
    machine.answer("modinfo nvidia", "version:  580.95.05\n")
    carried = observe(
        carry={
            key: first[key]
            for key in ("driver", "gpus", "fabric_manager", "cuda", "nccl", "hcas", "rdma")
        }
    )
    assert carried["driver"]["on_disk"] == "515.86.01"
    assert observe()["driver"]["on_disk"] == "580.95.05"
    assert set(carried) == set(first)


def test_files_that_are_asked_for_come_with_digest_and_text(
    machine: Machine, observe: Callable[..., dict[str, Any]]
) -> None:
    machine.file("/etc/hostname", "gpu1\n")
    found = observe(contents=["/etc/hostname"], files=["/etc/none"])["files"]
    assert found["/etc/hostname"]["content"] == "gpu1"
    assert found["/etc/hostname"]["sha256"] == hashlib.sha256(b"gpu1\n").hexdigest()
    assert found["/etc/none"] is None
