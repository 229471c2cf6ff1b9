"""The batch step's program, as slurmd starts it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from railweld.bridge import client
from railweld.bridge.client import Client, LostError
from railweld.bridge.pod import wire

PROGRAM = Path(client.__file__)


def test_it_starts_in_less_than_a_tenth_of_a_second() -> None:
    """CPU time, which the load of the machine does not change; the best of five starts."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-IS", str(PROGRAM)], capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr[:13]) == (1, "bridge: usage")
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.1


def test_only_a_file_that_is_there_has_others_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as file:
        assert client.file_of(file.fileno()) == str(path)
        path.unlink()
        assert client.file_of(file.fileno()) is None
    with Path(os.devnull).open() as file:
        assert client.file_of(file.fileno()) is None
    assert client.file_of(9999) is None


def test_why_the_daemon_hung_up_is_heard_though_it_read_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    client = Client(b"#!/bin/sh\n" + bytes(900_000), [])
    client.socket = mine
    theirs.sendall(wire.control(event="exit", status=1))
    theirs.close()
    with pytest.raises(LostError):
        client.attach()
    assert client.exit is not None
    assert client.exit["status"] == 1
    mine.close()


@pytest.mark.parametrize(
    ("names", "ended"),
    [((), False), (("TERM",), False), (("CONT", "TERM"), True), (("TERM", "CONT"), True)],
)
def test_a_sigterm_alone_is_not_slurms_end_of_the_job(names: tuple[str, ...], ended: bool) -> None:
    code = (
        "import os, signal, sys; sys.path.append(sys.argv[1])\n"
        "import client\nfound = client.Client(b'', [])\nfound.catch()\n"
        "for name in sys.argv[2:]: os.kill(os.getpid(), getattr(signal, 'SIG' + name))\n"
        "found.wait(0)\nfound.signals()\nprint(found.ended, [name for _, name in found.caught])\n"
    )
    argv = [sys.executable, "-IS", "-c", code, str(PROGRAM.parent), *names]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{ended} {[name for name in names if name == 'TERM']}\n"


def test_every_daemon_is_told_of_every_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents come back later than the client does, and take what they have not got yet."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    client = Client(b"", [])
    client.caught = [(1, "USR1"), (2, "TERM")]
    client.number = 2
    client.wakeup = os.open(os.devnull, os.O_RDONLY)
    for _ in range(2):
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        client.socket = mine
        theirs.sendall(wire.control(event="exit", status=1))
        client.exit = None
        client.serve()
        frames = [p for kind, p in wire.Decoder().feed(theirs.recv(1 << 20)) if kind == 1]
        told = [wire.parse_control(each) for each in frames]
        assert [(each["number"], each["name"]) for each in told if each["op"] == "signal"] == [
            (1, "USR1"),
            (2, "TERM"),
        ]
        mine.close()
        theirs.close()
    os.close(client.wakeup)
