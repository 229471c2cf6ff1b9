"""Kubelets and agents of any number of nodes in one process, without a process per pod.

Started by `tests.bench.bridge`. A pod that is bound is reported as running; a pod of the bridge
also gets an agent, which says what the real one does at the start barrier and at the end. A body
that has `sleep` in it runs until it is ended, any other ends at once, as does a deleted pod.

Prints one line of JSON for each thing that happened: when, what, in which Job, how often so far.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import datetime as dt
import itertools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from railweld import names
from railweld.bridge.kube import Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.observed import INDEX
from railweld.bridge.pod import step, wire

NAMESPACE = names.NAMESPACE_JOBS
JOB = "batch.kubernetes.io/job-name"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
REPORT_SECONDS = 30.0
#: A node counts as away after 50 seconds without one.
LEASE_SECONDS = 15.0
#: With the first of so many leases the node's status is reported too.
STATUS_BEATS = 4
MERGE = "application/merge-patch+json"


class Fleet:
    """All pods."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.pods: dict[str, Pod] = {}
        self.secrets: dict[str, asyncio.Task[dict[str, bytes]]] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, what: str, job: str) -> None:
        self.counts[what, job] += 1
        line = {"at": time.time(), "what": what, "job": job, "count": self.counts[what, job]}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    async def secret(self, name: str) -> dict[str, bytes]:
        """Key and script of a Job; read once, as by a kubelet that has a cache."""
        if name not in self.secrets:
            self.secrets[name] = asyncio.create_task(self._read(name))
        return await self.secrets[name]

    async def _read(self, name: str) -> dict[str, bytes]:
        while True:
            found = await self.kube.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
            if found is not None:
                return {key: base64.b64decode(value) for key, value in found["data"].items()}
            await asyncio.sleep(0.1)

    async def follow(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        items, version = await self.kube.list(path)
        for manifest in items:
            self.saw(manifest)
        self.say("following", "")
        while True:
            # Ended by the server now and then, and goes on.
            async for event, manifest in self.kube.watch(path, version):
                version = manifest["metadata"]["resourceVersion"]
                if event == "DELETED":
                    self.gone(manifest)
                elif event != "BOOKMARK":
                    self.saw(manifest)

    def saw(self, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        pod = self.pods.get(metadata["uid"])
        if pod is None:
            if not manifest["spec"].get("nodeName"):
                if "deletionTimestamp" in metadata:
                    self._start(Pod(self, manifest).remove())
                return
            pod = self.pods[metadata["uid"]] = Pod(self, manifest)
            self._start(pod.live())
        if "deletionTimestamp" in metadata:
            pod.deleted.set()

    def gone(self, manifest: dict[str, Any]) -> None:
        self.pods.pop(manifest["metadata"]["uid"], None)
        job = manifest["metadata"]["labels"].get(JOB, "")
        self.say("gone", job)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            sys.stderr.write(f"{task.exception()!r}\n")


class Pod:
    """One pod, from being bound to being gone."""

    def __init__(self, fleet: Fleet, manifest: dict[str, Any]) -> None:
        self.fleet = fleet
        metadata, spec = manifest["metadata"], manifest["spec"]
        self.uid = metadata["uid"]
        self.job = metadata["labels"].get(JOB, "")
        self.rank = int(metadata["labels"].get(INDEX, "0"))
        self.path = f"/api/v1/namespaces/{NAMESPACE}/pods/{metadata['name']}"
        self.is_bridged = names.LABEL_JOB_ID in metadata["labels"]
        self.container = {key: spec["containers"][0][key] for key in ("name", "image")} | {
            "imageID": "",
            "restartCount": 0,
        }
        self.variables = {
            each["name"]: each.get("value", "") for each in spec["containers"][0].get("env") or ()
        }
        self.deleted = asyncio.Event()

    async def live(self) -> None:
        running = {"running": {"startedAt": now()}}
        await self.status("Running", running, conditions=[{"type": "Ready", "status": "True"}])
        self.fleet.say("running", self.job)
        waits = [asyncio.create_task(self.deleted.wait())]
        if self.is_bridged:
            waits.append(asyncio.create_task(self.body()))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        status = 143 if self.deleted.is_set() else 0
        ended = {"exitCode": status, "startedAt": now(), "finishedAt": now(), "reason": "Ended"}
        await self.status("Failed" if status else "Succeeded", {"terminated": ended})
        await self.deleted.wait()
        await self.remove()

    async def status(self, phase: str, state: dict[str, Any], **more: Any) -> None:
        container = {**self.container, "ready": phase == "Running", "state": state}
        body = {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": [container], **more}
        with contextlib.suppress(KubeRefusedError):
            await self.patch({"status": body})

    async def patch(self, body: dict[str, Any]) -> None:
        while True:
            try:
                await self.fleet.kube.request("PATCH", f"{self.path}/status", body, content=MERGE)
            except KubeUnknownError:
                await asyncio.sleep(0.2)
            else:
                return

    async def remove(self) -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        with contextlib.suppress(KubeRefusedError):
            await self.fleet.kube.request("DELETE", self.path, options)

    async def body(self) -> None:
        """The agent: barrier, body, end."""
        secret = await self.fleet.secret(self.job)
        host, _, port = self.variables["RAILWELD_HUB"].rpartition(":")
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                if await self.talk(reader, writer, secret):
                    return
            except (OSError, wire.ProtocolError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.5)

    async def talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: dict[str, bytes]
    ) -> bool:
        hello = await step.greeting(reader)
        mine = os.urandom(wire.NONCE_BYTES)
        theirs = bytes.fromhex(hello["nonce"])
        session = wire.session(secret["key"], self.job, self.rank, theirs, mine)
        shown = wire.proof(session, b"agent")
        writer.write(wire.control(job=self.job, node=self.rank, nonce=mine.hex(), proof=shown))
        await step.greeting(reader)
        seal = wire.Seal(session, server=False)

        def report(state: str, status: int | None = None) -> None:
            writer.write(
                seal.control(
                    state=state, status=status, pod=self.uid, address=host, port=1, idle=False
                )
            )

        host = "10.0.0.1"
        state = "ready"
        report(state)

        async def keep() -> None:
            while True:
                await asyncio.sleep(REPORT_SECONDS)
                report(state)

        keeper = asyncio.create_task(keep())
        try:
            async for kind, payload in step.opened(reader, seal):
                if kind != wire.CONTROL or wire.parse_control(payload).get("op") != "go":
                    continue
                state = "started"
                report(state)
                self.fleet.say("started", self.job)
                if b"sleep" not in secret["script"]:
                    report("ended", 0)
                    await writer.drain()
                    return True
            return False
        finally:
            keeper.cancel()
            writer.close()


async def beat(kube: Kube, nodes: int) -> None:
    """Keep nodes ready: leases as often as the controllers ask for, and a status now and then."""
    slots = asyncio.Semaphore(16)

    async def one(node: str, *, report: bool) -> None:
        async with slots:
            stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": node, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": stamp},
            }
            apply = {"fieldManager": "kubelet", "force": "true"}
            with contextlib.suppress(KubeUnknownError):
                await kube.request(
                    "PATCH", f"{LEASES}/{node}", lease, query=apply,
                    content="application/apply-patch+yaml",
                )  # fmt: skip
                if report:
                    ready = {
                        "type": "Ready", "status": "True", "reason": "KubeletReady",
                        "message": "a stand-in", "lastHeartbeatTime": now(),
                        "lastTransitionTime": now(),
                    }  # fmt: skip
                    await kube.request(
                        "PATCH", f"/api/v1/nodes/{node}/status",
                        {"status": {"conditions": [ready]}}, content=MERGE,
                    )  # fmt: skip

    for number in itertools.count():
        began = time.monotonic()
        # Again now and then: on a busy machine leases come late, and nodes count as away.
        report = number % STATUS_BEATS == 0
        await asyncio.gather(*(one(f"gpu{n}", report=report) for n in range(1, nodes + 1)))
        await asyncio.sleep(max(LEASE_SECONDS - (time.monotonic() - began), 1.0))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    options = parser.parse_args()
    async with Kube(options.kubeconfig) as kube:
        await asyncio.gather(Fleet(kube).follow(), beat(kube, options.nodes))


if __name__ == "__main__":
    asyncio.run(main())
