"""Node Feature Discovery: what is found on nodes, as labels beside what is described.

The labels that must be there at once (GPUs and RDMA are described for this node) come from the
kubelet's registration. These tell what the hardware and the kernel show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from railweld import names
from railweld.stack.objects import Manifest, daemon_set, host_path, make, mount, small

GROUP: Final = "nfd.k8s-sigs.io"
MELLANOX: Final = "15b3"
NVIDIA: Final = "10de"

#: Label, and what must be found for it.
RULES: Final[tuple[tuple[str, str, tuple[tuple[str, dict[str, Any]], ...]], ...]] = (
    (
        "railweld.io/found-gpu",
        "an NVIDIA GPU on the PCI bus",
        (
            (
                "pci.device",
                {
                    "vendor": {"op": "In", "value": [NVIDIA]},
                    "class": {"op": "In", "value": ["0300", "0302"]},
                },
            ),
        ),
    ),
    (
        "railweld.io/found-nvswitch",
        "an NVSwitch on the PCI bus",
        (
            (
                "pci.device",
                {
                    "vendor": {"op": "In", "value": [NVIDIA]},
                    "class": {"op": "In", "value": ["0680"]},
                },
            ),
        ),
    ),
    (
        "railweld.io/found-hca",
        "a Mellanox or NVIDIA NIC on the PCI bus",
        (("pci.device", {"vendor": {"op": "In", "value": [MELLANOX]}}),),
    ),
    (
        "railweld.io/found-rdma",
        "RDMA can be used by programs: the modules are loaded",
        (
            (
                "kernel.loadedmodule",
                {"ib_uverbs": {"op": "Exists"}, "rdma_ucm": {"op": "Exists"}},
            ),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class NfdArgs:
    """What NFD has to know.

    Attributes:
        namespace: where it runs.
        image: full reference, v0.14 or newer.
        pull_secrets: Secrets with registry logins.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    image: str
    pull_secrets: tuple[str, ...] = ()


def render(args: NfdArgs) -> list[Manifest]:
    """Definitions, master, worker, garbage collector, and the rules."""
    return [
        *(
            _definition(*kind)
            for kind in (
                ("NodeFeature", "Namespaced"),
                ("NodeFeatureRule", "Cluster"),
                ("NodeFeatureGroup", "Namespaced"),
            )
        ),
        *_account(
            args,
            "nfd-master",
            [
                {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
                {
                    "apiGroups": [""],
                    "resources": ["nodes", "nodes/status"],
                    "verbs": ["get", "list", "patch", "update"],
                },
                {
                    "apiGroups": [GROUP],
                    "resources": ["nodefeatures", "nodefeaturerules", "nodefeaturegroups"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": [GROUP],
                    "resources": ["nodefeaturegroups/status"],
                    "verbs": ["patch", "update"],
                },
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "verbs": ["get", "list", "watch", "create", "update", "patch"],
                },
            ],
        ),
        *_account(
            args,
            "nfd-worker",
            [
                {
                    "apiGroups": [GROUP],
                    "resources": ["nodefeatures"],
                    "verbs": ["get", "list", "create", "update", "delete"],
                },
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            ],
            cluster=False,
        ),
        *_account(
            args,
            "nfd-gc",
            [
                {
                    "apiGroups": [""],
                    "resources": ["nodes"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": [GROUP],
                    "resources": ["nodefeatures"],
                    "verbs": ["get", "list", "watch", "delete"],
                },
            ],
        ),
        _deployment(args, "nfd-master"),
        _deployment(args, "nfd-gc"),
        _worker(args),
        make(
            f"{GROUP}/v1alpha1",
            "NodeFeatureRule",
            "railweld",
            spec={
                "rules": [
                    {
                        "name": f"{label}: {words}",
                        "labels": {label: "true"},
                        "matchFeatures": [
                            {"feature": feature, "matchExpressions": expressions}
                            for feature, expressions in features
                        ],
                    }
                    for label, words, features in RULES
                ]
            },
        ),
    ]


def _definition(kind: str, scope: str) -> Manifest:
    """The kinds that NFD works with; their content is NFD's business, so it is left open."""
    plural = f"{kind.lower()}s"
    short = {"NodeFeatureRule": ["nfr"], "NodeFeatureGroup": ["nfg"]}.get(kind)
    version: dict[str, Any] = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
                "required": ["spec"],
            }
        },
    }
    if kind == "NodeFeatureGroup":
        version["subresources"] = {"status": {}}
    return make(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        f"{plural}.{GROUP}",
        spec={
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **({"shortNames": short} if short else {}),
            },
            "scope": scope,
            "versions": [version],
        },
    )


def _account(
    args: NfdArgs, name: str, rules: list[dict[str, Any]], *, cluster: bool = True
) -> list[Manifest]:
    kind = "ClusterRole" if cluster else "Role"
    namespace = None if cluster else args.namespace
    role = f"railweld:{name}" if cluster else name
    api = "rbac.authorization.k8s.io"
    return [
        make("v1", "ServiceAccount", name, args.namespace),
        make(f"{api}/v1", kind, role, namespace, rules=rules),
        make(
            f"{api}/v1",
            f"{kind}Binding",
            role,
            namespace,
            roleRef={"apiGroup": api, "kind": kind, "name": role},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": args.namespace}],
        ),
    ]


def _container(args: NfdArgs, name: str) -> dict[str, Any]:
    fields = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    fields["KUBERNETES_NAMESPACE"] = "metadata.namespace"
    return {
        "name": name.removeprefix("nfd-"),
        "image": args.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [name],
        "env": [
            {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for variable, path in fields.items()
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": small("128Mi", "4Gi" if name == "nfd-master" else "512Mi"),
    }


def _deployment(args: NfdArgs, name: str) -> Manifest:
    labels = {"app.kubernetes.io/name": name}
    spec: dict[str, Any] = {
        "serviceAccountName": name,
        "enableServiceLinks": False,
        "tolerations": [
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
        ],
        "containers": [_container(args, name)],
    }
    if args.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in args.pull_secrets]
    return make(
        "apps/v1",
        "Deployment",
        name,
        args.namespace,
        labels=labels,
        spec={
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    )


def _worker(args: NfdArgs) -> Manifest:
    places = {
        "boot": "/boot",
        "os-release": "/etc/os-release",
        "sys": "/sys",
        "lib": "/lib",
        "usr-lib": "/usr/lib",
        "proc-swaps": "/proc/swaps",
    }
    container = _container(args, "nfd-worker")
    container["volumeMounts"] = [
        mount(f"host-{name}", f"/host-{path.strip('/')}", read_only=True)
        for name, path in places.items()
    ]
    pod = {
        "serviceAccountName": "nfd-worker",
        "enableServiceLinks": False,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "containers": [container],
        "volumes": [host_path(f"host-{name}", path) for name, path in places.items()],
    }
    return daemon_set("nfd-worker", args.namespace, pod, pull_secrets=args.pull_secrets)
