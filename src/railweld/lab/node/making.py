"""What faults of a node are made with: programs, waits, and work that goes on by itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping

Settings = Mapping[str, str]
WAIT_S = 120.0


class FaultError(Exception):
    """The fault cannot be made on this node as it is."""


def run(*argv: str, check: bool = True, stdin: str | None = None) -> str:
    """Run a program; its output in the error if it fails."""
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, input=stdin, env=environment()
    )
    if check and done.returncode:
        raise FaultError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def environment() -> dict[str, str]:
    """Environment for package tools: nobody answers questions."""
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something can be observed."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise FaultError(f"found no {what} after {WAIT_S:.0f} s")
        time.sleep(0.05)


def in_background(name: str, *argv: str) -> None:
    """Run a program as a unit of its own that ends by itself.

    Without waiting for it to start: during boot, that would wait for the boot itself.
    """
    unit = f"railweld-lab-{name}"
    run("systemctl", "reset-failed", unit, check=False)
    run("systemd-run", "--quiet", "--collect", "--no-block", f"--unit={unit}", *argv)


def stop_background(name: str) -> None:
    """Stop such a unit."""
    run("systemctl", "stop", f"railweld-lab-{name}.service", check=False)
