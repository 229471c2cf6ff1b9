"""What the cluster stage derives from a description, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from railweld.cluster import model, stage
from railweld.errors import RailweldError
from railweld.site import Site

BuildSite = Callable[..., Site]


def test_one_control_plane_node_is_the_endpoint_itself(site: BuildSite) -> None:
    assert model.endpoint(site()) == "10.0.0.10:6443"


def test_three_control_plane_nodes_need_an_address_in_front(site: BuildSite) -> None:
    with pytest.raises(RailweldError, match=r"found 3 control-plane nodes.*Fix: set it"):
        model.fact(site(planes=3))
    given = site(planes=3, everywhere={"railweld_control_plane_endpoint": "api.tiny"})
    assert model.fact(given)["endpoint"] == "api.tiny:6443"


def test_even_control_plane_is_refused(site: BuildSite) -> None:
    given = site(planes=2, everywhere={"railweld_control_plane_endpoint": "api.tiny:443"})
    with pytest.raises(RailweldError, match="expected an odd number"):
        model.fact(given)


def test_manifest_network_without_a_manifest_is_refused(site: BuildSite) -> None:
    with pytest.raises(RailweldError, match="no railweld_cni_manifest"):
        model.fact(site(everywhere={"railweld_cni": "manifest"}))


def test_labels_and_taints_come_from_what_a_node_has(site: BuildSite) -> None:
    hosts = model.fact(site())["hosts"]
    assert hosts["gpu1"]["labels"] == {
        "nvidia.com/gpu.present": "true",
        "railweld.io/site": "tiny",
        "rdma.nvidia.com/available": "true",
    }
    assert hosts["gpu1"]["taints"] == [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    assert hosts["head1"]["labels"] == {"railweld.io/site": "tiny"}
    assert hosts["head1"]["taints"] == []


def test_gpu_nodes_give_whole_cpus_and_align_devices(site: BuildSite) -> None:
    hosts = model.fact(site(gpus={"railweld_reserved_cpus": "0-3"}))["hosts"]
    assert hosts["gpu1"]["kubelet"] == {
        "systemReserved": {"memory": "2Gi"},
        "reservedSystemCPUs": "0-3",
        "topologyManagerPolicy": "best-effort",
        "cpuManagerPolicy": "static",
    }
    assert hosts["head1"]["kubelet"]["cpuManagerPolicy"] == "none"


def test_images_from_files_are_not_collected(site: BuildSite) -> None:
    described = model.fact(site(everywhere={"railweld_image_archives": "/srv/images"}))
    kept = {host["kubelet"]["imageGCHighThresholdPercent"] for host in described["hosts"].values()}
    assert kept == {100}


def test_gpu_runtime_follows_the_containerd_of_the_set(site: BuildSite) -> None:
    assert model.fact(site())["hosts"]["gpu1"]["gpu_runtime"] == "runtime"
    chosen = site(gpus={"railweld_gpu_runtime": "none"})
    assert model.fact(chosen)["hosts"]["gpu1"]["gpu_runtime"] == "none"
    assert not model.fact(chosen)["hosts"]["gpu1"]["packages"]["container_toolkit"]


def test_a_view_does_not_depend_on_other_workers(site: BuildSite) -> None:
    described = model.fact(site())
    fewer = {**described, "hosts": {k: v for k, v in described["hosts"].items() if k != "gpu2"}}
    roles = Path(__file__).parents[3] / "roles"
    digests = [
        stage.inputs(roles, stage.host_view(each, "gpu1", {}), {}) for each in (described, fewer)
    ]
    assert digests[0] == digests[1]


def test_a_host_outside_the_cluster_is_named(site: BuildSite) -> None:
    with pytest.raises(RailweldError, match="store1: found in neither control_plane nor gpu_nodes"):
        model.view(model.fact(site()), "store1")


def test_image_archives_are_chosen_by_kind_of_node(site: BuildSite, tmp_path: Path) -> None:
    index = [
        {"file": "a.tar", "images": ["a:1"], "nodes": "node", "sha256": "1"},
        {"file": "b.tar", "images": ["b:1"], "nodes": "control_plane", "sha256": "2"},
    ]
    for each in index:
        (tmp_path / str(each["file"])).touch()
    (tmp_path / "index.json").write_text(json.dumps(index))
    described = {**model.fact(site()), "images": stage.read_index(str(tmp_path))}

    def files(name: str) -> list[str]:
        return [each["file"] for each in stage.host_view(described, name, {})["host"]["images"]]

    assert files("gpu1") == ["a.tar"]
    assert files("head1") == ["a.tar", "b.tar"]


def test_missing_or_broken_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RailweldError, match=r"index\.json .*railweld lab kubernetes"):
        stage.read_index(str(tmp_path))
    (tmp_path / "index.json").write_text('[{"file": "gone.tar"}]')
    with pytest.raises(RailweldError, match=r"gone\.tar, which is not in that folder"):
        stage.read_index(str(tmp_path))
