"""Every check of the cluster stage passes on a converged member and fires on what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railweld.record import Status
from railweld.verify import registry
from railweld.verify.context import Context
from railweld.verify.roles import cni

BuildMember = Callable[..., Context]
ROLES = ("containerd", "kubernetes", "cni")


def bad(ctx: Context, *roles: str) -> dict[str, str]:
    return {each.id: each.sentence() for each in registry.evaluate(ctx, roles) if each.is_bad}


def refused(ctx: Context, role: str) -> dict[str, str]:
    return {each.id: each.sentence() for each in registry.evaluate_guard(ctx, role) if each.is_bad}


@pytest.mark.parametrize("name", ["gpu1", "head1"])
def test_converged_member_has_no_finding(member: BuildMember, name: str) -> None:
    assert not bad(member(name, {"node.time.refid": "0A00000A"}), *ROLES)


@pytest.mark.parametrize(
    ("change", "value", "role", "check", "says"),
    [
        ("node.cluster.containerd.active", False, "containerd", "containerd.active", "not active"),
        ("node.cluster.containerd.memlock", 8388608, "containerd", "containerd.memlock", "8388608"),
        (
            "node.cluster.containerd.systemd_cgroup",
            False,
            "containerd",
            "containerd.cgroup_driver",
            "cgroupfs",
        ),
        (
            "node.cluster.containerd.sandbox_image",
            "registry.k8s.io/pause:3.6",
            "containerd",
            "containerd.sandbox_image",
            "pause:3.6",
        ),
        ("node.cluster.containerd.stale", True, "containerd", "containerd.current", "older"),
        (
            "node.cluster.containerd.runtimes",
            ["runc"],
            "containerd",
            "containerd.gpu_runtime",
            "runc",
        ),
        (
            "cluster.host.images",
            [{"file": "a.tar", "images": ["a:1"], "sha256": "1"}],
            "containerd",
            "containerd.images",
            "not loaded: a.tar",
        ),
        ("node.cluster.node", None, "kubernetes", "kubernetes.member", "no kubelet.conf"),
        ("node.cluster.unfinished", "join", "kubernetes", "kubernetes.finished", "did not end"),
        ("node.cluster.kubelet.active", False, "kubernetes", "kubernetes.kubelet", "not active"),
        ("node.cluster.kubelet.stale", True, "kubernetes", "kubernetes.kubelet", "older settings"),
        (
            "node.cluster.node.labels",
            {},
            "kubernetes",
            "kubernetes.labels",
            "railweld.io/site=tiny",
        ),
        (
            "node.cluster.node.taints",
            [],
            "kubernetes",
            "kubernetes.taints",
            "nvidia.com/gpu:NoSchedule",
        ),
        (
            "node|cluster|certificates|/etc/kubernetes/pki/apiserver.crt",
            9 * 86400,
            "kubernetes",
            "kubernetes.certificates",
            "apiserver.crt: 9 days",
        ),
        (
            "node|cluster|sysctls|net/bridge/bridge-nf-call-iptables",
            None,
            "kubernetes",
            "kubernetes.bridge-nf-call-iptables",
            "br_netfilter not loaded",
        ),
        (
            "node.cluster.kubelet.settings",
            {"cpuManagerPolicy": "none", "topologyManagerPolicy": "best-effort"},
            "kubernetes",
            "kubernetes.kubelet.cpuManagerPolicy",
            "expected static",
        ),
        (
            "node.cluster.kubelet.settings.systemReserved",
            {"memory": "1Gi", "cpu": "2"},
            "kubernetes",
            "kubernetes.kubelet.systemReserved.memory",
            "found 1Gi, expected 2Gi",
        ),
        (
            "node.cluster.containerd.runtimes",
            ["runc"],
            "containerd",
            "containerd.gpu_runtime",
            "expected runtime nvidia",
        ),
        ("node.cluster.node.ready", False, "cni", "cni.ready", "expected Ready"),
        ("node.cluster.pod_network.files", [], "cni", "cni.config", "absent"),
        # A node that joined again has another part of the addresses.
        (
            "node.cluster.pod_network.subnet",
            "10.244.9.0/24",
            "cni",
            "cni.config",
            "addresses of 10.244.9.0/24",
        ),
        (
            "node.cluster.pod_network.links",
            {"10.244.9.0/24": "cni0", "10.0.0.0/24": "eth0"},
            "cni",
            "cni.bridge",
            "cni0",
        ),
        (
            "node.cluster.pod_network.unread",
            ["/etc/cni/net.d/10-railweld.conflist"],
            "cni",
            "cni.loaded",
            "systemctl restart containerd",
        ),
        (
            "node.cluster.node.waiting_pods",
            {"kube-proxy-x": "CrashLoopBackOff"},
            "cni",
            "cni.addons",
            "kube-proxy-x CrashLoopBackOff",
        ),
        ("node.cluster.pod_network.routes", {}, "cni", "cni.routes", "10.244.0.0/24 via 10.0.0.10"),
        ("node.net.routes", [], "cni", "cni.service_route", "a route to 10.96.0.0/"),
        ("cluster.seen.reachable", False, "cni", "cni.routes", "no list of nodes"),
    ],
)
def test_finding(
    member: BuildMember, *, change: str, value: Any, role: str, check: str, says: str
) -> None:
    found = bad(member("gpu1", {change: value}), role)
    assert says in found[check]


def test_cdi_needs_the_runtime_for_agents_and_a_containerd_that_knows_cdi(
    member: BuildMember,
) -> None:
    changes = {
        "cluster.host.gpu_runtime": "cdi",
        "node.cluster.containerd.runtimes": ["runc"],
        "node.cluster.containerd.cdi": True,
    }
    found = bad(member("gpu1", changes), "containerd")
    assert "expected runtime nvidia" in found["containerd.gpu_runtime"]
    assert "1.7.0 or newer" in found["containerd.cdi"]


def test_node_behind_another_address_gets_no_route_of_its_own(member: BuildMember) -> None:
    ctx = member("gpu1", {"node.net.eth0": {"addresses": ["192.0.2.7/24"]}, "node.net.routes": []})
    assert cni.service_route(ctx) is None
    assert "cni.service_route" not in bad(ctx, "cni")


def test_dead_api_server_is_found_on_its_own_node(member: BuildMember) -> None:
    api = {"version": None, "error": "connection refused"}
    found = bad(member("head1", {"node.cluster.api": api}), "kubernetes")
    assert "connection refused" in found["kubernetes.api"]


def test_controllers_with_arguments_of_their_own_are_found(member: BuildMember) -> None:
    found = bad(member("head1", {"node.cluster.controllers": {"kube-api-qps": "20"}}), "kubernetes")
    assert (
        "found 20, expected 200 (railweld_controller_qps)"
        in (found["kubernetes.controllers.kube-api-qps"])
    )
    assert "found not set" in found["kubernetes.controllers.kube-api-burst"]
    # A node that is to become a control-plane node has none to judge.
    assert not [
        each
        for each in bad(member("head1", {"node.cluster.controllers": None}), "kubernetes")
        if "controllers" in each
    ]


def test_package_of_another_version_is_found(member: BuildMember) -> None:
    other = {"version": "1.35.4-1.1", "status": "ii", "hold": True}
    found = bad(member("gpu1", {"node.packages.kubelet": other}), "kubernetes")
    assert "upgrade-cluster.yml" in found["kubernetes.package.kubelet"]


def test_loose_package_is_found(member: BuildMember) -> None:
    loose = {"version": "1.36.3-1.1", "status": "ii", "hold": False}
    found = bad(member("gpu1", {"node.packages.kubelet": loose}), "kubernetes")
    assert "not held: kubelet" in found["kubernetes.held.kubernetes"]


def test_upgrade_is_refused_and_named(member: BuildMember) -> None:
    found = refused(member("gpu1", {"node.cluster.node.kubelet_version": "1.35.4"}), "kubernetes")
    assert "playbooks/upgrade-cluster.yml" in found["kubernetes.version"]
    skipped = refused(member("gpu1", {"node.cluster.node.kubelet_version": "1.34.2"}), "kubernetes")
    assert "must not be skipped" in skipped["kubernetes.version"]


def test_wrong_clock_may_not_join(member: BuildMember) -> None:
    found = refused(member("gpu1", {"node.time.offset_s": 0.8}), "kubernetes")
    assert "800.0 ms off" in found["chrony.offset"]


@pytest.mark.parametrize("error", ["Unauthorized", ""])
def test_node_of_another_cluster_is_refused(member: BuildMember, error: str) -> None:
    node = {"name": "gpu1", "server": "10.9.9.9:6443", "error": error}
    found = refused(
        member("gpu1", {"node.cluster.node": node, "cluster.seen.nodes": {}}), "kubernetes"
    )
    assert "10.9.9.9:6443" in found["kubernetes.same_cluster"]
    assert "kubeadm reset" in found["kubernetes.same_cluster"]


def test_node_that_was_taken_out_unreached_may_join_again(member: BuildMember) -> None:
    error = 'Error from server (NotFound): nodes "gpu1" not found'
    node = {"name": "gpu1", "server": "10.0.0.10:6443", "error": error}
    changes = {"node.cluster.node": node, "cluster.seen.nodes": {}}
    assert "kubernetes.same_cluster" not in refused(member("gpu1", changes), "kubernetes")


def test_gpu_node_without_its_driver_gets_no_runtime(member: BuildMember) -> None:
    found = refused(member("gpu1", {"node.driver": {"loaded": None}}), "containerd")
    assert "no NVIDIA driver loaded" in found["nvidia_driver.loaded"]


def test_docker_beside_containerd_is_refused(member: BuildMember) -> None:
    docker = {"version": "20.10", "status": "ii", "hold": False}
    found = refused(member("gpu1", {"node|packages|docker.io": docker}), "containerd")
    assert "Docker 20.10" in found["containerd.alone"]


def test_pod_network_waits_for_addresses(member: BuildMember) -> None:
    changes = {"node.cluster.node.pod_cidr": None, "cluster.seen.nodes": {}}
    assert "no podCIDR" in refused(member("gpu1", changes), "cni")["cni.pod_cidr"]


def test_operators_own_network_is_left_alone(member: BuildMember) -> None:
    changes = {"cluster.cni": "none", "node.cluster.node.ready": False}
    assert not bad(member("gpu1", changes), "cni")


def test_where_the_api_server_is_silent_nobody_could_look(member: BuildMember) -> None:
    silent = {"name": "gpu1", "server": "10.0.0.10:6443", "error": "refused"}
    changes = {"node.cluster.node": silent, "cluster.seen": {"reachable": False, "nodes": {}}}
    found = registry.evaluate(member("gpu1", changes), ["cni"])
    wrong = {each.id: each.status for each in found if each.status is not Status.PASS}
    assert wrong == dict.fromkeys(("cni.config", "cni.ready", "cni.routes"), Status.UNKNOWN)
