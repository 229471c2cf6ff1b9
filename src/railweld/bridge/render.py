"""The objects of one run: from slurmctld's facts, the admin's template and the user's request."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from railweld import names
from railweld.bridge.observed import Key
from railweld.bridge.pod.hostlist import compress
from railweld.stack.objects import Manifest, make

CONTAINER: Final = "job"
#: MASTER_PORT: below the local ports of Linux (32768) and the node ports (30000), above services'.
PORT_FIRST: Final = 20000
PORT_COUNT: Final = 9000
#: Objects of a run that nobody cleaned up go by themselves after a day.
TTL_SECONDS: Final = 24 * 3600
#: Beyond the time limit and KillWait; only when bridge and Slurm have both failed.
DEADLINE_SLACK: Final = 300
#: Leave Slurm's SIGKILL behind the kubelet's.
GRACE_SLACK: Final = 10
SECRET_LIMIT: Final = 1_000_000

#: Read as data, which works from an archive too.
_POD: Final = resources.files("railweld.bridge.pod")
_VOLUME_AGENT: Final = "railweld-agent"
_VOLUME_JOB: Final = "railweld-job"


def run_name(cluster: str, key: Key) -> str:
    """Name of a run's Job and of what belongs to it."""
    return f"slurm-{cluster}-{key.job_id}-r{key.restart}".lower()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is true of a run by slurmctld and the accounts of this machine, not by the client.

    Attributes:
        key: job and restart.
        cluster: Slurm's ClusterName.
        hosts: `kubernetes.io/hostname` of the allocated nodes, in rank order.
        nodes: the same as Slurm names them.
        uid: of the submitter; likewise gid, groups, user, home.
        submitted: submit time, which tells a job from an earlier one with its number.
        partition: of Slurm.
        time_limit: seconds, None without.
    """

    key: Key
    cluster: str
    hosts: tuple[str, ...]
    nodes: tuple[str, ...]
    uid: int
    gid: int
    groups: tuple[int, ...]
    user: str
    group: str
    home: str
    submitted: str
    partition: str
    time_limit: float | None

    @property
    def name(self) -> str:
        """Of the Job and what belongs to it."""
        return run_name(self.cluster, self.key)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, after every check.

    Attributes:
        script: the body, without the bridge's line.
        arguments: of the script.
        directory: to start in.
        umask: of the submitter.
        apart: whether stdout and stderr are different files.
        environment: variables that are passed into the pods.
        mode: `spmd` or `leader`.
        reason: why that mode.
        image: None for the template's.
        outputs: files beside which nodes write their output, where it is not streamed.
    """

    script: bytes
    arguments: tuple[str, ...]
    directory: str
    umask: int
    apart: bool
    environment: Mapping[str, str]
    mode: str
    reason: str
    image: str | None
    outputs: tuple[str | None, ...] = ()


def labels(facts: Facts, template: str) -> dict[str, str]:
    """On every object of a run."""
    return {
        names.LABEL_SLURM_CLUSTER: facts.cluster,
        names.LABEL_JOB_ID: str(facts.key.job_id),
        names.LABEL_JOB_RESTART: str(facts.key.restart),
        names.LABEL_JOB_UID: str(facts.uid),
        names.LABEL_PARTITION: template,
    }


def job(
    facts: Facts,
    request: Request,
    template: Manifest,
    *,
    namespace: str,
    hub: str,
    agent: str,
    kill_wait: int,
    gated: bool,
    ranked: bool = False,
) -> Manifest:
    """The Indexed Job.

    Args:
        facts: of slurmctld.
        request: of the user.
        template: PodTemplate of the partition.
        namespace: of the jobs.
        hub: address of the daemon as pods see it.
        agent: ConfigMap with the agent.
        kill_wait: Slurm's KillWait, seconds.
        gated: whether pods are placed by patches, and wait for them behind a gate.
        ranked: whether pods come to any of the nodes, one to each, and are ranked by these.
    """
    count = len(facts.hosts)
    marks = labels(facts, template["metadata"]["name"])
    hosts = ",".join(facts.hosts)
    pod = copy.deepcopy(template["template"])
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **marks}
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    spec = pod["spec"]
    if gated:
        spec["schedulingGates"] = [{"name": names.GATE_PLACEMENT}]
    elif ranked:
        # Each asks for all GPUs of a node, so that no node takes two.
        metadata["annotations"][names.ANNOTATION_RANKS] = hosts
        spec["affinity"] = _affinity(facts.hosts)
    else:
        metadata["annotations"][names.ANNOTATION_HOSTS] = hosts
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    spec["terminationGracePeriodSeconds"] = max(kill_wait - GRACE_SLACK, 5)
    spec["securityContext"] = {
        **(spec.get("securityContext") or {}),
        "runAsNonRoot": True,
        "runAsUser": facts.uid,
        "runAsGroup": facts.gid,
        "supplementalGroups": sorted(set(facts.groups) - {facts.gid}),
    }
    if not spec.get("hostNetwork"):
        spec["subdomain"] = facts.name
    volumes = spec.setdefault("volumes", [])
    volumes += [
        {
            "name": _VOLUME_AGENT,
            "configMap": {"name": agent, "defaultMode": 0o555, "items": agent_items()},
        },
        {"name": _VOLUME_JOB, "secret": {"secretName": facts.name, "defaultMode": 0o444}},
    ]
    container = spec["containers"][0]
    container["name"] = CONTAINER
    if request.image:
        container["image"] = request.image
    container["command"] = ["/bin/sh", "-c", _START]
    container.pop("args", None)
    container["env"] = [
        *(container.get("env") or ()),
        {"name": "RAILWELD_HUB", "value": hub},
        {"name": names.POD_VARIABLE_JOB, "value": facts.name},
        {"name": "RAILWELD_POD_UID", "valueFrom": _field("metadata.uid")},
        {"name": "RAILWELD_POD_IP", "valueFrom": _field("status.podIP")},
    ]
    if ranked:
        container["env"].append(
            {"name": names.POD_VARIABLE_NODE, "valueFrom": _field("spec.nodeName")}
        )
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": _VOLUME_AGENT, "mountPath": names.POD_AGENT, "readOnly": True},
        {"name": _VOLUME_JOB, "mountPath": names.POD_JOB, "readOnly": True},
        *(
            {"name": _VOLUME_JOB, "mountPath": f"/etc/{file}", "subPath": file, "readOnly": True}
            for file in ("passwd", "group")
        ),
    ]
    content: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        # The first failure ends the job: a gang with a hole computes nothing.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "NotIn", "values": [0]},
                }
            ]
        },
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": TTL_SECONDS,
        "template": pod,
    }
    if facts.time_limit is not None:
        content["activeDeadlineSeconds"] = deadline(facts.time_limit, kill_wait)
    return make(
        "batch/v1",
        "Job",
        facts.name,
        namespace,
        labels=marks,
        annotations={names.ANNOTATION_SUBMITTED: facts.submitted, names.ANNOTATION_HOSTS: hosts},
        spec=content,
    )


def deadline(time_limit: float, kill_wait: int) -> int:
    """Seconds after which Kubernetes ends a Job that neither Slurm nor the bridge has ended."""
    return int(time_limit) + kill_wait + DEADLINE_SLACK


def kept_deadline(current: int | None, time_limit: float, kill_wait: int, age: float) -> int | None:
    """The deadline of a Job whose run is active, `age` seconds after its start.

    It follows the time limit, which may be changed. Slurm lets some jobs overrun it (OverTimeLimit,
    suspension): while it does, the end stays out of reach.
    """
    if math.isinf(time_limit):
        return None
    wanted = deadline(time_limit, kill_wait)
    if wanted >= age + DEADLINE_SLACK:
        return wanted
    if current is not None and current >= age + DEADLINE_SLACK:
        return current
    return int(age) + 2 * DEADLINE_SLACK


#: Images without Python would fail with words that nobody understands.
_START: Final = (
    "command -v python3 >/dev/null 2>&1 || { echo 'bridge: found no python3 in this image, which "
    "the agent needs: take an image that has one' >&2; exit 127; }; "
    f"exec python3 -IS {names.POD_AGENT}"
)


def _affinity(hosts: tuple[str, ...]) -> dict[str, Any]:
    one = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": path}}


def secret(facts: Facts, request: Request, owner: Manifest, key: str) -> Manifest:
    """Script, environment and key of a run; only the bridge and the job's own pods read it.

    Raises:
        ValueError: it would be larger than Kubernetes takes.
    """
    template = owner["spec"]["template"]["spec"]
    plan = {
        "mode": request.mode,
        "nodes": list(facts.nodes),
        "hosts": list(facts.hosts),
        "arguments": list(request.arguments),
        "directory": request.directory,
        "umask": request.umask,
        "apart": request.apart,
        "outputs": list(request.outputs),
        "environment": dict(request.environment),
        "user": facts.user,
        "home": facts.home,
        "slurm": slurm_environment(facts),
        "port": master_port(facts.key.job_id),
        "service": None if template.get("hostNetwork") else facts.name,
        "scratch": scratch(template),
        "grace": template["terminationGracePeriodSeconds"],
    }
    data = {
        "script": request.script,
        "plan": json.dumps(plan).encode(),
        "key": key.encode(),
        "passwd": _passwd(facts).encode(),
        "group": _group(facts).encode(),
    }
    size = sum(map(len, data.values()))
    if size > SECRET_LIMIT:
        raise ValueError(
            f"script, arguments and environment: found {size} bytes, expected at most "
            f"{SECRET_LIMIT}; put what is large on shared storage"
        )
    metadata = owner["metadata"]
    manifest = make(
        "v1",
        "Secret",
        facts.name,
        metadata["namespace"],
        labels=metadata["labels"],
        type="railweld.io/job",
        immutable=True,
        data={name: base64.b64encode(value).decode() for name, value in data.items()},
    )
    manifest["metadata"]["ownerReferences"] = [_owner(owner)]
    return manifest


def scratch(spec: Manifest) -> str | None:
    """Where a pod has the run's own part of the node's scratch folder."""
    for each in spec["containers"][0].get("volumeMounts") or ():
        if each["name"] == names.POD_VOLUME_SCRATCH and "subPathExpr" in each:
            return str(each["mountPath"])
    return None


def seed(cluster: str, namespace: str, content: bytes) -> Manifest:
    """Secret of the daemon itself, from which the keys of runs follow; no pod mounts it."""
    return make(
        "v1",
        "Secret",
        f"bridged-{cluster}".lower(),
        namespace,
        type="railweld.io/seed",
        immutable=True,
        data={"seed": base64.b64encode(content).decode()},
    )


def key(seed_: bytes, job_uid: str) -> bytes:
    """What the agents of a Job show: another for each Job, and from none follows the next."""
    return hmac.new(seed_, job_uid.encode(), "sha256").hexdigest().encode()


def service(facts: Facts, owner: Manifest) -> Manifest:
    """Names of the pods, on the pod network; they are there before the pods are ready."""
    metadata = owner["metadata"]
    # Another Slurm in the same namespace has jobs of the same numbers.
    run = {
        names.LABEL_SLURM_CLUSTER: facts.cluster,
        names.LABEL_JOB_ID: str(facts.key.job_id),
        names.LABEL_JOB_RESTART: str(facts.key.restart),
    }
    manifest = make(
        "v1",
        "Service",
        facts.name,
        metadata["namespace"],
        labels=metadata["labels"],
        spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": run},
    )
    manifest["metadata"]["ownerReferences"] = [_owner(owner)]
    return manifest


def _owner(job: Manifest) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": False,
    }


def slurm_environment(facts: Facts) -> dict[str, str]:
    """What is the same in all pods and known better than by the client."""
    nodes = compress(facts.nodes)
    return {
        "SLURM_JOB_ID": str(facts.key.job_id),
        "SLURM_JOBID": str(facts.key.job_id),
        "SLURM_RESTART_COUNT": str(facts.key.restart),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(facts.nodes)),
        "SLURM_NNODES": str(len(facts.nodes)),
        "SLURM_JOB_PARTITION": facts.partition,
        "SLURM_JOB_USER": facts.user,
        "SLURM_JOB_UID": str(facts.uid),
        "SLURM_JOB_GID": str(facts.gid),
        "SLURM_CLUSTER_NAME": facts.cluster,
    }


def master_port(job_id: int) -> int:
    """A port for the rendezvous: the same in all pods, another for the next job."""
    return PORT_FIRST + job_id % PORT_COUNT


def _passwd(facts: Facts) -> str:
    return (
        "root:x:0:0:root:/root:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        f"{facts.user}:x:{facts.uid}:{facts.gid}::{facts.home}:/bin/sh\n"
    )


def _group(facts: Facts) -> str:
    return f"root:x:0:\nnogroup:x:65534:\n{facts.group}:x:{facts.gid}:\n"


# -- the agent ---------------------------------------------------------------------------------

_FILES: Final = (
    *("__init__.py", "agent.py", "hostlist.py", "shell.py"),
    *("srun.py", "step.py", "wire.py"),
)
_MAIN: Final = "import sys\n\nfrom railweld.bridge.pod.agent import main\n\nsys.exit(main())\n"
#: Commands of Slurm that scripts call, served by the agent.
SHIMS: Final = ("srun", "scontrol")


def _agent_files() -> dict[str, tuple[str, str]]:
    """Key in the ConfigMap to path below the mount and content."""
    found = {"main": ("__main__.py", _MAIN)}
    for name in _FILES:
        text = (_POD / name).read_text(encoding="utf-8")
        found[f"pod-{name}"] = (f"railweld/bridge/pod/{name}", text)
    for name in SHIMS:
        found[f"bin-{name}"] = (
            f"bin/{name}",
            f'#!/bin/sh\nexec python3 -IS {names.POD_AGENT} {name} "$@"\n',
        )
    return found


def agent_items() -> list[dict[str, str]]:
    """Where the files of the ConfigMap go."""
    return [{"key": key, "path": path} for key, (path, _) in sorted(_agent_files().items())]


def agent(namespace: str) -> Manifest:
    """ConfigMap with the agent, named by its content: an upgrade leaves running jobs theirs."""
    data = {key: content for key, (_, content) in sorted(_agent_files().items())}
    digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]
    return make(
        "v1",
        "ConfigMap",
        f"railweld-agent-{digest}",
        namespace,
        labels={names.LABEL_AGENT: digest},
        immutable=True,
        data=data,
    )
