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


#: A client whose daemon is a socket of the test.
FOLLOW = (
    "import sys; sys.path.append(sys.argv[1])\nimport client\n"
    "client.SOCKET, client.FLUSH_SECONDS = sys.argv[2], 0.5\n"
    "sys.exit(client.Client(b'', []).run())\n"
)


def followed(tmp_path: Path, stdout: int, data: bytes) -> subprocess.CompletedProcess[str]:
    """A batch step that gets these frames."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)
        process = subprocess.Popen(
            [sys.executable, "-IS", "-c", FOLLOW, str(PROGRAM.parent), str(path)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={"SLURM_JOB_ID": "7"},
        )
        try:
            link, _ = listener.accept()
            with link:
                link.settimeout(30)
                link.sendall(data)
                _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, "", said)


def test_a_disk_that_stays_full_is_said_and_the_status_is_kept(tmp_path: Path) -> None:
    """Of many nodes too: the daemon's last word is heard though all that came is still here."""
    nodes = range(16)
    pieces = [
        wire.frame(
            wire.DATA, wire.output(wire.Output(node, 1, offset, b"x" * (wire.CHUNK - 1) + b"\n"))
        )
        for node in nodes
        for offset in range(0, wire.WINDOW, wire.CHUNK)
    ]
    rows = [[node, 1, wire.WINDOW + 5, f"gpu{node}"] for node in nodes]
    data = b"".join(pieces) + wire.control(event="exit", status=3, printed=rows)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = followed(tmp_path, full, data)
    finally:
        os.close(full)
    assert done.returncode == 3
    assert f"output is not complete ({len(nodes) * wire.WINDOW} bytes)" in done.stderr
    assert "railweld-bridge logs 7\n" in done.stderr
    assert "gpu15: 5 bytes of output did not arrive" in done.stderr


def test_what_is_written_only_at_the_end_is_not_called_lost(tmp_path: Path) -> None:
    data = wire.control(event="attached", created="x", labels={"0": "gpu1"})
    data += wire.frame(wire.DATA, wire.output(wire.Output(0, 1, 0, b"no end of line")))
    rows = [[0, 1, 14, "gpu1"], [0, 2, 0, "gpu1"]]
    with (tmp_path / "out").open("wb") as out:
        done = followed(
            tmp_path, out.fileno(), data + wire.control(event="exit", status=0, printed=rows)
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"[gpu1] no end of line\n"
