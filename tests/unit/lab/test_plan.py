"""From an inventory to nodes, addresses and hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.lab.plan import LabPlan, plan_lab
from railweld.lab.process import LabError


def plan(folder: Path, hosts: dict[str, Any], groups: dict[str, list[str]]) -> LabPlan:
    path = folder / "hosts.yml"
    path.write_text(
        yaml.safe_dump(
            {
                "all": {
                    "vars": {"railweld_site": "here"},
                    "hosts": hosts,
                    "children": {
                        group: {"hosts": dict.fromkeys(members)}
                        for group, members in groups.items()
                    },
                }
            }
        )
    )
    return plan_lab([str(path)])


def test_interfaces_keep_their_addresses_and_share_none(tmp_path: Path) -> None:
    hosts = {f"gpu{n}": {"ansible_host": f"10.213.7.1{n}"} for n in (1, 2)}
    nodes = plan(tmp_path, hosts, {"gpu_nodes": list(hosts), "time_servers": ["gpu1"]}).nodes
    assert [node.mac for node in nodes] == ["02:4c:0a:d5:07:0b", "02:4c:0a:d5:07:0c"]


def test_gpu_nodes_have_gpus_and_switches_are_no_nodes(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        {
            "head1": {"ansible_host": "10.213.7.10"},
            "gpu1": {"ansible_host": "10.213.7.11"},
            "leaf1": {"ansible_host": "10.213.7.21"},
        },
        {"gpu_nodes": ["gpu1"], "leaves": ["leaf1"], "time_servers": ["head1"]},
    )
    assert {node.name: len(node.hardware["gpus"]) for node in found.nodes} == {
        "head1": 0,
        "gpu1": 8,
    }
    assert found.mirror.name == "head1"
    assert str(found.subnet) == "10.213.7.0/24"
    assert found.container("gpu1") == "railweld-here-gpu1"


def test_rails_name_the_adapters_and_the_switch_ports(tmp_path: Path) -> None:
    rails = [
        {"rail": 1, "hca": "mlx5_4", "netdev": "ens1f0np0", "subnet": "10.1.0.0/24",
         "switch": "leaf1", "port": "Ethernet{index+16}/1", "rate_gbps": 200},
    ]  # fmt: skip
    found = plan(
        tmp_path,
        {"gpu3": {"ansible_host": "10.213.7.13", "railweld_rails": rails}},
        {"gpu_nodes": ["gpu3"]},
    )
    hca = found.nodes[0].hardware["hcas"][0]
    assert (hca["name"], hca["netdev"], hca["port"], hca["rate_gbps"], hca["link_layer"]) == (
        "mlx5_4",
        "ens1f0np0",
        "Ethernet19/1",
        200,
        "Ethernet",
    )


def test_hardware_is_the_same_in_every_run_and_differs_between_nodes(tmp_path: Path) -> None:
    hosts = {name: {"ansible_host": f"10.213.7.{n}"} for n, name in enumerate(["a1", "a2"], 11)}
    first = plan(tmp_path, hosts, {"gpu_nodes": ["a1", "a2"]})
    again = plan(tmp_path, hosts, {"gpu_nodes": ["a1", "a2"]})
    assert [node.digest("image") for node in first.nodes] == [
        node.digest("image") for node in again.nodes
    ]
    for kind, key in (("gpus", "uuid"), ("hcas", "guid"), ("hcas", "mac")):
        values = [part[key] for node in first.nodes for part in node.hardware[kind]]
        assert len(values) == len(set(values))


def test_a_changed_description_changes_the_digest(tmp_path: Path) -> None:
    before = plan(tmp_path, {"n1": {"ansible_host": "10.213.7.11"}}, {"gpu_nodes": ["n1"]})
    after = plan(
        tmp_path,
        {"n1": {"ansible_host": "10.213.7.11", "lab_profile": "h100x8"}},
        {"gpu_nodes": ["n1"]},
    )
    assert before.nodes[0].digest("image") != after.nodes[0].digest("image")


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ({"a": {"ansible_host": "a.example"}}, "a: ansible_host is 'a.example', expected an IPv4"),
        (
            {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1"}},
            "b: 10.0.0.1 is a's address too",
        ),
        (
            {"a": {"ansible_host": "10.0.0.1", "lab_profile": "cray"}},
            "a: lab_profile is 'cray', expected one of head, a100x8",
        ),
        (
            {"a": {"ansible_host": "10.0.0.1", "lab_subnet": "10.9.0.0/24"}},
            "a: address outside 10.9.0.0/24",
        ),
        ({"a": {"ansible_host": "10.0.0.1", "lab_subnet": "big"}}, "lab_subnet: found 'big'"),
    ],
)
def test_what_cannot_be_a_lab_is_refused(
    tmp_path: Path, hosts: dict[str, Any], message: str
) -> None:
    with pytest.raises(LabError) as caught:
        plan(tmp_path, hosts, {"gpu_nodes": list(hosts)})
    assert message in str(caught.value)


def test_an_unknown_node_is_named_with_the_known_ones(tmp_path: Path) -> None:
    found = plan(tmp_path, {"n1": {"ansible_host": "10.213.7.11"}}, {"gpu_nodes": ["n1"]})
    with pytest.raises(LabError, match="n2: no node of lab here, expected one of n1"):
        found.node("n2")
