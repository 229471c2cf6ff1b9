# SPDX-License-Identifier: Apache-2.0
"""Who holds apt's and dpkg's locks, and waiting for them without retries.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

APT_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"
_POLL_S = 0.5


def lock_holder(path, root=Path("/")):
    """Return who holds a lock file, as text with the process id, or None when it is free."""
    try:
        with (root / path.lstrip("/")).open("rb") as handle:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, query))
    except OSError:
        return None
    if answer[0] == fcntl.F_UNLCK:
        return None
    pid = answer[4]
    try:
        command = (root / "proc" / str(pid) / "cmdline").read_bytes()
    except OSError:
        command = b""
    name = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return "{} (pid {}, {})".format(name or "another process", pid, path)


def any_lock_holder(root=Path("/")):
    """Return who holds any of the package locks, None when all are free."""
    for path in APT_LOCKS:
        holder = lock_holder(path, root)
        if holder:
            return holder
    return None


def wait_for_locks(
    timeout, root=Path("/"), clock=time.monotonic, sleep=time.sleep, busy=lambda: None
):
    """Wait until no package lock is held, and `busy` names nobody else who is at it.

    Returns:
        (None, seconds waited) when they are free, (holder, seconds) when time ran out.
    """
    started = clock()
    while True:
        holder = any_lock_holder(root) or busy()
        waited = clock() - started
        if holder is None or waited >= timeout:
            return holder, waited
        sleep(_POLL_S)
