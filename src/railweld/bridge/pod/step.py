"""Steps of `srun` between the pods of a job in mode `leader`.

The first pod's agent takes them from `srun` over a Unix socket; the others connect to it, with the
job's key, and run their share. Nothing of it needs the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from railweld.bridge.pod import srun, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.5
#: A node that is not connected yet when a step wants it may still come.
JOIN_SECONDS = 60.0
#: A greeting is short; nobody unknown makes this side hold more.
GREETING_LIMIT = 8192
#: Output of tasks that nobody has taken is read no further than this.
PIPE_BYTES = 64 * 1024
#: On the way to a follower: input for tasks.
STDIN = 0


class Host(Protocol):
    """What steps need of the agent."""

    job: str
    key: bytes
    rank: int
    address: str
    plan: dict[str, Any]
    scratch: Path

    def spawn(
        self, argv: list[str], **options: Any
    ) -> tuple[subprocess.Popen[bytes], asyncio.Future[int]]:
        """Start a child; the future holds its exit status."""


if TYPE_CHECKING:
    # Python 3.8 cannot make it.
    Emit = Callable[[int, int, bytes], Awaitable[None]]


class Tasks:
    """The tasks of one step on one node."""

    def __init__(self, host: Host, step: srun.Step, number: int, node: int, emit: Emit) -> None:
        self._host = host
        self._step = step
        self._number = number
        self._numbers = step.tasks[node]
        self._emit = emit
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._inputs: list[Any] = []
        self._unstarted = len(self._numbers)
        self._started = asyncio.Event()

    async def run(self) -> dict[int, int]:
        """Start them and wait; returns the exit status of each."""
        results = await asyncio.gather(*map(self._one, self._numbers))
        return dict(zip(self._numbers, results))

    async def _one(self, task: int) -> int:
        environment = dict(self._step.environment)
        environment.update(srun.task_environment(self._step, self._number, task))
        environment.pop("RAILWELD_SOCKET", None)
        environment["RAILWELD_MODE"] = "task"
        pipes = [os.pipe(), os.pipe()]
        try:
            process, ended = self._host.spawn(
                self._step.argv,
                stdin=subprocess.PIPE if self._step.stdin else subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                cwd=self._step.directory,
                env=environment,
            )
        except OSError as error:
            for reader, _ in pipes:
                os.close(reader)
            self._count_started()
            text = f"{self._node_name(task)}: {self._step.argv[0]}: {error.strerror}\n"
            await self._emit(task, 2, text.encode())
            return 127 if isinstance(error, FileNotFoundError) else 126
        finally:
            for _, writer in pipes:
                os.close(writer)
        self._running[task] = process
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._inputs.append(process.stdin)
        self._count_started()
        readers = [
            asyncio.ensure_future(self._pump(task, stream, reader))
            for stream, (reader, _) in zip((1, 2), pipes)
        ]
        status = await ended
        del self._running[task]
        # What it wrote before it ended; its own children may keep the pipes for longer.
        await asyncio.wait(readers, timeout=2.0)
        for each in readers:
            each.cancel()
        return status

    def _count_started(self) -> None:
        self._unstarted -= 1
        if not self._unstarted:
            self._started.set()

    def _node_name(self, task: int) -> str:
        node = next(n for n, tasks in enumerate(self._step.tasks) if task in tasks)
        return self._step.node_names[node]

    async def _pump(self, task: int, stream: int, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIPE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
        )
        try:
            while True:
                data = await reader.read(wire.CHUNK)
                if not data:
                    return
                await self._emit(task, stream, data)
        finally:
            transport.close()

    def signal(self, number: int) -> None:
        """Pass a signal to every process of every task."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    async def feed(self, data: bytes) -> None:
        """Input for every task, once all are there; nothing ends it."""
        await self._started.wait()
        for pipe in list(self._inputs):
            try:
                if not data:
                    pipe.close()
                    self._inputs.remove(pipe)
                    continue
                view = memoryview(data)
                while view:
                    try:
                        view = view[os.write(pipe.fileno(), view) :]
                    except BlockingIOError:
                        await asyncio.sleep(0.01)
            except (OSError, ValueError):
                with contextlib.suppress(ValueError):
                    self._inputs.remove(pipe)


class Link:
    """One follower, as the leader sees it."""

    def __init__(self, writer: asyncio.StreamWriter, seal: wire.Seal) -> None:
        self._writer = writer
        self._seal = seal

    async def send(self, **content: Any) -> None:
        """Say something."""
        self._writer.write(self._seal.control(**content))
        await self._writer.drain()

    async def feed(self, number: int, data: bytes) -> None:
        """Input for the tasks of a step."""
        piece = wire.Output(0, STDIN, number, data)
        self._writer.write(self._seal.close(wire.DATA, wire.output(piece)))
        await self._writer.drain()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


class Running:
    """A step under way, as the leader sees it."""

    def __init__(self, step: srun.Step, writer: asyncio.StreamWriter) -> None:
        self.step = step
        self.writer = writer
        self.statuses: dict[int, int] = {}
        #: By node of the step, until all its tasks have ended.
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.local: Tasks | None = None
        self.killed = False
        self._unstarted = set(step.nodes)
        #: Every node has been told to start its share, so that input finds its tasks.
        self.started = asyncio.Event()

    def count_started(self, rank: int) -> None:
        """A node has been told, or never will be."""
        self._unstarted.discard(rank)
        if not self._unstarted:
            self.started.set()

    async def emit(self, task: int, stream: int, data: bytes) -> None:
        """Output of a task, on its way to srun."""
        if not self.writer.is_closing():
            piece = wire.Output(task, stream, 0, data)
            self.writer.write(wire.frame(wire.DATA, wire.output(piece)))
            await self.writer.drain()


class Leader:
    """Takes steps of `srun` in the first pod and spreads them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._followers: dict[int, Link] = {}
        self._joined = asyncio.Event()
        self._steps: dict[int, Running] = {}
        self._next = 0
        self._ended = False
        self.port = 0

    async def start(self) -> None:
        """Listen for followers."""
        server = await asyncio.start_server(self._follower, self._host.address, 0, backlog=4096)
        self.port = int(server.sockets[0].getsockname()[1])

    async def end(self) -> None:
        """The body has ended: so may the other pods."""
        self._ended = True
        for link in list(self._followers.values()):
            with contextlib.suppress(OSError):
                await link.send(op="end")

    # -- followers ---------------------------------------------------------------------------

    async def _follower(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = -1
        link: Link | None = None
        try:
            rank, seal = await asyncio.wait_for(self._meet(reader, writer), HANDSHAKE_SECONDS)
            link = Link(writer, seal)
            self._followers[rank] = link
            if self._ended:
                await link.send(op="end")
            self._joined.set()
            self._joined = asyncio.Event()
            await self._hear(rank, reader, seal)
        except (wire.ProtocolError, OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass
        finally:
            if self._followers.get(rank) is link and link is not None:
                del self._followers[rank]
                await self._lost(rank)
            writer.close()

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, wire.Seal]:
        nonce = os.urandom(wire.NONCE_BYTES)
        writer.write(wire.control(version=wire.VERSION, nonce=nonce.hex()))
        hello = await greeting(reader)
        rank = hello.get("node")
        if not isinstance(rank, int) or not 0 < rank < len(self._host.plan["nodes"]):
            raise wire.ProtocolError("found a greeting of no node")
        theirs = bytes.fromhex(str(hello.get("nonce", "")))
        session = wire.session(self._host.key, f"{self._host.job}/steps", rank, nonce, theirs)
        if not wire.proven(session, b"agent", hello.get("proof")):
            raise wire.ProtocolError("found an agent without the job's key")
        writer.write(wire.control(proof=wire.proof(session, b"server")))
        await writer.drain()
        return rank, wire.Seal(session, server=True)

    async def _hear(self, rank: int, reader: asyncio.StreamReader, seal: wire.Seal) -> None:
        async for kind, payload in opened(reader, seal):
            if kind == wire.DATA:
                piece = wire.parse_output(payload)
                step = self._steps.get(piece.offset)
                if step is not None:
                    await step.emit(piece.node, piece.stream, piece.data)
            elif kind == wire.CONTROL:
                words = wire.parse_control(payload)
                step = self._steps.get(int(words.get("number", -1)))
                if step is not None and "statuses" in words:
                    await self._done(step, rank, words["statuses"])

    async def _done(self, step: Running, rank: int, statuses: dict[str, int]) -> None:
        step.statuses.update({int(task): int(status) for task, status in statuses.items()})
        if step.step.kill and any(step.statuses.values()) and not step.killed:
            step.killed = True
            await self._signal(step, signal.SIGKILL)
        future = step.waiting.pop(rank, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def _lost(self, rank: int) -> None:
        for step in list(self._steps.values()):
            if rank in step.waiting:
                node = step.step.nodes.index(rank)
                name = step.step.node_names[node]
                step.writer.write(wire.control(note=f"{name}: the connection was lost"))
                await self._done(step, rank, {str(task): 1 for task in step.step.tasks[node]})

    # -- steps -------------------------------------------------------------------------------

    async def serve(
        self,
        words: dict[str, Any],
        more: AsyncIterator[tuple[int, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        """Carry out the step of one `srun`: its first words, and the frames that follow."""
        number, self._next = self._next, self._next + 1
        step = self._steps[number] = Running(srun.Step.of(words["step"]), writer)
        writer.write(wire.control(number=number))
        runner = asyncio.ensure_future(self._run(step, number))
        try:
            async for kind, payload in more:
                if kind == wire.DATA:
                    await self._feed(step, number, payload)
                    continue
                name = wire.parse_control(payload).get("signal")
                found = getattr(signal, f"SIG{name}", None)
                if isinstance(found, signal.Signals):
                    await self._signal(step, found)
        finally:
            # srun has ended, or was killed: its tasks end too.
            if step.waiting:
                await self._signal(step, signal.SIGKILL)
            self._steps.pop(number, None)
            runner.cancel()

    async def _run(self, step: Running, number: int) -> None:
        loop = asyncio.get_running_loop()
        for rank in step.step.nodes:
            step.waiting[rank] = loop.create_future()
        waiting = list(step.waiting.values())
        starts = [
            self._start(step, number, node, rank) for node, rank in enumerate(step.step.nodes)
        ]
        await asyncio.gather(*starts)
        await asyncio.gather(*waiting)
        status = max(step.statuses.values(), default=0)
        failed = sorted(task for task, each in step.statuses.items() if each)
        if failed and not step.writer.is_closing():
            text = f"{len(failed)} of {step.step.count} tasks failed, first task {failed[0]}: "
            text += f"exit status {step.statuses[failed[0]]}"
            step.writer.write(wire.control(note=text))
        step.writer.write(wire.control(status=status))
        with contextlib.suppress(OSError):
            await step.writer.drain()

    async def _start(self, step: Running, number: int, node: int, rank: int) -> None:
        if rank == self._host.rank:
            step.local = Tasks(self._host, step.step, number, node, step.emit)
            step.count_started(rank)
            statuses = await step.local.run()
            await self._done(step, rank, {str(k): v for k, v in statuses.items()})
            return
        deadline = asyncio.get_running_loop().time() + JOIN_SECONDS
        while rank not in self._followers:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                name = step.step.node_names[node]
                step.count_started(rank)
                step.writer.write(wire.control(note=f"{name}: its agent is not connected"))
                await self._done(step, rank, {str(task): 1 for task in step.step.tasks[node]})
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._joined.wait(), left)
        # Of a connection that breaks now, the reader of it says that it was lost.
        with contextlib.suppress(OSError):
            await self._followers[rank].send(
                op="start", number=number, node=node, step=step.step.to_words()
            )
        step.count_started(rank)

    async def _signal(self, step: Running, number: int) -> None:
        if step.local is not None:
            step.local.signal(number)
        name = signal.Signals(number).name[3:]
        which = next((n for n, each in self._steps.items() if each is step), -1)
        for rank in list(step.waiting):
            link = self._followers.get(rank)
            if link is not None:
                with contextlib.suppress(OSError):
                    await link.send(op="signal", number=which, name=name)

    async def _feed(self, step: Running, number: int, data: bytes) -> None:
        await step.started.wait()
        if step.local is not None:
            await step.local.feed(data)
        for rank in list(step.waiting):
            link = self._followers.get(rank)
            if link is not None:
                with contextlib.suppress(OSError):
                    await link.feed(number, data)


class Follower:
    """Runs its share of the leader's steps."""

    def __init__(self, host: Host, leader: tuple[str, int]) -> None:
        self._host = host
        self._leader = leader
        self._tasks: dict[int, Tasks] = {}
        self._jobs: set[asyncio.Future[None]] = set()
        self.ended = asyncio.Event()

    async def follow(self) -> None:
        """Stay connected until the leader says that the body has ended."""
        while not self.ended.is_set():
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(*self._leader), HANDSHAKE_SECONDS
                )
                try:
                    seal = await asyncio.wait_for(self._meet(reader, writer), HANDSHAKE_SECONDS)
                    await self._serve(reader, writer, seal)
                finally:
                    writer.close()
                    for tasks in self._tasks.values():
                        tasks.signal(signal.SIGKILL)
            except (OSError, wire.ProtocolError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> wire.Seal:
        host = self._host
        hello = await greeting(reader)
        theirs, mine = bytes.fromhex(str(hello.get("nonce", ""))), os.urandom(wire.NONCE_BYTES)
        session = wire.session(host.key, f"{host.job}/steps", host.rank, theirs, mine)
        writer.write(
            wire.control(node=host.rank, nonce=mine.hex(), proof=wire.proof(session, b"agent"))
        )
        answer = await greeting(reader)
        if not wire.proven(session, b"server", answer.get("proof")):
            raise wire.ProtocolError("found a leader that does not know the job's key")
        return wire.Seal(session, server=False)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: wire.Seal
    ) -> None:
        async for kind, payload in opened(reader, seal):
            if kind == wire.DATA:
                piece = wire.parse_output(payload)
                if piece.offset in self._tasks:
                    await self._tasks[piece.offset].feed(piece.data)
                continue
            words = wire.parse_control(payload)
            operation = words.get("op")
            if operation == "end":
                self.ended.set()
                return
            if operation == "start":
                self._begin(words, writer, seal)
            elif operation == "signal" and words.get("number") in self._tasks:
                found = getattr(signal, f"SIG{words.get('name')}", None)
                if isinstance(found, signal.Signals):
                    self._tasks[words["number"]].signal(found)

    def _begin(self, words: dict[str, Any], writer: asyncio.StreamWriter, seal: wire.Seal) -> None:
        number = int(words["number"])

        async def emit(task: int, stream: int, data: bytes) -> None:
            piece = wire.Output(task, stream, number, data)
            writer.write(seal.close(wire.DATA, wire.output(piece)))
            await writer.drain()

        step = srun.Step.of(words["step"])
        tasks = self._tasks[number] = Tasks(self._host, step, number, int(words["node"]), emit)

        async def work() -> None:
            try:
                statuses = await tasks.run()
                writer.write(
                    seal.control(number=number, statuses={str(k): v for k, v in statuses.items()})
                )
                with contextlib.suppress(OSError):
                    await writer.drain()
            finally:
                self._tasks.pop(number, None)

        job = asyncio.ensure_future(work())
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)


async def frames(
    reader: asyncio.StreamReader, *, mac: bool = False
) -> AsyncIterator[tuple[int, bytes]]:
    """Whole frames as they come, until the other end closes."""
    decoder = wire.Decoder(mac=mac)
    while data := await reader.read(65536):
        for frame in decoder.feed(data):
            yield frame


async def opened(reader: asyncio.StreamReader, seal: wire.Seal) -> AsyncIterator[tuple[int, bytes]]:
    """Kinds and payloads of a connection whose frames are proved."""
    async for kind, sealed in frames(reader, mac=True):
        yield kind, seal.open(kind, sealed)


async def greeting(reader: asyncio.StreamReader) -> dict[str, Any]:
    """A frame of a handshake."""
    length, kind = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
    if kind != wire.CONTROL or not 1 < length <= GREETING_LIMIT:
        raise wire.ProtocolError("found something else than a greeting")
    return wire.parse_control(await reader.readexactly(length - 1))
