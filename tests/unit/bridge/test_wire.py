"""Frames, and the proofs that agents and daemon share a key."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.bridge import client
from railweld.bridge import pod as package
from railweld.bridge.pod import wire

KEY = b"k" * 64


def pair(key: bytes = KEY, job: str = "job", node: int = 0) -> tuple[wire.Seal, wire.Seal]:
    session = wire.session(key, job, node, b"s" * 16, b"a" * 16)
    return wire.Seal(session, server=True), wire.Seal(session, server=False)


def opened(seal: wire.Seal, data: bytes) -> list[bytes]:
    decoder = wire.Decoder(mac=True)
    return [seal.open(kind, sealed) for kind, sealed in decoder.feed(data)]


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=200))), st.integers(1, 50))
def test_frames_survive_any_cutting(frames: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(wire.frame(kind, payload) for kind, payload in frames)
    decoder = wire.Decoder()
    found = [
        frame
        for at in range(0, len(stream), size)
        for frame in decoder.feed(stream[at : at + size])
    ]
    assert found == frames


def test_a_frame_that_is_too_long_is_refused_before_it_is_there() -> None:
    decoder = wire.Decoder(limit=100)
    with pytest.raises(wire.ProtocolError, match="102 bytes"):
        list(decoder.feed(wire.HEADER.pack(102, wire.DATA)))


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(wire.ProtocolError):
        list(wire.Decoder().feed(b"\0\0\0\0\0"))


def test_both_directions_are_proven() -> None:
    server, agent = pair()
    assert opened(agent, server.control(op="go")) == [b'{"op":"go"}']
    assert opened(server, agent.close(wire.DATA, b"x")) == [b"x"]


def test_a_changed_frame_is_refused() -> None:
    server, agent = pair()
    data = bytearray(server.control(op="go"))
    data[8] ^= 1
    with pytest.raises(wire.ProtocolError, match="wrong proof"):
        opened(agent, bytes(data))


def test_a_repeated_frame_is_refused() -> None:
    server, agent = pair()
    data = server.control(op="signal", name="TERM")
    with pytest.raises(wire.ProtocolError):
        opened(agent, data + data)


def test_a_frame_is_not_good_for_the_other_direction() -> None:
    server, _ = pair()
    with pytest.raises(wire.ProtocolError):
        opened(server, server.control(op="go"))


@pytest.mark.parametrize(
    "other", [pair(b"j" * 64)[1], pair(job="job2")[1], pair(node=1)[1]], ids=["key", "job", "node"]
)
def test_another_key_job_or_node_is_refused(other: wire.Seal) -> None:
    server, _ = pair()
    with pytest.raises(wire.ProtocolError):
        opened(other, server.control(op="go"))


def test_roles_prove_differently() -> None:
    session = wire.session(KEY, "job", 0, b"s" * 16, b"a" * 16)
    assert wire.proven(session, b"agent", wire.proof(session, b"agent"))
    assert not wire.proven(session, b"agent", wire.proof(session, b"server"))
    for junk in (None, 3, "", "ü", ["x"]):
        assert not wire.proven(session, b"agent", junk)


def test_the_client_writes_the_same_frames() -> None:
    assert client.frame(3, b"abc") == wire.frame(3, b"abc")
    assert client.control(op="x", n=1) == wire.control(op="x", n=1)
    assert client.OUTPUT.format == wire.OUTPUT.format
    assert (client.VERSION, client.LIMIT) == (wire.VERSION, wire.LIMIT)
    kinds = (client.CONTROL, client.DATA, client.SCRIPT, client.ENVIRONMENT)
    assert kinds == (wire.CONTROL, wire.DATA, wire.SCRIPT, wire.ENVIRONMENT)


@pytest.mark.parametrize("path", sorted(Path(package.__file__).parent.glob("*.py")), ids=str)
def test_what_runs_in_pods_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
    modules = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    # `import tomllib` and the like are newer than 3.8.
    assert "tomllib" not in modules
