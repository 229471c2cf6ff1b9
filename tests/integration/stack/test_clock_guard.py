"""The clock guard as a process: chronyd's answers in, label, condition, probes and metrics out."""

from __future__ import annotations

import json
import math
import os
import pwd
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from railweld.lab import tools
from tests.integration.stack.plane import free_port

LOCAL = 0x7F7F0101
SOURCE = 0x0AD5000A


def chrony_float(value: float) -> int:
    """A number as chrony packs it: 7 bits of exponent, 25 of coefficient."""
    if value == 0:
        return 0
    exponent = math.floor(math.log2(abs(value))) + 2
    coefficient = round(value * 2.0 ** (25 - exponent))
    return ((exponent & 0x7F) << 25) | (coefficient & 0x1FFFFFF)


@dataclass
class Chronyd:
    """Answers the tracking request as chrony 4 does; fields are what the daemon would know."""

    reference: int = SOURCE
    leap: int = 0
    offset: float = 0.0
    root_delay: float = 0.001
    root_dispersion: float = 0.001
    update_interval: float = 64.0
    age: float = 5.0
    status: int = 0
    version: int = 6
    answers: bool = True
    port: int = field(default_factory=free_port)

    def reply(self, request: bytes) -> bytes:
        assert len(request) >= 104, "chronyd ignores requests shorter than their replies"
        assert request[0] == 6
        command, _, sequence = struct.unpack("!HHI", request[4:12])
        assert command == 33
        header = struct.pack("!BBBBHHHHHHIII", self.version, 2, 0, 0, command, 5, self.status,
                             0, 0, 0, sequence, 0, 0)  # fmt: skip
        seconds = time.time() - self.age
        body = struct.pack("!I16sHHHH", self.reference, bytes(16), 1, 0, 3, self.leap)
        body += struct.pack("!III", int(seconds) >> 32, int(seconds) & 0xFFFFFFFF, 0)
        numbers = (self.offset, 0, 0, 0, 0, 0, self.root_delay, self.root_dispersion,
                   self.update_interval)  # fmt: skip
        body += struct.pack("!9I", *map(chrony_float, numbers))
        return header + body


@dataclass
class Guard:
    """A running guard and what it told."""

    chronyd: Chronyd | None
    port: int
    patches: list[tuple[str, Any]]
    process: subprocess.Popen[bytes]

    def probe(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def labels(self) -> list[str]:
        found = [body["metadata"]["labels"] for _, body in self.patches if "metadata" in body]
        return [each["railweld.io/clock"] for each in found]

    def conditions(self) -> list[dict[str, str]]:
        return [body["status"]["conditions"][0] for _, body in self.patches if "status" in body]

    def until(self, state: str, reason: str) -> dict[str, str]:
        """Wait until label and condition say so; return the condition."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            conditions = self.conditions()
            if conditions and conditions[-1]["reason"] == reason and self.labels()[-1] == state:
                return conditions[-1]
            assert self.process.poll() is None, "the guard ended"
            time.sleep(0.02)
        raise AssertionError(f"expected {state} ({reason}), found {self.labels()}: {conditions}")


@pytest.fixture
def start() -> Iterator[Callable[..., Guard]]:
    """Start a guard between a daemon and an API server on the loopback."""
    ends: list[Callable[[], object]] = []

    def serve(chronyd: Chronyd) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", chronyd.port))

        def loop() -> None:
            while True:
                request, sender = sock.recvfrom(2048)
                if not request:
                    return
                if chronyd.answers:
                    sock.sendto(chronyd.reply(request), sender)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()

        def end() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", chronyd.port))
            thread.join(10)
            sock.close()

        ends.append(end)

    def run(
        chronyd: Chronyd | None, *arguments: str, node: str = "gpu1", command_port: int = 0
    ) -> Guard:
        patches: list[tuple[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                length = int(self.headers["Content-Length"])
                patches.append((self.path, json.loads(self.rfile.read(length))))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Keep the tests' output clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if chronyd is not None:
            serve(chronyd)
            command_port = chronyd.port
        port = free_port()
        process = subprocess.Popen(
            [
                str(tools.ensure("clock-guard") / "clock-guard"),
                f"--node={node}",
                f"--chrony=127.0.0.1:{command_port}",
                f"--api=http://127.0.0.1:{server.server_address[1]}",
                f"--listen=127.0.0.1:{port}",
                "--interval=50ms",
                "--max-offset=100ms",
                *arguments,
            ],
            stderr=subprocess.DEVNULL,
        )

        def end() -> None:
            process.terminate()
            process.wait(20)
            server.shutdown()
            server.server_close()

        ends.append(end)
        return Guard(chronyd, port, patches, process)

    yield run
    for end in reversed(ends):
        end()


def test_a_good_clock_is_ok_and_ready(start: Callable[..., Guard]) -> None:
    guard = start(Chronyd(offset=0.000123))
    condition = guard.until("ok", "Synchronised")
    assert condition["type"] == "ClockSynchronised"
    assert condition["status"] == "True"
    assert "0.000123" in condition["message"]
    assert {path for path, _ in guard.patches} == {
        "/api/v1/nodes/gpu1",
        "/api/v1/nodes/gpu1/status",
    }
    assert guard.probe("/readyz")[0] == 200
    metrics = guard.probe("/metrics")[1]
    assert 'railweld_clock_ok{node="gpu1"} 1' in metrics
    assert 'railweld_clock_offset_seconds{node="gpu1"} 0.000123' in metrics


@pytest.mark.parametrize(
    ("chronyd", "reason", "words"),
    [
        # The offset of a daemon without a source reads as zero.
        (Chronyd(leap=3, reference=0), "NotSynchronised", "not synchronised"),
        (Chronyd(reference=0), "NoReference", "no reference"),
        (Chronyd(reference=LOCAL), "LocalReference", "its own clock"),
        (Chronyd(offset=0.8), "OffsetTooLarge", "0.8000"),
        (Chronyd(offset=-0.8), "OffsetTooLarge", "-0.8000"),
        (Chronyd(root_delay=0.3, root_dispersion=0.1), "ErrorBoundTooLarge", "0.2500"),
        (Chronyd(age=641), "Stale", "64 s"),
    ],
)
def test_a_bad_clock_is_off_unready_and_alive(
    start: Callable[..., Guard], chronyd: Chronyd, reason: str, words: str
) -> None:
    guard = start(chronyd)
    condition = guard.until("off", reason)
    assert condition["status"] == "False"
    assert words in condition["message"]
    assert guard.probe("/readyz")[0] == 503
    assert guard.probe("/livez")[0] == 200
    assert 'railweld_clock_ok{node="gpu1"} 0' in guard.probe("/metrics")[1]


@pytest.mark.parametrize(
    ("chronyd", "words"),
    [
        (Chronyd(answers=False), "does not answer"),
        (Chronyd(version=5), "protocol 5"),
        (Chronyd(status=2), "refuses to say"),
    ],
)
def test_a_dead_daemon_is_unknown_and_has_no_offset(
    start: Callable[..., Guard], chronyd: Chronyd, words: str
) -> None:
    guard = start(chronyd)
    condition = guard.until("unknown", "ChronyUnreachable")
    assert condition["status"] == "Unknown"
    assert words in condition["message"]
    assert guard.probe("/readyz")[0] == 503
    metrics = guard.probe("/metrics")[1]
    assert 'railweld_clock_daemon_up{node="gpu1"} 0' in metrics
    assert "offset" not in metrics


def test_the_time_server_may_serve_its_own_clock(start: Callable[..., Guard]) -> None:
    guard = start(Chronyd(reference=LOCAL), "--local-clock-nodes=head1", node="head1")
    guard.until("ok", "Synchronised")


def test_changes_are_told_and_sameness_is_not(start: Callable[..., Guard]) -> None:
    chronyd = Chronyd()
    guard = start(chronyd)
    guard.until("ok", "Synchronised")
    chronyd.offset = 0.5
    guard.until("off", "OffsetTooLarge")
    chronyd.answers = False
    guard.until("unknown", "ChronyUnreachable")
    chronyd.offset, chronyd.answers = 0.0, True
    guard.until("ok", "Synchronised")
    assert guard.labels() == ["ok", "off", "unknown", "ok"]
    assert len(guard.conditions()) == 4


def test_a_heartbeat_tells_that_the_guard_lives(start: Callable[..., Guard]) -> None:
    guard = start(Chronyd(), "--heartbeat=100ms")
    guard.until("ok", "Synchronised")
    deadline = time.monotonic() + 60
    while len(guard.conditions()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(guard.conditions()) >= 3
    assert guard.labels() == ["ok"]


def test_a_guard_without_a_node_name_says_so() -> None:
    program = tools.ensure("clock-guard") / "clock-guard"
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "--node" in done.stderr


class RealChronyd:
    """Debian's chronyd beside the machine's own clock, which it does not touch (-x)."""

    def __init__(self, program: Path, folder: Path, name: str, *lines: str, serve: int = 0) -> None:
        self.command_port = free_port()
        configuration = folder / f"{name}.conf"
        settings = [
            f"port {serve}",
            f"cmdport {self.command_port}",
            "bindaddress 127.0.0.1",
            "bindcmdaddress 127.0.0.1",
            f"pidfile {folder / name}.pid",
            *lines,
        ]
        configuration.write_text("\n".join(settings) + "\n")
        user = pwd.getpwuid(os.getuid()).pw_name
        self.process = subprocess.Popen(
            [program, "-x", "-d", "-u", user, "-f", configuration],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.mark.deep
def test_the_real_chronyd_is_understood(
    start: Callable[..., Guard], debian_program: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its own packets: without a source, synchronised, 0.8 s off, and gone."""
    program = debian_program("chrony", "usr/sbin/chronyd")
    port = free_port()
    head = RealChronyd(program, tmp_path, "head", "local stratum 10", "allow", serve=port)
    source = f"server 127.0.0.1 port {port} iburst minpoll 0 maxpoll 0"
    daemons = [head]
    try:
        guard = start(None, command_port=head.command_port)
        guard.until("off", "LocalReference")
        for name, line, state, reason in (
            ("lost", f"server 127.0.0.1 port {free_port()}", "off", "NotSynchronised"),
            ("shifted", f"{source} offset 0.8", "off", "OffsetTooLarge"),
            ("good", source, "ok", "Synchronised"),
        ):
            daemon = RealChronyd(program, tmp_path, name, line)
            daemons.append(daemon)
            guard = start(None, command_port=daemon.command_port)
            guard.until(state, reason)
        daemons[-1].stop()
        guard.until("unknown", "ChronyUnreachable")
        assert guard.probe("/livez")[0] == 200
    finally:
        for daemon in daemons:
            daemon.stop()
