"""The NCCL environment per transport, version and network mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.nccl import (
    ADVICE,
    GidRow,
    NcclArgs,
    choose_gid_index,
    judge,
    profile,
    profiles_for,
    read_gid_table,
)
from railweld.site import load_site

ROOT = Path(__file__).resolve().parents[3]
HCAS = ("mlx5_0", "mlx5_1")


def roce(nccl: str = "2.28.9", **changes: object) -> NcclArgs:
    values = {"nccl": nccl, "transport": "roce", "hcas": HCAS, "traffic_class": 104, **changes}
    return NcclArgs(**values)


def test_roce_marks_the_lossless_class_and_names_exact_ports() -> None:
    environment = profile(roce()).environment
    assert environment["NCCL_IB_TC"] == "104"
    assert environment["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert environment["NCCL_NET"] == "IB"


def test_infiniband_has_no_traffic_class_and_needs_no_gid() -> None:
    result = profile(NcclArgs(nccl="2.14.3", transport="infiniband", hcas=HCAS))
    assert "NCCL_IB_TC" not in result.environment
    assert not result.needs_gid_index


@pytest.mark.parametrize(
    ("nccl", "needed"), [("2.14.3", True), ("2.20.5", True), ("2.21.5", False), ("2.28.9", False)]
)
def test_no_profile_carries_a_gid_row_and_old_nccl_says_that_it_needs_one(
    nccl: str, needed: bool
) -> None:
    result = profile(roce(nccl))
    assert "NCCL_IB_GID_INDEX" not in result.environment
    assert result.needs_gid_index is needed


@pytest.mark.parametrize(
    ("nccl", "present"),
    [("2.23.4", False), ("2.24.3", True), ("2.26.2", True), ("2.26.5", False), ("2.28.9", False)],
)
def test_cumem_host_is_off_only_where_it_breaks(nccl: str, present: bool) -> None:
    assert ("NCCL_CUMEM_HOST_ENABLE" in profile(roce(nccl)).environment) is present


def test_one_node_is_not_made_to_use_the_network() -> None:
    assert "NCCL_NET" not in profile(roce(nodes=1)).environment


def test_pods_of_a_second_network_meet_on_their_own_eth0() -> None:
    environment = profile(roce(network_mode="macvlan")).environment
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0"


def test_host_network_keeps_the_bootstrap_off_rails_and_virtual_devices() -> None:
    environment = profile(roce(rail_netdevs=("ens2f0np0", "ens1f0np0"))).environment
    value = environment["NCCL_SOCKET_IFNAME"]
    assert value.startswith("^lo,")
    assert value.endswith(",ens1f0np0,ens2f0np0")
    assert "GLOO_SOCKET_IFNAME" not in environment


def test_a_named_bootstrap_device_is_exact() -> None:
    environment = profile(roce(bootstrap_interface="eno1")).environment
    assert environment["NCCL_SOCKET_IFNAME"] == "=eno1"


def test_rings_stay_on_rails_that_are_not_connected() -> None:
    assert profile(roce(rails_connected=False)).environment["NCCL_CROSS_NIC"] == "0"
    assert "NCCL_CROSS_NIC" not in profile(roce(rails_connected=True)).environment


def test_long_timeout_is_for_large_fabrics_only() -> None:
    assert "NCCL_IB_TIMEOUT" not in profile(roce()).environment
    assert profile(roce(size="large")).environment["NCCL_IB_TIMEOUT"] == "22"


def test_a_measurement_logs_its_network() -> None:
    assert profile(roce(bench=True)).environment["NCCL_DEBUG"] == "INFO"
    assert profile(roce()).environment["NCCL_DEBUG"] == "WARN"


def test_the_site_wins_and_is_told_what_is_wrong() -> None:
    result = profile(roce(extra={"NCCL_IB_GID_INDEX": "3", "NCCL_DEBUG": "INFO"}))
    assert result.environment["NCCL_DEBUG"] == "INFO"
    assert [finding.advice.variable for finding in result.findings] == ["NCCL_IB_GID_INDEX"]
    assert "differs per pod" in result.findings[0].sentence()


def test_the_reference_builds_seven_variables_are_judged() -> None:
    reference = {
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_NET_GDR_READ": "1",
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_BLOCKING_WAIT": "1",
    }
    current = {f.advice.variable for f in judge(reference, nccl="2.28.9", transport="roce")}
    assert current == set(reference)
    old = {f.advice.variable for f in judge(reference, nccl="2.14.3", transport="roce")}
    assert old == set(reference) - {"NCCL_IB_GID_INDEX", "NCCL_MIN_NCHANNELS"}


def test_missing_traffic_class_and_bad_version_are_refused() -> None:
    with pytest.raises(ValueError, match="DSCP x 4"):
        roce(traffic_class=None)
    with pytest.raises(ValueError, match=r"expected a version"):
        roce("newest")


@given(
    nccl=st.sampled_from(["2.14.3", "2.20.5", "2.21.5", "2.24.3", "2.28.9", "2.32.3"]),
    transport=st.sampled_from(["roce", "infiniband"]),
    mode=st.sampled_from(["host", "macvlan", "sriov", "dra"]),
    nodes=st.integers(1, 2000),
    size=st.sampled_from(["standard", "large"]),
)
def test_no_derived_profile_contains_what_the_advice_warns_of(
    nccl: str, transport: str, mode: str, nodes: int, size: str
) -> None:
    args = roce(nccl, transport=transport, network_mode=mode, nodes=nodes, size=size)
    result = profile(args)
    assert judge(result.environment, nccl=nccl, transport=transport) == []
    assert all(each.reason for each in result.variables)
    names = [each.name for each in result.variables]
    assert names == sorted(set(names))


def test_every_advice_says_why_and_what_instead() -> None:
    assert all(each.reason and each.instead for each in ADVICE)


def test_conf_has_nccls_own_variables_with_reasons() -> None:
    text = profile(roce()).conf()
    assert "NCCL_IB_TC=104" in text
    assert "TORCH_" not in text
    lines = text.splitlines()
    assert all(line.startswith("# ") for line in lines[::2])


def test_example_site_gives_one_profile_per_partition() -> None:
    site = load_site([str(ROOT / "inventories/example-a100")])
    result = profiles_for(site)["gpu"]
    assert result.environment["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"
    assert result.environment["NCCL_IB_TC"] == "104"
    # Four rails, four subnets, no router between them.
    assert result.environment["NCCL_CROSS_NIC"] == "0"
    assert result.needs_gid_index


def write_port(root: Path, rows: list[tuple[int, str, str | None, str]]) -> None:
    base = root / "class/infiniband/mlx5_0/ports/1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (base / folder).mkdir(parents=True)
    for index, gid, kind, netdev in rows:
        (base / "gids" / str(index)).write_text(gid + "\n")
        if kind is not None:
            (base / "gid_attrs/types" / str(index)).write_text(kind + "\n")
            (base / "gid_attrs/ndevs" / str(index)).write_text(netdev + "\n")


def test_gid_row_is_found_by_type_and_address(tmp_path: Path) -> None:
    write_port(
        tmp_path,
        [
            (0, "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1", "eth1"),
            (1, "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2", "eth1"),
            (2, "0000:0000:0000:0000:0000:ffff:0a15:0101", "IB/RoCE v1", "eth1"),
            (3, "0000:0000:0000:0000:0000:ffff:0a15:0101", "RoCE v2", "eth1"),
            (10, "0000:0000:0000:0000:0000:ffff:0a15:0109", "RoCE v2", "net1"),
            (11, "0000:0000:0000:0000:0000:0000:0000:0000", None, ""),
        ],
    )
    rows = read_gid_table("mlx5_0", sysfs=tmp_path)
    assert [row.index for row in rows] == [0, 1, 2, 3, 10]
    assert choose_gid_index(rows) == 3
    assert choose_gid_index(rows, address="10.21.1.9") == 10
    assert choose_gid_index(rows, netdev="net1") == 10
    assert choose_gid_index(rows, address="10.9.9.9") is None


def test_no_port_no_rows(tmp_path: Path) -> None:
    assert read_gid_table("mlx5_7", sysfs=tmp_path) == ()
    assert choose_gid_index([GidRow(0, "fe80::1", "RoCE v2", "eth1")]) is None
