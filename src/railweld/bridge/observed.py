"""What the bridge looks at in Jobs and pods: few fields, so that thousands take little memory."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from railweld import names
from railweld.stack.objects import Manifest

INDEX: Final = "batch.kubernetes.io/job-completion-index"
HOSTNAME: Final = "kubernetes.io/hostname"


class Key(NamedTuple):
    """One run of one Slurm job; a requeue makes another."""

    job_id: int
    restart: int

    def __str__(self) -> str:
        """As in logs."""
        return f"{self.job_id}-r{self.restart}"


class Outcome(NamedTuple):
    """How a run ended: the exit status of the batch step, and why."""

    status: int
    text: str
    #: Whether the cluster and not the job is to blame.
    infrastructure: bool = False
    #: And another attempt may well succeed.
    again: bool = False


def key_of(manifest: Mapping[str, Any]) -> Key | None:
    """The run that an object belongs to; None for an object that is not the bridge's."""
    labels = manifest["metadata"].get("labels") or {}
    try:
        return Key(int(labels[names.LABEL_JOB_ID]), int(labels[names.LABEL_JOB_RESTART]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class JobView:
    """An Indexed Job."""

    name: str
    uid: str
    owner: int
    submitted: str
    hosts: tuple[str, ...]
    template: str
    deleting: bool
    #: The Job controller is through with it: every pod has ended.
    finished: bool
    #: Kept on the Job before its pods go, so that a restart of the daemon does not lose it.
    outcome: Outcome | None
    #: Why the Job controller gave it up; empty for one that is not finished, or complete.
    failed: str = ""
    #: Seconds after its start at which Kubernetes ends it; None for never.
    deadline: int | None = None
    #: Seconds since the epoch; None before the Job controller has seen it.
    started: float | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> JobView:
        """Take the fields from an object."""
        metadata = manifest["metadata"]
        status = manifest.get("status") or {}
        ends = {
            each["type"]: each
            for each in status.get("conditions") or ()
            if each["type"] in ("Complete", "Failed") and each["status"] == "True"
        }
        failed = ends.get("Failed") or {}
        labels = metadata.get("labels") or {}
        annotations = metadata.get("annotations") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            owner=int(labels.get(names.LABEL_JOB_UID, "-1")),
            submitted=annotations.get(names.ANNOTATION_SUBMITTED, ""),
            hosts=tuple(filter(None, annotations.get(names.ANNOTATION_HOSTS, "").split(","))),
            template=labels.get(names.LABEL_PARTITION, ""),
            deleting="deletionTimestamp" in metadata,
            finished=bool(ends),
            outcome=read_outcome(annotations.get(names.ANNOTATION_OUTCOME)),
            failed=": ".join(str(failed[key]) for key in ("reason", "message") if failed.get(key))
            or ("no reason given" if failed else ""),
            deadline=(manifest.get("spec") or {}).get("activeDeadlineSeconds"),
            started=_moment(status.get("startTime")),
        )


def _moment(text: str | None) -> float | None:
    return dt.datetime.fromisoformat(text).timestamp() if text else None


def read_outcome(text: str | None) -> Outcome | None:
    """The outcome that an annotation holds."""
    if not text:
        return None
    try:
        said = json.loads(text)
        return Outcome(
            int(said["status"]),
            str(said["text"]),
            bool(said["infrastructure"]),
            bool(said["again"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def write_outcome(outcome: Outcome) -> str:
    """The annotation that holds an outcome."""
    return json.dumps(outcome._asdict())


class Printed(NamedTuple):
    """How much a pod has printed, in bytes."""

    stdout: int
    stderr: int
    #: Of the node's own file: what could not be written.
    unwritten: int


def read_printed(text: str | None) -> Printed | None:
    """The last words of an agent; bodies of the same user can put others in their place."""
    try:
        said = json.loads(text or "")
        stdout, stderr = said["printed"]
        found = Printed(stdout, stderr, said["unwritten"])
    except (ValueError, KeyError, TypeError):
        return None
    return found if all(isinstance(each, int) and each >= 0 for each in found) else None


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a Job."""

    name: str
    uid: str
    #: Of the Job that made it.
    job_uid: str
    #: Its rank, by the Job controller or by its node.
    index: int
    hostname: str | None
    #: Whether it has no place yet.
    gated: bool
    node: str
    phase: str
    deleting: bool
    ip: str
    #: Why it does not run yet, in the words of scheduler or kubelet.
    waiting: str
    #: Of the job's container, once it ended.
    exit_code: int | None
    finished_at: str
    reason: str
    #: Kubernetes ended the pod: eviction, preemption, a lost node.
    disrupted: str
    #: What its agent said last; None for one that could not.
    printed: Printed | None = None

    @property
    def terminal(self) -> bool:
        """Whether its phase says that nothing of it runs."""
        return self.phase in ("Succeeded", "Failed")

    @classmethod
    def of(cls, manifest: Manifest) -> PodView:
        """Take the fields from an object."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        status = manifest.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
        state = container.get("state") or {}
        ended = state.get("terminated")
        disruption = conditions.get("DisruptionTarget") or {}
        reason = str(status.get("reason") or "")
        if disruption.get("status") == "True":
            disrupted = str(disruption.get("message") or disruption.get("reason") or "disrupted")
        elif reason in (
            "Evicted",
            "NodeLost",
            "UnexpectedAdmissionError",
            "OutOfcpu",
            "Shutdown",
        ) or reason.startswith("OutOf"):
            disrupted = f"{reason}: {status.get('message', '')}"
        else:
            disrupted = ""
        index = int((metadata.get("labels") or {}).get(INDEX, "-1"))
        hostname = (spec.get("nodeSelector") or {}).get(HOSTNAME)
        gated, node = bool(spec.get("schedulingGates")), str(spec.get("nodeName") or "")
        ranks = (metadata.get("annotations") or {}).get(names.ANNOTATION_RANKS)
        if ranks:
            # Its rank is not decided before it has a node; one that is none of the job's has none.
            hosts = ranks.split(",")
            gated, hostname = not node, node or None
            index = (hosts.index(node) if node in hosts else -1) if node else index
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            job_uid=next(
                (
                    str(each["uid"])
                    for each in metadata.get("ownerReferences") or ()
                    if each.get("controller")
                ),
                "",
            ),
            index=index,
            hostname=hostname,
            gated=gated,
            node=node,
            phase=str(status.get("phase") or "Pending"),
            deleting="deletionTimestamp" in metadata,
            ip=str(status.get("podIP") or ""),
            waiting=_waiting(conditions, state),
            exit_code=None if not ended else int(ended.get("exitCode", 0)),
            finished_at=str((ended or {}).get("finishedAt") or ""),
            reason=str((ended or {}).get("reason") or ""),
            disrupted=disrupted,
            printed=read_printed((ended or {}).get("message")),
        )


def _waiting(conditions: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "not scheduled")
    waiting = state.get("waiting")
    if not waiting:
        return ""
    words = [str(waiting.get("reason") or "waiting"), str(waiting.get("message") or "")]
    return ": ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Kubernetes node."""

    name: str
    hostname: str
    ready: bool
    #: Why it is not.
    reason: str
    cordoned: bool
    #: Allocatable counts of extended resources.
    devices: Mapping[str, int]
    address: str

    @classmethod
    def of(cls, manifest: Manifest) -> NodeView:
        """Take the fields from an object."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        status = manifest.get("status") or {}
        ready: Mapping[str, Any] = next(
            (each for each in status.get("conditions") or () if each["type"] == "Ready"), {}
        )
        addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
        return cls(
            name=metadata["name"],
            hostname=(metadata.get("labels") or {}).get(HOSTNAME, metadata["name"]),
            ready=ready.get("status") == "True",
            reason=str(ready.get("reason") or "no kubelet has reported"),
            cordoned=bool(spec.get("unschedulable")),
            devices={
                # Cores, memory and pods have names without a domain; devices have one.
                name: _count(count)
                for name, count in (status.get("allocatable") or {}).items()
                if "/" in name
            },
            address=addresses.get("InternalIP", ""),
        )


def _count(text: Any) -> int:
    try:
        return int(text)
    except (TypeError, ValueError):
        return 0
