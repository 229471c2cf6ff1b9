"""The Unix socket: batch steps and epilogs. Who asks, the kernel says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railweld.bridge.pod import wire
from railweld.bridge.session import Session

if TYPE_CHECKING:
    from railweld.bridge.daemon import Bridge

_log = logging.getLogger(__name__)

#: The whole request of a batch step has to be there after this long.
REQUEST_SECONDS: Final = 60.0
#: Connections of one user; a job has one.
PER_USER: Final = 20000
_CREDENTIALS: Final = struct.Struct("3i")


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
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 10:
        raise Refused(f"{what}: found {text!r}, expected a number")
    return int(text)


def peer_uid(writer: asyncio.StreamWriter) -> int:
    """User of the process at the other end, from the kernel."""
    link: socket.socket = writer.get_extra_info("socket")
    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


class Frames:
    """Reads whole frames from a stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._decoder = wire.Decoder()
        self._ready: list[tuple[int, bytes]] = []

    async def next(self) -> tuple[int, bytes] | None:
        """The next frame; None at the end."""
        while not self._ready:
            data = await self._reader.read(65536)
            if not data:
                return None
            self._ready = list(self._decoder.feed(data))
        return self._ready.pop(0)

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
        #: Requests that were refused, for the metrics.
        self.refused = 0
        self._handlers: dict[str, Callable[..., Any]] = {}

    async def start(self, path: Path) -> None:
        """Listen; everybody may ask, the kernel says who it is."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._server = await asyncio.start_unix_server(self._serve, path, backlog=4096)
        path.chmod(0o666)

    def handle(self, operation: str, handler: Callable[..., Any]) -> None:
        """Answer an operation with `await handler(uid, content, frames, writer)`."""
        self._handlers[operation] = handler

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames(reader)
        uid = -1
        try:
            uid = peer_uid(writer)
            content = await asyncio.wait_for(frames.control(), REQUEST_SECONDS)
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
        if content.get("version") != wire.VERSION:
            raise Refused(
                f"found version {content.get('version')!r} of the bridge's protocol, expected "
                f"{wire.VERSION}: client and daemon are of different releases"
            )
        operation = content.get("op")
        if operation == "attach":
            await self._attach(uid, content, frames, writer)
        elif operation in self._handlers:
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
        environment = await asyncio.wait_for(frames.of(wire.ENVIRONMENT), REQUEST_SECONDS)
        script = await asyncio.wait_for(frames.of(wire.SCRIPT), REQUEST_SECONDS)
        asked = Attach.read(content, environment, script)
        session = Session(writer, uid)
        session.take_written(asked.written)
        run = await self._bridge.attach(session, asked)
        try:
            while (content_ := await frames.control()) is not None:
                operation = content_.get("op")
                if operation == "signal" and isinstance(content_.get("name"), str):
                    run.signal(content_["name"], content_.get("number"))
                elif operation == "written" and isinstance(content_.get("written"), list):
                    run.written(content_["written"])
        finally:
            run.detach(session)
