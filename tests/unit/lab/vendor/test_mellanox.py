"""OFED's programs answer for the profile's adapters and keep what was set."""

from __future__ import annotations

import re
from typing import Any

import pytest

from railweld.lab.vendor.programs import mellanox


@pytest.fixture
def run(a100_node: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(program: str, *argv: str) -> tuple[int, str]:
        build = {"ofed": "OFED-internal-25.10-1.7.1", "version": "4.34.1-10"}
        code = getattr(mellanox, program)(list(argv), build, a100_node.machine)
        return code, capsys.readouterr().out

    return call


def pfc(text: str) -> str:
    match = re.search(r"^\s*enabled\s+((?:\d\s+){7}\d)", text, re.MULTILINE)
    assert match
    return match[1].replace(" ", "")


def test_ofed_info(run: Any) -> None:
    assert run("ofed_info", "-s") == (0, "OFED-internal-25.10-1.7.1:\n")
    assert run("ofed_info", "-n") == (0, "25.10-1.7.1\n")


def test_port_starts_without_trust_in_dscp_and_without_pfc(run: Any) -> None:
    code, out = run("mlnx_qos", "-i", "rail1")
    assert code == 0
    assert "Priority trust state: pcp" in out
    assert pfc(out) == "00000000"


def test_settings_are_kept_per_port(run: Any) -> None:
    assert run("mlnx_qos", "-i", "rail1", "--trust=dscp", "--pfc=0,0,0,1,0,0,0,0")[0] == 0
    assert run("mlnx_qos", "-i", "rail1", "--dcbx=os")[0] == 0
    out = run("mlnx_qos", "-i", "rail1")[1]
    assert "DCBX mode: OS controlled" in out
    assert "Priority trust state: dscp" in out
    assert pfc(out) == "00010000"
    assert pfc(run("mlnx_qos", "-i", "rail2")[1]) == "00000000"


def test_dscp_map_moves_one_code_point(run: Any) -> None:
    run("mlnx_qos", "-i", "rail1", "--trust", "dscp")
    out = run("mlnx_qos", "-i", "rail1", "--dscp2prio=set,48,3")[1]
    rows = [line for line in out.splitlines() if line.startswith("\tprio:3")]
    assert any("48," in row for row in rows)
    assert "48," not in next(line for line in out.splitlines() if line.startswith("\tprio:6"))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-i", "eth9"], "not found"),
        (["-i", "rail1", "--trust=both"], "not a valid trust state"),
        (["-i", "rail1", "--pfc=0,1"], "Bad value for --pfc"),
        (["-i", "rail1", "--dscp2prio=set,26,3"], "trust state is not dscp"),
        ([], "Usage"),
    ],
)
def test_mlnx_qos_refuses(run: Any, argv: list[str], text: str) -> None:
    code, out = run("mlnx_qos", *argv)
    assert code == 1
    assert text in out


def test_ibdev2netdev_shows_the_port_that_is_down(a100_node: Any, run: Any) -> None:
    a100_node.fault(hca_down=["mlx5_2"])
    assert run("ibdev2netdev")[1].splitlines() == [
        "mlx5_0 port 1 ==> rail1 (Up)",
        "mlx5_1 port 1 ==> rail2 (Up)",
        "mlx5_2 port 1 ==> rail3 (Down)",
        "mlx5_3 port 1 ==> rail4 (Up)",
    ]


def sysfs(node: Any) -> None:
    base = "sys/class/infiniband/mlx5_0"
    for path, text in {
        "hca_type": "MT4123",
        "fw_ver": "20.35.1012",
        "node_guid": "b8ce:f603:0012:3400",
        "sys_image_guid": "b8ce:f603:0012:3400",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": "100 Gb/sec (2X HDR)",
        "ports/1/link_layer": "Ethernet",
        "ports/1/gids/0": "fe80:0000:0000:0000:bace:f6ff:fe12:3400",
        "ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a0a:010b",
        "ports/1/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000",
        "ports/1/gid_attrs/types/3": "RoCE v2",
        "ports/1/gid_attrs/ndevs/3": "rail1",
    }.items():
        node.write(f"{base}/{path}", text + "\n")


def test_ibstat_reads_sysfs(a100_node: Any, run: Any) -> None:
    sysfs(a100_node)
    code, out = run("ibstat")
    assert code == 0
    for line in (
        "CA 'mlx5_0'",
        "\t\tState: Active",
        "\t\tPhysical state: LinkUp",
        "\t\tRate: 100",
        "\t\tLink layer: Ethernet",
        "\tNode GUID: 0xb8cef60300123400",
    ):
        assert line in out.splitlines()
    assert run("ibstat", "-l") == (0, "mlx5_0\n")
    assert run("ibstat", "mlx5_9")[0] == 255


def test_show_gids_names_address_version_and_device(a100_node: Any, run: Any) -> None:
    sysfs(a100_node)
    rows = [line.split() for line in run("show_gids")[1].splitlines()]
    assert rows[3][:4] == ["mlx5_0", "1", "3", "0000:0000:0000:0000:0000:ffff:0a0a:010b"]
    assert rows[3][4:] == ["10.10.1.11", "v2", "rail1"]
    assert rows[-1] == ["n_gids_found=2"]


def test_mst_devices_appear_after_start(run: Any) -> None:
    assert "/dev/mst" not in run("mst", "status")[1]
    run("mst", "start")
    assert "/dev/mst/mt4123_pciconf0" in run("mst", "status", "-v")[1]


def test_link_type_changes_at_the_next_boot(run: Any) -> None:
    assert "ETH(2)" in run("mlxconfig", "-d", "mlx5_0", "query", "LINK_TYPE_P1")[1]
    code, out = run("mlxconfig", "-d", "0000:01:00.0", "-y", "set", "LINK_TYPE_P1=1")
    assert code == 0
    assert "Please reboot machine" in out
    assert "IB(1)" in run("mlxconfig", "-d", "rail1", "q", "LINK_TYPE_P1")[1]


@pytest.mark.parametrize(
    ("program", "argv", "code"),
    [
        ("mlxconfig", ["-d", "mlx5_9", "q"], 3),
        ("mlxconfig", ["-d", "mlx5_0", "q", "NO_SUCH"], 3),
        ("mlxconfig", ["-d", "mlx5_0"], 3),
        ("mlxfwmanager", ["-u"], 1),
        ("flint", ["-d", "mlx5_9", "q"], 1),
        ("cma_roce_tos", ["-d", "mlx5_9"], 1),
    ],
)
def test_refusals(run: Any, program: str, argv: list[str], code: int) -> None:
    assert run(program, *argv)[0] == code


def test_firmware_is_the_profiles(run: Any) -> None:
    assert "FW             20.35.1012" in run("mlxfwmanager", "--query")[1]
    assert "PSID:                  MT_0000000223" in run("flint", "-d", "mlx5_0", "q")[1]


def test_rdma_cm_traffic_class_is_kept(run: Any) -> None:
    assert run("cma_roce_tos", "-d", "mlx5_0", "-t", "104") == (0, "104\n")
    assert run("cma_roce_tos", "-d", "mlx5_0") == (0, "104\n")
