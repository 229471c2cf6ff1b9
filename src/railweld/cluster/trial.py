"""A short pod on each GPU node, made as jobs' pods are: what a job finds there, and judges of it.

It asks for no GPU, so it runs beside jobs and takes nothing from them, and its priority lets every
job go first. What it sees comes back in its termination message: one request tells of all pods.
"""

from __future__ import annotations

import copy
import ipaddress
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from railweld import names
from railweld.cluster.live import condition, reason
from railweld.nccl import Profile
from railweld.record import Check, Status, judge
from railweld.stack.api import ApiError, Cluster
from railweld.stack.objects import Manifest
from railweld.stack.quota import PRIORITY_PROOF

if TYPE_CHECKING:
    from railweld.site import Site

LAYER: Final = "job"
LABEL: Final = "railweld.io/verify"
#: Pulls of an image that no node has yet are part of it.
PATIENCE_S: Final = 120.0
#: A pod that no node takes by then waits for something that a job holds.
_UNPLACED_S: Final = 15.0
_PAUSE_S: Final = 0.5
_KUBELET_PORT: Final = 10250
_DNS_PORT: Final = 53
_SERVICE: Final = "kubernetes.default.svc"
#: A user as jobs have one; the policies refuse a lower number.
_USER: Final = 65534
_PODS: Final = f"/api/v1/namespaces/{names.NAMESPACE_JOBS}/pods"
_SEE: Final = f"kubectl -n {names.NAMESPACE_JOBS} get events"

_SCRIPT: Final = """{
while read -r a b c soft hard rest; do
  [ "$a $b $c" = "Max locked memory" ] && echo "memlock $soft"
done < /proc/self/limits
stat -f -c 'shm %T %S %b' /dev/shm
for each in VARIABLES; do
  printenv "$each" > /dev/null && echo "env $each=$(printenv "$each")"
done
for each in /dev/infiniband/uverbs*; do
  [ -e "$each" ] && echo "hca ${each##*/}"
done
getent hosts SERVICE | while read -r address rest; do echo "dns $address"; done
for each in PEERS; do
  node=${each%%=*} place=${each#*=}
  timeout 5 bash -c ": < /dev/tcp/$place" 2> /dev/null && echo "peer $node"
done
echo end
} > /dev/termination-log 2> /dev/null
"""


@dataclass(frozen=True)
class Peer:
    """Something on another node that a rank must be able to reach."""

    node: str
    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One pod that is to run.

    Attributes:
        node: where.
        partition: whose PodTemplate it is made from.
        profile: what NCCL must be told there.
        hcas: how many of the node's HCAs a pod must see; None where the site has none.
        peers: what it must reach.
    """

    node: str
    partition: str
    profile: Profile
    hcas: int | None
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Told:
    """What a pod reported.

    Attributes:
        failure: why it reported nothing; empty when it did.
        waits: whether that is because jobs have what it asks for, or nobody offers it.
    """

    memlock: str = ""
    shm_kind: str = ""
    shm_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    hcas: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    peers: frozenset[str] = frozenset()
    failure: str = ""
    waits: bool = False


def trials(
    site: Site,
    profiles: Mapping[str, Profile],
    nodes: Mapping[str, Manifest],
    dns: Sequence[Manifest],
    chosen: Iterable[str],
) -> list[Trial]:
    """One trial per GPU node that is in a partition: of the default partition, if it is in several.

    Args:
        site: the description.
        profiles: by partition.
        nodes: the cluster's, by name.
        dns: pods of the cluster's DNS.
        chosen: nodes that the command is about.
    """
    found = []
    for name in chosen:
        mine = [each for each in site.partitions if name in each.hosts]
        if not mine or site.hosts[name].gpu is None or name not in nodes:
            continue
        partition = next((each for each in mine if each.default), mine[0])
        if site.network_mode == "host":
            peers = _next_node(site, partition.hosts, nodes, name)
        else:
            peers = _dns_elsewhere(dns, name)
        hcas = len(site.hosts[name].hcas)
        found.append(
            Trial(
                node=name,
                partition=partition.name,
                profile=profiles[partition.name],
                hcas=hcas or None,
                peers=peers,
            )
        )
    return found


def _next_node(
    site: Site, hosts: Sequence[str], nodes: Mapping[str, Manifest], name: str
) -> tuple[Peer, ...]:
    """The kubelet of the partition's next node: a ring over all nodes, one connection each."""
    place = hosts.index(name)
    for other in (*hosts[place + 1 :], *hosts[:place]):
        if other in nodes and condition(nodes[other], "Ready").get("status") == "True":
            return (Peer(other, site.hosts[other].address, _KUBELET_PORT),)
    return ()


def _dns_elsewhere(pods: Iterable[Manifest], name: str) -> tuple[Peer, ...]:
    """A pod of the cluster's DNS on another node: the only listener that every cluster has."""
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        address = (pod.get("status") or {}).get("podIP")
        if node not in (None, name) and address:
            return (Peer(str(node), str(address), _DNS_PORT),)
    return ()


def script(trial: Trial) -> str:
    """What the pod runs: a shell, coreutils, libc's getent and bash, as job images have them."""
    peers = " ".join(shlex.quote(f"{each.node}={each.address}/{each.port}") for each in trial.peers)
    variables = " ".join(shlex.quote(name) for name in trial.profile.environment)
    return (
        _SCRIPT.replace("VARIABLES", variables or "''")
        .replace("SERVICE", _SERVICE)
        .replace("PEERS", peers)
    )


def pod(template: Manifest, trial: Trial, run: str) -> Manifest:
    """A pod as the partition's jobs have it, without GPUs, on one node."""
    made: dict[str, Any] = copy.deepcopy(template["template"])
    spec = made["spec"]
    container = spec["containers"][0]
    container["command"] = ["/bin/sh", "-c", script(trial)]
    container.pop("args", None)
    for kind in ("limits", "requests"):
        wanted = (container.get("resources") or {}).get(kind) or {}
        for resource in (names.RESOURCE_GPU, "cpu", "memory"):
            wanted.pop(resource, None)
    spec["securityContext"] = {**(spec.get("securityContext") or {}), "runAsUser": _USER}
    spec["nodeSelector"] = {
        **(spec.get("nodeSelector") or {}), "kubernetes.io/hostname": trial.node,
    }  # fmt: skip
    spec["priorityClassName"] = PRIORITY_PROOF
    spec["activeDeadlineSeconds"] = int(PATIENCE_S)
    spec["terminationGracePeriodSeconds"] = 0
    metadata = made.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": _name(run, trial.node),
            "namespace": names.NAMESPACE_JOBS,
            "labels": {**(metadata.get("labels") or {}), LABEL: run},
        },
        "spec": spec,
    }


def _name(run: str, node: str) -> str:
    return f"railweld-verify-{run}-{node}"


def run_trials(
    cluster: Cluster, templates: Mapping[str, Manifest | None], wanted: Sequence[Trial]
) -> dict[str, Told]:
    """Start every pod at once, wait for what they say, and leave none behind.

    Args:
        cluster: where.
        templates: PodTemplates as the cluster has them, by partition.
        wanted: the pods.
    """
    run = secrets.token_hex(3)
    told: dict[str, Told] = {}
    _sweep(cluster, LABEL, over=True)
    try:
        for trial in wanted:
            template = templates.get(trial.partition)
            if template is None:
                told[trial.node] = Told(failure=f"no PodTemplate of partition {trial.partition}")
                continue
            try:
                cluster.request("POST", _PODS, pod(template, trial, run))
            except ApiError as error:
                told[trial.node] = Told(failure=f"refused: {error}")
        told |= _await(cluster, run, [each.node for each in wanted if each.node not in told])
    finally:
        _sweep(cluster, f"{LABEL}={run}")
    return told


def _await(cluster: Cluster, run: str, waiting: list[str]) -> dict[str, Told]:
    told: dict[str, Told] = {}
    started = time.monotonic()
    while waiting:
        passed = time.monotonic() - started
        listed = cluster.request("GET", _PODS, query={"labelSelector": f"{LABEL}={run}"})
        pods = {_node(each): each for each in listed["items"]}
        for name in tuple(waiting):
            found = _outcome(pods.get(name), passed)
            if found is not None:
                told[name] = found
                waiting.remove(name)
        if waiting:
            time.sleep(_PAUSE_S)
    return {
        name: _with_event(cluster, run, name, each) if each.failure else each
        for name, each in told.items()
    }


def _node(found: Manifest) -> str:
    return str(found["spec"]["nodeSelector"]["kubernetes.io/hostname"])


def _outcome(found: Manifest | None, passed: float) -> Told | None:
    """What a pod has come to after so many seconds; None while there is still hope."""
    if found is None:
        return Told(failure="somebody deleted the pod")
    phase = found["status"].get("phase")
    if phase in ("Succeeded", "Failed"):
        return parse(found)
    unplaced = condition(found, "PodScheduled").get("status") == "False"
    if unplaced and passed > _UNPLACED_S:
        return Told(failure=reason(found), waits=True)
    if passed > PATIENCE_S:
        return Told(failure=f"{reason(found)}, after {PATIENCE_S:g} s")
    return None


def _with_event(cluster: Cluster, run: str, node: str, told: Told) -> Told:
    """Add the last warning about a pod, which alone says why a volume or image is missing."""
    name = _name(run, node)
    try:
        found = cluster.request(
            "GET",
            f"/api/v1/namespaces/{names.NAMESPACE_JOBS}/events",
            query={"fieldSelector": f"involvedObject.name={name},type=Warning"},
        )
    except ApiError:
        return told
    messages = [each.get("message", "") for each in found.get("items") or ()]
    if not messages or messages[-1] in told.failure:
        return told
    return Told(failure=f"{told.failure} ({messages[-1]})", waits=told.waits)


def _sweep(cluster: Cluster, selector: str, *, over: bool = False) -> None:
    """Delete pods of trials; with `over` only those that have ended, of runs that were cut off."""
    query = {"labelSelector": selector, "gracePeriodSeconds": "0"}
    if over:
        query["fieldSelector"] = "status.phase!=Running,status.phase!=Pending"
    cluster.request("DELETE", _PODS, query=query)


def parse(found: Manifest) -> Told:
    """Read what an ended pod left as its termination message."""
    statuses = found["status"].get("containerStatuses") or []
    ended = ((statuses[0].get("state") or {}).get("terminated") or {}) if statuses else {}
    lines = str(ended.get("message") or "").splitlines()
    if "end" not in lines:
        return Told(failure=reason(found) if not lines else f"it stopped after {lines[-1]!r}")
    told: dict[str, list[str]] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        told.setdefault(word, []).append(rest)
    kind, size, blocks = [*told.get("shm", [""])[0].split(), "", "0", "0"][:3]
    return Told(
        memlock=told.get("memlock", [""])[0],
        shm_kind=kind,
        shm_bytes=int(size) * int(blocks),
        environment=dict(each.split("=", 1) for each in told.get("env", ())),
        hcas=tuple(told.get("hca", ())),
        dns=tuple(told.get("dns", ())),
        peers=frozenset(told.get("peer", ())),
    )


def judge_trial(site: Site, trial: Trial, told: Told) -> Iterator[Check]:
    """What a job on this node would have found."""
    if told.failure:
        yield _no_pod(trial, told)
        return

    def check(what: str, *, ok: bool, ran: str, found: object, expected: object, fix: str) -> Check:
        return judge(
            id=f"job.{what}", layer=LAYER, target=trial.node, ok=ok, ran=f"{ran}, in a job's pod",
            found=found, expected=expected, fix=fix,
        )  # fmt: skip

    yield check(
        "pod", ok=True, ran="a pod of partition " + trial.partition, found="ran to its end",
        expected="a pod that runs", fix="",
    )  # fmt: skip
    limit = site.memlock_kib
    wanted = str(limit * 1024) if isinstance(limit, int) else limit
    yield check(
        "memlock",
        ok=told.memlock == wanted,
        ran="grep locked /proc/self/limits",
        found=told.memlock or "nothing",
        expected=f"{wanted} (railweld_memlock_kib)",
        fix="role containerd sets it: playbooks/deploy-cluster.yml; a pod keeps the limit that it "
        "was started with",
    )
    size = site.job_shm_gib << 30
    yield check(
        "shm",
        ok=told.shm_kind == "tmpfs" and told.shm_bytes >= size,
        ran="df -h /dev/shm",
        found=f"{told.shm_kind or 'nothing'} of {told.shm_bytes >> 20} MiB",
        expected=f"tmpfs of {size >> 20} MiB (railweld_job_shm_gib)",
        fix="the PodTemplate mounts it: cd pulumi && pulumi up; a node with less memory than that "
        "gives less",
    )
    yield _profile(trial, told, check)
    if trial.hcas is not None:
        yield check(
            "hcas",
            ok=len(told.hcas) == trial.hcas,
            ran="ls /dev/infiniband",
            found=f"{len(told.hcas)} verbs devices",
            expected=f"{trial.hcas}, one per described HCA",
            fix=f"`railweld verify --stage links --limit {trial.node}` looks at the HCAs; the RDMA "
            f"plugin reads them at its start: kubectl -n {names.NAMESPACE_SYSTEM} rollout restart "
            "daemonset/rdma-shared-device-plugin",
        )
    network = ipaddress.ip_network(site.service_cidr)
    yield check(
        "dns",
        ok=any(ipaddress.ip_address(each) in network for each in told.dns),
        ran=f"getent hosts {_SERVICE}",
        found=", ".join(told.dns) or "no answer",
        expected=f"an address of {site.service_cidr}",
        fix="kubectl -n kube-system get pods --selector k8s-app=kube-dns -o wide; a node that "
        "reaches no Service: `railweld verify --stage cluster` names its routes",
    )
    yield from _rendezvous(trial, told, check)


def _profile(trial: Trial, told: Told, check: Callable[..., Check]) -> Check:
    wanted = trial.profile.environment
    wrong = [
        f"{name}={told.environment[name]}" if name in told.environment else f"no {name}"
        for name, value in wanted.items()
        if told.environment.get(name) != value
    ]
    return check(
        "nccl_profile",
        ok=not wrong,
        ran="env | grep NCCL",
        found=", ".join(wrong) or f"all {len(wanted)} variables",
        expected=", ".join(f"{name}={value}" for name, value in wanted.items()),
        fix="cd pulumi && pulumi up puts the profile back; pods keep what they were started with",
    )


def _rendezvous(trial: Trial, told: Told, check: Callable[..., Check]) -> Iterator[Check]:
    if not trial.peers:
        yield Check(
            id="job.rendezvous",
            layer=LAYER,
            target=trial.node,
            status=Status.SKIPPED,
            ran="",
            found="no other node that could be reached",
            expected="another Ready node of the partition",
            ref="a job of several nodes needs a second one",
        )
        return
    far = [each for each in trial.peers if each.node not in told.peers]
    words = ", ".join(f"{each.node} at {each.address}:{each.port}" for each in far or trial.peers)
    yield check(
        "rendezvous",
        ok=not far,
        ran=f"bash -c ': < /dev/tcp/{trial.peers[0].address}/{trial.peers[0].port}'",
        found=f"no connection to {words}" if far else f"connected to {words}",
        expected="a TCP connection to the next node, as ranks make one to rank 0",
        fix="a firewall between nodes, or the pod network: playbooks/deploy-cluster.yml sets its "
        "routes",
    )


def _no_pod(trial: Trial, told: Told) -> Check:
    return Check(
        id="job.pod",
        layer=LAYER,
        target=trial.node,
        # Nobody knows what a pod would have seen that found no place.
        status=Status.UNKNOWN if told.waits else Status.FAIL,
        ran=_SEE,
        found=told.failure,
        expected=f"a pod of partition {trial.partition} that runs to its end",
        fix="jobs that hold what it asks for have to end first, or railweld_rdma_shares be raised"
        if told.waits
        else f"{_SEE} tells what stops pods on {trial.node}; jobs would stop as well",
    )
