"""The programs that role rdma installs, run against tools and kernel files that keep state."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.loading import load_file

FILES = Path(__file__).parents[3] / "roles/rdma/files"

MLNX_QOS = r"""#!/usr/bin/env python3
import json, pathlib, sys
path = pathlib.Path(__file__).parent / (sys.argv[2] + ".json")
if not path.exists():
    sys.exit("Netdev does not exist")
state = json.loads(path.read_text())
for option in sys.argv[3:]:
    key, value = option.lstrip("-").split("=", 1)
    if key == "dscp2prio":
        _, dscp, prio = value.split(",")
        state["map"][dscp] = int(prio)
    else:
        state[key] = value
path.write_text(json.dumps(state))
print("DCBX mode:", "OS controlled" if state["dcbx"] == "os" else "Firmware controlled")
print("Priority trust state:", state["trust"])
print("dscp2prio mapping:")
for prio in range(8):
    codes = [f"{int(code):02d}" for code, value in state["map"].items() if value == prio]
    if codes:
        print(f"\tprio:{prio} dscp:{','.join(codes)},")
print("PFC configuration:")
print("\tpriority    0   1   2   3   4   5   6   7")
print("\tenabled     " + "   ".join(state["pfc"].split(",")) + "   ")
"""

DCB = r"""#!/usr/bin/env python3
import json, pathlib, sys
words = [word for word in sys.argv[1:] if word != "-N"]
thing, action, _, device, *rest = words
path = pathlib.Path(__file__).parent / (device + ".json")
state = json.loads(path.read_text())
if thing == "dcbx":
    if action == "set" and not state["dcbx"]:
        sys.exit("dcb: Operation not supported")
    if action == "set":
        state["dcbx"] = rest
    print(" ".join(state["dcbx"]))
elif thing == "app" and action == "show":
    print("dscp-prio " + " ".join(f"{code}:{prio}" for code, prio in state["map"].items()))
elif thing == "app":
    for pair in rest[1:]:
        code, prio = pair.split(":")
        state["map"][code] = int(prio)
elif action == "show":
    words = [f"{n}:{'on' if on else 'off'}" for n, on in enumerate(state["pfc"])]
    print("prio-pfc " + " ".join(words))
else:
    for pair in rest[1:]:
        prio, value = pair.split(":")
        for number in range(8) if prio == "all" else [int(prio)]:
            state["pfc"][number] = value == "on"
path.write_text(json.dumps(state))
"""


def load(name: str) -> ModuleType:
    return load_file(FILES / f"{name}.py")


class Machine:
    """Kernel files below a folder, and the tool of one RDMA stack on PATH."""

    def __init__(self, folder: Path, stack: str) -> None:
        self.root = folder / "root"
        self.tools = folder / "bin"
        self.tools.mkdir()
        name, text = ("mlnx_qos", MLNX_QOS) if stack == "doca" else ("dcb", DCB)
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)
        ip = self.tools / "ip"
        ip.write_text(f'#!/bin/sh\necho "$6" > {self.root}/sys/class/net/$4/"$5"\n')
        ip.chmod(0o755)
        self.stack = stack
        self.config = folder / "roce.json"
        self.devices: list[dict[str, Any]] = []

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def read(self, path: str) -> str:
        return (self.root / path).read_text().strip()

    def add(self, hca: str, netdev: str) -> None:
        address = f"0000:0{len(self.devices)}:00.0"
        device = self.root / f"sys/devices/{address}"
        device.mkdir(parents=True)
        (self.root / f"sys/class/infiniband/{hca}").mkdir(parents=True)
        (self.root / f"sys/class/infiniband/{hca}/device").symlink_to(device)
        self.write(f"sys/class/net/{netdev}/mtu", "1500")
        self.write(f"sys/kernel/config/rdma_cm/{hca}/ports/1/default_roce_tos", "0")
        if self.stack == "doca":
            for name in ("roce_np/cnp_dscp", "roce_np/cnp_802p_prio", "roce_np/enable/3"):
                self.write(f"sys/class/net/{netdev}/ecn/{name}", "0")
            self.write(f"sys/class/infiniband/{hca}/tc/1/traffic_class", "Global tclass=0")
        else:
            for name in ("np_cnp_dscp", "np_cnp_prio_mode", "np_cnp_prio"):
                self.write(f"sys/kernel/debug/mlx5/{address}/cc_params/{name}", "1")
        state: dict[str, Any] = {"map": {}, "trust": "pcp", "pfc": "0,0,0,0,0,0,0,0", "dcbx": "fw"}
        if self.stack == "inbox":
            state = {"map": {}, "pfc": [False] * 8, "dcbx": ["cee", "ieee"]}
        (self.tools / f"{netdev}.json").write_text(json.dumps(state))
        self.devices.append({"hca": hca, "netdev": netdev, "port": 1})

    def state(self, netdev: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.tools / f"{netdev}.json").read_text())
        return found

    def run(self, command: str) -> int:
        settings = {
            "stack": self.stack,
            "priority": 3,
            "dscp": 26,
            "tos": 104,
            "cnp_dscp": 48,
            "cnp_priority": 6,
            "mtu": 9000,
            "devices": self.devices,
        }
        self.config.write_text(json.dumps(settings))
        code: int = load("railweld_roce").main(
            ["--config", str(self.config), command], root=str(self.root)
        )
        return code


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Machine]:
    def build(stack: str) -> Machine:
        made = Machine(tmp_path, stack)
        monkeypatch.setenv("PATH", f"{made.tools}:/usr/bin:/bin")
        return made

    return build


def test_ofed_ports_are_set_once_and_then_left_alone(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("doca")
    node.add("mlx5_0", "rail1")
    assert node.run("status") == 1
    assert node.run("apply") == 0
    assert "rail1: pfc: " in capsys.readouterr().out
    state = node.state("rail1")
    assert state["pfc"] == "0,0,0,1,0,0,0,0"
    assert (state["trust"], state["dcbx"]) == ("dscp", "os")
    assert state["map"] == {"26": 3, "48": 6}
    assert node.read("sys/class/net/rail1/mtu") == "9000"
    assert node.read("sys/class/net/rail1/ecn/roce_np/cnp_dscp") == "48"
    assert node.read("sys/class/net/rail1/ecn/roce_np/enable/3") == "1"
    assert node.read("sys/class/infiniband/mlx5_0/tc/1/traffic_class") == "104"
    assert node.read("sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos") == "104"
    assert node.run("status") == 0
    assert node.run("apply") == 0
    assert capsys.readouterr().out == ""


def test_mainline_ports_are_set_through_dcb(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    node.add("mlx5_1", "rail2")
    assert node.run("apply") == 0
    for netdev in ("rail1", "rail2"):
        state = node.state(netdev)
        assert state["pfc"] == [number == 3 for number in range(8)]
        assert state["map"] == {"26": 3, "48": 6}
        assert state["dcbx"] == ["host", "ieee"]
    debug = "sys/kernel/debug/mlx5/0000:01:00.0/cc_params"
    assert node.read(f"{debug}/np_cnp_dscp") == "48"
    assert node.read(f"{debug}/np_cnp_prio_mode") == "0"
    capsys.readouterr()
    assert node.run("status") == 0
    assert capsys.readouterr().out == ""


def test_driver_without_dcbx_object_is_left_without_it(machine: Callable[[str], Machine]) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    state = node.state("rail1")
    state["dcbx"] = []
    (node.tools / "rail1.json").write_text(json.dumps(state))
    assert node.run("apply") == 0
    assert node.state("rail1")["pfc"][3] is True
    assert node.run("status") == 0


def test_one_priority_too_many_is_put_right(machine: Callable[[str], Machine]) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    node.run("apply")
    state = node.state("rail1")
    state["pfc"][5] = True
    (node.tools / "rail1.json").write_text(json.dumps(state))
    assert node.run("status") == 1
    assert node.run("apply") == 0
    assert node.state("rail1")["pfc"] == [number == 3 for number in range(8)]


def test_a_missing_port_is_named_and_the_others_are_still_set(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("inbox")
    node.devices.append({"hca": "mlx5_9", "netdev": "rail9", "port": 1})
    node.add("mlx5_0", "rail1")
    assert node.run("apply") == 1
    assert "rail9: no such network device" in capsys.readouterr().err
    assert node.state("rail1")["pfc"][3] is True


def test_driver_without_congestion_settings_is_an_error_that_says_what_to_load(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    for path in (node.root / "sys/kernel/debug/mlx5/0000:00:00.0/cc_params").iterdir():
        path.unlink()
    path.parent.rmdir()
    assert node.run("apply") == 1
    assert "load mlx5_ib, and mount debugfs" in capsys.readouterr().err


def test_rdma_cm_without_configfs_is_an_error(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    (node.root / "sys/kernel/config/rdma_cm").rename(node.root / "sys/kernel/config/gone")
    assert node.run("apply") == 1
    assert "load rdma_cm, and mount configfs" in capsys.readouterr().err


def test_kernel_without_configfs_has_no_default_to_set(machine: Callable[[str], Machine]) -> None:
    node = machine("inbox")
    node.add("mlx5_0", "rail1")
    (node.root / "sys/kernel/config").rename(node.root / "sys/kernel/gone")
    assert node.run("apply") == 0
    assert node.run("status") == 0


def test_missing_tool_names_the_stack(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("doca")
    (node.tools / "mlnx_qos").unlink()
    assert node.run("status") == 1
    assert "found no mlnx_qos, expected it with RDMA stack doca" in capsys.readouterr().err


def test_failing_tool_is_quoted(
    machine: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine("doca")
    node.add("mlx5_0", "rail1")
    (node.tools / "rail1.json").unlink()
    assert node.run("apply") == 1
    assert "exit 1: Netdev does not exist" in capsys.readouterr().err


def configuration(control: int, *, before: int = 0) -> bytes:
    """Configuration space of a bridge with ACS, behind another capability."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | (0x148 << 20))
    struct.pack_into("<I", config, 0x148, 0x000D)
    struct.pack_into("<H", config, 0x148 + 6, control)
    config[0x10] = before
    return bytes(config)


@pytest.fixture
def bridges(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    def build(devices: dict[str, bytes]) -> Path:
        for address, config in devices.items():
            folder = tmp_path / "sys/bus/pci/devices" / address
            folder.mkdir(parents=True)
            (folder / "config").write_bytes(config)
        return tmp_path

    return build


def test_acs_is_cleared_and_nothing_else_is(bridges: Callable[[dict[str, bytes]], Path]) -> None:
    acs = load("railweld_acs")
    endpoint = bytes(256)
    root = bridges(
        {
            "0000:40:01.1": configuration(0x1D, before=7),
            "0000:41:00.0": configuration(0),
            "0000:42:00.0": endpoint,
        }
    )
    assert acs.main(["status"], root=str(root)) == 1
    assert acs.main(["apply"], root=str(root)) == 0
    config = root / "sys/bus/pci/devices/0000:40:01.1/config"
    assert config.read_bytes() == configuration(0, before=7)
    assert (root / "sys/bus/pci/devices/0000:42:00.0/config").read_bytes() == endpoint
    assert acs.main(["status"], root=str(root)) == 0


def test_acs_capability_list_that_loops_ends(bridges: Callable[[dict[str, bytes]], Path]) -> None:
    acs = load("railweld_acs")
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | (0x100 << 20))
    assert acs.main(["status"], root=str(bridges({"0000:40:01.1": bytes(config)}))) == 0


def test_acs_wrong_usage() -> None:
    assert load("railweld_acs").main([]) == 64
