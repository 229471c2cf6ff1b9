"""Runs the programs that the lab is made of, and says which Debian package brings a missing one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from railweld.errors import RailweldError

#: Called with one line for the operator.
Report = Callable[[str], None]

#: Program → Debian package. `podman` finds netavark in its own folder, not on PATH.
TOOLS: Mapping[str, str] = {
    "apt-ftparchive": "apt-utils",
    "debootstrap": "debootstrap",
    "dpkg-deb": "dpkg",
    "dpkg-scanpackages": "dpkg-dev",
    "gpg": "gnupg",
    "ip": "iproute2",
    "podman": "podman",
    "runc": "runc",
    "ssh-keygen": "openssh-client",
}
NETAVARK = (Path("/usr/lib/podman/netavark"), Path("/usr/libexec/podman/netavark"))


class LabError(RailweldError):
    """The lab could not do what was asked; the text says what was found and how to go on."""


def remove_tree(path: Path) -> None:
    """Remove a folder if it is there; one that cannot be removed is an error.

    What is built over half of an old folder is neither the old nor the new.
    """
    if path.exists():
        shutil.rmtree(path)


@dataclass(frozen=True)
class Result:
    """What a program answered."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """True if it exited with 0."""
        return self.returncode == 0

    @property
    def text(self) -> str:
        """Both outputs, for an error message."""
        return "\n".join(part.strip() for part in (self.stdout, self.stderr) if part.strip())


def run(
    argv: Sequence[str],
    *,
    check: bool = True,
    stdin: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> Result:
    """Run a program to its end.

    Raises:
        LabError: it failed and `check` is true, or did not end within `timeout` seconds.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"{' '.join(argv)}: no end after {timeout:.0f} s; "
            "run it by hand to see what it waits for"
        ) from error
    result = Result(
        tuple(argv),
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )
    if check and not result.ok:
        tail = "\n".join(result.text.splitlines()[-25:])
        raise LabError(f"{' '.join(argv)}: exit {result.returncode}, expected 0\n{tail}")
    return result


def require_machine(tools: Mapping[str, str] = TOOLS, *, uid: int | None = None) -> None:
    """Refuse to start on a machine that cannot run the lab, naming everything that is missing."""
    if (os.geteuid() if uid is None else uid) != 0:
        raise LabError(
            "railweld lab: found an ordinary user, expected root: nodes boot systemd and need "
            "privileged containers; run it with sudo"
        )
    missing = {tool: package for tool, package in tools.items() if shutil.which(tool) is None}
    if "podman" in tools and not any(path.exists() for path in NETAVARK):
        missing["netavark"] = "netavark"
    if missing:
        names = ", ".join(sorted(missing))
        packages = " ".join(sorted(set(missing.values())))
        raise LabError(
            f"railweld lab: found no {names} on this machine; "
            f"install with: apt-get install -y {packages}"
        )


#: systemd and its services take about five of these per node, all as one user; kernels allow 128.
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_WANTED = 8192


def raise_limits(report: Report) -> None:
    """Raise what would stop a large lab half-way. Lasts until the machine reboots."""
    found = int(INOTIFY_LIMIT.read_text())
    if found < INOTIFY_WANTED:
        INOTIFY_LIMIT.write_text(f"{INOTIFY_WANTED}\n")
        report(f"raised fs.inotify.max_user_instances from {found} to {INOTIFY_WANTED}")
