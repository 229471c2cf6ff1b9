"""Kubernetes objects as plain dictionaries, and what all of railweld's have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from railweld import names

Manifest = dict[str, Any]

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "railweld"
NAME: Final = "app.kubernetes.io/name"

#: Objects that must be there before others can be made.
_FIRST: Final = (
    *("Namespace", "CustomResourceDefinition", "PriorityClass", "RuntimeClass"),
    "ServiceAccount",
)


class Key(NamedTuple):
    """What names an object in a cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def group(self) -> str:
        """API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        """As operators say it: `DaemonSet railweld-system/rdma-plugin`."""
        return (
            f"{self.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind} {self.name}"
        )


def key(manifest: Mapping[str, Any]) -> Key:
    """The object's identity."""
    metadata = manifest["metadata"]
    return Key(
        manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"]
    )


def make(
    api_version: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **content: Any,
) -> Manifest:
    """Build an object; empty labels and annotations are left out."""
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def owned(manifest: Manifest, site: str) -> Manifest:
    """The object with the labels by which the stack knows its own."""
    metadata = dict(manifest["metadata"])
    metadata["labels"] = {
        **metadata.get("labels", {}),
        MANAGED_BY: OWNER,
        names.LABEL_SITE: site,
    }
    return {**manifest, "metadata": metadata}


def is_owned(live: Mapping[str, Any], site: str) -> bool:
    """Whether a live object carries those labels."""
    labels = live.get("metadata", {}).get("labels") or {}
    return bool(labels.get(MANAGED_BY) == OWNER and labels.get(names.LABEL_SITE) == site)


def in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Namespaces, definitions and accounts before what refers to them; else as given."""
    return sorted(
        manifests,
        key=lambda each: _FIRST.index(each["kind"]) if each["kind"] in _FIRST else len(_FIRST),
    )


def checksum(*parts: Any) -> str:
    """Short digest of what a pod reads only once: a change must start new pods."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def daemon_set(
    name: str,
    namespace: str,
    pod: Mapping[str, Any],
    *,
    node_selector: Mapping[str, str] | None = None,
    config: Any = None,
    pull_secrets: Sequence[str] = (),
) -> Manifest:
    """A node agent: on every matching node, whatever its taints, before anything else.

    `config` is what the agent reads at its start only; its digest goes into the pod template.
    """
    labels = {NAME: name}
    spec: dict[str, Any] = {
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux", **(node_selector or {})},
        **pod,
    }
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in pull_secrets]
    metadata: dict[str, Any] = {"labels": labels}
    if config is not None:
        metadata["annotations"] = {"railweld.io/config": checksum(config)}
    return make(
        "apps/v1",
        "DaemonSet",
        name,
        namespace,
        labels=labels,
        spec={
            "selector": {"matchLabels": labels},
            # A tenth at a time: agents carry no traffic, yet while one is away its node's
            # devices cannot be given to a starting pod.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": metadata, "spec": spec},
        },
    )


def host_path(name: str, path: str, kind: str = "") -> dict[str, Any]:
    """A volume that is a path of the node."""
    return {"name": name, "hostPath": {"path": path, **({"type": kind} if kind else {})}}


def mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    """Where a container sees a volume."""
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def small(memory: str = "64Mi", limit: str = "256Mi") -> dict[str, Any]:
    """Requests and limits of an agent that mostly waits."""
    return {"requests": {"cpu": "10m", "memory": memory}, "limits": {"memory": limit}}
