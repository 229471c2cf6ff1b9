"""The cluster area of the probe on recorded outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
import yaml

from railweld.verify.roles import cni
from tests.loading import load_file

ROOT = Path(__file__).parents[3]

CONFIG_1 = """
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = false
    sandbox_image = "registry.k8s.io/pause:3.10.2"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          runtime_type = "io.containerd.runc.v2"
          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            SystemdCgroup = true
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
            SystemdCgroup = true
    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = "/etc/containerd/certs.d"
"""
CONFIG_2 = """
[plugins]
  [plugins.'io.containerd.cri.v1.images']
    [plugins.'io.containerd.cri.v1.images'.pinned_images]
      sandbox = 'registry.k8s.io/pause:3.10'
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            20000                20000                files
Max locked memory         unlimited            unlimited            bytes
"""


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    return load_file(ROOT / "plugins/module_utils/railweld_cluster_probe.py")


class Machine:
    """Files below a root and recorded answers of commands, as the probe's own node."""

    def __init__(self, root: Path, answers: dict[str, tuple[int, str, str]]) -> None:
        self.root, self.answers = root, answers
        self.asked: list[Sequence[str]] = []

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str, default: Any = None) -> Any:
        path = self.path(name)
        return path.read_text().rstrip("\n") if path.is_file() else default

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(argv)
        if "pods" in argv and "pods" in self.answers:
            return self.answers["pods"]
        return self.answers.get(argv[0], (127, "", f"{argv[0]}: not installed"))


def test_settings_of_both_containerd_lines_are_read(probe: ModuleType) -> None:
    old, new = probe.parse_containerd(CONFIG_1), probe.parse_containerd(CONFIG_2)
    assert old["sandbox_image"] == "registry.k8s.io/pause:3.10.2"
    assert old["runtimes"] == ["nvidia", "runc"]
    assert old["systemd_cgroup"] is True
    assert old["cdi"] is False
    assert new["sandbox_image"] == "registry.k8s.io/pause:3.10"
    assert new["systemd_cgroup"] is False
    assert new["cdi"] is True


def test_limits_of_a_process_are_numbers_or_unlimited(probe: ModuleType) -> None:
    assert probe.parse_limits(LIMITS) == {
        "Max open files": 20000,
        "Max locked memory": "unlimited",
    }


def test_reservations_are_read_from_the_kubelets_file(probe: ModuleType) -> None:
    text = (
        'streamingConnectionIdleTimeout: 0s\nsystemReserved:\n  cpu: "2"\n  memory: 2Gi\n'
        "topologyManagerPolicy: best-effort\nlogging:\n  options:\n    json:\n"
        '      infoBufferSize: "0"\n'
    )
    assert probe.read_block(text, "systemReserved") == {"cpu": "2", "memory": "2Gi"}
    assert probe.read_block("systemReserved: {}\n", "systemReserved") == {}
    assert probe.read_block("", "systemReserved") == {}


MANIFEST = """apiVersion: v1
spec:
  containers:
  - command:
    - kube-controller-manager
    - --bind-address=127.0.0.1
    - --kube-api-burst=400
    - --kube-api-qps=200
    - --leader-elect=true
    image: registry.k8s.io/kube-controller-manager:v1.36.3
"""


def test_arguments_of_the_controllers_are_read_from_their_manifest(
    probe: ModuleType, tmp_path: Path
) -> None:
    assert probe.read_controllers(Machine(tmp_path, {})) is None
    path = tmp_path / "etc/kubernetes/manifests/kube-controller-manager.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MANIFEST)
    assert probe.read_controllers(Machine(tmp_path, {})) == {
        "bind-address": "127.0.0.1",
        "kube-api-burst": "400",
        "kube-api-qps": "200",
        "leader-elect": "true",
    }


def test_file_newer_than_its_process_is_stale(probe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("x")
    written = (tmp_path / "config").stat().st_mtime
    node = Machine(tmp_path, {})
    assert probe.is_stale(node, {"started": written - 60}, ["/config"])
    assert not probe.is_stale(node, {"started": written + 60}, ["/config", "/absent"])
    assert not probe.is_stale(node, {}, ["/config"])


def test_node_without_credentials_is_no_member(probe: ModuleType, tmp_path: Path) -> None:
    assert probe.read_own_node(Machine(tmp_path, {})) is None


KUBELET_CONF = """apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0t
    server: https://10.0.0.10:6443
  name: default-cluster
"""


def member(tmp_path: Path, answer: tuple[int, str, str]) -> Machine:
    for name, text in (
        ("etc/kubernetes/kubelet.conf", KUBELET_CONF),
        ("proc/sys/kernel/hostname", "GPU1\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return Machine(tmp_path, {"kubectl": answer})


def test_silent_api_server_is_an_error_and_no_bare_node(probe: ModuleType, tmp_path: Path) -> None:
    node = member(tmp_path, (1, "", "E1 memcache\nThe connection to the server was refused"))
    assert probe.read_own_node(node) == {
        "name": "gpu1",
        "server": "10.0.0.10:6443",
        "error": "The connection to the server was refused",
    }


def test_member_is_reduced_to_what_checks_ask(probe: ModuleType, tmp_path: Path) -> None:
    whole = {
        "metadata": {"name": "gpu1", "labels": {"a": "b"}},
        "spec": {"podCIDR": "10.244.1.0/24", "unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "False", "message": "cni not initialized"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
            "images": [{"names": ["large"]}] * 50,
        },
    }
    found = probe.read_own_node(member(tmp_path, (0, json.dumps(whole), "")))
    assert found["ready"] is False
    assert found["ready_reason"] == "cni not initialized"
    assert found["kubelet_version"] == "1.36.3"
    assert found["unschedulable"] is True
    assert "images" not in found


READY = {
    "metadata": {"name": "gpu1"},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.36.3"},
    },
}


def pod(name: str, *, ready: bool, reason: str | None = None) -> dict[str, Any]:
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    return {
        "metadata": {"name": name},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"state": state}],
        },
    }


def test_pods_of_services_and_dns_that_are_not_ready_are_named(
    probe: ModuleType, tmp_path: Path
) -> None:
    node = member(tmp_path, (0, json.dumps(READY), ""))
    pods = [
        pod("kube-proxy-a", ready=False, reason="CrashLoopBackOff"),
        pod("coredns-b", ready=False),
        pod("coredns-c", ready=True),
    ]
    node.answers["pods"] = (0, json.dumps({"items": pods}), "")
    assert probe.read_own_node(node)["waiting_pods"] == {
        "kube-proxy-a": "CrashLoopBackOff",
        "coredns-b": "Running",
    }
    node.answers["pods"] = (1, "", "forbidden")
    assert probe.read_own_node(node)["waiting_pods"] == {"kube-system": "forbidden"}


def test_looking_ends_when_the_member_is_as_wanted_or_there_is_none(
    probe: ModuleType, tmp_path: Path
) -> None:
    bare = Machine(tmp_path, {})
    probe.await_member(bare, seconds=60)
    assert bare.asked == []
    node = member(tmp_path, (0, json.dumps(READY), ""))
    node.answers["pods"] = (0, '{"items": []}', "")
    probe.await_member(node, seconds=60, ready=True, kubelet_version="1.36.3")
    assert len(node.asked) == 2
    # Time that is up is no error: what is there is judged.
    probe.await_member(node, seconds=0, ready=True, kubelet_version="1.37.0")


def test_member_whose_api_server_starts_anew_is_waited_for_until_it_stays(
    probe: ModuleType, tmp_path: Path
) -> None:
    """The kubelet of an upgraded control-plane node is Ready before its static pods are new."""
    refused = (1, "", "The connection to the server was refused")
    looks = [(0, json.dumps(READY), ""), refused]

    class Flapping(Machine):
        def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
            if "pods" not in argv and looks:
                self.answers["kubectl"] = looks.pop(0)
            elif "pods" not in argv:
                self.answers["kubectl"] = (0, json.dumps(READY), "")
            return super().run(argv)

    node = Flapping(member(tmp_path, refused).root, {"pods": (0, '{"items": []}', "")})
    probe.await_member(node, seconds=60, ready=True, kubelet_version="1.36.3", steady=2)
    assert looks == []
    # Good, refused, and good for two seconds in a row.
    assert len([argv for argv in node.asked if "pods" not in argv]) >= 5


def test_pod_network_file_that_containerd_has_not_read_is_told(
    probe: ModuleType, tmp_path: Path
) -> None:
    for name in ("etc/cni/net.d/10-railweld.conflist", "proc/7/limits"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    written = (tmp_path / "etc/cni/net.d/10-railweld.conflist").stat().st_mtime

    class Node(Machine):
        def output(self, *argv: str) -> str | None:
            return "7\n" if argv[0] == "systemctl" else None

        def json(self, *_argv: str) -> Any:
            return None

        def glob(self, pattern: str) -> list[str]:
            return [f"/{found.relative_to(tmp_path)}" for found in tmp_path.glob(pattern[1:])]

        def names(self, _folder: str) -> list[str]:
            return []

    node = Node(tmp_path, {})
    os.utime(tmp_path / "proc/7", (written - 60, written - 60))
    assert probe.read_pod_network(node)["unread"] == ["/etc/cni/net.d/10-railweld.conflist"]
    os.utime(tmp_path / "proc/7", (written + 60, written + 60))
    assert probe.read_pod_network(node)["unread"] == []


def test_name_servers_are_those_that_pods_get(probe: ModuleType, tmp_path: Path) -> None:
    node = Machine(tmp_path, {})
    assert probe.read_nameservers(node) == {"file": "/etc/resolv.conf", "servers": []}
    for name, text in (
        ("etc/resolv.conf", "nameserver 127.0.0.53\n"),
        ("run/systemd/resolve/resolv.conf", "# uplink\nnameserver 10.0.0.2\nsearch a\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert probe.read_nameservers(node)["servers"] == ["10.0.0.2"]


def test_certificate_says_when_it_ends(probe: ModuleType, tmp_path: Path) -> None:
    assert probe.seconds_left(str(tmp_path / "absent.crt")) is None
    (tmp_path / "no.crt").write_text("no certificate")
    assert probe.seconds_left(str(tmp_path / "no.crt")) is None


def test_what_role_cni_leaves_is_read_judged_and_forgotten_by_the_same_names(
    probe: ModuleType, tmp_path: Path
) -> None:
    """The node, the controller and two roles know these files, and cannot share a constant."""
    left = yaml.safe_load((ROOT / "roles/cni/vars/main.yml").read_text())
    assert left["__cni_config"] == probe.BRIDGE_CONFIG == cni.CONFIG
    tasks = yaml.safe_load((ROOT / "roles/kubernetes/tasks/forget.yml").read_text())
    (forgotten,) = (task["loop"] for task in tasks if "loop" in task)
    assert {path for path in left.values() if path.startswith("/etc/")} <= set(forgotten)

    template = (ROOT / "roles/cni/templates/bridge.conflist.j2").read_text()
    path = tmp_path / cni.CONFIG.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(
        jinja2.Template(template).render(
            cni_bridge_name="cni0", cni_mtu=1450, __cni_pod_cidr="10.244.3.0/24"
        )
    )
    assert probe.read_bridge_subnet(Machine(tmp_path, {})) == "10.244.3.0/24"
