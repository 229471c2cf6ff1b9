"""Where the controller keeps what it must remember, and the run journal.

`$RAILWELD_STATE` (default `~/.local/state/railweld`) holds one folder per site, mode 0700.
`$RAILWELD_CACHE` (default `~/.cache/railweld`) holds what can be made again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railweld.errors import RailweldError


def site_state_dir(site: str) -> Path:
    """Return the site's state folder, created with mode 0700."""
    root = Path(os.environ.get("RAILWELD_STATE") or Path.home() / ".local/state/railweld")
    path = root / site
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextmanager
def one_at_a_time(site: str, what: str) -> Iterator[None]:
    """Keep a second run of something from this controller off a site.

    The lock goes with the process, however it ends.

    Raises:
        RailweldError: another run has it.
    """
    path = site_state_dir(site) / f"{what}.lock"
    with path.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise RailweldError(
                f"site {site}: found {what} running already (process {stream.read().strip()}), "
                f"expected one at a time; nothing was touched (see: fuser {path}). "
                "Fix: wait for it, or end it; it says in which state it leaves things"
            ) from None
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


@contextmanager
def held(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file, after whoever has it now; `waiting` is called once if somebody has.

    The lock goes with the process, however it ends.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_dir(*parts: str) -> Path:
    """Return a folder below the cache root, created if missing."""
    root = Path(os.environ.get("RAILWELD_CACHE") or Path.home() / ".cache/railweld")
    path = root.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def journal(
    site: str,
    *,
    run: str,
    stage: str,
    target: str,
    action: str,
    before: Any,
    after: Any,
    result: str,
) -> None:
    """Append one line to the site's journal (JSON lines, one write, flushed to disk)."""
    line = json.dumps(
        {
            "run": run,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "stage": stage,
            "target": target,
            "action": action,
            "before": before,
            "after": after,
            "result": result,
        },
        sort_keys=False,
    )
    path = site_state_dir(site) / "journal.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
