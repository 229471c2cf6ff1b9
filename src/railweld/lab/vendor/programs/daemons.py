"""nvidia-persistenced, nv-fabricmanager, nv-hostengine: daemons that fork as the real ones do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from railweld.lab.vendor.programs.gpu import (
    FABRIC_MANAGER_PID,
    PERSISTENCED_PID,
    SmiError,
    initialise,
)
from railweld.lab.vendor.programs.machine import Build, Machine, complain, say

HOSTENGINE_PID = "/run/nvhostengine.pid"


def persistenced(argv: list[str], build: Build, machine: Machine) -> int:
    """nvidia-persistenced: needs a loaded driver; keeps persistence mode while it runs."""
    if "--version" in argv or "-v" in argv:
        say(f"nvidia-persistenced:  version {build['version']}")
        return 0
    if machine.loaded("nvidia") is None:
        complain(
            "nvidia-persistenced failed to initialize. Check syslog for more details.\n"
            "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files "
            "(/dev/nvidia*) exist, and that user 0 has read and write permissions for those files."
        )
        return 1
    keeps = "--no-persistence-mode" not in argv
    machine.store("/run/nvidia-persistenced/railweld-lab.json", {"persistence": keeps})
    daemonise(machine, "nvidia-persistenced", PERSISTENCED_PID)
    return 0


def fabricmanager(argv: list[str], build: Build, machine: Machine) -> int:
    """nv-fabricmanager: refuses a driver of another version and a machine without NVSwitch."""
    version = build["version"]
    if "--version" in argv or "-v" in argv:
        say(f"Fabric Manager version is : {version}")
        return 0
    loaded = machine.loaded("nvidia")
    if loaded is None:
        complain("failed to initialize NVSwitch device layer: NVIDIA driver is not loaded")
        return 1
    if loaded != version:
        complain(
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver "
            f"version {loaded}. Please update with matching NVIDIA driver package."
        )
        return 1
    if not machine.profile.get("nvswitches"):
        complain(
            "request to query NVSwitch device information from NVSwitch driver failed with "
            "error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
        return 1
    say(f"Connected to 1 node. Fabric Manager version {version}")
    daemonise(machine, "nv-fabricmanager", FABRIC_MANAGER_PID)
    return 0


def hostengine(argv: list[str], build: Build, machine: Machine) -> int:
    """nv-hostengine: DCGM's daemon; runs without a driver too."""
    if "--version" in argv:
        say(f"Version : {build['version']}")
        return 0
    daemonise(machine, "nv-hostengine", HOSTENGINE_PID)
    return 0


def dcgmi(argv: list[str], build: Build, machine: Machine) -> int:
    """Dcgmi: version, discovery -l, diag -r 1."""
    if argv[:1] in (["--version"], ["-v"]):
        say(f"dcgmi  version: {build['version']}")
        return 0
    if not machine.pid_alive(HOSTENGINE_PID):
        say("Error: unable to establish a connection to the specified host: localhost")
        say("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        return 255
    try:
        initialise(machine)
    except SmiError:
        say("Error: Cannot initialize: NVML doesn't exist on this system")
        return 253
    gpus = machine.gpus()
    if argv[:1] == ["discovery"]:
        say(f"{len(gpus)} GPUs found.")
        say("+--------+" + "-" * 70 + "+")
        for gpu in gpus:
            say(f"| {gpu['index']:<6} | Name: {'NVIDIA ' + gpu['model']:<62} |")
            say(f"| {'':6} | PCI Bus ID: {gpu['bus_id']:<56} |")
            say(f"| {'':6} | Device UUID: {gpu['uuid']:<55} |")
            say("+--------+" + "-" * 70 + "+")
        return 0
    if argv[:1] == ["diag"]:
        say("Successfully ran diagnostic for group.")
        for name in ("Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks"):
            say(f"| {name:<25} | {'Pass':<46} |")
        return 0
    complain("railweld lab stand-in: only discovery and diag are answered")
    return 1


def daemonise(machine: Machine, name: str, pid_file: str) -> None:
    """Leave a process behind that does nothing, under the daemon's name, and its pid file."""
    path = machine.path(pid_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        if os.fork() == 0:
            Path(path).write_text(f"{os.getpid()}\n")
            # `sleep` under another name: a tenth of the memory that an interpreter would keep.
            os.execv("/bin/sleep", [name, "infinity"])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    # Ends when the daemon's side closes: at exec, after it has written its pid file.
    os.read(reader, 1)
    os.close(reader)
