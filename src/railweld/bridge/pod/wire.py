"""Frames between client, daemon and agents, and the proof that both ends know a job's key.

A frame is four bytes of length (big-endian, of what follows), one byte of kind, the payload. On
TCP, between agents and daemon, 16 bytes of HMAC-SHA256 over direction, number, kind and payload
follow: nobody on the network can forge, repeat or leave out a frame. Payloads are not encrypted,
as Slurm's own are not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Of the protocol between all three; both ends refuse another.
VERSION = 1

CONTROL = 1
DATA = 2
SCRIPT = 3
ENVIRONMENT = 4

#: Slurm takes scripts of 4 MiB; a Secret holds 1 MiB in all.
LIMIT = 2 * 1024 * 1024
MAC_BYTES = 16
NONCE_BYTES = 16

HEADER = struct.Struct("!IB")
#: Of output: number of the node, stream (1 stdout, 2 stderr), offset of the first byte.
OUTPUT = struct.Struct("!IBQ")
#: Bytes of one stream that may be under way without having been written.
WINDOW = 256 * 1024
CHUNK = 32 * 1024


class ProtocolError(Exception):
    """The other end sent what it may not send."""


class Output(NamedTuple):
    """A piece of a body's output."""

    node: int
    stream: int
    offset: int
    data: bytes


def frame(kind: int, payload: bytes) -> bytes:
    """A frame without a proof, for the Unix socket."""
    return HEADER.pack(len(payload) + 1, kind) + payload


def control(**content: Any) -> bytes:
    """A frame that carries words."""
    return frame(CONTROL, json.dumps(content, separators=(",", ":")).encode())


def output(piece: Output) -> bytes:
    """Payload of a DATA frame."""
    return OUTPUT.pack(piece.node, piece.stream, piece.offset) + piece.data


def parse_output(payload: bytes) -> Output:
    """Take a DATA frame apart."""
    if len(payload) < OUTPUT.size:
        raise ProtocolError("found output without its header")
    node, stream, offset = OUTPUT.unpack_from(payload)
    return Output(node, stream, offset, payload[OUTPUT.size :])


def parse_control(payload: bytes) -> dict[str, Any]:
    """Read the words of a CONTROL frame."""
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise ProtocolError("found control that is not JSON") from error
    if not isinstance(content, dict):
        raise ProtocolError("found control that is not an object")
    return content


class Decoder:
    """Takes bytes as they come and yields whole frames."""

    def __init__(self, *, mac: bool = False, limit: int = LIMIT) -> None:
        self._buffer = bytearray()
        self._overhead = MAC_BYTES if mac else 0
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (kind, rest); the rest still has its proof.

        Raises:
            ProtocolError: a frame is longer than allowed, or too short to be one.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            length, kind = HEADER.unpack_from(self._buffer)
            if not 1 + self._overhead <= length <= self._limit + 1 + self._overhead:
                raise ProtocolError(f"found a frame of {length} bytes")
            end = HEADER.size - 1 + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload


class Seal:
    """Proves and checks the frames of one connection, in one session."""

    def __init__(self, session: bytes, *, server: bool) -> None:
        self._session = session
        self._mine, self._theirs = (b"S", b"A") if server else (b"A", b"S")
        self._sent = 0
        self._received = 0

    def close(self, kind: int, payload: bytes) -> bytes:
        """A frame with its proof."""
        proof = self._proof(self._mine, self._sent, kind, payload)
        self._sent += 1
        return HEADER.pack(len(payload) + 1 + MAC_BYTES, kind) + payload + proof

    def control(self, **content: Any) -> bytes:
        """A frame that carries words."""
        return self.close(CONTROL, json.dumps(content, separators=(",", ":")).encode())

    def open(self, kind: int, sealed: bytes) -> bytes:
        """The payload, once its proof was checked."""
        payload, proof = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        expected = self._proof(self._theirs, self._received, kind, payload)
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError("found a frame with a wrong proof")
        self._received += 1
        return payload

    def _proof(self, sender: bytes, number: int, kind: int, payload: bytes) -> bytes:
        head = sender + struct.pack("!QB", number, kind)
        return hmac.new(self._session, head + payload, hashlib.sha256).digest()[:MAC_BYTES]


def session(key: bytes, job: str, index: int, server_nonce: bytes, agent_nonce: bytes) -> bytes:
    """Key of one connection: both ends contribute, and it is good for one pod of one job only."""
    text = b"\0".join([b"railweld", job.encode(), str(index).encode(), server_nonce, agent_nonce])
    return hmac.new(key, text, hashlib.sha256).digest()


def proof(session_key: bytes, role: bytes) -> str:
    """Shows that this end has the key, without showing it."""
    return hmac.new(session_key, role, hashlib.sha256).hexdigest()


def proven(session_key: bytes, role: bytes, shown: Any) -> bool:
    """Whether the other end has the key."""
    return isinstance(shown, str) and hmac.compare_digest(
        proof(session_key, role).encode(), shown.encode("utf-8", "replace")
    )
