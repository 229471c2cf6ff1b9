"""What to do next about one run, as a function of what was observed. No state is kept beside that.

A restart of the daemon at any moment finds the same observations and so goes on with the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from railweld.bridge.observed import JobView, Outcome, PodView

#: Exit statuses that the bridge's own teardown leaves in pods: they say nothing about the job.
TORN_DOWN: Final = frozenset({128 + 9, 128 + 15})
#: Exit status for what is not the job's fault.
INFRASTRUCTURE: Final = 1
CANCELLED: Final = -15
#: The Job controller ends the other pods after a failure; if it does not, the bridge does.
FAILING_SECONDS: Final = 120.0
#: What pods show of an end may come later than the Job's own, by another watch.
OVER_SECONDS: Final = 10.0


class Slurm(StrEnum):
    """What slurmctld says of the run."""

    ACTIVE = "active"
    ENDED = "ended"
    UNKNOWN = "unknown"


class State(StrEnum):
    """Where a run is; for users, logs and metrics."""

    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    UNKNOWN = "unknown"


class Act(StrEnum):
    """The next step."""

    WAIT = "wait"
    CREATE = "create"
    COMPLETE = "complete"
    PLACE = "place"
    GO = "go"
    DELETE = "delete"
    FINISH = "finish"


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that a decision rests on.

    Attributes:
        hosts: `kubernetes.io/hostname` by rank, frozen when the run began.
        slurm: what slurmctld says.
        live: whether the copy of Kubernetes' objects follows the API server.
        job: the Job, None when there is none.
        pods: by name.
        attached: whether a client with the script is there.
        created: whether the Job was made before, by the client's memory or this daemon's.
        complete: whether the objects that the Job owns are known to be there.
        cancelled: whether the batch step was told to end.
        ready: ranks whose agent waits at the barrier.
        started: ranks whose body was started.
        settled: whether all pods that are left have ended, as living kubelets report.
        waited: seconds since the Job was made, or since this daemon saw it first, without those in
            which the API server did not answer.
        start_limit: after so many the pods' start has failed.
        gated: whether pods wait to be placed by patches.
        obstacle: why pods are not made, in the words of the Job controller.
        failing: seconds since the job's own failure was first seen.
        over: seconds since the Job controller was first seen to be through with the Job.
        ran: whether every body was started at some time, as far as this daemon knows.
        failed_nodes: ranks on nodes that Slurm or Kubernetes has given up, and why.
        decided: why its Job was deleted; how bodies end after that is the teardown's doing.
        seen: the end that was seen last: what showed it may have gone meanwhile.
    """

    hosts: tuple[str, ...]
    slurm: Slurm
    live: bool
    job: JobView | None
    pods: Mapping[str, PodView]
    attached: bool
    created: bool
    complete: bool = True
    cancelled: bool = False
    ready: Set[int] = field(default_factory=frozenset)
    started: Set[int] = field(default_factory=frozenset)
    settled: bool = False
    waited: float = 0.0
    start_limit: float = 600.0
    gated: bool = False
    failing: float = 0.0
    over: float = 0.0
    ran: bool = False
    obstacle: str = ""
    failed_nodes: Mapping[int, str] = field(default_factory=dict)
    decided: Outcome | None = None
    seen: Outcome | None = None


@dataclass(frozen=True)
class Decision:
    """The next step, where the run is, and why, in words for the user."""

    act: Act
    state: State
    text: str = ""
    outcome: Outcome | None = None


def decide(view: View) -> Decision:
    """The next step for a run."""
    if not view.live:
        return Decision(Act.WAIT, State.UNKNOWN, "the Kubernetes API does not answer")
    outcome = _given(view) or earned(view) or view.seen
    job = view.job
    if job is not None and job.deleting:
        outcome = outcome or Outcome(INFRASTRUCTURE, "the Job was deleted from outside", True)
        return Decision(Act.WAIT, State.ENDING, outcome.text, outcome)
    if job is None:
        return _without_job(view, outcome)
    if outcome is None:
        return _forward(view)
    if outcome.status >= 0 and not outcome.infrastructure:
        # The job's own end. Kubernetes ends the other pods after a failure; what is left stays for
        # a while, so that logs can be read.
        if view.settled and (job.finished or _all_ended(view)):
            return Decision(Act.FINISH, State.GONE, outcome.text, outcome)
        if view.failing < FAILING_SECONDS:
            return Decision(Act.WAIT, State.ENDING, outcome.text, outcome)
    return Decision(Act.DELETE, State.ENDING, outcome.text, outcome)


def _given(view: View) -> Outcome | None:
    """An end that comes from Slurm, or was decided before."""
    if view.job is not None and view.job.outcome is not None:
        return view.job.outcome
    if view.decided is not None:
        return view.decided
    if view.cancelled:
        return Outcome(CANCELLED, "cancelled")
    if view.slurm is Slurm.ENDED:
        return Outcome(CANCELLED, "Slurm has ended the job")
    return None


def earned(view: View) -> Outcome | None:
    """An end that follows from the pods."""
    pods = sorted(view.pods.values(), key=lambda pod: (pod.finished_at or "~", pod.index))
    wrong = [
        pod
        for pod in pods
        if not 0 <= pod.index < len(view.hosts)
        or (not pod.gated and pod.hostname != view.hosts[pod.index])
    ]
    if wrong:
        pod = wrong[0]
        return Outcome(
            INFRASTRUCTURE,
            f"pod {pod.name}: found it pinned to {pod.hostname or 'no node'}, expected "
            f"{view.hosts[pod.index] if 0 <= pod.index < len(view.hosts) else 'no such pod'}; "
            "see the policy railweld-pin",
            True,
        )
    for pod in pods:
        where = view.hosts[pod.index]
        if pod.disrupted:
            text = f"{where}: Kubernetes ended the pod: {pod.disrupted}"
            return Outcome(INFRASTRUCTURE, text, infrastructure=True, again=True)
        if pod.exit_code and not (pod.deleting and pod.exit_code in TORN_DOWN):
            if pod.reason == "OOMKilled":
                return Outcome(137, f"{where}: out of memory (OOMKilled)")
            return Outcome(pod.exit_code, f"{where}: exit status {pod.exit_code}")
    for rank, reason in sorted(view.failed_nodes.items()):
        text = f"{view.hosts[rank]}: {reason}"
        return Outcome(INFRASTRUCTURE, text, infrastructure=True, again=True)
    for pod in pods:
        if pod.phase == "Failed" and pod.exit_code is None:
            return Outcome(
                INFRASTRUCTURE,
                f"{view.hosts[pod.index]}: the pod failed before its container ran: "
                f"{pod.waiting or pod.reason or 'no reason given'}",
                True,
            )
    if view.job is not None and not view.job.deleting and not view.job.finished:
        # The Job controller deletes pods after a failure only, which was seen above.
        for pod in pods:
            if pod.deleting and not pod.terminal:
                text = f"{view.hosts[pod.index]}: its pod was deleted from outside"
                return Outcome(INFRASTRUCTURE, text, infrastructure=True, again=True)
    if _all_ended(view) and all(pod.exit_code == 0 for pod in pods):
        return Outcome(0, "done")
    return _told_by_job(view)


def _told_by_job(view: View) -> Outcome | None:
    """An end that only the Job still shows: pods were deleted, or collected with their node."""
    job = view.job
    if job is None or not job.finished:
        return None
    if not job.failed:
        return Outcome(0, "done")
    if view.over < OVER_SECONDS or not all(pod.terminal for pod in view.pods.values()):
        return None
    late = job.failed.startswith("DeadlineExceeded")
    text = f"Kubernetes has ended the Job: {job.failed}"
    if not late:
        text += "; a pod of it was deleted from outside, see kubectl get events"
    return Outcome(INFRASTRUCTURE, text, infrastructure=True, again=not late)


def _all_ended(view: View) -> bool:
    """Whether every pod is there and has ended."""
    ended = {pod.index for pod in view.pods.values() if pod.terminal}
    return ended >= set(range(len(view.hosts)))


def _without_job(view: View, outcome: Outcome | None) -> Decision:
    if view.pods and not view.settled:
        outcome = outcome or Outcome(INFRASTRUCTURE, "the Job was deleted from outside", True)
        # Deleted without its pods (kubectl delete --cascade=orphan): nobody else would end them.
        left = any(not pod.deleting and not pod.terminal for pod in view.pods.values())
        act = Act.DELETE if left else Act.WAIT
        return Decision(act, State.ENDING, outcome.text, outcome)
    if outcome is not None:
        return Decision(Act.FINISH, State.GONE, outcome.text, outcome)
    if view.created:
        lost = Outcome(INFRASTRUCTURE, "the Job has vanished from Kubernetes", True)
        return Decision(Act.FINISH, State.GONE, lost.text, lost)
    if view.slurm is Slurm.UNKNOWN:
        return Decision(Act.WAIT, State.CREATING, "slurmctld does not answer")
    if not view.attached:
        return Decision(Act.WAIT, State.CREATING, "waiting for the batch step")
    return Decision(Act.CREATE, State.CREATING, "making the Job")


def _forward(view: View) -> Decision:
    """The way to a running job."""
    count = len(view.hosts)
    if not view.complete:
        if view.attached:
            return Decision(Act.COMPLETE, State.STARTING, "making the objects of the Job")
        return Decision(Act.WAIT, State.STARTING, "waiting for the client to come back")
    if view.gated and any(pod.gated and not pod.deleting for pod in view.pods.values()):
        return Decision(Act.PLACE, State.STARTING, "placing the pods")
    if len(view.started) == count:
        return Decision(Act.WAIT, State.RUNNING, "running")
    if len(view.ready | view.started) == count and len(view.pods) == count:
        return Decision(Act.GO, State.RUNNING, "running")
    if view.started and view.waited < view.start_limit:
        # After a restart of the daemon the agents come back one by one.
        return Decision(Act.WAIT, State.RUNNING, "running")
    text = waiting(view)
    if view.ran:
        # Pods have gone; why, the Job controller says next.
        return Decision(Act.WAIT, State.ENDING, text)
    if view.waited >= view.start_limit and not view.started:
        failed = Outcome(
            INFRASTRUCTURE,
            f"the pods did not start within {view.start_limit:g} s: {text}",
            infrastructure=True,
            # Not an image or a volume that is wrong everywhere: there was no room where Slurm
            # said. A node with a fault of its own is drained meanwhile.
            again=any(
                not pod.node and not (view.gated and pod.gated) for pod in view.pods.values()
            ),
        )
        return Decision(Act.DELETE, State.ENDING, failed.text, failed)
    return Decision(Act.WAIT, State.STARTING, text)


def waiting(view: View) -> str:
    """What a job that does not run yet waits for: `3/16 pods; gpu7: ImagePullBackOff`."""
    count = len(view.hosts)
    words = [f"{len(view.ready | view.started)}/{count} pods"]
    by_rank = {pod.index: pod for pod in view.pods.values()}
    missing = [rank for rank in range(count) if rank not in view.ready | view.started]
    said: dict[str, list[str]] = {}
    for rank in missing:
        pod = by_rank.get(rank)
        if pod is None:
            reason = view.obstacle or "no pod yet"
        elif pod.phase == "Running":
            reason = "its agent has not reported"
        else:
            reason = pod.waiting or "starting"
        said.setdefault(reason, []).append(view.hosts[rank])
    for reason, hosts in sorted(said.items(), key=lambda item: len(item[1]))[:3]:
        more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
        words.append(f"{', '.join(hosts[:3])}{more}: {reason}")
    return "; ".join(words)
