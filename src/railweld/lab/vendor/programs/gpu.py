"""The GPU side of the stand-ins: which driver is loaded, which library is on disk, GPU modes."""

from __future__ import annotations

import os
import re
from typing import Any

from railweld.lab.vendor.programs.machine import Build, Machine, newest_cuda

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
#: Kept by the GPU's own memory over a reboot: what ECC and MIG shall be.
WANTED = "/var/lib/railweld-lab/gpu-modes.json"
#: Since the driver was loaded: what they are, and persistence mode.
CURRENT = "/run/railweld-lab/gpu-modes.json"
FABRIC_MANAGER_PID = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
PERSISTENCED_PID = "/run/nvidia-persistenced/nvidia-persistenced.pid"


class SmiError(Exception):
    """NVML could not be initialised: text and exit code of the real program."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def library_version(machine: Machine) -> str | None:
    """Version of the libnvidia-ml.so that the loader would find."""
    link = machine.path(f"{LIBRARIES}/libnvidia-ml.so.1")
    try:
        target = str(link.readlink())
    except OSError:
        return None
    match = re.search(r"\.so\.(\d[\d.]*)$", target)
    return match[1] if match else None


def initialise(machine: Machine) -> str:
    """Return the driver version; raises what NVML would answer."""
    loaded = machine.loaded("nvidia")
    library = library_version(machine)
    if library is None:
        raise SmiError(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure "
            "that the NVIDIA Display Driver is properly installed and present in your system.\n"
            "Please also try adding directory that contains libnvidia-ml.so to your system PATH.",
            12,
        )
    if loaded is None:
        raise SmiError(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.\n",
            9,
        )
    if loaded != library:
        text = "Failed to initialize NVML: Driver/library version mismatch"
        if int(library.split(".", 1)[0]) >= 525:
            text += f"\nNVML library version: {'.'.join(library.split('.')[:2])}"
        raise SmiError(text, 18)
    if not machine.gpus():
        raise SmiError("No devices were found", 6)
    return loaded


def cuda_version(machine: Machine, build: Build, driver: str) -> str:
    """CUDA release of the libcuda that the loader finds: the driver's, or cuda-compat's."""
    table = build.get("cuda", {})
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if not folder:
            continue
        try:
            target = str((machine.path(folder) / "libcuda.so.1").readlink())
        except OSError:
            continue
        match = re.search(r"\.so\.(\d[\d.]*)$", target)
        if match:
            return newest_cuda(match[1], table)
    return newest_cuda(driver, table)


def modes(machine: Machine) -> dict[str, dict[str, bool]]:
    """Modes per GPU UUID: persistence, ecc, ecc_pending, mig, mig_pending."""
    wanted = machine.load(WANTED)
    current = machine.load(CURRENT)
    answer: dict[str, dict[str, bool]] = {}
    changed = False
    for gpu in machine.gpus():
        uuid = str(gpu["uuid"])
        pending = {"ecc": True, "mig": False, **wanted.get(uuid, {})}
        if uuid not in current:
            # First look since the driver was loaded: what was pending is now in force.
            current[uuid] = {"persistence": False, **pending}
            changed = True
        now = current[uuid]
        answer[uuid] = {
            "persistence": bool(now["persistence"]) or daemon_keeps_persistence(machine),
            "ecc": bool(now["ecc"]),
            "mig": bool(now["mig"]),
            "ecc_pending": bool(pending["ecc"]),
            "mig_pending": bool(pending["mig"]),
        }
    if changed and os.access(machine.path("/run"), os.W_OK):
        machine.store(CURRENT, current)
    return answer


def daemon_keeps_persistence(machine: Machine) -> bool:
    """Whether nvidia-persistenced runs in persistence mode."""
    state = machine.load("/run/nvidia-persistenced/railweld-lab.json")
    return bool(state.get("persistence")) and machine.pid_alive(PERSISTENCED_PID)


def set_mode(machine: Machine, uuids: list[str], name: str, *, on: bool, pending: bool) -> None:
    """Change a mode; a pending one is in force once the driver was loaded anew."""
    modes(machine)
    wanted, current = machine.load(WANTED), machine.load(CURRENT)
    for uuid in uuids:
        if name != "persistence":
            wanted.setdefault(uuid, {})[name] = on
        if not pending:
            current.setdefault(uuid, {})[name] = on
    machine.store(WANTED, wanted)
    machine.store(CURRENT, current)


def fabric(machine: Machine, gpu: dict[str, Any]) -> tuple[str, str]:
    """State and status of the fabric: Hopper and later register, Ampere does not report it."""
    is_reporting = str(gpu.get("architecture")) not in ("Ampere", "Volta", "Turing")
    if not is_reporting or not machine.profile.get("nvswitches"):
        return "N/A", "N/A"
    if machine.pid_alive(FABRIC_MANAGER_PID):
        return "Completed", "Success"
    return "In Progress", "N/A"
