"""What the API server says of nodes, devices, agents and clocks, judged. Pure: answers in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from railweld import names
from railweld.cluster.model import members
from railweld.record import Check, Status, judge
from railweld.stack import clock_guard, gpu_plugin, rdma_plugin
from railweld.stack.diff import Finding
from railweld.stack.objects import Manifest, key
from railweld.stack.preflight import adopt_command

if TYPE_CHECKING:
    from railweld.site import Site
    from railweld.stack.graph import Stack

LAYER: Final = "cluster"
UP: Final = "cd pulumi && pulumi up"
_DEPLOY: Final = "ansible-playbook playbooks/deploy-cluster.yml"
#: A guard repeats what it has said every five minutes; three times nothing is a dead guard.
_SILENT: Final = timedelta(minutes=15)
_DIFFERENCES: Final = 3


@dataclass(frozen=True)
class Answers:
    """What was asked of the API server, as it came.

    Attributes:
        nodes: every Node, by name.
        agents: pods of the stack's own namespace.
        findings: objects that are not as described.
        now: when it was asked.
    """

    nodes: Mapping[str, Manifest]
    agents: Sequence[Manifest]
    findings: Sequence[Finding]
    now: datetime


def judge_answers(
    site: Site, stack: Stack, answers: Answers, selects: Callable[[str], bool]
) -> list[Check]:
    """Every check that one look at the API server allows."""
    chosen = [name for name in members(site) if selects(name)]
    found = [*_members(site, answers.nodes, chosen)]
    if all(selects(name) for name in members(site)):
        found += _strangers(site, answers.nodes)
    there = [name for name in chosen if name in answers.nodes]
    if not is_deployed(answers.findings):
        return [*found, _no_stack(site)]
    found += _objects(site, stack, answers.findings)
    found += _devices(site, stack, answers.nodes, there)
    found += _agents(stack, answers, there)
    if stack.clock_guard:
        for name in there:
            found.append(_clock(answers.nodes[name], answers.now))
    return found


def is_deployed(findings: Iterable[Finding]) -> bool:
    """Whether the stack has ever been put on this cluster: its namespace is the first object."""
    return not any(
        each.kind == "missing"
        and (each.key.kind, each.key.name) == ("Namespace", names.NAMESPACE_SYSTEM)
        for each in findings
    )


def _members(site: Site, nodes: Collection[str], chosen: Iterable[str]) -> Iterator[Check]:
    for name in chosen:
        yield judge(
            id="cluster.node",
            layer=LAYER,
            target=name,
            ok=name in nodes,
            ran=f"kubectl get node {name}",
            found="registered" if name in nodes else "no such node",
            expected=f"a node of cluster {site.name}",
            fix=f"{_DEPLOY} --limit {name}",
        )


def _strangers(site: Site, nodes: Iterable[str]) -> Iterator[Check]:
    for name in sorted(set(nodes) - set(members(site))):
        yield Check(
            id="cluster.stranger",
            layer=LAYER,
            target=name,
            status=Status.WARN,
            ran="kubectl get nodes",
            found="a node that the inventory does not have",
            expected="only hosts of control_plane and gpu_nodes",
            fix=f"add it to the inventory, or kubectl drain {name} --ignore-daemonsets and "
            f"kubectl delete node {name}",
        )


def _no_stack(site: Site) -> Check:
    return Check(
        id="stack.deployed",
        layer=LAYER,
        target=site.name,
        status=Status.FAIL,
        ran=f"kubectl get namespace {names.NAMESPACE_SYSTEM}",
        found="no such namespace: nothing of the stack is there",
        expected="the stack that follows from the description",
        fix=UP,
        ref="docs/stack.md",
    )


def _objects(site: Site, stack: Stack, findings: Sequence[Finding]) -> Iterator[Check]:
    ran = f"railweld stack diff ({site.name})"
    expected = "every object of the stack as described"
    if not any(each.kind != "extra" for each in findings):
        total = len(stack.manifests())
        yield judge(
            id="stack.objects", layer=LAYER, target=site.name, ok=True, ran=ran,
            found=f"{total} objects as described", expected=expected, fix="",
        )  # fmt: skip
    for each in findings:
        texts = [difference.sentence() for difference in each.differences]
        more = f"; {len(texts) - _DIFFERENCES} more" if len(texts) > _DIFFERENCES else ""
        words = {
            "missing": "no such object",
            "differs": "; ".join(texts[:_DIFFERENCES]) + more,
            "foreign": "an object that is not this stack's",
            "extra": "an object of this stack that is no longer described",
        }
        yield Check(
            id="stack.objects",
            layer=LAYER,
            target=str(each.key),
            # What is left over does not make what is described wrong.
            status=Status.WARN if each.kind == "extra" else Status.FAIL,
            ran=ran,
            found=words[each.kind],
            expected=expected,
            fix=f"{adopt_command(each.key, site.name)}; then {UP}"
            if each.kind == "foreign"
            else UP,
        )


def _devices(
    site: Site, stack: Stack, nodes: Mapping[str, Manifest], there: Iterable[str]
) -> Iterator[Check]:
    for name in there:
        host = site.hosts[name]
        gpus = host.gpu.count if host.gpu else 0
        yield _device(
            "cluster.gpus", nodes[name], names.RESOURCE_GPU, gpus, agent=gpu_plugin.NAME,
            more=f"`railweld verify --stage gpu --limit {name}` looks at the GPUs themselves",
        )  # fmt: skip
        if not stack.rdma_plugin:
            continue
        yield _device(
            "cluster.rdma", nodes[name], stack.rdma_plugin.resource,
            stack.rdma_plugin.shares if host.hcas else 0, agent=rdma_plugin.NAME,
            more=f"`railweld verify --stage links --limit {name}` looks at the ports, which this "
            "number does not count",
        )  # fmt: skip


def _device(
    check: str, node: Manifest, resource: str, wanted: int, *, agent: str, more: str
) -> Check:
    name = node["metadata"]["name"]
    status = node.get("status") or {}
    offered = int((status.get("allocatable") or {}).get(resource, 0))
    known = int((status.get("capacity") or {}).get(resource, 0))
    found = f"{offered} {resource}"
    if offered != wanted and known > offered:
        # The kubelet remembers for a while what a plugin that went away had.
        found += f" of {known} that the kubelet knows"
    return judge(
        id=check,
        layer=LAYER,
        target=name,
        ok=offered == wanted,
        ran=f"kubectl get node {name} -o jsonpath={{.status.allocatable}}",
        found=found,
        expected=f"{wanted} {resource}, as described",
        fix=f"kubectl -n {names.NAMESPACE_SYSTEM} logs --selector app.kubernetes.io/name={agent} "
        f"--prefix | grep {name}; {more}",
    )


def _agents(stack: Stack, answers: Answers, there: Sequence[str]) -> Iterator[Check]:
    for manifest in stack.manifests():
        if manifest["kind"] == "DaemonSet":
            yield from _daemon_set(manifest, answers, there)
        elif manifest["kind"] == "Deployment":
            yield _deployment(manifest, answers.agents)


def _daemon_set(manifest: Manifest, answers: Answers, there: Sequence[str]) -> Iterator[Check]:
    spec = manifest["spec"]["template"]["spec"]
    selector = dict(spec.get("nodeSelector") or {}).items()
    nodes = [
        name
        for name in there
        if selector <= (answers.nodes[name]["metadata"].get("labels") or {}).items()
    ]
    pods = {
        str((pod.get("spec") or {}).get("nodeName")): pod
        for pod in _of(manifest, answers.agents)
        # While one is being replaced there are two on a node.
        if not pod["metadata"].get("deletionTimestamp")
    }
    name = key(manifest).name
    # A guard that sees a bad clock is unready by design; the clock has a check of its own.
    alive = runs if name == clock_guard.NAME else why_not_ready
    wrong = {node: why for node in nodes if (why := alive(pods.get(node)))}
    if not wrong:
        yield judge(
            id="stack.agent", layer=LAYER, target=str(key(manifest)), ok=True,
            ran=_see(manifest), found=f"ready on {len(nodes)} nodes",
            expected="ready on every node that it is for", fix="",
        )  # fmt: skip
    for node, why in wrong.items():
        yield judge(
            id="stack.agent",
            layer=LAYER,
            target=node,
            ok=False,
            ran=_see(manifest),
            found=f"{name}: {why}",
            expected=f"{name} ready",
            fix=f"{_see(manifest).replace(' get pods', ' describe pods')}; logs of the same; "
            "an image that is missing: railweld_image_archives or the registry",
        )


def _deployment(manifest: Manifest, pods: Iterable[Manifest]) -> Check:
    wanted = int(manifest["spec"].get("replicas", 1))
    reasons = [why_not_ready(pod) for pod in _of(manifest, pods)]
    ready = reasons.count("")
    why = Counter(filter(None, reasons)).most_common(1)
    return judge(
        id="stack.agent",
        layer=LAYER,
        target=str(key(manifest)),
        ok=ready >= wanted,
        ran=_see(manifest),
        found=f"{ready} of {wanted} ready" + (f": {why[0][0]}" if why else ""),
        expected=f"{wanted} ready",
        fix=_see(manifest).replace(" get pods", " describe pods"),
    )


def _of(manifest: Manifest, pods: Iterable[Manifest]) -> Iterator[Manifest]:
    """Pods that a DaemonSet or Deployment selects."""
    labels = manifest["spec"]["selector"]["matchLabels"].items()
    return (pod for pod in pods if labels <= (pod["metadata"].get("labels") or {}).items())


def _see(manifest: Manifest) -> str:
    labels = manifest["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    return f"kubectl -n {key(manifest).namespace} get pods -o wide --selector {selector}"


def runs(pod: Manifest | None) -> str:
    """Why a pod's containers do not run; empty when they do."""
    if pod is None:
        return "no pod"
    states = (pod.get("status") or {}).get("containerStatuses") or []
    if states and all("running" in (each.get("state") or {}) for each in states):
        return ""
    return reason(pod)


def why_not_ready(pod: Manifest | None) -> str:
    """Why a pod is not ready; empty when it is."""
    if pod is None:
        return "no pod"
    if condition(pod, "Ready").get("status") == "True":
        return ""
    return reason(pod)


def reason(pod: Manifest) -> str:
    """The most telling word that a pod's status has for its not running."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()),
                 *(status.get("containerStatuses") or ())):  # fmt: skip
        state = each.get("state") or {}
        for kind in ("waiting", "terminated"):
            told = state.get(kind) or {}
            if told.get("reason") not in (None, "", "PodInitializing", "Completed"):
                return ": ".join(filter(None, (told["reason"], told.get("message", ""))))
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason')}: {scheduled.get('message', '')}"
    return status.get("message") or status.get("reason") or f"{status.get('phase')}, not ready"


def condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of a node or pod; empty when it has none of that kind."""
    for each in (thing.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            found: Mapping[str, Any] = each
            return found
    return {}


def _clock(node: Manifest, now: datetime) -> Check:
    name = node["metadata"]["name"]
    label = (node["metadata"].get("labels") or {}).get(names.LABEL_CLOCK, "")
    told = condition(node, names.CONDITION_CLOCK)
    silent = now - _time(told.get("lastHeartbeatTime"))
    if not told:
        found = "nothing from the clock guard"
    elif silent > _SILENT:
        minutes = int(silent.total_seconds() // 60)
        found = f"{label or 'no label'}, last said {minutes} minutes ago"
    else:
        found = f"{label or 'no label'}: {told.get('message', '')}"
    return judge(
        id="cluster.clock",
        layer=LAYER,
        target=name,
        ok=bool(told) and silent <= _SILENT and label == "ok",
        ran=f"kubectl describe node {name} | grep -i clock",
        found=found,
        expected="ok, said within the last 15 minutes",
        fix=f"a clock that is off: chronyc tracking and chronyc sources on {name}; a guard that is "
        f"silent: kubectl -n {names.NAMESPACE_SYSTEM} logs --selector "
        f"app.kubernetes.io/name={clock_guard.NAME} --prefix | grep {name}",
    )


def _time(text: object) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def as_seen(nodes: Iterable[Manifest]) -> dict[str, Any]:
    """The same nodes as the roles' checks know them from the first control-plane node."""
    found = {}
    for node in nodes:
        status, spec = node.get("status") or {}, node.get("spec") or {}
        addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
        found[node["metadata"]["name"]] = {
            "pod_cidr": spec.get("podCIDR"),
            "address": addresses.get("InternalIP"),
            "version": (status.get("nodeInfo") or {}).get("kubeletVersion", "").removeprefix("v"),
            "unschedulable": bool(spec.get("unschedulable")),
            "ready": condition(node, "Ready").get("status") == "True",
        }
    return {"reachable": True, "error": "", "nodes": found}
