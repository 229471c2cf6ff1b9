"""The Unix socket: batch steps and epilogs. Who asks, the kernel says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from railweld.bridge.pod import wire
from railweld.bridge.session import Session

if TYPE_CHECKING:
    from railweld.bridge.daemon import Bridge

_log = logging.getLogger(__name__)

#: The whole request of a batch step has to be there after this long.
REQUEST_SECONDS: Final = 60.0
#: Connections of one user that are not known as those of a job of theirs. A job keeps one for its
#: whole life and is not counted; all of a user's jobs may come back at the same moment.
GUESTS: Final = 4096
#: What these may have sent without an answer, in bytes.
GUEST_BYTES: Final = 256 * 1024 * 1024
#: Connections that wait to be accepted: all epilogs of a large job come at the same moment.
BACKLOG: Final = 4096
#: And so many are accepted before others are served again.
ACCEPTED: Final = 64
#: That a user is turned away is not logged for each connection.
TURNED_AWAY_SECONDS: Final = 60.0
#: Frames that come while their sender waits for an answer, in bytes: signals are short.
KEPT_BYTES: Final = 64 * 1024
#: What a frame costs beside its payload, about.
FRAME_BYTES: Final = 100
_CREDENTIALS: Final = struct.Struct("3i")
_T = TypeVar("_T")


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The client's request is not granted; the text is for its user."""

    def __init__(self, text: str, *, gone: bool = False) -> None:
        super().__init__(text)
        self.gone = gone


@dataclass(frozen=True, kw_only=True)
class Attach:
    """What a batch step says of itself. Only script, arguments and wishes are taken from it."""

    job_id: int
    restart: int
    created: bool
    arguments: tuple[str, ...]
    directory: str
    umask: int
    apart: bool
    written: list[Any]
    environment: bytes
    script: bytes
    #: Files of stdout and stderr, as the user's own process names them.
    outputs: tuple[str | None, ...] = ()

    @classmethod
    def read(cls, content: dict[str, Any], environment: bytes, script: bytes) -> Attach:
        """Check the form of a request; raises Refused."""
        arguments = content.get("arguments", [])
        directory = content.get("directory")
        umask = content.get("umask")
        written = content.get("written", [])
        outputs = content.get("outputs", [])
        if (
            not isinstance(arguments, list)
            or not all(isinstance(each, str) for each in arguments)
            or not isinstance(directory, str)
            or not directory.startswith("/")
            or "\0" in directory
            or not isinstance(umask, int)
            or not isinstance(written, list)
            or not isinstance(outputs, list)
            or not all(each is None or _is_path(each) for each in outputs)
        ):
            raise Refused("found a request that no batch step sends")
        return cls(
            job_id=number(content.get("job"), "job"),
            restart=number(content.get("restart", "0"), "restart"),
            created=content.get("created") is not None,
            arguments=tuple(arguments),
            directory=directory,
            umask=umask & 0o777,
            apart=bool(content.get("apart")),
            written=written,
            environment=environment,
            script=script,
            outputs=tuple(outputs),
        )


def _is_path(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("/") and "\0" not in text


def number(text: Any, what: str) -> int:
    """A number in a request; raises Refused for anything else."""
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise Refused(f"{what}: found {text!r}, expected a number")
    return int(text)


def peer_uid(writer: asyncio.StreamWriter) -> int:
    """User of the process at the other end, from the kernel."""
    link: socket.socket = writer.get_extra_info("socket")
    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def is_privileged(uid: int) -> bool:
    """Whether a user is root or Slurm's own, as which the daemon runs."""
    return uid in (0, os.geteuid())


class Guests:
    """Connections that are not known as a job's yet, by user.

    What one user may hold leaves room for all others. root and Slurm's own user hold as many as
    they like: epilogs are theirs.
    """

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._logged: dict[int, float] = {}

    def admit(self, uid: int) -> Guest | None:
        """Count a connection; None for one too many."""
        if self._open[uid] >= GUESTS and not is_privileged(uid):
            now = time.monotonic()
            if now - self._logged.get(uid, float("-inf")) > TURNED_AWAY_SECONDS:
                self._logged[uid] = now
                _log.warning("too many connections", extra={"uid": uid, "limit": GUESTS})
            return None
        self._open[uid] += 1
        return Guest(self, uid)

    def sent(self, uid: int, count: int) -> None:
        """Count bytes; raises ProtocolError when they are too many."""
        self._bytes[uid] += count
        if self._bytes[uid] > GUEST_BYTES and not is_privileged(uid):
            raise wire.ProtocolError(
                f"found {self._bytes[uid]} bytes of one user in requests without an answer, "
                f"expected at most {GUEST_BYTES}"
            )

    def leave(self, uid: int, count: int) -> None:
        """A connection is known now, or has ended; so much had it sent."""
        self._open[uid] -= 1
        self._bytes[uid] -= count
        if not self._open[uid]:
            del self._open[uid], self._bytes[uid]


class Guest:
    """One such connection."""

    def __init__(self, guests: Guests, uid: int) -> None:
        self._guests: Guests | None = guests
        self._uid = uid
        self._sent = 0
        self._listens = True

    def sent(self, count: int) -> None:
        """Bytes have come; raises ProtocolError when its user's are too many."""
        if self._guests is not None and self._listens:
            self._sent += count
            self._guests.sent(self._uid, count)

    def heard(self) -> None:
        """Its request is whole; what it sends from now on is taken as it comes."""
        self._sent, sent = 0, self._sent
        if self._guests is not None:
            self._guests.sent(self._uid, -sent)
        self._listens = False

    def leave(self) -> None:
        """It is known now, or has ended, and counts no more."""
        guests, self._guests = self._guests, None
        if guests is not None:
            guests.leave(self._uid, self._sent)


class Frames:
    """Reads whole frames from a stream."""

    def __init__(self, reader: asyncio.StreamReader, guest: Guest) -> None:
        self._reader = reader
        self.guest = guest
        self._decoder = wire.Decoder()
        self._ready: deque[tuple[int, bytes]] = deque()
        self._over = False

    async def _read(self) -> None:
        data = await self._reader.read(65536)
        self._over = not data
        self.guest.sent(len(data))
        self._ready.extend(self._decoder.feed(data))

    async def next(self) -> tuple[int, bytes] | None:
        """The next frame; None at the end."""
        while not self._ready:
            if self._over:
                return None
            await self._read()
        return self._ready.popleft()

    async def during(self, work: Awaitable[_T]) -> _T:
        """Do something for the other end, and give it up when that hangs up.

        Frames that come meanwhile are kept.

        Raises:
            ConnectionResetError: it hung up.
            ProtocolError: it did not wait for its answer, but sent more and more.
        """
        doing = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait((doing, ending), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await ending
                raise ConnectionResetError("hung up before the answer")
            return await doing
        finally:
            doing.cancel()
            ending.cancel()
            await asyncio.gather(doing, ending, return_exceptions=True)

    async def _ended(self) -> None:
        """Read until the other end hangs up."""
        while not self._over:
            if sum(FRAME_BYTES + len(payload) for _, payload in self._ready) > KEPT_BYTES:
                raise wire.ProtocolError("found more and more frames, expected a client that waits")
            await self._read()

    async def control(self) -> dict[str, Any] | None:
        """The next frame, which has to be words."""
        frame = await self.next()
        if frame is None:
            return None
        kind, payload = frame
        if kind != wire.CONTROL:
            raise wire.ProtocolError(f"found a frame of kind {kind}, expected words")
        return wire.parse_control(payload)

    async def of(self, wanted: int) -> bytes:
        """Payload of the next frame, which has to be of a kind."""
        frame = await self.next()
        if frame is None or frame[0] != wanted:
            raise wire.ProtocolError(f"found no frame of kind {wanted}")
        return frame[1]


class Server:
    """Accepts clients."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._server: asyncio.Server | None = None
        self._guests = Guests()
        #: Requests that were refused, for the metrics.
        self.refused = 0
        self._handlers: dict[str, Callable[..., Any]] = {}

    async def start(self, path: Path) -> None:
        """Listen; everybody may ask, the kernel says who it is."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        link = socket.socket(socket.AF_UNIX)
        link.bind(str(path))
        # asyncio accepts as many at a time as may wait: a user who floods the socket would keep
        # the loop from everything else.
        self._server = await asyncio.start_unix_server(self._serve, sock=link, backlog=ACCEPTED)
        link.listen(BACKLOG)
        path.chmod(0o666)

    def handle(self, operation: str, handler: Callable[..., Any]) -> None:
        """Answer an operation with `await handler(uid, content, frames, writer)`."""
        self._handlers[operation] = handler

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid = peer_uid(writer)
        except OSError:
            writer.close()
            return
        guest = self._guests.admit(uid)
        if guest is None:
            # Without a word: a batch step asks again, and its job is none the worse for it.
            self.refused += 1
            writer.close()
            return
        frames = Frames(reader, guest)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                content = await frames.control()
            if content is None:
                return
            await self._answer(uid, content, frames, writer)
        except Refused as error:
            self.refused += 1
            _log.info("refused", extra={"uid": uid, "why": str(error)})
            writer.write(wire.control(event="note", text=str(error)))
            status = -15 if error.gone else 1
            writer.write(wire.control(event="exit", status=status))
        except (TimeoutError, wire.ProtocolError) as error:
            self.refused += 1
            _log.warning("client refused", extra={"uid": uid, "error": str(error)})
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            guest.leave()
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()

    async def _answer(
        self,
        uid: int,
        content: dict[str, Any],
        frames: Frames,
        writer: asyncio.StreamWriter,
    ) -> None:
        operation = content.get("op")
        # What an epilog asks and is told is the same in every release: one that waits while the
        # daemon is replaced would ask in vain, and its node be drained.
        if content.get("version") != wire.VERSION and operation != "epilog":
            raise Refused(
                f"found version {content.get('version')!r} of the bridge's protocol, expected "
                f"{wire.VERSION}: client and daemon are of different releases"
            )
        if operation == "attach":
            await self._attach(uid, content, frames, writer)
        elif operation in self._handlers:
            frames.guest.heard()
            await self._handlers[operation](uid, content, frames, writer)
        else:
            raise Refused(f"found the operation {operation!r}, expected another")

    async def _attach(
        self,
        uid: int,
        content: dict[str, Any],
        frames: Frames,
        writer: asyncio.StreamWriter,
    ) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            environment = await frames.of(wire.ENVIRONMENT)
            script = await frames.of(wire.SCRIPT)
        asked = Attach.read(content, environment, script)
        session = Session(writer, uid)
        session.take_written(asked.written)
        # A batch step that is gone gets no Job any more, however long this has waited.
        run = await frames.during(self._bridge.attach(session, asked, frames.guest.leave))
        try:
            while (content_ := await frames.control()) is not None:
                operation = content_.get("op")
                if operation == "signal" and isinstance(content_.get("name"), str):
                    run.signal(content_["name"], content_.get("number"))
                elif operation == "written" and isinstance(content_.get("written"), list):
                    run.written(content_["written"])
        finally:
            run.detach(session)
