"""Where agents in pods connect: the start barrier, signals, output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from railweld.bridge.pod import wire
from railweld.bridge.pod.step import greeting

_log = logging.getLogger(__name__)

#: From connecting to having shown the job's key.
HANDSHAKE_SECONDS: Final = 10.0
#: Connections that have not shown a key yet, all together.
STRANGERS: Final = 4096
#: From so many on, one address gets no more than so many: a pod that opens them all, as any user's
#: may, keeps the agents of others out no longer. Behind one address there may be many nodes.
CROWD: Final = 2048
EACH: Final = 64
FRAME_LIMIT: Final = 128 * 1024
#: An agent says something at least this often.
SILENCE_SECONDS: Final = 90.0


class Agent:
    """The agent of one pod, as long as one connection lasts."""

    def __init__(self, job: str, rank: int, seal: wire.Seal, writer: asyncio.StreamWriter) -> None:
        self.job = job
        self.rank = rank
        self.pod_uid = ""
        self.address = ""
        self.port = 0
        #: `ready`, `started` or `ended`.
        self.state = ""
        self.status: int | None = None
        #: Whether it only waits for the leader's steps, and for the leader's end.
        self.idle = False
        #: Whether it knows signals by their numbers, and takes each but once.
        self.counts = False
        self._seal = seal
        self._writer = writer

    def report(self, content: dict[str, Any]) -> None:
        """Take over what the agent says of itself."""
        if "state" not in content:
            return
        self.pod_uid = str(content.get("pod", self.pod_uid))
        self.address = str(content.get("address", self.address))
        self.port = _number(content.get("port")) or self.port
        self.idle = bool(content.get("idle"))
        self.counts = bool(content.get("counts"))
        self.state = str(content.get("state", self.state))
        self.status = _number(content.get("status"))

    def send(self, **content: Any) -> None:
        """Tell the agent something; a broken connection shows when reading."""
        if not self._writer.is_closing():
            self._writer.write(self._seal.control(**content))

    def hang_up(self) -> None:
        """Close the connection."""
        self._writer.close()


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Crew(Protocol):
    """What the hub tells a run about its agents."""

    def joined(self, agent: Agent) -> None:
        """An agent connected, has shown the key and reported."""

    def left(self, agent: Agent) -> None:
        """Its connection ended."""

    def told(self, agent: Agent, content: dict[str, Any]) -> None:
        """It reported again, or said something else."""

    async def shown(self, agent: Agent, piece: wire.Output) -> None:
        """It sent output."""


#: Key and crew of a job by its name; None for one that is not known.
Lookup = Callable[[str], Awaitable[tuple[bytes, Crew] | None]]


class Hub:
    """Listens for agents."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        #: Connections that have not shown a key yet, by address.
        self._strangers: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        #: Handshakes that failed, for the metrics.
        self.refused = 0
        self.connected = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port, backlog=4096)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the listener; connections end with the loop."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host = str((writer.get_extra_info("peername") or [""])[0])
            if self._is_full(host):
                self.refused += 1
                return
            self._strangers[host] += 1
            try:
                # Not wait_for, which before Python 3.12 may lose a cancellation; so everywhere.
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    met = await self._meet(reader, writer)
            finally:
                self._strangers -= Counter((host,))
            if met is None:
                self.refused += 1
                return
            agent, crew, seal = met
            self.connected += 1
            try:
                await self._follow(reader, agent, crew, seal)
            finally:
                self.connected -= 1
                crew.left(agent)
        except (TimeoutError, wire.ProtocolError) as error:
            self.refused += 1
            peer = writer.get_extra_info("peername")
            _log.warning("agent refused", extra={"peer": str(peer), "error": str(error)})
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _is_full(self, host: str) -> bool:
        total = self._strangers.total()
        return total >= STRANGERS or (total >= CROWD and self._strangers[host] >= EACH)

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Agent, Crew, wire.Seal] | None:
        nonce = os.urandom(wire.NONCE_BYTES)
        writer.write(wire.control(version=wire.VERSION, nonce=nonce.hex()))
        hello = await greeting(reader)
        job, rank = hello.get("job"), hello.get("node")
        if not isinstance(job, str) or not isinstance(rank, int) or rank < 0:
            raise wire.ProtocolError("found a greeting without job and node")
        known = await self._lookup(job)
        try:
            theirs = bytes.fromhex(str(hello.get("nonce", "")))
        except ValueError:
            theirs = b""
        if known is None or len(theirs) != wire.NONCE_BYTES:
            return None
        key, crew = known
        session = wire.session(key, job, rank, nonce, theirs)
        if not wire.proven(session, b"agent", hello.get("proof")):
            raise wire.ProtocolError(f"{job}: found an agent without the job's key")
        writer.write(wire.control(proof=wire.proof(session, b"server")))
        await writer.drain()
        seal = wire.Seal(session, server=True)
        return Agent(job, rank, seal, writer), crew, seal

    @staticmethod
    async def _follow(
        reader: asyncio.StreamReader, agent: Agent, crew: Crew, seal: wire.Seal
    ) -> None:
        decoder = wire.Decoder(mac=True, limit=FRAME_LIMIT)
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await reader.read(65536)
            if not data:
                return
            for kind, sealed in decoder.feed(data):
                payload = seal.open(kind, sealed)
                if kind == wire.CONTROL:
                    first, content = not agent.state, wire.parse_control(payload)
                    agent.report(content)
                    if first:
                        crew.joined(agent)
                    else:
                        crew.told(agent, content)
                elif kind == wire.DATA and agent.state:
                    piece = wire.parse_output(payload)
                    # Whatever it says, it speaks for its own pod only.
                    await crew.shown(agent, piece._replace(node=agent.rank))
