"""What a stand-in program can see of its lab node: the profile, faults, loaded modules, state.

Paths are those of the lab: `/run/railweld-lab` is gone after a reboot, `/var/lib/railweld-lab`
stays. Where the node shows the real interface (/sys/module, /sys/class), that is read.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict


class Build(TypedDict, total=False):
    """Constants that the package build writes into a program."""

    version: str
    release: str
    nvcc: str
    cuda: dict[str, str]
    ofed: str
    gpu_cuda: str


class Machine:
    """Access to the node below a root folder, so that tests can give their own."""

    def __init__(self, root: Path | str = "/") -> None:
        self.root = Path(root)

    def path(self, name: str) -> Path:
        """A path of the node as this process can open it."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Text of a file without its last newline, None when it cannot be read."""
        try:
            return self.path(name).read_text().rstrip("\n")
        except OSError:
            return None

    def load(self, name: str) -> dict[str, Any]:
        """A JSON object, empty when there is none."""
        try:
            value = json.loads(self.read(name) or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def store(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON object in one step."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
        partial.replace(path)

    @property
    def profile(self) -> dict[str, Any]:
        """The node's hardware."""
        return self.load("/var/lib/railweld-lab/profile.json")

    @property
    def faults(self) -> dict[str, Any]:
        """Faults that are switched on."""
        return self.load("/var/lib/railweld-lab/faults.json")

    def fault(self, name: str) -> Any:
        """One fault's setting, None when it is off; `-` and `_` are the same in its name."""
        faults = self.faults
        return faults.get(name, faults.get(name.replace("_", "-")))

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that are there: the profile's without the missing ones, which are the last."""
        gpus = list(self.profile.get("gpus", []))
        missing = self.fault("gpu_missing")
        if isinstance(missing, dict):
            missing = missing.get("count", 1)
        return gpus[: len(gpus) - int(missing or 0)]

    def hcas(self) -> list[dict[str, Any]]:
        """The RDMA adapters."""
        return list(self.profile.get("hcas", []))

    def hca_is_up(self, name: str) -> bool:
        """Whether the port is up, as sysfs shows it, else as the faults say."""
        state = self.read(f"/sys/class/infiniband/{name}/ports/1/state")
        if state is not None:
            return "ACTIVE" in state
        return name not in (self.fault("hca_down") or [])

    def loaded(self, module: str) -> str | None:
        """Version of a loaded kernel module, None when it is not loaded."""
        shown = self.read(f"/sys/module/{module}/version")
        if shown is None:
            shown = self.read(f"/run/railweld-lab/modules/{module}")
        if shown is not None and shown.startswith("{"):
            value = json.loads(shown).get("version")
            return None if value is None else str(value)
        return shown

    def module_file(self, module: str) -> str:
        """Where a built module is registered for modinfo and modprobe."""
        return f"/var/lib/railweld-lab/kernel-modules/{module}.json"

    def pid_alive(self, name: str) -> bool:
        """Whether the process of a pid file lives."""
        pid = self.read(name)
        return pid is not None and pid.isdecimal() and self.path(f"/proc/{pid}").exists()


def say(text: str) -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(text + "\n")


def version_numbers(text: str) -> tuple[int, ...]:
    """Comparable form of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def newest_cuda(driver: str, table: Mapping[str, str]) -> str:
    """CUDA release of a driver; an unlisted branch counts as the next lower listed one."""
    branch = version_numbers(driver)[:1]
    lower = [key for key in table if version_numbers(key) <= branch]
    return table[max(lower, key=version_numbers)] if lower else "N/A"
