"""What all components share: objects of `railweld.stack` become resources of Kubernetes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s
from railweld.stack.objects import Manifest, key, owned

#: Modules of the SDK by API version; other kinds become CustomResource.
_MODULES: Final[Mapping[str, str]] = {
    "v1": "core.v1",
    "apps/v1": "apps.v1",
    "batch/v1": "batch.v1",
    "rbac.authorization.k8s.io/v1": "rbac.v1",
    "scheduling.k8s.io/v1": "scheduling.v1",
    "node.k8s.io/v1": "node.v1",
    "admissionregistration.k8s.io/v1": "admissionregistration.v1",
    "apiextensions.k8s.io/v1": "apiextensions.v1",
}
#: Whether their pods run is a question about nodes, which `railweld verify` answers. An `up` that
#: waited for them would take longer with every node and fail with one that is switched off.
_NODE_AGENTS: Final = ("DaemonSet", "Deployment")
_DEFINITIONS: Final = ("CustomResourceDefinition", "Namespace")


class Component(pulumi.ComponentResource):
    """An add-on: its objects are its children, made with the provider that it was given."""

    def __init__(
        self,
        token: str,
        name: str,
        *,
        site: str,
        manifests: Iterable[Manifest],
        opts: pulumi.ResourceOptions | None,
    ) -> None:
        super().__init__(f"railweld:stack:{token}", name, None, opts)
        before = _depends_on(opts)
        first: list[pulumi.Resource] = []
        self.objects: list[pulumi.Resource] = []
        for manifest in manifests:
            definition = manifest["kind"] in _DEFINITIONS
            child = resource(
                name,
                owned(manifest, site),
                pulumi.ResourceOptions(
                    parent=self, depends_on=before if definition else [*before, *first]
                ),
            )
            self.objects.append(child)
            if definition:
                first.append(child)


def _depends_on(opts: pulumi.ResourceOptions | None) -> list[pulumi.Resource]:
    """Children wait for what their component waits for; Pulumi does not hand this on."""
    given = opts.depends_on if opts is not None else None
    if given is None:
        return []
    if isinstance(given, pulumi.Resource):
        return [given]
    if not isinstance(given, Sequence):
        raise TypeError("depends_on: found an output, expected resources")
    return [each for each in given if isinstance(each, pulumi.Resource)]


def resource(
    component: str, manifest: Manifest, opts: pulumi.ResourceOptions
) -> pulumi.CustomResource:
    """Make one object with the SDK's class for its kind."""
    identity = key(manifest)
    # Kind and name are unique within a component.
    name = f"{component}/{identity.kind}/{identity.name}"
    content = {
        _snake(field): value
        for field, value in _prepared(manifest).items()
        if field not in ("apiVersion", "kind")
    }
    module = _MODULES.get(identity.api_version)
    classes = importlib.import_module(f"pulumi_kubernetes.{module}") if module else None
    made = getattr(classes, identity.kind, None)
    if made is None:
        return k8s.apiextensions.CustomResource(
            name,
            api_version=identity.api_version,
            kind=identity.kind,
            opts=opts,
            **content,
        )
    built: pulumi.CustomResource = made(name, opts=opts, **content)
    return built


def _prepared(manifest: Manifest) -> dict[str, Any]:
    """With what the provider has to know about the object."""
    annotations = {
        # The stack's objects are the stack's alone: what someone changed by hand is put back
        # instead of being a conflict. Objects of others never get this far, see preflight.
        "pulumi.com/patchForce": "true",
    }
    if manifest["kind"] in _NODE_AGENTS:
        annotations["pulumi.com/skipAwait"] = "true"
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return {**manifest, "metadata": metadata}


def _snake(text: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", text)
