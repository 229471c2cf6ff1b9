"""Faults of Slurm that happen inside a node: its controller and its credentials."""

from __future__ import annotations

from pathlib import Path

from railweld.lab.node import state
from railweld.lab.node.making import FaultError, Settings, run, wait_for

MUNGE_DROP_IN = Path("/etc/systemd/system/munge.service.d/railweld-lab.conf")
FAKETIME_PACKAGE = "libfaketime"


def slurmctld_restart(_settings: Settings) -> None:
    """Somebody restarts slurmctld; it comes back with the state that it saved."""
    run("systemctl", "restart", "slurmctld.service")
    wait_for(lambda: "is UP" in run("scontrol", "ping", check=False), "slurmctld that answers")


def munge_skew(settings: Settings) -> None:
    """munged sees another time than the rest of the site: lab nodes share one clock."""
    seconds = int(settings.get("seconds", "-600"))
    if not run("systemctl", "list-unit-files", "munge.service", check=False).count("munge.service"):
        raise FaultError("munge is not installed on this node")
    library = _faketime()
    if library is None:
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-y", "-q", FAKETIME_PACKAGE)
        library = _faketime()
    state.write_file(
        MUNGE_DROP_IN,
        f"[Service]\nEnvironment=LD_PRELOAD={library} FAKETIME={seconds:+d}s\n"
        "Environment=FAKETIME_DONT_FAKE_MONOTONIC=1\n",
    )
    _restart_munge()


def munge_right() -> None:
    """Let munged see the clock again."""
    MUNGE_DROP_IN.unlink(missing_ok=True)
    _restart_munge()


def _faketime() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def _restart_munge() -> None:
    run("systemctl", "daemon-reload")
    run("systemctl", "try-restart", "munge.service")
