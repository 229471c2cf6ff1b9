"""What people ask the daemon: status, explain, logs, shell. Who asks, the kernel says.

Users see their own jobs; root and Slurm's own user see all. Nothing here changes a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from railweld import names
from railweld.bridge import explain
from railweld.bridge.decide import OVER_SECONDS, View, earned
from railweld.bridge.decide import Slurm as SlurmState
from railweld.bridge.kube import Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.observed import Key, PodView
from railweld.bridge.pod import wire
from railweld.bridge.render import CONTAINER
from railweld.bridge.server import Frames, Refused
from railweld.bridge.slurm import SlurmJob, SlurmUnknownError

if TYPE_CHECKING:
    from railweld.bridge.daemon import Bridge
    from railweld.bridge.run import Run

EVENTS_SHOWN: Final = 8
#: Pods whose events are looked for: those that do not run.
PODS_ASKED: Final = 6
TAIL_LIMIT: Final = 100_000
#: What a shell starts: the agent's own command, which has the job's environment.
SHELL: Final = ("python3", "-IS", names.POD_AGENT, "shell")
_JOB: Final = re.compile(r"(\d{1,10})(?:_(\d{1,10}))?\Z")


class Desk:
    """Answers people."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        for name in ("status", "explain", "logs", "shell"):
            bridge.server.handle(name, getattr(self, name))

    # -- status ------------------------------------------------------------------------------

    async def status(
        self, uid: int, content: dict[str, Any], _frames: Frames, writer: asyncio.StreamWriter
    ) -> None:
        """The daemon's own state."""
        bridge = self._bridge
        runs = [run for run in bridge.runs.values() if _is_admin(uid) or run.owner == uid]
        renewal = bridge.renewal
        seconds = renewal.seconds_left() if renewal else None
        facts = {
            "cluster_name": bridge.config.cluster,
            "problems": list(bridge.problems()),
            "counts": dict(Counter(str(run.decision.state) for run in bridge.runs.values())),
            "agents": bridge.hub.connected,
            "token_hours": None if seconds is None else seconds / 3600,
            "nodes": [
                {"name": name, "reason": reason} for name, reason in sorted(bridge.lost.items())
            ],
            "runs": [
                {
                    "job": str(run.key),
                    "user": _user(run.owner),
                    "hosts": len(run.hosts),
                    "state": str(run.decision.state),
                    "text": run.decision.text,
                }
                for run in sorted(runs, key=lambda each: each.key)
            ],
        }
        _reply(writer, content, facts, explain.status_page(facts))

    # -- explain -----------------------------------------------------------------------------

    async def explain(
        self, uid: int, content: dict[str, Any], _frames: Frames, writer: asyncio.StreamWriter
    ) -> None:
        """One page about one job."""
        facts = await self.facts(uid, str(content.get("job", "")))
        facts["advice"] = explain.advice(facts)
        _reply(writer, content, facts, explain.page(facts))

    async def facts(self, uid: int, text: str) -> dict[str, Any]:
        """Everything that is known of a job.

        Raises:
            Refused: no such job, or somebody else's.
        """
        bridge = self._bridge
        trouble = ""
        try:
            jobs: Mapping[int, SlurmJob] = await bridge.slurm.jobs(newer_than=time.monotonic())
        except SlurmUnknownError as error:
            jobs, trouble = {}, str(error)
        job_id, job = _find(text, jobs)
        keys = sorted(key for key in {*bridge.runs, *bridge.mirror.runs} if key.job_id == job_id)
        self._allow(uid, job_id, job, keys)
        return {
            "id": job_id,
            "now": time.time(),
            "slurm": trouble,
            "cluster": "" if bridge.mirror.live else "the Kubernetes API does not answer",
            "bridged": job is None or job.partition in bridge.config.partitions,
            "job": None if job is None else await self._slurm_side(job),
            "runs": [self._run_side(key) for key in keys],
            "events": await self._events(keys),
        }

    def _allow(self, uid: int, job_id: int, job: SlurmJob | None, keys: list[Key]) -> None:
        """Refuse all but the owner; also where something is there and nobody says whose it is."""
        if _is_admin(uid) or (job is None and not keys):
            return
        owners = {job.uid} if job is not None else set()
        for key in keys:
            run, found = self._bridge.runs.get(key), self._bridge.mirror.of(key).job
            owners |= {run.owner} if run is not None and run.owner is not None else set()
            owners |= {found.owner} if found is not None else set()
        if owners != {uid}:
            raise Refused(f"job {job_id}: is not yours")

    async def _slurm_side(self, job: SlurmJob) -> dict[str, Any]:
        with contextlib.suppress(SlurmUnknownError):
            words = await self._bridge.slurm.describe(job.job_id)
            return {
                "id": job.job_id,
                "state": job.state,
                "reason": words.get("Reason", ""),
                "partition": job.partition,
                "user": _user(job.uid),
                "nodes": job.node_text,
                "count": words.get("NumNodes", ""),
                "restarts": str(job.restart),
                "exit": words.get("ExitCode", ""),
                "submitted": words.get("SubmitTime", ""),
                "started": words.get("StartTime", ""),
                "ended": "" if job.active else words.get("EndTime", ""),
                "output": words.get("StdOut", ""),
            }
        return {
            "id": job.job_id,
            "state": job.state,
            "reason": "",
            "partition": job.partition,
            "user": _user(job.uid),
            "nodes": job.node_text,
            "count": "",
            "restarts": str(job.restart),
        }

    def _run_side(self, key: Key) -> dict[str, Any]:
        bridge = self._bridge
        run, objects = bridge.runs.get(key), bridge.mirror.of(key)
        hosts = run.hosts if run is not None else objects.job.hosts if objects.job else ()
        outcome = (run.outcome if run is not None else None) or (
            objects.job.outcome if objects.job else None
        )
        if outcome is None and run is not None:
            outcome = run.decision.outcome
        elif outcome is None and objects.job is not None:
            # A job's own end is written nowhere else than in its pods.
            outcome = earned(
                View(
                    hosts=hosts,
                    slurm=SlurmState.UNKNOWN,
                    live=bridge.mirror.live,
                    job=objects.job,
                    pods=objects.pods,
                    attached=False,
                    created=True,
                    over=OVER_SECONDS,
                )
            )
        finished = objects.job is not None and objects.job.finished
        state = str(run.decision.state) if run is not None else "ended" if finished else "left"
        return {
            "restart": key.restart,
            "state": state,
            "text": run.decision.text if run is not None else "",
            "attached": run is not None and run.session is not None,
            "job": f"{bridge.config.namespace}/{objects.job.name}" if objects.job else "",
            "deleting": bool(objects.job and objects.job.deleting),
            "hosts": len(hosts),
            "outcome": None if outcome is None else outcome._asdict(),
            "times": dict(run.times) if run is not None else {},
            "pods": [
                self._pod_side(pod, run)
                for pod in sorted(objects.pods.values(), key=lambda each: each.index)
            ],
        }

    def _pod_side(self, pod: PodView, run: Run | None) -> dict[str, Any]:
        agent = run.agents.get(pod.index) if run is not None else None
        view = self._bridge.mirror.nodes.get(pod.node)
        says = pod.waiting or pod.disrupted
        if not says and pod.reason not in ("", "Completed", "Error"):
            says = pod.reason
        return {
            "rank": pod.index,
            "name": pod.name,
            "node": pod.hostname or pod.node or "no node",
            "phase": "Terminating" if pod.deleting and not pod.terminal else pod.phase,
            "says": says,
            "exit": pod.exit_code,
            "agent": agent.state if agent is not None and agent.pod_uid == pod.uid else "",
            "node_ready": not pod.node or (view is not None and view.ready),
        }

    async def _events(self, keys: list[Key]) -> list[dict[str, Any]]:
        """The last events of the newest run and of its pods that do not run."""
        if not keys:
            return []
        objects = self._bridge.mirror.of(keys[-1])
        uids = [objects.job.uid] if objects.job else []
        idle = [pod.uid for pod in objects.pods.values() if pod.phase != "Running"]
        found: list[dict[str, Any]] = []
        path = f"/api/v1/namespaces/{self._bridge.config.namespace}/events"
        for uid in [*uids, *idle[:PODS_ASKED]]:
            try:
                answer = await self._bridge.kube.request(
                    "GET", path, query={"fieldSelector": f"involvedObject.uid={uid}", "limit": 50}
                )
            except (KubeUnknownError, KubeRefusedError):
                break
            found += [_event(each) for each in answer["items"]]
        return sorted(found, key=lambda each: str(each["time"]))[-EVENTS_SHOWN:]

    # -- logs --------------------------------------------------------------------------------

    async def logs(
        self, uid: int, content: dict[str, Any], frames: Frames, writer: asyncio.StreamWriter
    ) -> None:
        """What pods have printed, from the kubelets: also what is not in the output file."""
        pods = await self._pods(uid, content)
        follow = content.get("follow") is True
        tail = content.get("tail")
        if follow:
            pods = pods[:1]
        query: dict[str, Any] = {"container": CONTAINER}
        if follow:
            query["follow"] = "true"
        if isinstance(tail, int) and 0 < tail <= TAIL_LIMIT:
            query["tailLines"] = tail
        sending = asyncio.ensure_future(self._send_logs(pods, query, writer))
        # A reader who is gone shows here; a silent pod would not tell.
        leaving = asyncio.ensure_future(frames.next())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                writer.write(wire.control(event="exit", status=0))
        finally:
            sending.cancel()
            leaving.cancel()

    async def _send_logs(
        self, pods: list[PodView], query: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        for pod in pods:
            if len(pods) > 1:
                writer.write(wire.frame(wire.DATA, f"==> {pod.hostname} <==\n".encode()))
            try:
                async for data in self._bridge.kube.stream(f"{self._path(pod)}/log", query):
                    writer.write(wire.frame(wire.DATA, data))
                    await writer.drain()
            except (KubeUnknownError, KubeRefusedError) as error:
                raise Refused(str(error)) from error

    def _path(self, pod: PodView) -> str:
        return f"/api/v1/namespaces/{self._bridge.config.namespace}/pods/{pod.name}"

    async def _pods(self, uid: int, content: dict[str, Any]) -> list[PodView]:
        """Pods of the newest run of a job, by rank; of one node if the request names one."""
        facts = await self.facts(uid, str(content.get("job", "")))
        if not facts["runs"]:
            raise Refused(
                f"job {facts['id']}: found no pods of it. See: railweld-bridge explain "
                f"{facts['id']}"
            )
        restart = max(run["restart"] for run in facts["runs"])
        objects = self._bridge.mirror.of(Key(facts["id"], restart))
        pods = sorted(objects.pods.values(), key=lambda pod: pod.index)
        node = str(content.get("node") or "")
        if node:
            host = self._bridge.config.hostname(node)
            pods = [pod for pod in pods if pod.hostname == host or str(pod.index) == node]
        if not pods:
            known = ", ".join(str(pod.hostname) for pod in objects.pods.values()) or "none"
            raise Refused(
                f"job {facts['id']}: found no pod{f' on {node}' if node else ''}, expected one of "
                f"{known}"
            )
        return pods

    # -- shell -------------------------------------------------------------------------------

    async def shell(
        self, uid: int, content: dict[str, Any], frames: Frames, writer: asyncio.StreamWriter
    ) -> None:
        """A shell in a pod of the user's own job, as that user, with the job's environment."""
        pods = await self._pods(uid, content)
        pod = pods[0]
        if pod.phase != "Running" or pod.deleting:
            raise Refused(
                f"job {content.get('job')}: found its pod on {pod.hostname} "
                f"{'ending' if pod.deleting else pod.phase}, expected it running"
            )
        query = [("container", CONTAINER), ("stdin", "true"), ("stdout", "true"), ("tty", "true")]
        term = str(content.get("term") or "dumb")
        command = [*SHELL, term if re.fullmatch(r"[\w.+-]{1,40}", term) else "dumb"]
        query += [("command", word) for word in command]
        try:
            status = await relay(
                self._bridge.kube, f"{self._path(pod)}/exec", query, frames, writer
            )
        except (KubeUnknownError, KubeRefusedError) as error:
            raise Refused(str(error)) from error
        writer.write(wire.control(event="exit", status=status))


#: Channels of v4.channel.k8s.io.
_IN, _OUT, _ERR, _STATUS, _SIZE = range(5)


async def relay(
    kube: Kube,
    path: str,
    query: list[tuple[str, str]],
    frames: Frames,
    writer: asyncio.StreamWriter,
) -> int:
    """Carry bytes between a person and a process in a pod; returns its exit status."""
    async with kube.exec(path, query) as link:

        async def forth() -> None:
            while (frame := await frames.next()) is not None:
                kind, payload = frame
                if kind == wire.DATA:
                    await link.send_bytes(bytes([_IN]) + payload)
                elif kind == wire.CONTROL:
                    words = wire.parse_control(payload)
                    size = {"Width": words.get("columns"), "Height": words.get("rows")}
                    if all(isinstance(each, int) for each in size.values()):
                        await link.send_bytes(bytes([_SIZE]) + json.dumps(size).encode())
            await link.close()

        sending = asyncio.ensure_future(forth())
        status = 1
        try:
            async for message in link:
                data = message.data
                if not isinstance(data, bytes) or not data:
                    continue
                if data[0] in (_OUT, _ERR):
                    writer.write(wire.frame(wire.DATA, data[1:]))
                    await writer.drain()
                elif data[0] == _STATUS:
                    status = exit_status(data[1:])
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, wire.ProtocolError):
                await sending
        return status


def exit_status(text: bytes) -> int:
    """Exit status in the last words of an exec."""
    try:
        said = json.loads(text)
        if said.get("status") == "Success":
            return 0
        causes = (said.get("details") or {}).get("causes") or ()
        codes = [each["message"] for each in causes if each.get("reason") == "ExitCode"]
        return int(codes[0]) if codes else 1
    except (ValueError, KeyError, AttributeError, TypeError):
        return 1


def _find(text: str, jobs: Mapping[int, SlurmJob]) -> tuple[int, SlurmJob | None]:
    """A job by its number, or by array and task as squeue prints it."""
    match = _JOB.match(text)
    if match is None:
        raise Refused(f"job: found {text!r}, expected a number, or ARRAY_TASK as squeue prints it")
    number, task = int(match[1]), match[2]
    if task is None:
        return number, jobs.get(number)
    tasks = [job for job in jobs.values() if job.array_job == number]
    # Tasks that have not started yet are one record: `3-8%2`.
    waiting = [job for job in tasks if not job.array_task.isdecimal()]
    for job in [*(each for each in tasks if each.array_task == task), *waiting]:
        return job.job_id, job
    raise Refused(f"job {text}: found no such task in Slurm")


def _is_admin(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _user(uid: int | None) -> str:
    if uid is None:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _event(manifest: Mapping[str, Any]) -> dict[str, Any]:
    about = manifest.get("involvedObject") or {}
    moment = manifest.get("lastTimestamp") or manifest.get("eventTime")
    return {
        "time": str(moment or manifest["metadata"].get("creationTimestamp") or ""),
        "object": f"{str(about.get('kind', '')).lower()} {about.get('name', '')}",
        "reason": str(manifest.get("reason") or ""),
        "message": " ".join(str(manifest.get("message") or "").split())[:300],
        "count": int(manifest.get("count") or 1),
    }


def _reply(
    writer: asyncio.StreamWriter, content: Mapping[str, Any], facts: Mapping[str, Any], text: str
) -> None:
    """Facts for machines or a page for people, and the end."""
    if content.get("json") is True:
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    data = text.encode("utf-8", "replace")
    for start in range(0, len(data), wire.CHUNK):
        writer.write(wire.frame(wire.DATA, data[start : start + wire.CHUNK]))
    writer.write(wire.control(event="exit", status=0))
