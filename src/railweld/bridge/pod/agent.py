"""First process of a job's pod: waits at the start barrier, runs the body, keeps its output.

The body starts when the daemon says that every pod of the job is there. Its output goes to the
container's log, into a spool, and from there to the daemon, which acknowledges what is in the
user's file; so nothing is lost while the daemon is away, and the body never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from railweld.bridge.pod import hostlist, shell, srun, step, wire

#: Where the job's Secret is mounted.
FOLDER = Path("/run/railweld/job")
#: Where this package is mounted; `bin/` in it has the commands of Slurm that scripts call.
ROOT = Path(__file__).resolve().parents[3]
#: Of one stream; older output that nobody took is dropped then, and said to be.
SPOOL_BYTES = 64 * 1024 * 1024
REPORT_SECONDS = 30.0
REQUEUE_SECONDS = 60.0
SOCKET = "agent.sock"
HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: After the body: how long output may wait without progress for a file that cannot be written,
DRAIN_SECONDS = 120.0
#: and for a daemon or a batch step that is away: Slurm keeps the node for the job meanwhile.
AWAY_SECONDS = 3600.0
#: Where Kubernetes takes the last words of a container from.
LAST_WORDS = Path("/dev/termination-log")
#: After a SIGTERM: how long before the kubelet's SIGKILL the agent ends by itself.
KILL_MARGIN_SECONDS = 1.0
#: Signals wait so long for a script that has just started to say what it does with them.
SETTLE_SECONDS = 10.0
#: Processes that the body leaves behind get this long.
LEFTOVER_SECONDS = 2.0
STDOUT, STDERR = 1, 2
#: Where a pod with RDMA has its devices, and the memory that NCCL's processes share.
RDMA = Path("/dev/infiniband")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the pod's own memory
#: Less locked or shared memory than this is a mistake of the site; NCCL takes it without a word
#: and goes on over TCP, or fails in the middle.
ENOUGH_BYTES = 1024 * 1024 * 1024
DEFAULTED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGTSTP),
)
#: A connection that is over, for whatever reason.
_BROKEN = (OSError, wire.ProtocolError, asyncio.TimeoutError, asyncio.IncompleteReadError)


class AgentError(Exception):
    """The body cannot be run; the text is for the user."""


class Spool:
    """The last output of one stream, in an unnamed file that is written round and round."""

    def __init__(self, limit: int = SPOOL_BYTES) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the agent
        self._limit = limit
        #: Offset of the first byte that is still there, and of the next one to come.
        self.first = 0
        self.end = 0

    def append(self, data: bytes) -> None:
        """Keep more; the oldest goes if there is too much."""
        view = memoryview(data)
        while view:
            place = self.end % self._limit
            piece = view[: self._limit - place]
            self._file.seek(place)
            try:
                self._file.write(piece)
                self._file.flush()
            except OSError:
                # The disk is full: what is in the file stays, this is lost, and said to be.
                self.end += len(view)
                self.first = self.end
                return
            self.end += len(piece)
            view = view[len(piece) :]
        self.first = max(self.first, self.end - self._limit)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset on, at most so many."""
        place = offset % self._limit
        size = min(size, self.end - offset, self._limit - place)
        if size <= 0:
            return b""
        self._file.seek(place)
        return self._file.read(size)


class Agent:
    """The life of one pod."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "plan").read_text())
        self.key = (folder / "key").read_bytes()
        node = os.environ.get("RAILWELD_NODE")
        self.rank = int(os.environ["JOB_COMPLETION_INDEX"])
        if node:
            # An old Kubernetes: whichever node the pod came to says which rank it has.
            self.rank = self.plan["hosts"].index(node)
        self.job = os.environ["RAILWELD_JOB"]
        host, _, port = os.environ["RAILWELD_HUB"].rpartition(":")
        self.hub = (host.strip("[]"), int(port))
        self.address = os.environ.get("RAILWELD_POD_IP") or "127.0.0.1"
        self.state = "ready"
        self.status: int | None = None
        self.spools = {STDOUT: Spool(), STDERR: Spool()}
        self.sent = {STDOUT: 0, STDERR: 0}
        self.taken = {STDOUT: 0, STDERR: 0}
        #: Whether the daemon wants output now, and whether it ever will.
        self.shown = False
        self.wanted = True
        self.orders: dict[str, Any] | None = None
        self.body: subprocess.Popen[bytes] | None = None
        self.ending = False
        self._go = asyncio.Event()
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._more = asyncio.Event()
        self._progress = time.monotonic()
        #: When the kubelet's SIGKILL comes.
        self._killed_at = math.inf
        self._notes: list[str] = []
        #: Signals for the script that it has not got yet, and the numbers of all so far.
        self._signals: list[signal.Signals] = []
        self._numbers: set[int] = set()
        self._signalled = asyncio.Event()
        #: Until then the script may still have to set its traps.
        self._settled_at = math.inf
        self._children: dict[int, tuple[subprocess.Popen[bytes], asyncio.Future[int]]] = {}
        self._requeued: asyncio.Future[str] | None = None
        self._leader: step.Leader | None = None
        self._follower: step.Follower | None = None
        self._open_pipes = 0
        #: This node's own files, by stream, of a job whose nodes are too many to stream from.
        self._files: dict[int, int] = {}
        self._unwritten = 0
        self.scratch = Path(tempfile.mkdtemp(prefix="railweld-"))

    # -- the body ----------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What the body sees: the image's variables, the submitter's, Slurm's, this pod's."""
        plan, orders = self.plan, self.orders or {}
        found = {k: v for k, v in image_environment().items() if not k.startswith("RAILWELD_")}
        found.update(plan["environment"])
        found.update(plan["slurm"])
        found["PATH"] = f"{ROOT / 'bin'}:{found.get('PATH') or os.defpath}"
        found["HOME"], found["USER"], found["LOGNAME"] = plan["home"], plan["user"], plan["user"]
        peers = orders.get("peers") or []
        node = plan["nodes"][self.rank]
        found.update(
            {
                "SLURM_NODEID": str(self.rank),
                "SLURM_PROCID": str(self.rank if plan["mode"] == "spmd" else 0),
                "SLURM_LOCALID": "0",
                "SLURMD_NODENAME": node,
                "MASTER_ADDR": str(peers[0]) if peers else self.address,
                "MASTER_PORT": str(plan["port"]),
                "RAILWELD_MODE": plan["mode"],
                "RAILWELD_NODES": hostlist.compress(plan["nodes"]),
                "RAILWELD_SOCKET": str(self.scratch / SOCKET),
            }
        )
        if plan["mode"] == "spmd":
            # torchrun takes its options from these. The host of the rendezvous is said and not
            # guessed from names, which on many nodes lead to a loopback address.
            found.update(
                {
                    "PET_NNODES": str(len(plan["nodes"])),
                    "PET_NODE_RANK": str(self.rank),
                    "PET_MASTER_ADDR": found["MASTER_ADDR"],
                    "PET_MASTER_PORT": found["MASTER_PORT"],
                    "PET_RDZV_CONF": f"is_host={'true' if self.rank == 0 else 'false'}",
                }
            )
            if found.get("SLURM_GPUS_ON_NODE", "").isdecimal():
                found["PET_NPROC_PER_NODE"] = found["SLURM_GPUS_ON_NODE"]
        return found

    def start_body(self) -> None:
        """Start the script as a process group of its own."""
        script = self.scratch / "slurm_script"
        script.write_bytes((self.folder / "script").read_bytes())
        script.chmod(stat.S_IRWXU)
        if self.plan.get("scratch") and Path(self.plan["scratch"]).stat().st_uid != 0:
            raise AgentError(
                f"{self.plan['scratch']}: found a folder that somebody else has made, expected the "
                "kubelet's; see ls -l on the node"
            )
        directory = self.plan["directory"]
        if not Path(directory).is_dir():
            raise AgentError(
                f"working directory {directory}: not in the pod; submit from a folder that is "
                "on shared storage, or use --chdir"
            )
        outs = [os.pipe()]
        if self.plan["apart"]:
            outs.append(os.pipe())
        try:
            self.body, ended = self.spawn(
                [str(script), *self.plan["arguments"]],
                stdin=subprocess.DEVNULL,
                stdout=outs[0][1],
                stderr=outs[-1][1],
                cwd=directory,
                env=self.environment(),
            )
        except OSError as error:
            first = script.read_bytes().split(b"\n", 1)[0].decode(errors="replace")
            raise AgentError(
                f"{first}: {error.strerror}; is the interpreter in the image?"
            ) from error
        finally:
            for _, end in outs:
                os.close(end)
        self.state = "started"
        self._settled_at = time.monotonic() + SETTLE_SECONDS
        self._started.set()
        ended.add_done_callback(self._body_ended)
        loop = asyncio.get_running_loop()
        for stream, (end, _) in zip((STDOUT, STDERR), outs):
            os.set_blocking(end, False)
            self._open_pipes += 1
            loop.add_reader(end, self._read, end, stream)

    def _read(self, end: int, stream: int) -> None:
        try:
            data = os.read(end, 65536)
        except BlockingIOError:
            return
        if not data:
            self._close(end)
            return
        with contextlib.suppress(OSError):
            # The container's log; whoever reads it is never far behind.
            _write_all(stream, data)
        self._keep(stream, data)

    def _keep(self, stream: int, data: bytes) -> None:
        """Output on its way to the user's file, and to the node's own."""
        if stream in self._files:
            try:
                _write_all(self._files[stream], data)
            except OSError:
                self._unwritten += len(data)
        self.spools[stream].append(data)
        self._more.set()

    def _open_files(self) -> None:
        node, umask = self.plan["nodes"][self.rank], self.plan["umask"]
        for stream, path in zip((STDOUT, STDERR), self.plan.get("outputs") or ()):
            if path is None or self.rank == 0 or (stream == STDERR and not self.plan["apart"]):
                continue
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._files[stream] = os.open(f"{path}.{node}", flags, 0o666 & ~umask)
            except OSError as error:
                _log(f"bridge: {path}.{node}: {error.strerror}; see railweld-bridge logs")
                # Every write fails then, and is counted.
                self._files[stream] = -1

    def _close(self, end: int) -> None:
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)
        self._open_pipes -= 1

    def _body_ended(self, ended: asyncio.Future[int]) -> None:
        if self.status is None:
            self.status = ended.result()
        self._ended.set()

    def spawn(
        self, argv: list[str], **options: Any
    ) -> tuple[subprocess.Popen[bytes], asyncio.Future[int]]:
        """Start a child in a session of its own; the future holds its exit status."""
        umask = self.plan["umask"]

        def prepare() -> None:
            os.umask(umask)
            # A shell cannot trap what is ignored when it starts.
            for number in DEFAULTED:
                signal.signal(number, signal.SIG_DFL)

        process = subprocess.Popen(
            argv,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no threads; umask= needs Python 3.9
            **options,
        )
        ended = asyncio.get_running_loop().create_future()
        self._children[process.pid] = (process, ended)
        return process, ended

    def _reap(self) -> None:
        """Take care of every child; as first process, of the body's orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process, ended = self._children.pop(pid, (None, None))
            if process is not None and ended is not None:
                process.returncode = _exit_status(status)
                ended.set_result(process.returncode)

    def _take_signal(self, name: Any, number: Any) -> None:
        """Keep a signal for the script; one that comes again with its number is no new one."""
        found = getattr(signal, f"SIG{name}", None)
        if not isinstance(found, signal.Signals) or number in self._numbers:
            return
        if isinstance(number, int):
            self._numbers.add(number)
        self._signals.append(found)
        self._signalled.set()

    async def _deliver(self) -> None:
        """Pass signals to the script, in their order, once it is there.

        One that came while the pods were starting would kill a script that sets its trap in the
        first line; so a young one gets the time to do so.
        """
        await self._started.wait()
        while True:
            await self._signalled.wait()
            self._signalled.clear()
            while self._signals:
                found = self._signals.pop(0)
                while (
                    self.status is None
                    and self.body is not None
                    and time.monotonic() < self._settled_at
                    and not handles(self.body.pid, found)
                ):
                    await asyncio.sleep(0.05)
                self.signal_body(found)

    def signal_body(self, number: int) -> None:
        """Pass a signal to the script alone, as Slurm does with a batch script."""
        if self.body is not None and self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.body.pid, number)

    def end_all(self, number: int) -> None:
        """Send a signal to every process of the pod but this one."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpid() == 1:
                os.kill(-1, number)
                return
        for process, _ in list(self._children.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def terminate(self) -> None:
        """The kubelet ends the pod."""
        if not self.ending:
            self._killed_at = time.monotonic() + float(self.plan["grace"])
        self.ending = True
        if self.body is None:
            self.status = 128 + signal.SIGTERM
            self._ended.set()
            self._go.set()
            self.end_all(signal.SIGTERM)
            return
        self.end_all(signal.SIGCONT)
        self.end_all(signal.SIGTERM)

    # -- the daemon --------------------------------------------------------------------------

    async def follow_hub(self) -> None:
        """Stay connected, for as long as the pod lives."""
        attempt = 0
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(*self.hub), HANDSHAKE_SECONDS
                )
            except (asyncio.TimeoutError, OSError) as error:
                if attempt == len(RETRY_SECONDS):
                    _log(f"bridge: {self.hub}: {error}; trying again")
            else:
                try:
                    seal = await asyncio.wait_for(self._meet(reader, writer), HANDSHAKE_SECONDS)
                    attempt = 0
                    await self._talk(reader, writer, seal)
                except _BROKEN:
                    pass
                finally:
                    self.shown = False
                    writer.close()
            pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            # A thousand agents must not come back at the same moment.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - no secret
            attempt += 1

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> wire.Seal:
        hello = await step.greeting(reader)
        if hello.get("version") != wire.VERSION:
            raise wire.ProtocolError("found a daemon of another release")
        theirs = bytes.fromhex(str(hello.get("nonce", "")))
        mine = os.urandom(wire.NONCE_BYTES)
        session = wire.session(self.key, self.job, self.rank, theirs, mine)
        writer.write(
            wire.control(
                job=self.job, node=self.rank, nonce=mine.hex(), proof=wire.proof(session, b"agent")
            )
        )
        answer = await step.greeting(reader)
        if not wire.proven(session, b"server", answer.get("proof")):
            raise wire.ProtocolError("found a daemon that does not know the job's key")
        return wire.Seal(session, server=False)

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: wire.Seal
    ) -> None:
        self._writer, self._seal = writer, seal
        self._report()
        sender = asyncio.ensure_future(self._send_output(writer, seal))
        reporter = asyncio.ensure_future(self._keep_reporting())
        try:
            async for kind, payload in step.opened(reader, seal):
                if kind == wire.CONTROL:
                    self._ordered(wire.parse_control(payload))
        finally:
            sender.cancel()
            reporter.cancel()

    def _report(self) -> None:
        self._writer.write(
            self._seal.control(
                state=self.state,
                status=self.status if self.state == "ended" else None,
                pod=os.environ.get("RAILWELD_POD_UID", ""),
                address=self.address,
                port=self._leader.port if self._leader else 0,
                idle=self._follower is not None,
                counts=True,
                **({"note": self._notes.pop(0)} if self._notes else {}),
            )
        )

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._report()

    def _ordered(self, content: dict[str, Any]) -> None:
        operation = content.get("op")
        if operation == "go" and self.orders is None:
            self.orders = content
            self._go.set()
        elif operation == "requeued":
            if self._requeued is not None and not self._requeued.done():
                self._requeued.set_result(str(content.get("error", "")))
        elif operation == "end" and self._follower is not None:
            self._follower.ended.set()
        elif operation == "signal":
            self._take_signal(content.get("name"), content.get("number"))
        elif operation == "show":
            for stream in self.sent:
                self.taken[stream] = self.sent[stream] = int(content.get(str(stream), 0))
            self.shown = self.wanted = True
            self._progress = time.monotonic()
            self._more.set()
        elif operation == "hide":
            self.shown = False
            self._progress = time.monotonic()
            self.wanted = not content.get("never", False)
        elif operation == "written":
            stream = int(content.get("stream", 0))
            if stream in self.taken:
                self.taken[stream] = max(self.taken[stream], int(content.get("offset", 0)))
                self._progress = time.monotonic()
                self._more.set()

    async def _send_output(self, writer: asyncio.StreamWriter, seal: wire.Seal) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            for stream, spool in self.spools.items():
                while self.shown:
                    # What fell out of the spool is a gap that the other end sees and says.
                    offset = max(self.sent[stream], spool.first)
                    room = wire.WINDOW - (offset - self.taken[stream])
                    if self.taken[stream] < spool.first:
                        room = max(room, wire.CHUNK)
                    data = spool.read(offset, min(wire.CHUNK, room))
                    if not data:
                        break
                    self.sent[stream] = offset + len(data)
                    piece = wire.Output(self.rank, stream, offset, data)
                    writer.write(seal.close(wire.DATA, wire.output(piece)))
                    await writer.drain()

    # -- the whole ---------------------------------------------------------------------------

    async def run(self) -> int:
        """From the barrier to the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        if self.plan["mode"] == "leader" and self.rank == 0:
            self._leader = step.Leader(self)
            if len(self.plan["nodes"]) > 1:
                await self._leader.start()
        await asyncio.start_unix_server(self._local, str(self.scratch / SOCKET))
        hub = asyncio.ensure_future(self.follow_hub())
        deliverer = asyncio.ensure_future(self._deliver())
        try:
            await self._go.wait()
            if not self.ending:
                await self._work()
            await self._drain()
            self._say_last_words()
        finally:
            hub.cancel()
            deliverer.cancel()
            # ignore_errors: files of other users may be in it; the node cleans what is left.
            shutil.rmtree(self.scratch, ignore_errors=True)
            if self.plan.get("scratch"):
                empty(Path(self.plan["scratch"]))
        return self.status if self.status is not None else 1

    async def _local(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`srun` and `scontrol` of this pod."""
        frames = step.frames(reader)
        try:
            async for _, payload in frames:
                words = wire.parse_control(payload)
                if "step" in words:
                    if self._leader is not None:
                        await self._leader.serve(words, frames, writer)
                        return
                    text = f"found no script on this node, expected {self.plan['nodes'][0]}'s"
                    writer.write(wire.control(note=text) + wire.control(status=1))
                    await writer.drain()
                if "requeue" in words:
                    await self._requeue(writer)
                if "environment" in words:
                    directory = self.plan["directory"]
                    found = self.environment()
                    pod = os.environ.get("RAILWELD_POD_UID", "")
                    writer.write(wire.control(environment=found, directory=directory, pod=pod))
                    await writer.drain()
        except (OSError, wire.ProtocolError, TypeError):
            pass
        finally:
            writer.close()

    async def _requeue(self, writer: asyncio.StreamWriter) -> None:
        """Ask the daemon to put the job back into the queue."""
        self._requeued = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(self._seal.control(op="requeue"))
            error = await asyncio.wait_for(self._requeued, REQUEUE_SECONDS)
        except (AttributeError, OSError, asyncio.TimeoutError):
            error = "the daemon does not answer"
        writer.write(wire.control(error=error))
        await writer.drain()

    async def _work(self) -> None:
        self._open_files()
        # In mode spmd the client marks every line with its node.
        mark = f"{self.plan['nodes'][self.rank]}: " if self.plan["mode"] == "leader" else ""
        for text in shortages():
            self._say(mark + text)
        if self.plan["mode"] == "leader" and self.rank > 0:
            await self._follow()
        else:
            try:
                self.start_body()
            except AgentError as error:
                self._fail(str(error))
            else:
                self._report_if_connected()
                await self._ended.wait()
                await self._leftovers()
            if self._leader is not None:
                await self._leader.end()
        self.state = "ended"

    async def _follow(self) -> None:
        """Run the leader's steps until its body has ended."""
        host, port = (self.orders or {}).get("leader") or ("", 0)
        self._follower = step.Follower(self, (str(host), int(port)))
        self.state = "started"
        self._report_if_connected()
        following = asyncio.ensure_future(self._follower.follow())
        over = asyncio.ensure_future(self._ended.wait())
        ended = asyncio.ensure_future(self._follower.ended.wait())
        await asyncio.wait([over, ended], return_when=asyncio.FIRST_COMPLETED)
        for each in (following, over, ended):
            each.cancel()
        if self.status is None:
            self.status = 0

    def _report_if_connected(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._report()

    def _say(self, text: str) -> None:
        """A line of the bridge's own in the job's output."""
        line = f"bridge: {text}\n".encode()
        _write_all(STDERR, line)
        self._keep(STDERR if self.plan["apart"] else STDOUT, line)

    def _fail(self, text: str) -> None:
        self._say(text)
        self.status = 1
        self._ended.set()

    async def _leftovers(self) -> None:
        """The script has ended: so do processes that it left, as in a batch step of Slurm."""
        if self._open_pipes or os.getpid() == 1:
            self.end_all(signal.SIGTERM)
            deadline = time.monotonic() + LEFTOVER_SECONDS
            while self._open_pipes and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            self.end_all(signal.SIGKILL)
            deadline = time.monotonic() + LEFTOVER_SECONDS
            while self._open_pipes and time.monotonic() < deadline:
                await asyncio.sleep(0.02)

    async def _drain(self) -> None:
        """Wait until the last output is in the user's file."""
        self._progress = time.monotonic()
        self._report_if_connected()
        while any(self.taken[s] < spool.end for s, spool in self.spools.items()):
            if not self.wanted:
                return
            patience = DRAIN_SECONDS if self.shown else AWAY_SECONDS
            if time.monotonic() > min(
                self._progress + patience, self._killed_at - KILL_MARGIN_SECONDS
            ):
                return
            await asyncio.sleep(0.02)
        # One turn of the loop for the last report to leave.
        await asyncio.sleep(0.01)

    def _say_last_words(self) -> None:
        """How much there was, in the pod's status: the daemon says what of it has not arrived."""
        words = {
            "printed": [self.spools[stream].end for stream in (STDOUT, STDERR)],
            "unwritten": self._unwritten,
        }
        with contextlib.suppress(OSError):
            if LAST_WORDS.exists():
                LAST_WORDS.write_text(json.dumps(words))


def shortages(rdma: Path = RDMA, shared: Path = SHARED_MEMORY) -> list[str]:
    """What RDMA and NCCL need of the node and do not get; nothing for a pod without RDMA."""
    if not rdma.is_dir():
        return []
    found = []
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and locked < ENOUGH_BYTES:
        found.append(
            f"found {locked // 1024} KiB of memory that may be locked, expected no limit: RDMA may "
            "fail or fall back to TCP. Fix: railweld_memlock_kib"
        )
    try:
        size = os.statvfs(shared)
    except OSError as error:
        return [*found, f"{shared}: {error.strerror}"]
    if size.f_blocks * size.f_frsize < ENOUGH_BYTES:
        found.append(
            f"found {size.f_blocks * size.f_frsize // 1024} KiB in {shared}, expected 1 GiB or "
            "more: NCCL and data loaders may fail. Fix: railweld_job_shm_gib"
        )
    return found


def empty(folder: Path) -> None:
    """Remove what the job wrote to its scratch folder, so that the next one has the space.

    The node removes the folder itself, with whatever cannot be removed here.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(OSError, RecursionError):
                if entry.is_dir(follow_symlinks=False):
                    # ignore_errors: the node removes what cannot be removed here.
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink()


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches a signal, or ignores it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    masks = (found.get(name, "0") for name in ("SigCgt", "SigIgn"))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def image_environment() -> dict[str, str]:
    """The variables that the container was started with; Python itself adds to os.environ."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (each.partition(b"=") for each in block.split(b"\0") if b"=" in each)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _log(text: str) -> None:
    """A line in the container's log."""
    _write_all(STDERR, f"{text}\n".encode())


def _exit_status(status: int) -> int:
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def start(folder: Path = FOLDER) -> int:
    """Run the agent to the end of its pod."""

    async def run() -> int:
        # Made inside the loop, to which Python before 3.10 ties what it waits for.
        return await Agent(folder).run()

    return asyncio.run(run())


def main() -> int:
    """Entry point of the pod, and of the shims."""
    if sys.argv[1:2] in (["srun"], ["scontrol"]):
        return srun.main(sys.argv[1], sys.argv[2:])
    if sys.argv[1:2] == ["shell"]:
        return shell.main(sys.argv[2:])
    return start()
