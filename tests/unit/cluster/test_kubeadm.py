"""kubeadm's files, the report of nodes, version skew and the controller's kubeconfig."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from railweld.cluster import kubeadm, kubeconfig, model, releases, seen
from railweld.errors import RailweldError
from railweld.site import Site


@pytest.fixture
def cluster(site: Callable[..., Site]) -> Callable[[str], dict[str, Any]]:
    """The view of one host."""
    fact = model.fact(site())
    return lambda name: model.view(fact, name)


def test_init_describes_node_cluster_kubelets_and_proxy(cluster: Any) -> None:
    text = kubeadm.init(
        cluster("head1"), kubelet={"failSwapOn": False}, etcd_tag="3.6.16-0", ignore=["Swap"]
    )
    node, whole, kubelet, proxy = yaml.safe_load_all(text)
    assert node["apiVersion"] == "kubeadm.k8s.io/v1beta4"
    assert node["localAPIEndpoint"]["advertiseAddress"] == "10.0.0.10"
    assert node["nodeRegistration"]["ignorePreflightErrors"] == ["Swap"]
    assert node["nodeRegistration"]["taints"][0]["key"] == "node-role.kubernetes.io/control-plane"
    assert whole["clusterName"] == "tiny"
    assert whole["kubernetesVersion"] == "v1.36.3"
    assert whole["controlPlaneEndpoint"] == "10.0.0.10:6443"
    assert whole["etcd"] == {"local": {"imageTag": "3.6.16-0"}}
    assert whole["controllerManager"] == {
        "extraArgs": [
            {"name": "kube-api-burst", "value": "400"},
            {"name": "kube-api-qps", "value": "200"},
        ]
    }
    assert kubelet["cgroupDriver"] == "systemd"
    assert kubelet["failSwapOn"] is False
    assert proxy["kind"] == "KubeProxyConfiguration"


def test_older_kubeadm_gets_its_own_format(cluster: Any) -> None:
    view = {**cluster("gpu1"), "version": "1.26.0", "kubeadm_api": releases.kubeadm_api("1.26.0")}
    found = yaml.safe_load(kubeadm.join(view, token="a.b", ca_hash="sha256:c"))
    assert found["apiVersion"] == "kubeadm.k8s.io/v1beta3"
    assert found["nodeRegistration"]["kubeletExtraArgs"]["node-ip"] == "10.0.0.21"
    view = {**cluster("head1"), "version": "1.26.0", "kubeadm_api": view["kubeadm_api"]}
    whole = list(yaml.safe_load_all(kubeadm.init(view)))[1]
    assert whole["controllerManager"] == {
        "extraArgs": {"kube-api-burst": "400", "kube-api-qps": "200"}
    }


def test_the_site_decides_how_fast_controllers_are(site: Callable[..., Site]) -> None:
    fact = model.fact(site(everywhere={"railweld_controller_qps": 50}))
    hosts = fact["hosts"]
    assert hosts["head1"]["controllers"] == {"kube-api-burst": "100", "kube-api-qps": "50"}
    # A worker runs none, and need not be looked at again when the number changes.
    assert "controllers" not in hosts["gpu1"]


KEPT = """\
apiServer: {certSANs: [head1]}
apiVersion: kubeadm.k8s.io/%s
controllerManager:
  extraArgs: %s
dns: {}
kind: ClusterConfiguration
kubernetesVersion: v1.36.1
networking: {podSubnet: 10.1.0.0/16}
"""


@pytest.mark.parametrize(
    ("api", "there", "wanted"),
    [
        (
            "v1beta4",
            "[{name: kube-api-qps, value: '20'}, {name: v, value: '4'}]",
            [
                {"name": "v", "value": "4"},
                {"name": "kube-api-burst", "value": "400"},
                {"name": "kube-api-qps", "value": "200"},
            ],
        ),
        ("v1beta4", "null", None),
        (
            "v1beta3",
            "{kube-api-qps: '20', v: '4'}",
            {"kube-api-qps": "200", "v": "4", "kube-api-burst": "400"},
        ),
    ],
)
def test_a_running_clusters_controllers_change_and_nothing_else(
    cluster: Any, api: str, there: str, wanted: Any
) -> None:
    running = KEPT % (api, there)
    node, whole = yaml.safe_load_all(kubeadm.changed_controllers(running, cluster("head1")))
    assert node["apiVersion"] == whole["apiVersion"] == f"kubeadm.k8s.io/{api}"
    assert node["localAPIEndpoint"]["advertiseAddress"] == "10.0.0.10"
    found = whole.pop("controllerManager")["extraArgs"]
    assert found == (wanted or kubeadm.arguments(api, cluster("head1")["host"]["controllers"]))
    before = yaml.safe_load(running)
    del before["controllerManager"]
    assert whole == before


@pytest.mark.parametrize("running", ["", "kind: InitConfiguration\n", "text"])
def test_a_cluster_without_kubeadms_configuration_is_named(cluster: Any, running: str) -> None:
    with pytest.raises(RailweldError, match="found no ClusterConfiguration"):
        kubeadm.changed_controllers(running, cluster("head1"))


def test_join_registers_labels_and_taints_with_the_node(cluster: Any) -> None:
    found = yaml.safe_load(kubeadm.join(cluster("gpu1"), token="a.b", ca_hash="sha256:c"))
    arguments = {
        each["name"]: each["value"] for each in found["nodeRegistration"]["kubeletExtraArgs"]
    }
    assert arguments["node-labels"] == (
        "nvidia.com/gpu.present=true,railweld.io/site=tiny,rdma.nvidia.com/available=true"
    )
    assert found["nodeRegistration"]["taints"] == [
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    ]
    assert found["discovery"]["bootstrapToken"]["caCertHashes"] == ["sha256:c"]
    assert "controlPlane" not in found


def test_control_plane_node_joins_with_the_certificates_key(cluster: Any) -> None:
    found = yaml.safe_load(
        kubeadm.join(cluster("head1"), token="a.b", ca_hash="sha256:c", certificate_key="k")
    )
    assert found["controlPlane"]["certificateKey"] == "k"


def test_certificates_are_handed_on_without_a_question_to_the_internet(cluster: Any) -> None:
    first, shared = yaml.safe_load_all(kubeadm.upload_certificates(cluster("head1")))
    assert first["localAPIEndpoint"]["advertiseAddress"] == cluster("head1")["host"]["address"]
    assert shared["kubernetesVersion"] == f"v{cluster('head1')['version']}"


def test_untainted_control_plane_says_so_explicitly(cluster: Any) -> None:
    found = next(yaml.safe_load_all(kubeadm.init(cluster("head1"), control_plane_taint=False)))
    assert found["nodeRegistration"]["taints"] == []


def test_report_of_nodes_is_read_whatever_state_they_are_in() -> None:
    text = (
        "head1\t10.244.0.0/24\t10.0.0.10\tv1.36.3\t\tTrue\n"
        "gpu1\t\t10.0.0.21\tv1.35.4\ttrue\tFalse\n"
    )
    found = seen.parse({"rc": 0, "stdout": text})
    assert found["nodes"]["head1"]["ready"] is True
    assert found["nodes"]["gpu1"] == {
        "pod_cidr": None,
        "address": "10.0.0.21",
        "version": "1.35.4",
        "unschedulable": True,
        "ready": False,
    }


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, "not asked"),
        ({"rc": 1, "stderr": "a\nconnection refused"}, "connection refused"),
        ({"unreachable": True, "msg": "Failed to connect"}, "Failed to connect"),
    ],
)
def test_silent_control_plane_is_no_empty_cluster(result: Any, error: str) -> None:
    found = seen.parse(result)
    assert not found["reachable"]
    assert found["error"] == error


@pytest.mark.parametrize(
    ("running", "wanted", "part"),
    [
        ("1.35.4", "1.36.3", ""),
        ("1.36.1", "1.36.3", ""),
        ("1.36.3", "1.36.3", ""),
        ("1.34.2", "1.36.3", "must not be skipped"),
        ("1.36.3", "1.35.4", "cannot go back"),
        ("1.36.3", "1.36.1", "cannot go back"),
    ],
)
def test_upgrades_go_one_minor_release_forward(running: str, wanted: str, part: str) -> None:
    problem = releases.upgrade_problem(running, wanted)
    assert part in problem
    assert bool(problem) is bool(part)


def test_kubelet_never_runs_before_its_api_server() -> None:
    assert "before API server" in releases.kubelet_problem("1.36.3", "1.35.4")
    assert not releases.kubelet_problem("1.36.3", "1.36.1")
    assert not releases.kubelet_problem("1.33.6", "1.36.3")
    assert "more than three" in releases.kubelet_problem("1.32.2", "1.36.3")


@given(st.integers(26, 40), st.integers(0, 30))
def test_every_release_has_a_format_and_a_sandbox_image(minor: int, patch: int) -> None:
    version = f"1.{minor}.{patch}"
    assert releases.minor(f"v{version}") == minor
    assert releases.kubeadm_api(version).startswith("kubeadm.k8s.io/v1beta")
    assert releases.pause_tag(version).startswith("3.")


def test_nonsense_is_no_version() -> None:
    with pytest.raises(RailweldError, match=r"found '1\.36', expected like 1\.36\.3"):
        releases.minor("1.36")


ADMIN = {
    "clusters": [
        {"name": "tiny", "cluster": {"certificate-authority-data": "Y2E=", "server": "https://x"}}
    ],
    "users": [{"name": "kubernetes-admin", "user": {"client-key-data": "a2V5"}}],
}


def test_kubeconfig_carries_the_sites_names(cluster: Any) -> None:
    found = yaml.safe_load(kubeconfig.renamed(yaml.safe_dump(ADMIN), cluster("head1")))
    assert found["current-context"] == "railweld-tiny"
    assert found["clusters"][0]["cluster"]["server"] == "https://10.0.0.10:6443"
    assert found["users"][0]["name"] == "railweld-tiny-admin"


def test_kubeconfig_of_another_cluster_is_refused(cluster: Any) -> None:
    other = {**ADMIN, "clusters": [{"name": "prod", "cluster": {}}]}
    with pytest.raises(RailweldError, match="found cluster 'prod', expected 'tiny'"):
        kubeconfig.renamed(yaml.safe_dump(other), cluster("head1"))


def test_kubeconfig_is_private_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    assert kubeconfig.write("tiny", "content\n")
    assert not kubeconfig.write("tiny", "content\n")
    assert kubeconfig.path("tiny").stat().st_mode & 0o777 == 0o600
    kubeconfig.path("tiny").chmod(0o644)
    assert kubeconfig.write("tiny", "content\n")
    assert kubeconfig.path("tiny").stat().st_mode & 0o777 == 0o600
