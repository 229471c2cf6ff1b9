"""The cluster stage on lab nodes: real kubeadm, containerd, kubelet, CoreDNS and kube-proxy.

The tests build on each other in the order of the file, as an operator's week does.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

import pytest
import yaml

from tests.integration.cluster.helpers import IMAGE, Cluster, eventually
from tests.labs import BIN, REPOSITORY, environment

pytestmark = [pytest.mark.lab, pytest.mark.deep]

NODES = ("head1", "gpu1", "gpu2")
RESOLVE = "import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))"
#: Through the Service's address to whichever API server is behind it.
CONNECT = "import socket; socket.create_connection(('kubernetes.default', 443), 10); print('open')"
#: A pod that something starts again elsewhere, on a node that will be away.
KEPT = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {"name": "kept"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "kept"}},
        "template": {
            "metadata": {"labels": {"app": "kept"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": "gpu2"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "infinity"],
                    }
                ],
            },
        },
    },
}
TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")


def test_check_mode_on_bare_nodes_is_a_plan(cluster: Cluster) -> None:
    before = {node: cluster.lab.installed(node) for node in NODES}
    run = cluster.deploy("--check", "--diff").assert_ok()
    assert "would start cluster" in run.output
    assert {node: cluster.lab.installed(node) for node in NODES} == before
    assert not cluster.kubeconfig.exists()


def cut_off(cluster: Cluster, node: str, step: str) -> None:
    """Run the playbook on a node until kubeadm is at work there, and cut the node's power.

    Power comes back only when the run has given up: a node that boots within Ansible's retries of a
    connection gets the same step once more, and the run may end well.
    """
    argv = [
        *(str(BIN / "ansible-playbook"), "-i", str(cluster.lab.inventory)),
        *("playbooks/deploy-cluster.yml", "--limit", node),
    ]
    marker = "cat /var/lib/railweld/kubeadm-unfinished 2>/dev/null || true"
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as run:
        try:
            # Packages and images come first: as long as the playbook runs it may get there.
            while cluster.lab.node(node, "sh", "-c", marker).strip() != step:
                assert run.poll() is None, f"the playbook ended before kubeadm {step}"
                time.sleep(0.2)
            cluster.lab.fault("power-cut", node, "seconds=-1")
            assert run.wait(timeout=900) != 0
        finally:
            run.kill()
            cluster.lab.clear("power-cut", node)


def test_start_that_was_cut_off_leaves_no_cluster_behind(cluster: Cluster) -> None:
    cut_off(cluster, "head1", "init")
    assert not cluster.kubeconfig.exists()


def test_nodes_become_a_cluster_and_no_token_is_seen(cluster: Cluster) -> None:
    run = cluster.deploy("-vvv").assert_ok()
    assert not TOKEN.findall(run.output)
    assert cluster.ready() == dict.fromkeys(NODES, True)


def test_controller_has_a_private_way_into_the_cluster(cluster: Cluster) -> None:
    assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    assert content["current-context"] == "railweld-cluster"
    assert content["clusters"][0]["name"] == "cluster"


def test_second_run_changes_nothing(cluster: Cluster) -> None:
    run = cluster.deploy().assert_ok()
    assert set(run.changed().values()) == {0}


def test_labels_and_taints_came_with_the_registration(cluster: Cluster) -> None:
    node = cluster.node("gpu1")
    labels = node["metadata"]["labels"]
    assert labels["railweld.io/site"] == "cluster"
    assert labels["nvidia.com/gpu.present"] == "true"
    assert {"key": "nvidia.com/gpu", "effect": "NoSchedule"} in node["spec"]["taints"]


def test_runtime_and_kubelet_have_the_sites_limits(cluster: Cluster) -> None:
    limits = cluster.lab.node("gpu1", "sh", "-c", "cat /proc/$(pidof containerd)/limits")
    assert re.search(r"Max locked memory\s+8388608", limits)
    config = cluster.lab.node("gpu1", "cat", "/var/lib/kubelet/config.yaml")
    assert "cpuManagerPolicy: static" in config
    assert 'reservedSystemCPUs: "0"' in config


def test_changed_reservation_reaches_the_kubelet(cluster: Cluster) -> None:
    def allocatable() -> int:
        return int(cluster.node("gpu1")["status"]["allocatable"]["memory"].removesuffix("Ki"))

    before = allocatable()
    more = ("-e", "railweld_reserved_memory=512Mi")
    assert set(cluster.deploy("--check", *more).assert_ok().changed().values()) != {0}
    assert allocatable() == before
    cluster.deploy(*more).assert_ok()
    eventually(allocatable, lambda found: found == before - 256 * 1024)
    assert set(cluster.deploy(*more).assert_ok().changed().values()) == {0}
    cluster.deploy().assert_ok()
    eventually(allocatable, lambda found: found == before)


def test_changed_rate_reaches_the_controllers_and_what_kubeadm_keeps(cluster: Cluster) -> None:
    def runs_with() -> str:
        return cluster.lab.node("head1", "sh", "-c", "pgrep --full --list-full ^kube-controller")

    def kept() -> Any:
        found = cluster.get("configmap", "kubeadm-config", "--namespace=kube-system")["data"]
        arguments = yaml.safe_load(found["ClusterConfiguration"])["controllerManager"]["extraArgs"]
        return {each["name"]: each["value"] for each in arguments}

    assert "--kube-api-burst=400 --kube-api-qps=200 " in runs_with()
    other = ("-e", "railweld_controller_qps=60")
    assert set(cluster.deploy("--check", *other).assert_ok().changed().values()) != {0}
    assert kept() == {"kube-api-burst": "400", "kube-api-qps": "200"}
    cluster.deploy(*other).assert_ok()
    assert "--kube-api-burst=120 --kube-api-qps=60 " in runs_with()
    # So an upgrade, or a control-plane node that joins, has it too.
    assert kept() == {"kube-api-burst": "120", "kube-api-qps": "60"}
    assert set(cluster.deploy(*other).assert_ok().changed().values()) == {0}
    cluster.deploy().assert_ok()
    assert "--kube-api-burst=400 --kube-api-qps=200 " in runs_with()


@pytest.mark.parametrize("node", NODES)
def test_dns_and_services_work_from_pods_on_every_node(cluster: Cluster, node: str) -> None:
    assert cluster.run(f"dns-{node}", RESOLVE, node=node).strip() == "10.96.0.1"
    assert cluster.run(f"connect-{node}", CONNECT, node=node).strip() == "open"


def test_removed_node_leaves_no_route_and_no_entry(cluster: Cluster) -> None:
    pods = cluster.node("gpu2")["spec"]["podCIDR"]
    run = cluster.lab.play("-e", "node=gpu2", playbook="playbooks/remove-node.yml", timeout=1200)
    run.assert_ok()
    assert set(cluster.ready()) == {"head1", "gpu1"}
    assert pods not in cluster.lab.node("gpu1", "ip", "route")
    assert not cluster.lab.node("gpu2", "sh", "-c", "ls /etc/kubernetes/*.conf 2>/dev/null || true")


def test_join_that_was_cut_off_is_done_again(cluster: Cluster) -> None:
    cut_off(cluster, "gpu2", "join")
    cluster.deploy().assert_ok()
    assert cluster.ready() == dict.fromkeys(NODES, True)
    again = cluster.deploy().assert_ok()
    assert set(again.changed().values()) == {0}


def test_rebooted_node_comes_back_with_its_routes(cluster: Cluster) -> None:
    routes = cluster.lab.node("gpu2", "sh", "-c", "ip route | grep via")
    cluster.lab.fault("power-cut", "gpu2")
    eventually(cluster.ready, lambda found: found["gpu2"])
    assert cluster.lab.node("gpu2", "sh", "-c", "ip route | grep via") == routes
    assert cluster.run("after-reboot", RESOLVE, node="gpu2").strip() == "10.96.0.1"


def test_other_version_is_refused_before_anything_is_touched(cluster: Cluster) -> None:
    run = cluster.deploy("-e", '{"railweld_version_overrides": {"kubernetes": "1.37.2"}}')
    assert run.returncode != 0
    assert "playbooks/upgrade-cluster.yml" in run.output
    assert cluster.ready() == dict.fromkeys(NODES, True)


def test_node_that_was_away_when_it_was_taken_out_joins_again(cluster: Cluster) -> None:
    def running() -> int:
        return int(cluster.get("replicaset", "kept")["status"].get("readyReplicas", 0))

    cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(KEPT))
    eventually(running, lambda found: found == 1)
    # A kubelet that starts would register again by itself, and be a member before anyone asks.
    cluster.lab.node("gpu2", "systemctl", "disable", "kubelet")
    cluster.lab.fault("power-cut", "gpu2", "seconds=-1")
    # Its pod will never say that it has ended.
    eventually(cluster.ready, lambda found: not found["gpu2"])
    run = cluster.lab.play("-e", "node=gpu2", playbook="playbooks/remove-node.yml", timeout=1200)
    assert "was not reset" in run.assert_ok().output
    assert set(cluster.ready()) == {"head1", "gpu1"}
    cluster.kubectl("delete", "replicaset", "kept")
    cluster.lab.clear("power-cut", "gpu2")
    assert "it is reset and done again" in cluster.deploy().assert_ok().output
    assert cluster.ready() == dict.fromkeys(NODES, True)
    assert set(cluster.deploy().assert_ok().changed().values()) == {0}
    assert cluster.run("taken-in", RESOLVE, node="gpu2").strip() == "10.96.0.1"
