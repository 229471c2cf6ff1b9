"""Who may attach, what is held for whom, and when it ends: over the daemon's real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from railweld import names
from railweld.bridge import daemon, server
from railweld.bridge.config import Config
from railweld.bridge.daemon import Bridge
from railweld.bridge.kube import Kube
from railweld.bridge.observed import INDEX, Key
from railweld.bridge.pod import wire
from railweld.bridge.server import Attach, Guests, Refused
from railweld.bridge.session import UNREAD, Session
from railweld.bridge.slurm import Slurm, SlurmUnknownError
from tests.unit.bridge.test_daemon import bridge_config
from tests.unit.bridge.test_kube import http

ME = os.getuid()
SUBMITTED = "2026-11-30T03:04:41"
NAME = "slurm-lab-7-r0"
SCRIPT = b"#!/bin/sh\n#BRIDGE image=registry.site/ml/x:1\ntrue\n"
NOBODY = 54321


def squeue(uid: int = ME, state: str = "RUNNING") -> str:
    return f"7|{state}|{uid}|{uid}|0|{SUBMITTED}|gpu1|1|gpu|7|N/A|1|UNLIMITED|gpu1|\n"


def job(owner: int = ME, submitted: str = SUBMITTED) -> dict[str, Any]:
    labels = {
        names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0", names.LABEL_JOB_UID: str(owner),
    }  # fmt: skip
    notes = {names.ANNOTATION_SUBMITTED: submitted, names.ANNOTATION_HOSTS: "gpu1"}
    metadata = {"name": NAME, "uid": "u", "labels": labels, "annotations": notes}
    return {"metadata": metadata, "spec": {"template": {"spec": {"hostNetwork": True}}}}


def pod(phase: str = "Running") -> dict[str, Any]:
    labels = {**job()["metadata"]["labels"], INDEX: "0"}
    metadata = {**job()["metadata"], "name": f"{NAME}-0", "labels": labels}
    spec = {"nodeName": "gpu1", "nodeSelector": {"kubernetes.io/hostname": "gpu1"}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


class Site:
    """A daemon with its socket, an API server that has few objects, and a Slurm that says so."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config
        self.squeue: str | None = squeue()
        self.objects: set[str] = set()
        self.calls: list[str] = []
        self.bridge: Bridge

    async def slurm(self, *argv: str) -> str:
        self.calls.append(argv[0])
        if self.squeue is None:
            raise SlurmUnknownError("no answer")
        return self.squeue if argv[0] == "squeue" else ""

    async def api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says of each object whether it is there, and lists no pods; nothing can be made."""
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode().partition("?")[0]
        status, answer = 404, {"kind": "Status", "status": "Failure", "message": f"no {path}"}
        if any(path.endswith(each) for each in self.objects):
            owner = {"uid": "u"}
            status, answer = 200, {"kind": "Secret", "metadata": {"ownerReferences": [owner]}}
        elif path.endswith("/pods"):
            status, answer = 200, {"metadata": {"resourceVersion": "1"}, "items": []}
        writer.write(http(status, json.dumps(answer).encode()))
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        api = await asyncio.start_server(self.api, "127.0.0.1", 0)
        content = json.loads(self.config.kubeconfig.read_text())
        port = api.sockets[0].getsockname()[1]
        content["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{port}"
        self.config.kubeconfig.write_text(json.dumps(content))
        async with Kube(self.config.kubeconfig) as kube:
            self.bridge = Bridge(self.config, kube=kube, slurm=Slurm(self.slurm))
            await self.bridge.server.start(self.folder / "socket")
            answering = asyncio.create_task(self.bridge._answer_epilogs())
            try:
                yield self
            finally:
                tasks = [answering, *self.bridge._drivers.values(), *self.bridge._tasks]
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                api.close()

    def live(self) -> None:
        for kind in ("jobs", "pods"):
            self.bridge.mirror._set_live(kind, True)

    async def client(self, **content: Any) -> Client:
        reader, writer = await asyncio.open_unix_connection(self.folder / "socket")
        writer.write(wire.control(**{"version": wire.VERSION, **content}))
        return Client(reader, writer)

    async def attach(self, **more: Any) -> Client:
        client = await self.client(**{**ATTACH, **more})
        client.writer.write(wire.frame(wire.ENVIRONMENT, b"") + wire.frame(wire.SCRIPT, SCRIPT))
        return client


ATTACH = {
    "op": "attach", "job": "7", "restart": "0", "arguments": [], "directory": "/home/x",
    "umask": 18, "apart": False, "created": None, "written": [],
}  # fmt: skip


class Client:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> dict[str, Any]:
        """The next words."""
        head = await asyncio.wait_for(self.reader.readexactly(wire.HEADER.size), 20)
        length, _ = wire.HEADER.unpack(head)
        return wire.parse_control(await self.reader.readexactly(length - 1))


def at(folder: Path, test: Callable[[Site], Awaitable[None]], **changes: Any) -> None:
    config = replace(bridge_config(folder), **{"minimum_uid": 0, "placement": "patch", **changes})

    async def run() -> None:
        async with Site(folder, config).running() as site:
            await asyncio.wait_for(test(site), 60)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"registries": ("registry.other",)},
        {"minimum_uid": ME + 1},
        {"partitions": {"other": "gpu"}},
    ],
)
def test_a_run_that_is_there_is_not_judged_by_the_rules_for_new_ones(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async def test(site: Site) -> None:
        site.live()
        new = await site.attach()
        assert (await new.answer())["event"] == "note"
        assert await new.answer() == {"event": "exit", "status": 1}
        site.bridge.mirror._store("jobs", job(), deleted=False)
        site.objects.add(f"/secrets/{NAME}")
        # Without a PodTemplate, too: there is none.
        again = await site.attach(created=NAME)
        assert await again.answer() == {"event": "attached", "created": NAME, "labels": None}
        assert site.bridge.runs[Key(7, 0)].owner == ME

    at(tmp_path, test, **changes)


@pytest.mark.parametrize(
    ("found", "more"),
    [
        (job(owner=ME + 1), {}),
        (job(owner=ME + 1), {"created": NAME}),
        (job(submitted="2025-01-01T00:00:00"), {}),
    ],
)
def test_a_run_of_somebody_else_or_of_an_earlier_job_stays_theirs(
    tmp_path: Path, found: dict[str, Any], more: dict[str, Any]
) -> None:
    """Slurm counts from the beginning again after its state was lost."""

    async def test(site: Site) -> None:
        site.bridge.mirror._store("jobs", found, deleted=False)
        site.live()
        client = await site.attach(**more)
        assert "of another submission" in (await client.answer())["text"]
        assert await client.answer() == {"event": "exit", "status": 1}

    at(tmp_path, test)


def asked(**more: Any) -> Attach:
    return Attach.read({**ATTACH, **more}, b"", SCRIPT)


@contextlib.asynccontextmanager
async def session(uid: int) -> AsyncIterator[tuple[Session, socket.socket]]:
    """One whose client is a socket that nobody reads."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    try:
        yield Session(writer, uid), theirs
    finally:
        writer.close()
        theirs.close()


def test_a_user_that_nobody_knows_is_looked_for_as_long_as_pods_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ACCOUNT_SECONDS", 0.05)

    async def test(site: Site) -> None:
        site.squeue = squeue(NOBODY)
        site.live()
        async with session(NOBODY) as (client, _):
            with pytest.raises(Refused, match=r"unknown on the Slurm head for 0\.2 s"):
                await site.bridge.attach(client, asked())
            # Of a run that is there nobody has to know the name.
            site.bridge.mirror._store("jobs", job(NOBODY), deleted=False)
            site.objects.add(f"/secrets/{NAME}")
            run = await site.bridge.attach(client, asked())
            assert run.session is client

    at(tmp_path, test, start_limit=0.2)


def test_a_batch_step_that_waits_says_once_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "PATIENCE_SECONDS", 0.05)

    async def test(site: Site) -> None:
        site.bridge.mirror._store("jobs", job(), deleted=False)
        site.objects.add(f"/secrets/{NAME}")
        client = await site.attach()
        text = "the Kubernetes API does not answer; the job waits"
        assert await client.answer() == {"event": "note", "text": text}
        await asyncio.sleep(5 * daemon.LIVE_SECONDS)
        site.live()
        assert (await client.answer())["event"] == "attached"

    at(tmp_path, test)


def test_a_client_that_hangs_up_while_it_waits_is_not_attached(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await site.attach()
        await until(lambda: site.bridge._attaching)
        # A second one is told nothing, so that it asks again.
        second = await site.attach()
        assert await second.reader.read() == b""
        client.writer.close()
        await until(lambda: not site.bridge._attaching)
        site.live()
        assert site.bridge.runs == {}

    at(tmp_path, test)


def test_signals_of_a_waiting_batch_step_are_kept_but_not_without_end(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.bridge.mirror._store("jobs", job(), deleted=False)
        site.objects.add(f"/secrets/{NAME}")
        client = await site.attach(created=NAME)
        await until(lambda: site.bridge._attaching)
        client.writer.write(wire.control(op="signal", name="TERM"))
        site.squeue = squeue(state="CANCELLED")
        site.live()
        await until(lambda: Key(7, 0) in site.bridge.runs and site.bridge.runs[Key(7, 0)].cancelled)
        site.squeue = squeue()
        site.bridge.mirror._set_live("jobs", False)
        site.bridge.runs.clear()
        client.writer.close()
        client = await site.attach(created=NAME)
        await until(lambda: site.bridge._attaching)
        client.writer.write(wire.control(op="signal", name="USR1") * 10_000)
        await until(lambda: not site.bridge._attaching)

    at(tmp_path, test)


def test_a_waiting_batch_step_counts_as_a_guest_until_its_job_is_known(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.squeue = None
        client = await site.attach()
        await until(lambda: site.calls)
        assert site.bridge.server._guests._open == {ME: 1}
        site.squeue = squeue()
        await until(lambda: site.bridge._attaching)
        assert site.bridge.server._guests._open == {}
        client.writer.close()
        await until(lambda: not site.bridge._attaching)

    at(tmp_path, test)


def test_a_pod_that_asks_for_a_requeue_again_and_again_starts_one_command(tmp_path: Path) -> None:
    class Pod:
        told: list[dict[str, Any]]

        def __init__(self) -> None:
            self.told = []

        def send(self, **content: Any) -> None:
            self.told.append(content)

    async def test(site: Site) -> None:
        run: Any = SimpleNamespace(key=Key(7, 0))
        pods: list[Any] = [Pod() for _ in range(100)]
        for each in pods:
            site.bridge.requeue(run, each)
        # Who asked last has the connection that is open.
        await until(lambda: pods[-1].told)
        assert pods[-1].told == [{"op": "requeued", "error": ""}]
        assert site.calls == ["scontrol"]
        site.squeue = None
        site.bridge.requeue(run, pods[0])
        await until(lambda: pods[0].told)
        assert pods[0].told == [{"op": "requeued", "error": "no answer"}]

    at(tmp_path, test)


def test_guests_are_bounded_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GUESTS", 2)
    monkeypatch.setattr(server, "GUEST_BYTES", 10)
    guests = Guests()
    first, second = guests.admit(NOBODY), guests.admit(NOBODY)
    assert first is not None
    assert second is not None
    assert guests.admit(NOBODY) is None
    assert guests.admit(NOBODY + 1) is not None
    for _ in range(5):
        assert guests.admit(0) is not None
    second.leave()
    second.leave()
    third = guests.admit(NOBODY)
    assert third is not None
    assert guests.admit(NOBODY) is None
    first.sent(8)
    with pytest.raises(wire.ProtocolError, match="11 bytes of one user"):
        third.sent(3)
    third.leave()
    first.heard()
    first.sent(100)
    first.leave()
    assert NOBODY not in guests._open
    assert NOBODY not in guests._bytes


def test_epilogs_are_answered_together_and_end_with_their_callers(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        bridge = site.bridge
        bridge.mirror._store("jobs", job(), deleted=False)
        bridge.mirror._store("pods", pod(), deleted=False)
        site.squeue = squeue(state="COMPLETING")
        site.live()
        here = [await site.client(op="epilog", job="7", node="gpu1") for _ in range(30)]
        gone = [await site.client(op="epilog", job="7", node="gpu1") for _ in range(30)]
        await until(lambda: len(bridge._epilogs) == 60)
        # Another node of the job has nothing left to wait for.
        other = await site.client(op="epilog", job="7", node="gpu2")
        assert await other.answer() == {"event": "gone"}
        for client in gone:
            client.writer.close()
        await until(lambda: len(bridge._epilogs) == 30)
        await until(lambda: bridge._ended.get(Key(7, 0)) == daemon.LOOKS)
        assert site.calls.count("squeue") <= 3
        bridge.mirror._apply("pods", pod("Succeeded"), deleted=True)
        bridge.mirror._apply("jobs", job(), deleted=True)
        for client in here:
            assert await client.answer() == {"event": "gone"}

    at(tmp_path, test)


def test_clients_of_another_release_are_told_so_and_epilogs_are_answered(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.live()
        other = await site.attach(version=wire.VERSION + 1)
        assert "client and daemon are of different releases" in (await other.answer())["text"]
        assert await other.answer() == {"event": "exit", "status": 1}
        epilog = await site.client(op="epilog", job="7", node="gpu1", version=wire.VERSION + 1)
        assert await epilog.answer() == {"event": "gone"}

    at(tmp_path, test)


def test_lines_for_a_client_that_does_not_read_do_not_pile_up() -> None:
    decoder, said = wire.Decoder(), list[str]()

    def read(link: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := link.recv(65536):
                said.extend(wire.parse_control(text)["text"] for _, text in decoder.feed(data))

    async def test() -> None:
        async with session(ME) as (client, theirs):
            theirs.setblocking(False)
            for number in range(10_000):
                client.note(f"{number} " + "x" * 490)
            assert client._unread() < UNREAD + 1000
            while client._unread():
                read(theirs)
                await asyncio.sleep(0)
            client.note("last")
            await asyncio.sleep(0)
            read(theirs)

    asyncio.run(test())
    kept = len(said) - 2
    assert said[-2:] == [f"{10_000 - kept} lines of the bridge were left out", "last"]
    assert said[kept - 1].startswith(f"{kept - 1} ")
