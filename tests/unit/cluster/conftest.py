"""A small site and a converged member of its cluster, and ways to say what is different."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.cluster import model, stage
from railweld.site import Site, load_site
from railweld.verify.context import Context

ALL = {
    "railweld_site": "tiny",
    "railweld_version_set": "a100-2023",
    "railweld_version_overrides": {"kubernetes": "1.36.3"},
    "railweld_vendor_repository": "ubuntu2204",
}
GPU_NODES = {
    "railweld_gpu_count": 8,
    "railweld_gpu_model": "A100-SXM4-80GB",
    "railweld_rails": [
        {"rail": 1, "hca": "mlx5_0", "netdev": "rail1", "subnet": "10.10.1.0/24"},
    ],
}


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    """Build a site with the given variables and number of control-plane nodes."""

    def build(
        *,
        planes: int = 1,
        everywhere: dict[str, Any] | None = None,
        gpus: dict[str, Any] | None = None,
    ) -> Site:
        folder = tmp_path / "site"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        (folder / "group_vars/all.yml").write_text(yaml.safe_dump({**ALL, **(everywhere or {})}))
        (folder / "group_vars/gpu_nodes.yml").write_text(
            yaml.safe_dump({**GPU_NODES, **(gpus or {})})
        )
        heads = {f"head{n}": {"ansible_host": f"10.0.0.{9 + n}"} for n in range(1, planes + 1)}
        nodes = {f"gpu{n}": {"ansible_host": f"10.0.0.{20 + n}"} for n in (1, 2)}
        (folder / "hosts.yml").write_text(
            yaml.safe_dump(
                {
                    "all": {
                        "children": {
                            "control_plane": {"hosts": heads},
                            "slurm_head": {"hosts": {"head1": None}},
                            "time_servers": {"hosts": {"head1": None}},
                            "gpu_nodes": {"hosts": nodes},
                        }
                    }
                }
            )
        )
        return load_site([str(folder)])

    return build


SEEN = {
    "reachable": True,
    "error": "",
    "nodes": {
        "head1": {"pod_cidr": "10.244.0.0/24", "address": "10.0.0.10", "version": "1.36.3"},
        "gpu1": {"pod_cidr": "10.244.1.0/24", "address": "10.0.0.21", "version": "1.36.3"},
        "gpu2": {"pod_cidr": "10.244.2.0/24", "address": "10.0.0.22", "version": "1.36.3"},
    },
}


def installed(cluster: dict[str, Any]) -> dict[str, Any]:
    """Every pinned package, as dpkg shows it when it is installed and held."""
    return {
        pin["name"]: {"version": pin["version"] or "1.0-1", "status": "ii", "hold": True}
        for pins in cluster["host"]["packages"].values()
        for pin in pins
    }


def member_of(cluster: dict[str, Any]) -> dict[str, Any]:
    """What the probe sees on a node that is as described."""
    host = cluster["host"]
    return {
        "packages": installed(cluster),
        "time": {
            "daemon": "active",
            "synced": True,
            "leap": "Normal",
            "refid": "0A00000A",
            "offset_s": 0.0001,
            "sources": [{"address": "10.0.0.10", "reach": 255}],
        },
        "net": {
            "eth0": {"addresses": [f"{host['address']}/24"]},
            "default_route_dev": None,
            "routes": [
                {"dst": cluster["service_cidr"], "dev": "eth0", "prefsrc": host["address"]},
            ],
        },
        "driver": {"loaded": "515.86.01", "on_disk": "515.86.01", "smi": {"ok": True}},
        "cluster": {
            "containerd": {
                "version": "1.6.20",
                "active": True,
                "stale": False,
                "memlock": "unlimited",
                "nofile": 1048576,
                "systemd_cgroup": True,
                "sandbox_image": cluster["pause_image"],
                "runtimes": ["nvidia", "runc"],
                "cdi": False,
                "images": ["registry.k8s.io/pause:3.10.2"],
                "loaded": {},
            },
            "kubelet": {
                "version": "1.36.3",
                "active": True,
                "stale": False,
                "settings": {
                    key: host["kubelet"].get(key)
                    for key in (
                        "cpuManagerPolicy",
                        "topologyManagerPolicy",
                        "reservedSystemCPUs",
                        "imageGCHighThresholdPercent",
                        "systemReserved",
                    )
                },
            },
            "node": {
                "name": host["name"],
                "server": cluster["endpoint"],
                "error": "",
                "labels": dict(host["labels"]),
                "taints": list(host["taints"]),
                "ready": True,
                "pod_cidr": SEEN["nodes"][host["name"]]["pod_cidr"],
                "kubelet_version": "1.36.3",
                "waiting_pods": {},
            },
            "api": {"version": "1.36.3", "error": ""} if host["role"] == "control_plane" else None,
            "controllers": dict(host["controllers"]) if "controllers" in host else None,
            "certificates": {"/etc/kubernetes/pki/apiserver.crt": 300 * 86400},
            "unfinished": None,
            "sysctls": {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"},
            "swap": [],
            "pod_network": {
                "files": ["/etc/cni/net.d/10-railweld.conflist"],
                "unread": [],
                "subnet": SEEN["nodes"][host["name"]]["pod_cidr"],
                "links": {SEEN["nodes"][host["name"]]["pod_cidr"]: "cni0", "10.0.0.0/24": "eth0"},
                "routes": {
                    each["pod_cidr"]: each["address"]
                    for name, each in SEEN["nodes"].items()
                    if name != host["name"]
                },
            },
        },
    }


@pytest.fixture
def member(site: Callable[..., Site]) -> Callable[..., Context]:
    """Build the context of a converged member, changed at dotted paths of `node` or `cluster`."""

    def build(name: str = "gpu1", changes: dict[str, Any] | None = None) -> Context:
        described = site()
        fact = described.fact()
        cluster = stage.host_view(model.fact(described), name, copy.deepcopy(SEEN))
        tree: dict[str, Any] = {"cluster": cluster, "node": member_of(cluster)}
        for path, value in (changes or {}).items():
            *parents, last = path.split("|") if "|" in path else path.split(".")
            here = tree
            for key in parents:
                here = here[key]
            here[last] = value
        return Context(
            site=fact["site"], host=fact["hosts"][name], node=tree["node"], cluster=tree["cluster"]
        )

    return build
