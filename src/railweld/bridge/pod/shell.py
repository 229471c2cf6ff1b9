"""`railweld-bridge shell`: what it starts in a pod, beside the body and with its environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from railweld.bridge.pod import wire

SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Become a shell; the agent says with which variables and where."""
    told = ask()
    environment = told.get("environment") or dict(os.environ)
    environment["TERM"] = arguments[0] if arguments else "dumb"
    with contextlib.suppress(OSError, KeyError, TypeError):
        os.chdir(told["directory"])
    for name in ("bash", "sh"):
        program = shutil.which(name, path=os.defpath) or shutil.which(name)
        if program:
            os.execve(program, [name, "-i"] if name == "bash" else [name], environment)
    sys.stderr.write("bridge: found neither bash nor sh in this image\n")
    return 127


def ask() -> dict[str, Any]:
    """The answer of this pod's agent; an empty one if it does not give any.

    Where /tmp is a folder of the node, those of other pods are there too.
    """
    pod = os.environ.get("RAILWELD_POD_UID", "")
    for path in sorted(Path(tempfile.gettempdir()).glob("railweld-*/agent.sock")):
        try:
            told = _answer(path)
        except (OSError, wire.ProtocolError):
            continue
        if told.get("pod") == pod:
            return told
    return {}


def _answer(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(SECONDS)
        link.connect(str(path))
        link.sendall(wire.control(environment=True))
        decoder = wire.Decoder()
        while data := link.recv(65536):
            for _, payload in decoder.feed(data):
                return wire.parse_control(payload)
    return {}
