"""kubeadm's configuration files, rendered from the host's view. Pure: text in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from railweld.cluster.model import API_PORT
from railweld.errors import RailweldError

SOCKET: Final = "unix:///run/containerd/containerd.sock"
PATCHES: Final = "/etc/kubernetes/railweld"
#: How long a token lives that joins nodes: one run of the playbook, with time for slow nodes.
TOKEN_TTL: Final = "30m0s"  # noqa: S105 - a duration


def documents(*contents: Mapping[str, Any]) -> str:
    """Several objects as one YAML file, keys in the given order."""
    # Values from an inventory are text with an origin, which YAML would not write.
    plain = [json.loads(json.dumps(each)) for each in contents]
    return "---\n".join(yaml.safe_dump(each, sort_keys=False) for each in plain)


def arguments(api: str, values: Mapping[str, str], there: Any = None) -> Any:
    """Extra arguments as the API version writes them: a map until v1beta3, a list since.

    Args:
        api: of kubeadm.
        values: by name.
        there: arguments in the same form that stay, where `values` has no other.
    """
    if api.endswith("v1beta3"):
        return {**(there or {}), **values}
    kept = [each for each in there or () if each["name"] not in values]
    return [*kept, *({"name": name, "value": value} for name, value in values.items())]


def node_registration(
    cluster: Mapping[str, Any],
    *,
    ignore: Sequence[str],
    control_plane_taint: bool,
) -> dict[str, Any]:
    """Name, runtime, labels and taints of a node.

    Labels and taints come with the registration, so there is no moment in which a pod could be
    placed without them.
    """
    host = cluster["host"]
    api = str(cluster["kubeadm_api"])
    taints = list(host["taints"])
    if host["role"] == "control_plane" and control_plane_taint:
        taints.append({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})
    labels = ",".join(f"{key}={value}" for key, value in sorted(host["labels"].items()))
    return {
        "name": host["name"],
        "criSocket": SOCKET,
        "imagePullPolicy": "IfNotPresent",
        "kubeletExtraArgs": arguments(
            api, {"node-labels": labels, "node-ip": str(host["address"])}
        ),
        # An empty list says: none. Left out, kubeadm would taint the control plane.
        "taints": taints,
        **({"ignorePreflightErrors": list(ignore)} if ignore else {}),
    }


def init(
    cluster: Mapping[str, Any],
    *,
    ignore: Sequence[str] = (),
    control_plane_taint: bool = True,
    etcd_tag: str = "",
    registry: str = "",
    kubelet: Mapping[str, Any] | None = None,
    proxy: Mapping[str, Any] | None = None,
) -> str:
    """The file of `kubeadm init`: this node, the cluster, all kubelets, kube-proxy."""
    api = str(cluster["kubeadm_api"])
    host = cluster["host"]
    node = {
        "apiVersion": api,
        "kind": "InitConfiguration",
        # kubeadm makes a token in any case; this one is gone before the day is over.
        "bootstrapTokens": [{"ttl": TOKEN_TTL}],
        "localAPIEndpoint": {"advertiseAddress": host["address"], "bindPort": API_PORT},
        "nodeRegistration": node_registration(
            cluster, ignore=ignore, control_plane_taint=control_plane_taint
        ),
        "patches": {"directory": PATCHES},
    }
    return documents(
        node,
        cluster_configuration(cluster, etcd_tag=etcd_tag, registry=registry),
        kubelet_configuration(kubelet or {}),
        proxy_configuration(proxy or {}),
    )


def upload_certificates(cluster: Mapping[str, Any]) -> str:
    """The file with which the first node hands its certificates to the next control-plane node.

    Without one kubeadm asks the internet for a version, and needs a default route.
    """
    api = str(cluster["kubeadm_api"])
    address = cluster["control_plane_addresses"][0]
    return documents(
        {
            "apiVersion": api,
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": address, "bindPort": API_PORT},
        },
        {
            "apiVersion": api,
            "kind": "ClusterConfiguration",
            "kubernetesVersion": f"v{cluster['version']}",
        },
    )


def cluster_configuration(
    cluster: Mapping[str, Any], *, etcd_tag: str = "", registry: str = ""
) -> dict[str, Any]:
    """What holds for the whole cluster and is kept in its ConfigMap."""
    names = [
        str(cluster["endpoint"]).rpartition(":")[0],
        *cluster["control_plane"],
        *cluster["control_plane_addresses"],
    ]
    return {
        "apiVersion": cluster["kubeadm_api"],
        "kind": "ClusterConfiguration",
        "clusterName": cluster["name"],
        "kubernetesVersion": f"v{cluster['version']}",
        "controlPlaneEndpoint": cluster["endpoint"],
        "networking": {
            "podSubnet": cluster["pod_cidr"],
            "serviceSubnet": cluster["service_cidr"],
        },
        "apiServer": {"certSANs": sorted(set(names))},
        "controllerManager": {
            "extraArgs": arguments(str(cluster["kubeadm_api"]), cluster["host"]["controllers"])
        },
        **({"imageRepository": registry} if registry else {}),
        **({"etcd": {"local": {"imageTag": etcd_tag}}} if etcd_tag else {}),
    }


def changed_controllers(running: str, cluster: Mapping[str, Any]) -> str:
    """The file with which kubeadm gives a running cluster's controllers the described arguments.

    Args:
        running: the ClusterConfiguration that the cluster keeps. All else in it stays: what was
            changed by hand, and what the description has otherwise and no running cluster can take.
        cluster: the view of a control-plane node.

    Raises:
        RailweldError: the cluster keeps none.
    """
    whole = yaml.safe_load(running) if running.strip() else None
    if not isinstance(whole, dict) or whole.get("kind") != "ClusterConfiguration":
        raise RailweldError(
            "ConfigMap kubeadm-config: found no ClusterConfiguration, expected what kubeadm keeps "
            "of the cluster. See: kubectl -n kube-system get configmap kubeadm-config -o yaml. "
            "Fix: kubeadm init phase upload-config kubeadm --config FILE"
        )
    # As the cluster keeps it, which may be older than what this kubeadm would write.
    api, host = str(whole["apiVersion"]), cluster["host"]
    manager = whole.get("controllerManager") or {}
    manager["extraArgs"] = arguments(api, host["controllers"], manager.get("extraArgs"))
    whole["controllerManager"] = manager
    node = {
        "apiVersion": api,
        "kind": "InitConfiguration",
        # Without an address kubeadm looks for a default route.
        "localAPIEndpoint": {"advertiseAddress": host["address"], "bindPort": API_PORT},
        "nodeRegistration": {"name": host["name"], "criSocket": SOCKET},
        "patches": {"directory": PATCHES},
    }
    return documents(node, whole)


def kubelet_configuration(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What every kubelet has in common."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "rotateCertificates": True,
        **extra,
    }


def proxy_configuration(extra: Mapping[str, Any]) -> dict[str, Any]:
    """kube-proxy's settings."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        **extra,
    }


def kubelet_patch(cluster: Mapping[str, Any]) -> str:
    """What this node's kubelet has different from the others', as kubeadm's merge patch."""
    settings = cluster["host"]["kubelet"]
    return json.dumps(settings, indent=1, sort_keys=True) + "\n"


def join(
    cluster: Mapping[str, Any],
    *,
    token: str,
    ca_hash: str,
    certificate_key: str = "",
    ignore: Sequence[str] = (),
    control_plane_taint: bool = True,
) -> str:
    """The file of `kubeadm join`. It holds a token: mode 0600, and gone after the join."""
    api = str(cluster["kubeadm_api"])
    host = cluster["host"]
    content: dict[str, Any] = {
        "apiVersion": api,
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": cluster["endpoint"],
                "token": token,
                "caCertHashes": [ca_hash],
            }
        },
        "nodeRegistration": node_registration(
            cluster, ignore=ignore, control_plane_taint=control_plane_taint
        ),
        "patches": {"directory": PATCHES},
    }
    if host["role"] == "control_plane":
        content["controlPlane"] = {
            "localAPIEndpoint": {"advertiseAddress": host["address"], "bindPort": API_PORT},
            "certificateKey": certificate_key,
        }
    return documents(content)
