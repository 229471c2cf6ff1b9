"""The rules of the policies as plain functions, for objects that are not in a cluster yet.

The API server enforces what it can (`railweld.stack.policies`); these run while `pulumi preview`
or a test looks at the objects, and know a few that an API server cannot see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from railweld import names
from railweld.nccl import judge as judge_nccl
from railweld.stack import nfd, rdma_plugin
from railweld.stack.images import Reference
from railweld.stack.policies import LABEL_RDMA

#: Agents that may be privileged, with the reason.
PRIVILEGED: Final[Mapping[str, str]] = {
    rdma_plugin.NAME: "it reads and sets the HCAs' links and hands out their devices",
}
#: Every key that the RDMA plugin's config.json may have; it ignores others silently.
_PLUGIN_KEYS: Final = {"periodicUpdateInterval", "configList"}
_ENTRY_KEYS: Final = {"resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors"}
_SELECTORS: Final = {"vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"}
_SHM: Final = "/dev/shm"  # noqa: S108 - the pod's own memory


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the rules have to know of the site."""

    nccl: str
    transport: str
    rdma_resource: str
    #: Folders of their node that jobs may mount.
    host_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """A rule that an object breaks."""

    rule: str
    where: str
    message: str


Rule = Callable[[Mapping[str, Any], Context], Iterator[str]]


def judge(manifest: Mapping[str, Any], context: Context) -> list[Violation]:
    """Every rule that one object breaks."""
    metadata = manifest.get("metadata") or {}
    where = f"{manifest.get('kind')} {metadata.get('name')}"
    return [
        Violation(name, where, message)
        for name, rule in RULES.items()
        for message in rule(manifest, context)
    ]


def judge_all(manifests: Iterable[Mapping[str, Any]], context: Context) -> list[Violation]:
    """Every rule that the objects break, each alone and all together."""
    everything = list(manifests)
    found = [violation for each in everything for violation in judge(each, context)]
    return found + judge_together(everything)


def pod_spec(manifest: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Metadata and spec of the pods that an object makes; both empty for an object without."""
    kind = manifest.get("kind")
    if kind == "Pod":
        return manifest.get("metadata") or {}, manifest.get("spec") or {}
    holder: Any = manifest.get("spec") or {}
    if kind == "PodTemplate":
        template = manifest.get("template")
    elif kind == "CronJob":
        template = ((holder.get("jobTemplate") or {}).get("spec") or {}).get("template")
    else:
        template = holder.get("template")
    if not isinstance(template, Mapping) or "spec" not in template:
        return {}, {}
    return template.get("metadata") or {}, template["spec"]


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(spec.get("initContainers") or ()) + list(spec.get("containers") or ())


def _running(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those that run as long as the pod: its containers and its sidecars."""
    sidecars = [e for e in spec.get("initContainers") or () if e.get("restartPolicy") == "Always"]
    return sidecars + list(spec.get("containers") or ())


def _wants(container: Mapping[str, Any], resource: str) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return str(limits.get(resource, "0")) not in ("", "0")


def _image_names_a_build(manifest: Mapping[str, Any], _: Context) -> Iterator[str]:
    spec = pod_spec(manifest)[1]
    for container in _containers(spec):
        try:
            Reference.parse(str(container.get("image", "")))
        except ValueError as error:
            yield str(error)


def _privileged_by_list(manifest: Mapping[str, Any], _: Context) -> Iterator[str]:
    spec = pod_spec(manifest)[1]
    name = (manifest.get("metadata") or {}).get("name")
    for container in _containers(spec):
        if (container.get("securityContext") or {}).get("privileged") and name not in PRIVILEGED:
            yield (
                f"container {container.get('name')} is privileged; only "
                f"{', '.join(PRIVILEGED)} may be"
            )


def _gpu_pods_can_use_rdma(manifest: Mapping[str, Any], context: Context) -> Iterator[str]:
    metadata, spec = pod_spec(manifest)
    containers = _running(spec)
    with_gpu = [each for each in containers if _wants(each, names.RESOURCE_GPU)]
    if not with_gpu:
        return
    exempt = (metadata.get("labels") or {}).get(LABEL_RDMA) == "none"
    resource = context.rdma_resource
    if resource and not exempt and not any(_wants(each, resource) for each in containers):
        yield f"GPUs without {resource}: NCCL would run on TCP"
    memory = {
        volume.get("name")
        for volume in spec.get("volumes") or ()
        if (volume.get("emptyDir") or {}).get("medium") == "Memory"
        and volume["emptyDir"].get("sizeLimit")
    }
    for container in with_gpu:
        capabilities = (container.get("securityContext") or {}).get("capabilities") or {}
        if "IPC_LOCK" not in (capabilities.get("add") or ()):
            yield f"container {container.get('name')} has GPUs but not IPC_LOCK"
        mounts = container.get("volumeMounts") or ()
        if not any(m.get("mountPath") == _SHM and m.get("name") in memory for m in mounts):
            yield (
                f"container {container.get('name')} has GPUs but only the runtime's 64 MiB of "
                f"{_SHM}"
            )


def _jobs_stay_in_their_pod(manifest: Mapping[str, Any], context: Context) -> Iterator[str]:
    """What jobs are made of; whoever runs one is known only when it is submitted."""
    if (manifest.get("metadata") or {}).get("namespace") != names.NAMESPACE_JOBS:
        return
    spec = pod_spec(manifest)[1]
    roots = [each.rstrip("/") for each in context.host_paths]
    for volume in spec.get("volumes") or ():
        path = (volume.get("hostPath") or {}).get("path")
        if path is not None and not any(path == r or path.startswith(f"{r}/") for r in roots):
            yield (
                f"volume {volume.get('name')} is the node's {path}; jobs may mount "
                f"{', '.join(roots) or 'no folder of their node'}"
            )
    for container in _containers(spec):
        security = container.get("securityContext") or {}
        if security.get("allowPrivilegeEscalation") is not False:
            yield f"container {container.get('name')} lacks allowPrivilegeEscalation: false"
        added = set((security.get("capabilities") or {}).get("add") or ()) - {"IPC_LOCK"}
        if added:
            yield f"container {container.get('name')} adds {', '.join(sorted(added))}"
    for field in ("hostPID", "hostIPC", "nodeName"):
        if spec.get(field):
            yield f"{field} is not for jobs"


def _nccl_as_advised(manifest: Mapping[str, Any], context: Context) -> Iterator[str]:
    environment: dict[str, str] = {}
    if manifest.get("kind") == "ConfigMap":
        environment |= {k: str(v) for k, v in (manifest.get("data") or {}).items()}
    spec = pod_spec(manifest)[1]
    for container in _containers(spec):
        environment |= {
            each["name"]: str(each.get("value", "")) for each in container.get("env") or ()
        }
    for finding in judge_nccl(environment, nccl=context.nccl, transport=context.transport):
        yield finding.sentence()


def _quota_keys(manifest: Mapping[str, Any], _: Context) -> Iterator[str]:
    if manifest.get("kind") != "ResourceQuota":
        return
    for name in (manifest.get("spec") or {}).get("hard") or {}:
        prefix, _dot, resource = name.partition(".")
        if "/" in resource and prefix != "requests":
            yield f"{name}: extended resources can only be limited as requests.{resource}"
        elif "/" in name and prefix not in ("requests", "limits", "count"):
            yield f"{name}: found no prefix, expected requests.{name}"


def _limit_range(manifest: Mapping[str, Any], _: Context) -> Iterator[str]:
    if manifest.get("kind") != "LimitRange":
        return
    for limit in (manifest.get("spec") or {}).get("limits") or ():
        for resource in limit.get("max") or {}:
            if "/" in resource and (
                limit.get("type") != "Container"
                or str((limit.get("default") or {}).get(resource)) != "0"
                or str((limit.get("defaultRequest") or {}).get(resource)) != "0"
            ):
                yield (
                    f"max of {resource} also becomes what every container asks for: use a "
                    'ResourceQuota, or set default and defaultRequest to "0"'
                )


def _rdma_config(manifest: Mapping[str, Any], _: Context) -> Iterator[str]:
    data = manifest.get("data") or {}
    name = (manifest.get("metadata") or {}).get("name")
    if manifest.get("kind") != "ConfigMap" or name != rdma_plugin.CONFIGMAP:
        return
    try:
        config = json.loads(data["config.json"])
    except (KeyError, ValueError) as error:
        yield f"config.json cannot be read: {error}"
        return
    yield from _unknown(config, _PLUGIN_KEYS, "config.json")
    for entry in config.get("configList") or ():
        resource = str(entry.get("resourceName", ""))
        if not re.fullmatch(r"[a-zA-Z0-9_]+", resource):
            yield (
                f"resourceName {resource!r}: the plugin exits on anything but letters, digits and "
                "underscores; what stands before the slash is resourcePrefix"
            )
        yield from _unknown(entry, _ENTRY_KEYS, resource)
        yield from _unknown(entry.get("selectors") or {}, _SELECTORS, f"{resource}.selectors")


def _unknown(found: Mapping[str, Any], known: set[str], where: str) -> Iterator[str]:
    for name in sorted(set(found) - known):
        yield f"{where}: unknown key {name}, which the plugin would ignore silently"


def judge_together(manifests: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Rules that only show in all objects of a stack."""
    masters = []
    for manifest in manifests:
        name = str((manifest.get("metadata") or {}).get("name") or manifest.get("name") or "")
        spec = pod_spec(manifest)[1]
        commands = [list(each.get("command") or ()) for each in _containers(spec)]
        if ["nfd-master"] in commands:
            masters.append(f"{manifest.get('kind')} {name}")
        # A Helm release of the operator, which brings its own unless told otherwise.
        values = manifest.get("values") or {}
        brings_nfd = (values.get("nfd") or {}).get("enabled", True)
        if "gpu-operator" in str(manifest.get("chart", "")) and brings_nfd:
            masters.append(f"release {name}")
    if len(masters) <= 1:
        return []
    words = f"two of {nfd.GROUP} undo each other's labels: run one only"
    return [Violation("one-nfd", ", ".join(masters), words)]


RULES: Final[Mapping[str, Rule]] = {
    "image-names-a-build": _image_names_a_build,
    "privileged-by-list": _privileged_by_list,
    "gpu-pods-can-use-rdma": _gpu_pods_can_use_rdma,
    "jobs-stay-in-their-pod": _jobs_stay_in_their_pod,
    "nccl-as-advised": _nccl_as_advised,
    "quota-keys": _quota_keys,
    "limit-range": _limit_range,
    "rdma-config": _rdma_config,
}
#: For lists of rules: those above and those about several objects.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    "image-names-a-build": "Images have a tag other than latest, or a digest.",
    "privileged-by-list": "Only listed agents of nodes are privileged.",
    "gpu-pods-can-use-rdma": "Pods with GPUs ask for RDMA, may lock memory, have a /dev/shm.",
    "jobs-stay-in-their-pod": "Jobs mount described folders only and gain no rights on their node.",
    "nccl-as-advised": "No NCCL variable that is obsolete or harmful with the version in use.",
    "quota-keys": "Quotas of extended resources are written requests.NAME.",
    "limit-range": "No LimitRange that makes every container ask for a device.",
    "rdma-config": "The RDMA plugin's configuration has only names and keys that it takes.",
    "one-nfd": "One Node Feature Discovery in the cluster.",
}
