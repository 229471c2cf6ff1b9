"""One page about one job: where Slurm, the bridge and Kubernetes have it, and what to do.

Facts are what the daemon has seen, as JSON; pages are text. What is not known is said to be so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

Facts = Mapping[str, Any]

#: Pods shown one by one; of larger jobs the troubled ones come first and the rest is counted.
PODS_SHOWN: Final = 8
LABEL: Final = 11

#: Slurm's reasons for a job that waits: how they begin, and what they mean to its user.
PENDING: Final = (
    ("Resources", "its turn; the nodes that it needs are busy: `squeue --start -j {job}`"),
    ("Priority", "jobs with a higher priority are before it: `sprio -j {job}`, `squeue --start`"),
    (
        "ReqNodeNotAvail",
        (
            "a node that it asks for is down, drained or reserved: `sinfo -R` says why; submit it "
            "without --nodelist, or wait"
        ),
    ),
    (
        "PartitionDown",
        (
            "the partition takes no jobs now: `scontrol show partition {partition}`; an "
            "administrator opens it"
        ),
    ),
    (
        "PartitionNodeLimit",
        (
            "it asks for more nodes than the partition has or allows, so it never starts: "
            "`scontrol update jobid={job} numnodes=N`, or submit it again"
        ),
    ),
    (
        "PartitionTimeLimit",
        (
            "it asks for more time than the partition allows, so it never starts: "
            "`scontrol update jobid={job} timelimit=...`"
        ),
    ),
    (
        "DependencyNeverSatisfied",
        "the job that it depends on did not end as asked, so it never starts: `scancel {job}`",
    ),
    ("Dependency", "another job has to end first: `scontrol show job {job}` says which"),
    ("BeginTime", "its begin time has not come, or it was requeued a moment ago"),
    ("Cleaning", "its earlier run is being torn down; it starts when no pod of that is left"),
    ("JobArrayTaskLimit", "as many tasks of the array run as its %N allows"),
    ("JobHeldUser", "held by its user: `scontrol release {job}`"),
    (
        "JobHeldAdmin",
        (
            "held by an administrator, or by Slurm after it was requeued too often: ask them; they "
            "release it with `scontrol release {job}`"
        ),
    ),
    (
        "launch_failed_requeued_held",
        (
            "its batch step could not be started and it was held: an administrator looks at "
            "/var/log/slurm/slurmd-NODE.log on the head, then `scontrol release {job}`"
        ),
    ),
    ("Reservation", "its reservation has not begun"),
    ("Licenses", "no license is free"),
    ("QOS", "a limit of its QOS: `sacctmgr show qos`"),
    ("Assoc", "a limit of its account: `sacctmgr show association user={user}`"),
)

#: What a pod says while it does not run, as a pattern, and what to do about it.
OBSTACLES: Final = (
    (
        r"ImagePull|ErrImage|InvalidImageName|pull",
        (
            "the image cannot be pulled there: check its name (#BRIDGE image=) and that the nodes "
            "reach the registry: `kubectl -n railweld-jobs describe pod POD`"
        ),
    ),
    (
        r"[Ii]nsufficient|didn't match|untolerated taint|unschedulable|affinity",
        (
            "Kubernetes has no room on the node that Slurm gave: another pod holds its GPUs, or "
            "the node is cordoned: `kubectl get pods -A -o wide`, `kubectl describe node NODE`"
        ),
    ),
    (
        r"quota|forbidden|denied|admission",
        "a policy or the quota of railweld-jobs refuses the pod; the text says which",
    ),
    (
        r"FailedMount|MountVolume|hostPath|volume",
        "a volume of the pod is not there on the node: is the shared storage mounted?",
    ),
    (
        r"agent has not reported",
        (
            "the pod runs and its agent does not reach the daemon: the node must reach the "
            "address `advertise` of /etc/railweld/bridge.json"
        ),
    ),
    (r"CreateContainer|RunContainer", "the container cannot be started: its events say why"),
    (r"no pod yet", "the Job controller makes its pods"),
)


def advice(facts: Facts) -> list[str]:
    """What to do, the most likely first; what needs nothing is said too."""
    return list(dict.fromkeys(_advice(facts)))


def _advice(facts: Facts) -> Iterator[str]:
    if facts.get("slurm"):
        yield (
            f"slurmctld does not answer ({facts['slurm']}): nothing of the job is ended meanwhile; "
            "`systemctl status slurmctld` on the head"
        )
    if facts.get("cluster"):
        yield (
            f"{facts['cluster']}: the job keeps its nodes and nothing is deleted until it does; "
            "`kubectl get --raw /readyz`"
        )
    job, run = facts.get("job"), _latest(facts)
    if job is None and run is None:
        if not facts.get("slurm"):
            yield "Slurm and the bridge know it no more: `sacct -j {id}` has its end".format(
                id=facts["id"]
            )
        return
    state = str((job or {}).get("state", ""))
    if state == "PENDING":
        yield from _pending(job or {})
        return
    if not facts.get("bridged", True):
        yield "a plain Slurm job: its partition is not the bridge's"
        return
    if run is None:
        yield from _without_run(state)
        return
    yield from _of_run(run, state)


def _latest(facts: Facts) -> Mapping[str, Any] | None:
    runs: Sequence[Mapping[str, Any]] = facts.get("runs") or ()
    return max(runs, key=lambda run: run["restart"]) if runs else None


def _pending(job: Mapping[str, Any]) -> Iterator[str]:
    reason = str(job.get("reason") or "None")
    values = {
        "job": job["id"],
        "partition": job.get("partition", ""),
        "user": job.get("user", ""),
    }
    for beginning, text in PENDING:
        if reason.startswith(beginning):
            yield text.format(**values)
            return
    if reason in ("None", "(null)"):
        yield "Slurm has not looked at it yet; ask again in a moment"
        return
    yield f"Slurm says {reason}: `scontrol show job {job['id']}`, squeue(1), JOB REASON CODES"


def _without_run(state: str) -> Iterator[str]:
    if state in ("CONFIGURING", "RUNNING"):
        yield (
            "its batch step has not reached the daemon yet: seconds after the start that is usual; "
            "later look at /var/log/slurm/slurmd-NODE.log on the head"
        )
    elif state == "COMPLETING":
        yield "no pod of it is left; Slurm ends its epilogs"
    else:
        yield "it has ended; its output file and `sacct` have the rest"


def _of_run(run: Mapping[str, Any], slurm_state: str) -> Iterator[str]:
    state = run["state"]
    outcome = run.get("outcome") or {}
    if state == "starting":
        said = "; ".join(f"{pod['says']}" for pod in run["pods"] if pod["says"])
        text = f"{run['text']}; {said}"
        found = False
        for pattern, words in OBSTACLES:
            if re.search(pattern, text):
                found = True
                yield words
        if not found:
            yield "pods are starting; nothing to do"
    elif state == "creating":
        yield (
            "the daemon makes the Job; if that lasts, its log says why: `journalctl -u bridged`"
            if run.get("attached")
            else "the daemon waits for the batch step to come back"
        )
    elif state == "running":
        yield "it runs; nothing to do"
    elif state == "ending":
        yield from _ending(run)
    elif state == "unknown":
        yield "the daemon cannot see the cluster and changes nothing until it can"
    if outcome.get("status") == 137 and "memory" in str(outcome.get("text", "")):
        yield "it ran out of memory: fewer workers, smaller batches, or more memory per node"
    elif outcome.get("infrastructure"):
        yield (
            "the cluster was at fault and not the script: it was put back into the queue if it may "
            "be requeued; else submit it again. `sinfo -R` names nodes that were taken out"
        )
    elif outcome and state in ("gone", "ended") and slurm_state not in ("RUNNING", "COMPLETING"):
        yield "it has ended; the last lines of its output say why"


def _ending(run: Mapping[str, Any]) -> Iterator[str]:
    left = [pod for pod in run["pods"] if pod["phase"] not in ("Succeeded", "Failed")]
    unready = [pod["node"] for pod in left if not pod.get("node_ready", True)]
    if unready:
        yield (
            f"pods on {', '.join(unready[:3])} cannot be seen to end, as the node does not answer; "
            "Slurm frees it when it is back or its Node object is deleted: "
            "`kubectl get node NODE`, doctor"
        )
    elif left:
        yield "pods get their grace (KillWait) to end; Slurm frees the nodes when they are gone"
    else:
        yield "all pods have ended; the batch step follows"


# -- the page ----------------------------------------------------------------------------------


def page(facts: Facts) -> str:
    """The whole as text."""
    return "\n".join(_page(facts)) + "\n"


def _page(facts: Facts) -> Iterator[str]:
    job = facts.get("job")
    if job is None:
        yield f"Job {facts['id']}: " + (
            "slurmctld does not answer" if facts.get("slurm") else "not known to slurmctld"
        )
    else:
        nodes = f", {job['count']} nodes" + (f" {job['nodes']}" if job["nodes"] else "")
        restarts = f", restart {job['restarts']}" if job["restarts"] not in ("", "0") else ""
        yield f"Job {job['id']} of {job['user']}, partition {job['partition']}{nodes}{restarts}"
        reason = job.get("reason") or "None"
        words = job["state"] + (f" ({reason})" if reason not in ("None", "(null)") else "")
        if job.get("exit") and job["state"] not in ("PENDING", "RUNNING", "CONFIGURING"):
            words += f", exit {job['exit']}"
        yield _line("Slurm", words)
        times = [
            f"{name} {job[name]}" for name in ("submitted", "started", "ended") if _said(job, name)
        ]
        if times:
            yield _line("", ", ".join(times))
        if job.get("output"):
            yield _line("Output", job["output"])
    for run in sorted(facts.get("runs") or (), key=lambda each: each["restart"]):
        yield from _run_lines(run)
    if facts.get("cluster"):
        yield _line("Kubernetes", facts["cluster"])
    for number, event in enumerate(facts.get("events") or ()):
        count = f" ({event['count']} times)" if event["count"] > 1 else ""
        yield _line(
            "" if number else "Events",
            f"{_clock(event['time'])} {event['reason']} {event['object']}: "
            f"{event['message']}{count}",
        )
    for number, text in enumerate(advice(facts)):
        yield _line("" if number else "Do", text)


def _said(job: Mapping[str, Any], name: str) -> bool:
    return job.get(name) not in (None, "", "Unknown", "N/A")


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}} {text}".rstrip()


def _run_lines(run: Mapping[str, Any]) -> Iterator[str]:
    pods = run["pods"]
    running = sum(pod["phase"] == "Running" for pod in pods)
    ended = sum(pod["phase"] in ("Succeeded", "Failed") for pod in pods)
    counts = f"{running} of {run['hosts']} pods run" + (f", {ended} ended" if ended else "")
    deleting = ", being deleted" if run.get("deleting") else ""
    where = f"Job {run['job']}" if run.get("job") else f"run {run['restart']}: no Job"
    yield _line("Kubernetes", f"{where}: {run['state']}{deleting}; {counts}")
    if run.get("text"):
        yield _line("Waits for" if run["state"] in ("creating", "starting") else "", run["text"])
    outcome = run.get("outcome")
    if outcome:
        yield _line("Outcome", f"{outcome['text']} (exit status {outcome['status']})")
    troubled = [pod for pod in pods if pod["says"] or pod["phase"] not in ("Running", "Succeeded")]
    shown = (troubled or list(pods))[:PODS_SHOWN]
    for number, pod in enumerate(shown):
        says = f", {pod['says']}" if pod["says"] else ""
        agent = f", agent {pod['agent']}" if pod["agent"] else ""
        exit_ = f", exit {pod['exit']}" if pod["exit"] is not None else ""
        yield _line(
            "" if number else "Pods",
            f"{pod['node']} (rank {pod['rank']}): {pod['phase']}{exit_}{agent}{says}",
        )
    if len(pods) > len(shown):
        yield _line("", f"and {len(pods) - len(shown)} more")


def _clock(moment: str) -> str:
    try:
        return datetime.fromisoformat(moment).astimezone(UTC).strftime("%H:%M:%S")
    except ValueError:
        return moment or "--:--:--"


def status_page(facts: Facts) -> str:
    """The daemon's own state, and the jobs that it may show."""
    lines = [
        f"bridge of cluster {facts['cluster_name']}: "
        + ("; ".join(facts["problems"]) if facts["problems"] else "ok")
    ]
    counts = ", ".join(f"{count} {state}" for state, count in sorted(facts["counts"].items()))
    lines.append(_line("Jobs", counts or "none"))
    lines.append(_line("Agents", f"{facts['agents']} connected"))
    if facts.get("token_hours") is not None:
        lines.append(_line("Token", f"{facts['token_hours']:.0f} h left, renewed by the daemon"))
    for number, node in enumerate(facts["nodes"]):
        lines.append(_line("" if number else "Nodes out", f"{node['name']}: {node['reason']}"))
    if facts["runs"]:
        lines += ["", f"{'JOB':<12} {'USER':<10} {'NODES':>5} {'STATE':<9} WHAT"]
    lines += [
        f"{run['job']:<12} {run['user']:<10} {run['hosts']:>5} {run['state']:<9} {run['text']}"
        for run in facts["runs"]
    ]
    return "\n".join(lines) + "\n"
