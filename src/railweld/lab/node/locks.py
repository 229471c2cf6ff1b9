"""Package locks: who holds one, and a process that does nothing but hold it."""

from __future__ import annotations

import ctypes
import fcntl
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FRONTEND = Path("/var/lib/dpkg/lock-frontend")
#: struct flock on 64-bit Linux: type, whence, start, length, process.
FLOCK = "hhqqi4x"


def holder(path: Path) -> int | None:
    """Process that holds the lock of a file as apt and dpkg take it, None if nobody does."""
    with path.open("a+") as file:
        question = struct.pack(FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
        answer = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])


def hold(seconds: float) -> None:
    """Hold the lock that apt takes first, under apt-get's name, for a while."""
    ctypes.CDLL(None).prctl(15, b"apt-get", 0, 0, 0)  # PR_SET_NAME: what lock messages name
    with FRONTEND.open("a+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        time.sleep(seconds)


def main(arguments: Sequence[str]) -> int:
    """`hold-lock SECONDS`: afterwards the fault is over."""
    from railweld.lab.node import faults  # noqa: PLC0415 - faults imports this module

    try:
        hold(float(arguments[0]))
    except (IndexError, ValueError):
        sys.stderr.write("usage: hold-lock SECONDS\n")
        return 64
    faults.forget("apt-lock")
    return 0
