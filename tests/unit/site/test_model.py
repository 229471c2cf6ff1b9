"""What follows from a description, and the fact that roles read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.errors import RailweldError
from railweld.site import SiteError, load_site
from railweld.site.model import Gpu, expand_port

REPOSITORY = Path(__file__).parents[3]


def test_traffic_class_byte_is_four_times_the_dscp(draft: Any) -> None:
    assert draft.site().nccl_ib_tc == 104


def test_hcas_follow_from_rails_and_index(draft: Any) -> None:
    first, second = draft.site().host("gpu2").hcas
    assert (first.address, first.port) == ("10.10.1.2/24", "Ethernet2/1")
    assert (second.address, second.port) == ("10.10.2.2/24", "Ethernet18/1")
    assert draft.site().ib_hca_list("gpu2") == "=mlx5_0:1,mlx5_1:1"


def test_index_of_a_node_can_be_given(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_node_index": 7}
    assert draft.site().host("gpu2").hcas[0].address == "10.10.1.7/24"


def test_override_changes_one_hca_of_one_node(draft: Any) -> None:
    draft.host_vars["gpu2"] = {
        "railweld_hca_overrides": {
            "mlx5_1": {"address": "10.10.2.77", "port": "Ethernet30/1", "rate_gbps": 200}
        }
    }
    hca = draft.site().host("gpu2").hcas[1]
    assert (hca.address, hca.port, hca.rate_gbps) == ("10.10.2.77/24", "Ethernet30/1", 200)
    assert draft.site().host("gpu1").hcas[1].port == "Ethernet17/1"


@pytest.mark.parametrize(
    ("model", "gres"),
    [
        ("A100-SXM4-80GB", "gpu:a100:8"),
        ("H100 80GB HBM3", "gpu:h100:8"),
        ("Tesla V100-SXM2-32GB", "gpu:v100:8"),
    ],
)
def test_gres_follows_from_model_and_count(model: str, gres: str) -> None:
    gpu = Gpu(count=8, model=model, persistence=True, ecc=True, mig=False)
    assert f"gpu:{gpu.gres_type}:{gpu.count}" == gres


def test_nodes_without_gpus_have_no_gres_and_no_hcas(draft: Any) -> None:
    site = draft.site()
    assert (site.gres("head1"), site.ib_hca_list("head1")) == ("", "")


def test_unknown_host_is_named(draft: Any) -> None:
    with pytest.raises(RailweldError, match="found no host 'gpu9'"):
        draft.site().gres("gpu9")


def test_switch_ports_follow_from_hosts_and_uplinks(draft: Any) -> None:
    draft.hosts["spines"] = {"spine1": "10.0.0.31"}
    draft.group_vars["spines"] = {
        "railweld_switch_model": "DCS-7280CR3-32P4",
        "railweld_uplinks": [
            {"port": "Ethernet1/1", "peer": "leaf1", "peer_port": "Ethernet32/1", "cable_m": 30}
        ],
    }
    site = draft.site()
    leaf = {(p.name, p.kind, p.peer, p.peer_port) for p in site.switches["leaf1"].ports}
    assert leaf == {
        ("Ethernet1/1", "host", "gpu1", "rail1"),
        ("Ethernet17/1", "host", "gpu1", "rail2"),
        ("Ethernet2/1", "host", "gpu2", "rail1"),
        ("Ethernet18/1", "host", "gpu2", "rail2"),
        ("Ethernet32/1", "uplink", "spine1", "Ethernet1/1"),
    }
    (spine,) = site.switches["spine1"].ports
    assert (spine.peer, spine.peer_port, spine.cable_m) == ("leaf1", "Ethernet32/1", 30)


def test_uplink_written_on_both_ends_is_one_cable(draft: Any) -> None:
    draft.hosts["spines"] = {"spine1": "10.0.0.31"}
    draft.group_vars["spines"] = {"railweld_switch_model": "DCS-7280CR3-32P4"}
    ends = (("leaf1", "Ethernet32/1", "spine1", "Ethernet1/1"),)
    ends += (("spine1", "Ethernet1/1", "leaf1", "Ethernet32/1"),)
    for name, port, peer, peer_port in ends:
        uplink = {"port": port, "peer": peer, "peer_port": peer_port}
        draft.host_vars[name] = {"railweld_uplinks": [uplink]}
    site = draft.site()
    assert [p.name for p in site.switches["leaf1"].ports if p.kind == "uplink"] == ["Ethernet32/1"]
    assert len(site.switches["spine1"].ports) == 1


@given(index=st.integers(0, 5000), plus=st.integers(0, 500), times=st.integers(1, 9))
def test_port_arithmetic(index: int, plus: int, times: int) -> None:
    assert expand_port("Ethernet{index}/1", index) == f"Ethernet{index}/1"
    assert expand_port(f"E{{index+{plus}}}", index) == f"E{index + plus}"
    assert expand_port(f"E{{index*{times}-{plus}}}", index) == f"E{index * times - plus}"


# --- the fact ----------------------------------------------------------------------------------


def test_fact_is_json_and_covers_nodes_only(draft: Any) -> None:
    fact = draft.site().fact()
    assert json.loads(json.dumps(fact)) == fact
    assert set(fact["hosts"]) == {"head1", "gpu1", "gpu2"}


def test_fact_of_the_site_carries_what_must_agree(draft: Any) -> None:
    site = draft.site().fact()["site"]
    assert site["lossless"] == {
        "priority": 3,
        "dscp": 26,
        "queue": 3,
        "traffic_class_byte": 104,
    }
    assert site["cnp"] == {"dscp": 48, "priority": 6}
    assert site["time"] == {"servers": ["10.0.0.10"], "sources": [], "max_offset_ms": 100}


def test_fact_pins_every_package_of_a_gpu_node(draft: Any) -> None:
    fact = draft.site().fact()["hosts"]
    packages = fact["gpu1"]["packages"]
    assert set(packages) == {"driver", "fabric_manager", "cuda", "nccl", "rdma", "doca"}
    for component in ("driver", "cuda", "nccl"):
        assert packages[component]
        assert all(package["version"] for package in packages[component])
    assert all(listed == [] for listed in fact["head1"]["packages"].values())


def test_fact_repositories_are_the_vendors_unless_mirrored(draft: Any) -> None:
    vendor = draft.site().fact()["hosts"]["gpu1"]["repositories"]
    assert [entry["id"] for entry in vendor] == ["cuda"]
    assert vendor[0]["url"].startswith("https://developer.download.nvidia.com/")
    draft.group_vars["all"]["railweld_mirrors"] = {
        "cuda": {"url": "http://mirror/cuda"},
        "os": {
            "url": "http://mirror/os",
            "suite": "noble",
            "components": ["main"],
            "key_url": "http://mirror/key.asc",
            "key_fingerprint": "0123 4567 89AB CDEF 0123  4567 89ab cdef 0123 4567",
        },
    }
    mirrored = {
        entry["id"]: entry for entry in draft.site().fact()["hosts"]["gpu1"]["repositories"]
    }
    assert mirrored["cuda"]["url"] == "http://mirror/cuda"
    # A plain copy of a signed repository still carries the vendor's signature.
    assert mirrored["cuda"]["key_url"] == vendor[0]["key_url"]
    assert mirrored["os"]["key_fingerprint"] == "0123456789ABCDEF0123456789ABCDEF01234567"
    assert (mirrored["os"]["suite"], mirrored["os"]["components"]) == ("noble", ["main"])


def test_fact_takes_the_sets_choice_unless_the_site_says_otherwise(draft: Any) -> None:
    host = draft.site().fact()["hosts"]["gpu1"]
    assert (host["driver"]["modules"], host["cuda"]["compat"]) == ("open", False)
    draft.group_vars["all"]["railweld_version_set"] = "a100-2023"
    draft.group_vars["all"]["railweld_vendor_repository"] = "ubuntu2204"
    draft.group_vars["gpu_nodes"]["railweld_gpu_model"] = "A100-SXM4-80GB"
    host = draft.site().fact()["hosts"]["gpu1"]
    assert (host["driver"]["version"], host["cuda"]["compat"]) == ("515.86.01", True)
    names = {package["name"] for package in host["packages"]["cuda"]}
    assert "cuda-compat-12-1" in names


def test_fact_has_no_secret(draft: Any) -> None:
    draft.group_vars["leaves"]["railweld_switch_enable_secret"] = "canary-4711"
    site = draft.site()
    assert site.switch_enable_secret.get_secret_value() == "canary-4711"
    assert "canary" not in json.dumps(site.fact())
    assert "canary" not in repr(site)


# --- the inventories that ship -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "nodes", "switches"), [("lab", 4, 3), ("example-a100", 17, 2)])
def test_shipped_inventory_is_right(name: str, nodes: int, switches: int) -> None:
    site = load_site([str(REPOSITORY / "inventories" / name)])
    assert (site.name, len(site.hosts), len(site.switches)) == (name, nodes, switches)


def test_example_fills_both_leaves_exactly() -> None:
    site = load_site([str(REPOSITORY / "inventories/example-a100")])
    for leaf in ("leaf1", "leaf2"):
        assert sorted(p.name for p in site.switches[leaf].ports) == sorted(
            f"Ethernet{number}/1" for number in range(1, 33)
        )


def test_wrong_site_raises_with_every_error(draft: Any) -> None:
    draft.group_vars["all"] |= {"railweld_lossless_priority": 9, "railweld_reboot": "never"}
    with pytest.raises(SiteError) as caught:
        load_site([str(draft.write())])
    assert "the site description has 2 errors" in str(caught.value)
    assert len([p for p in caught.value.problems if p.is_error]) == 2
