#!/usr/bin/python3 -IS
"""What slurmd runs in place of a batch script of a bridge partition: `exec SCRIPT [ARGUMENTS]`.

Runs as the user, once per job, on a machine that has nothing installed for it: one file, standard
library, no credential. It hands the script to the daemon, writes the pods' output to its own,
passes signals on and ends as the job ended. It must not end while a pod may still run, since Slurm
frees the nodes then. After a lost connection it asks again; how far the output was written is known
here.

As `exec --epilog` it is Slurm's Epilog: it waits until no pod of the job is left.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
SOCKET = "/run/railweld/bridge.sock"
CONTROL, DATA, SCRIPT, ENVIRONMENT = 1, 2, 3, 4
HEADER = struct.Struct("!IB")
OUTPUT = struct.Struct("!IBQ")
LIMIT = 2 * 1024 * 1024
#: A job's script and arguments have to fit into a Secret of 1 MiB with everything else.
SCRIPT_LIMIT = 900 * 1024
#: Unwritten output that is kept here while the file cannot be written. Pods send no more than a
#: window each that is not written; a limit that they reach would leave the daemon's words unread.
PENDING_LIMIT = 64 * 1024 * 1024
#: A line that has no end yet is shown after so many bytes, or after so many seconds.
LINE_LIMIT = 64 * 1024
LINE_SECONDS = 2.0
#: How long a full disk may hold up the end of a finished job.
FLUSH_SECONDS = 120.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Silence about a daemon that does not answer; it may be restarting.
PATIENCE_SECONDS = 10.0
EPILOG_SECONDS = 1800.0

#: So many of the last signals are kept for a daemon that comes back.
SIGNALS = 64
#: Slurm sends SIGCONT and SIGTERM to a job that it ends, one right after the other.
TOGETHER_SECONDS = 2.0
RELAYED = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "WINCH", "URG")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


def frame(kind: int, payload: bytes) -> bytes:
    """As railweld.bridge.pod.wire makes it."""
    return HEADER.pack(len(payload) + 1, kind) + payload


def control(**content: object) -> bytes:
    """A frame of words."""
    return frame(CONTROL, json.dumps(content, separators=(",", ":")).encode())


def say(text: str) -> None:
    """A line of the bridge's own, apart from the job's."""
    try:
        os.write(2, f"bridge: {text}\n".encode(errors="replace"))
    except OSError:
        pass


class LostError(Exception):
    """The daemon is not there any more."""


class Sink:
    """One of the two files that Slurm opened for the job; writes what can be written now."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.retry_at = 0.0
        self.full_said = False
        self.broken = False

    def write(self, data: bytes) -> None:
        """Take output; it is in the file after a flush."""
        if not self.broken:
            self.pending += data

    def flush(self, now: float) -> bool:
        """Write as much as goes; returns whether all is written."""
        while self.pending and now >= self.retry_at:
            try:
                written = os.write(self.descriptor, self.pending)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno not in FULL:
                    # Closed at the other end, or an error of the disk: nothing to wait for.
                    self.broken = True
                    self.pending.clear()
                    break
                self.retry_at = now + 1.0
                break
            del self.pending[:written]
        return not self.pending


class Stream:
    """Output of one node on one stream: where it goes, how far it came."""

    def __init__(self, sink: Sink, label: bytes) -> None:
        self.sink = sink
        self.label = label
        self.offset = 0
        self.line = bytearray()
        self.since = 0.0

    def take(self, offset: int, data: bytes, now: float) -> None:
        """Bytes from the daemon; a part that was seen before is left out."""
        known = self.offset - offset
        if known < 0:
            self.sink.write(f"bridge: {-known} bytes of output were lost\n".encode())
            known = 0
        data = data[known:]
        self.offset = offset + known + len(data) if data else max(self.offset, offset)
        if not self.label:
            self.sink.write(data)
            return
        if not self.line:
            self.since = now
        self.line += data
        end = max(self.line.rfind(b"\n"), self.line.rfind(b"\r")) + 1
        if end:
            self._lines(end)
        if len(self.line) > LINE_LIMIT:
            self.end()

    def _lines(self, end: int) -> None:
        whole = bytes(self.line[:end])
        del self.line[:end]
        for line in whole.splitlines(keepends=True):
            self.sink.write(self.label + line)

    def idle(self, now: float) -> None:
        """Show a line that stays without an end, as a progress bar's."""
        if self.line and now - self.since > LINE_SECONDS:
            self.end()

    def end(self) -> None:
        """Write what there is of a last line."""
        if self.line:
            self.sink.write(self.label + bytes(self.line) + b"\n")
            self.line.clear()

    @property
    def written(self) -> int:
        """How far the output is in the file, or would be if it could be written at all."""
        return self.offset - len(self.line)


def file_of(descriptor: int) -> str | None:
    """The file that Slurm opened for the job; of large jobs nodes write theirs beside it."""
    try:
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if stat.S_ISREG(found.st_mode) and found.st_nlink else None


class Client:
    """The batch step of one job."""

    def __init__(self, script: bytes, arguments: list[str]) -> None:
        self.script = script
        self.arguments = arguments
        self.socket: socket.socket | None = None
        self.buffer = bytearray()
        self.sinks = {1: Sink(1), 2: Sink(2)}
        self.streams: dict[tuple[int, int], Stream] = {}
        self.labels: dict[str, str] | None = None
        self.created: str | None = None
        #: When a SIGTERM came, and a SIGCONT: Slurm sends both to a job that it ends.
        self.terminated_at: float | None = None
        self.continued_at: float | None = None
        #: Signals by number, for all daemons that come; the last that this one was told.
        self.caught: list[tuple[int, str]] = []
        self.number = 0
        self.told_number = 0
        self.exit: dict[str, Any] | None = None
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.wakeup = -1

    # -- signals -----------------------------------------------------------------------------

    def catch(self) -> None:
        """Turn signals into bytes that the loop reads."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for name in (*RELAYED, "TERM", "TSTP", "CONT"):
            signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.wakeup = reader

    def signals(self) -> None:
        """Handle what came in."""
        try:
            numbers = os.read(self.wakeup, 64)
        except BlockingIOError:
            return
        for number in numbers:
            name = signal.Signals(number).name[3:]
            if name == "CONT":
                self.continued_at = time.monotonic()
                continue
            if name == "TSTP":
                say("this job cannot be suspended: its pods run on (use scontrol requeue)")
                continue
            if name == "TERM":
                self.terminated_at = time.monotonic()
            self.number += 1
            self.caught.append((self.number, name))
            del self.caught[:-SIGNALS]

    @property
    def ended(self) -> bool:
        """Whether Slurm ends the job, as far as it shows here; the daemon asks slurmctld.

        A SIGTERM alone is one that somebody asked for, as `--signal=B:TERM@600` does.
        """
        if self.terminated_at is None or self.continued_at is None:
            return False
        return abs(self.terminated_at - self.continued_at) < TOGETHER_SECONDS

    # -- connection --------------------------------------------------------------------------

    def connect(self) -> bool:
        """Open the socket, for as long as it takes; False when there is nothing to wait for."""
        started, attempt, said = time.monotonic(), 0, False
        while True:
            try:
                link = socket.socket(socket.AF_UNIX)
                link.settimeout(10)
                link.connect(SOCKET)
                link.setblocking(False)
                self.socket = link
                self.buffer.clear()
                return True
            except OSError as error:
                link.close()
                reason = error
            self.wait(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1
            if self.ended and self.created is None:
                # Nothing was made for this job, so there is nothing to wait for.
                return False
            if not said and time.monotonic() - started > PATIENCE_SECONDS:
                said = True
                say(f"the daemon does not answer ({reason}); waiting for it")

    def wait(self, seconds: float) -> None:
        """Sleep, but see to signals and output."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self.flush(now)
            if now >= end:
                return
            if select.select([self.wakeup], [], [], min(end - now, 0.5))[0]:
                self.signals()

    def send(self, data: bytes) -> None:
        """Send everything; the daemon reads always, so this does not wait long."""
        link = self.socket
        if link is None:
            raise LostError
        view = memoryview(data)
        while view:
            try:
                view = view[link.send(view) :]
            except BlockingIOError:
                select.select([], [link], [], 10)
            except OSError as error:
                self.last_words(link)
                raise LostError from error

    def last_words(self, link: socket.socket) -> None:
        """Hear why the daemon hung up: it refuses by the first words, and reads no more."""
        while self.exit is None and select.select([link], [], [], 0)[0]:
            self.receive()

    def attach(self) -> None:
        """Say who we are. What slurmctld knows better is not taken from here."""
        environment = b"\0".join(
            name + b"=" + value for name, value in os.environb.items() if b"=" not in name
        )
        out, err = os.fstat(1), os.fstat(2)
        mask = os.umask(0o022)
        os.umask(mask)
        self.send(
            control(
                op="attach",
                version=VERSION,
                job=os.environ["SLURM_JOB_ID"],
                restart=os.environ.get("SLURM_RESTART_COUNT", "0"),
                arguments=self.arguments,
                directory=os.getcwd(),
                umask=mask,
                apart=(out.st_dev, out.st_ino) != (err.st_dev, err.st_ino),
                outputs=[file_of(1), file_of(2)],
                created=self.created,
                written=[[*key, stream.written] for key, stream in self.streams.items()],
            )
            + frame(ENVIRONMENT, environment)
            + frame(SCRIPT, self.script)
        )
        for stream in self.streams.values():
            # Sent again by the daemon, from where the file ends.
            stream.offset = stream.written
            stream.line.clear()
        self.acknowledged = {key: stream.written for key, stream in self.streams.items()}
        # A daemon that has just started knows of none, and the agents of all that they have got.
        self.told_number = 0

    def receive(self) -> None:
        """Read what is there and handle whole frames."""
        try:
            data = self.socket.recv(65536) if self.socket else b""
        except BlockingIOError:
            return
        except OSError as error:
            raise LostError from error
        if not data:
            raise LostError
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            length, kind = HEADER.unpack_from(self.buffer)
            if not 1 <= length <= LIMIT:
                raise LostError
            end = HEADER.size - 1 + length
            if len(self.buffer) < end:
                return
            payload = bytes(self.buffer[HEADER.size : end])
            del self.buffer[:end]
            if kind == DATA:
                self.output(payload)
            elif kind == CONTROL:
                self.told(json.loads(payload))

    def output(self, payload: bytes) -> None:
        """A piece of a pod's output."""
        node, number, offset = OUTPUT.unpack_from(payload)
        key = (node, number)
        if key not in self.streams:
            label = self.labels.get(str(node), str(node)) if self.labels else None
            prefix = f"[{label}] ".encode() if label else b""
            self.streams[key] = Stream(self.sinks[2 if number == 2 else 1], prefix)
        self.streams[key].take(offset, payload[OUTPUT.size :], time.monotonic())

    def told(self, content: dict[str, Any]) -> None:
        """Words of the daemon."""
        event = content.get("event")
        if event == "attached":
            self.created = content["created"]
            self.labels = content.get("labels")
        elif event == "note":
            say(content["text"])
        elif event == "exit":
            self.exit = content

    # -- the loop ----------------------------------------------------------------------------

    def flush(self, now: float) -> None:
        """Write output and tell the daemon how far it came, so that the pods may forget it."""
        for stream in self.streams.values():
            stream.idle(now)
        for sink in self.sinks.values():
            if not sink.flush(now) and not sink.full_said and sink.retry_at > now:
                sink.full_said = True
                say("the output file cannot be written (disk full?); trying again, the job runs on")
        if any(sink.pending for sink in self.sinks.values()):
            return
        for key, stream in self.streams.items():
            if stream.written > self.acknowledged.get(key, 0):
                self.acknowledged[key] = stream.written
                if self.socket is not None and self.exit is None:
                    self.send(control(op="written", written=[[*key, stream.written]]))

    def serve(self) -> None:
        """Follow the job over one connection until it ended or the connection did."""
        self.attach()
        while self.exit is None:
            for number, name in list(self.caught):
                if number > self.told_number:
                    self.send(control(op="signal", name=name, number=number))
                    self.told_number = number
            readers: list[Any] = [self.wakeup]
            if sum(len(sink.pending) for sink in self.sinks.values()) < PENDING_LIMIT:
                readers.append(self.socket)
            busy = any(s.pending for s in self.sinks.values())
            busy = busy or any(s.line for s in self.streams.values())
            ready = select.select(readers, [], [], 0.5 if busy else 30)[0]
            if self.wakeup in ready:
                self.signals()
            if self.socket in ready:
                self.receive()
            self.flush(time.monotonic())

    def run(self) -> int:
        """Follow the job to its end; returns the exit status, or minus the signal."""
        self.catch()
        while self.exit is None:
            if not self.connect():
                return -signal.SIGTERM
            try:
                self.serve()
            except LostError:
                # Not at once: a daemon that hangs up on everyone would be asked without a pause.
                self.wait(RETRY_SECONDS[0])
            finally:
                if self.socket is not None:
                    self.socket.close()
                self.socket = None
        self.finish()
        return int(self.exit["status"])

    def finish(self) -> None:
        """Write the last lines, or say how much could not be written."""
        for stream in self.streams.values():
            stream.end()
        found = self.exit or {}
        end = time.monotonic() + (5 if found.get("status", 0) < 0 else FLUSH_SECONDS)
        for sink in self.sinks.values():
            while not sink.flush(time.monotonic()) and time.monotonic() < end:
                time.sleep(0.5)
        lost = sum(len(sink.pending) for sink in self.sinks.values())
        where = "the pods' own logs have it: railweld-bridge logs " + os.environ["SLURM_JOB_ID"]
        if lost or any(sink.broken for sink in self.sinks.values()):
            say(f"output is not complete ({lost} bytes): {where}")
        for node, number, count, host in found.get("printed") or ():
            known = self.streams.get((node, number))
            lost = count - (known.offset if known else 0)
            if lost > 0:
                say(f"{host}: {lost} bytes of output did not arrive: {where} {host}")


def fail(text: str) -> int:
    """Say why, and be the exit status."""
    say(text)
    return 1


def batch(arguments: list[str]) -> int:
    """The batch step: SCRIPT is slurmd's copy of the user's, with one line before it."""
    path, rest = arguments[0], arguments[1:]
    if "SLURM_JOB_ID" not in os.environ or not os.environ["SLURM_JOB_ID"].isdecimal():
        return fail("found no SLURM_JOB_ID: this runs inside a batch step only; use sbatch")
    try:
        with open(path, "rb") as file:
            text = file.read(SCRIPT_LIMIT + 64 * 1024)
    except OSError as error:
        return fail(f"{path}: {error.strerror}")
    first, _, script = text.partition(b"\n")
    if not first.startswith(b"#!") or b"railweld" not in first:
        return fail(f"{path}: found {first[:80]!r} as first line, expected the bridge's own")
    if len(script) > SCRIPT_LIMIT:
        return fail(
            f"the script has more than {SCRIPT_LIMIT} bytes: put what is large on shared storage"
        )
    status = Client(script, rest).run()
    if status < 0:
        # Slurm shows which signal ended a batch script; so does this one.
        number = -status
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        return 128 + number
    return status


def epilog() -> int:
    """Slurm's Epilog and EpilogSlurmctld: 0 once the daemon says that no pod is left."""
    job = os.environ.get("SLURM_JOB_ID", "")
    node = os.environ.get("SLURMD_NODENAME", "")
    end, attempt = time.monotonic() + EPILOG_SECONDS, 0
    while time.monotonic() < end:
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(60)
                link.connect(SOCKET)
                link.sendall(control(op="epilog", version=VERSION, job=job, node=node))
                with link.makefile("rb") as answers:
                    while True:
                        head = answers.read(HEADER.size)
                        if len(head) < HEADER.size:
                            break
                        length, _ = HEADER.unpack(head)
                        answer = json.loads(answers.read(min(length - 1, LIMIT)))
                        if answer.get("event") == "gone":
                            return 0
        except (OSError, ValueError):
            pass
        time.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
        attempt += 1
    return fail(f"job {job}: pods are still there, or the daemon does not answer")


def main() -> int:
    """Entry point; which part it plays follows from the first argument."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--epilog"]:
        return epilog()
    if not arguments or not stat.S_ISREG(os.stat(arguments[0]).st_mode):
        return fail("usage: exec SCRIPT [ARGUMENTS], as slurmd calls it")
    return batch(arguments)


if __name__ == "__main__":
    sys.exit(main())
