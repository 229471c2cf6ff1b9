"""The commands for people, on the Slurm head: status, explain, logs, shell.

Standard library only: it runs as anybody, from the daemon's own archive, and asks the daemon over
its socket. The kernel tells the daemon who asks.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from railweld import names
from railweld.bridge.pod import wire
from railweld.errors import ExitCode

PROGRAM = "railweld-bridge"
#: Ctrl-] ends a shell whose other side hangs, as in telnet and virsh.
ESCAPE = b"\x1d"
_HUNG_UP = f"the daemon hung up; see: journalctl -u {names.BRIDGE_UNIT}"


class NoAnswerError(Exception):
    """The daemon is not there."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog=PROGRAM, description="Jobs of the bridge partitions.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="the bridge, and your jobs in it")
    explain = commands.add_parser("explain", help="one page about one job, and what to do")
    logs = commands.add_parser("logs", help="what the pods of a job have printed")
    shell = commands.add_parser("shell", help="a shell in a pod of your job; Ctrl-] leaves it")
    for each in (explain, logs, shell):
        each.add_argument("job", metavar="JOB", help="a number, or ARRAY_TASK")
    for each in (logs, shell):
        each.add_argument("node", metavar="NODE", nargs="?", default="", help="default: the first")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the pod has ended")
    logs.add_argument("--tail", type=int, metavar="N", help="the last N lines of each pod")
    for each in (status, explain):
        each.add_argument("--json", action="store_true", help="for machines")
    return top


def connect(path: str = names.BRIDGE_SOCKET) -> socket.socket:
    """Reach the daemon.

    Raises:
        NoAnswerError: in words.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError as error:
        link.close()
        raise NoAnswerError(
            f"{path}: {error.strerror}, expected the bridge's daemon: this runs on the Slurm head. "
            f"See: systemctl status {names.BRIDGE_UNIT}"
        ) from error
    return link


def talk(link: socket.socket, request: dict[str, Any], output: Any) -> int:
    """Send a request, write what comes, return the exit status."""
    link.sendall(wire.control(version=wire.VERSION, **request))
    for kind, payload in frames(link):
        if kind == wire.DATA:
            output.write(payload)
            output.flush()
            continue
        words = wire.parse_control(payload)
        if words.get("event") == "note":
            sys.stderr.write(f"{PROGRAM}: {words.get('text')}\n")
        elif words.get("event") == "exit":
            return int(words.get("status", 1))
    sys.stderr.write(f"{PROGRAM}: {_HUNG_UP}\n")
    return ExitCode.UNKNOWN


def frames(link: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Whole frames until the other end closes."""
    decoder = wire.Decoder()
    while data := link.recv(65536):
        yield from decoder.feed(data)


class Terminal:
    """Carries a terminal to the daemon and back."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._keys, self._screen = sys.stdin.fileno(), sys.stdout.fileno()
        self._decoder = wire.Decoder()
        self._resized = True
        self.said: list[str] = []

    def run(self, request: dict[str, Any]) -> int:
        """From the request to the shell's exit status, with the terminal in raw mode."""
        self._link.sendall(wire.control(version=wire.VERSION, **request))
        signal.signal(signal.SIGWINCH, self._note_size)
        before = termios.tcgetattr(self._keys)
        tty.setraw(self._keys)
        try:
            while True:
                status = self._turn()
                if status is not None:
                    return status
        finally:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, before)
            for line in self.said:
                sys.stderr.write(f"{PROGRAM}: {line}\n")

    def _note_size(self, *_: object) -> None:
        self._resized = True

    def _turn(self) -> int | None:
        """Wait for either side once; the exit status at the end."""
        if self._resized:
            self._resized = False
            size = shutil.get_terminal_size()
            self._link.sendall(wire.control(op="size", rows=size.lines, columns=size.columns))
        ready = select.select([self._keys, self._link], [], [], 1.0)[0]
        if self._keys in ready:
            typed = os.read(self._keys, 4096)
            if not typed or ESCAPE in typed:
                return 0
            self._link.sendall(wire.frame(wire.DATA, typed))
        return self._show() if self._link in ready else None

    def _show(self) -> int | None:
        data = self._link.recv(65536)
        if not data:
            self.said.append(_HUNG_UP)
            return ExitCode.UNKNOWN
        for kind, payload in self._decoder.feed(data):
            if kind == wire.DATA:
                os.write(self._screen, payload)
                continue
            words = wire.parse_control(payload)
            if words.get("event") == "note":
                self.said.append(str(words.get("text")))
            elif words.get("event") == "exit":
                return int(words.get("status", 1))
        return None


def shell(link: socket.socket, request: dict[str, Any]) -> int:
    """A shell, for somebody who has a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write(f"{PROGRAM}: found no terminal, expected one: ssh -t HEAD ...\n")
        return ExitCode.USAGE
    return Terminal(link).run(request)


def main(arguments: Sequence[str] | None = None, *, path: str = names.BRIDGE_SOCKET) -> int:
    """Run one command; exit codes are railweld's."""
    try:
        options = vars(parser().parse_args(arguments))
    except SystemExit as error:
        return ExitCode.USAGE if error.code else 0
    command = options.pop("command")
    request = {"op": command, **{name: value for name, value in options.items() if value}}
    try:
        with connect(path) as link:
            if command == "shell":
                return shell(link, {**request, "term": os.environ.get("TERM", "dumb")})
            return talk(link, request, sys.stdout.buffer)
    except NoAnswerError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return ExitCode.UNKNOWN
    except ConnectionResetError:
        sys.stderr.write(f"{PROGRAM}: {_HUNG_UP}\n")
        return ExitCode.UNKNOWN
    except (BrokenPipeError, KeyboardInterrupt):
        # The reader has seen enough: `railweld-bridge logs 12 | head`.
        sys.stderr.close()
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
