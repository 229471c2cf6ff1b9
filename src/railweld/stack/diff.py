"""What a cluster has, against what is described: asked of the API server, which knows defaults.

Each described object is applied as a trial (`dryRun`). What the trial would change is drift; what
others added in fields that the stack does not own is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from railweld import names
from railweld.stack.api import Cluster
from railweld.stack.objects import MANAGED_BY, OWNER, Key, Manifest, is_owned, key

MANAGER: Final = "railweld-diff"
_ABSENT: Final = None
#: Changed by every write, by the server alone, or by Pulumi for its own use.
_NOISE: Final = (
    ("metadata", "managedFields"),
    ("metadata", "resourceVersion"),
    ("metadata", "generation"),
    ("metadata", "uid"),
    ("metadata", "creationTimestamp"),
    ("metadata", "annotations", "deprecated.daemonset.template.generation"),
    ("status",),
)


@dataclass(frozen=True)
class Difference:
    """One field of an object."""

    path: str
    found: Any
    expected: Any

    def sentence(self) -> str:
        """Found and expected."""
        return f"{self.path}: found {_words(self.found)}, expected {_words(self.expected)}"


@dataclass(frozen=True)
class Finding:
    """One object that is not as described.

    Attributes:
        kind: `missing`, `differs`, `foreign` (exists, but is not the stack's) or `extra`
            (the stack's, but no longer described).
    """

    key: Key
    kind: Literal["missing", "differs", "foreign", "extra"]
    differences: tuple[Difference, ...] = ()


def compare(cluster: Cluster, site: str, manifests: Iterable[Manifest]) -> list[Finding]:
    """Every object that is missing, differs, or is no longer described."""
    wanted = list(manifests)
    findings = []
    for manifest in wanted:
        name = key(manifest)
        live = cluster.get(name)
        if live is None:
            findings.append(Finding(name, "missing"))
            continue
        trial = cluster.apply(manifest, manager=MANAGER, dry_run=True)
        differences = tuple(_differences(live, trial)) + tuple(_extra_data(live, manifest))
        if not is_owned(live, site):
            findings.append(Finding(name, "foreign", differences))
        elif differences:
            findings.append(Finding(name, "differs", differences))
    return findings + list(_extra(cluster, site, wanted))


def _differences(live: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[Difference]:
    for path, found, expected in _walk(live, trial, ()):
        if not any(path[: len(noise)] == noise for noise in _NOISE):
            yield Difference(_text(path), found, expected)


def _walk(
    found: Any, expected: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if found == expected:
        return
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in sorted({*found, *expected}):
            yield from _walk(found.get(name, _ABSENT), expected.get(name, _ABSENT), (*path, name))
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (left, right) in enumerate(zip(found, expected, strict=True)):
            yield from _walk(left, right, (*path, str(number)))
    else:
        yield path, found, expected


def _extra_data(live: Mapping[str, Any], manifest: Manifest) -> Iterator[Difference]:
    """Keys that someone added to a ConfigMap: jobs take all of them into their environment."""
    if manifest["kind"] == "ConfigMap":
        for name in sorted({*(live.get("data") or {})} - {*manifest["data"]}):
            yield Difference(f"data.{name}", live["data"][name], _ABSENT)


def extra_data(cluster: Cluster, manifests: Iterable[Manifest]) -> Iterator[Finding]:
    """ConfigMaps with keys that are not described, which an apply leaves where they are."""
    for manifest in manifests:
        live = cluster.get(key(manifest)) if manifest["kind"] == "ConfigMap" else None
        if live is not None and (differences := tuple(_extra_data(live, manifest))):
            yield Finding(key(manifest), "differs", differences)


def remove_extra_data(cluster: Cluster, finding: Finding) -> None:
    """Take out what `extra_data` found."""
    names_of_keys = [each.path.removeprefix("data.") for each in finding.differences]
    cluster.request(
        "PATCH",
        str(cluster.path(finding.key)),
        {"data": dict.fromkeys(names_of_keys)},
        content="application/merge-patch+json",
    )


def _extra(cluster: Cluster, site: str, wanted: list[Manifest]) -> Iterator[Finding]:
    described = {key(manifest) for manifest in wanted}
    kinds = sorted({(each.api_version, each.kind) for each in described} | _POSSIBLE)
    selector = f"{MANAGED_BY}={OWNER},{names.LABEL_SITE}={site}"
    for api_version, kind in kinds:
        path = cluster.collection(api_version, kind)
        if path is None:
            continue
        listing = cluster.request("GET", path, query={"labelSelector": selector})
        for item in listing.get("items") or ():
            metadata = item["metadata"]
            found = Key(api_version, kind, metadata.get("namespace", ""), metadata["name"])
            if found not in described and not metadata.get("ownerReferences"):
                yield Finding(found, "extra")


#: Kinds of add-ons that a site may have left out since.
_POSSIBLE: Final = {
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
}


def _words(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def _text(path: tuple[str, ...]) -> str:
    return "".join(
        f"[{part}]" if part.isdecimal() else f".{part}" if "." not in part else f"[{part!r}]"
        for part in path
    ).lstrip(".")
