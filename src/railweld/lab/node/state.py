"""State of a node that its stand-ins share: hardware, faults, kernel modules.

Persistent, in /var/lib/railweld-lab:
    profile.json             the hardware, as `railweld.lab.profiles` writes it
    faults.json              active faults: one key per effect, and `active` with their settings
    kernel-modules/NAME.json a module that a package installed: version, flavour, signer

Volatile, in /run/railweld-lab:
    modules/NAME             a loaded module; the content is its version

`RAILWELD_LAB_ROOT` moves everything below another folder, for tests.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("RAILWELD_LAB_ROOT", "/"))

#: Faults that change what the hardware answers, with the value that means "none".
NO_FAULT: dict[str, Any] = {
    "gpu_missing": 0,
    "hca_down": [],
    "link_rate": {},
    "cable_moved": {},
    "secure_boot": None,
}


def path(name: str) -> Path:
    """A path of the node, given as absolute."""
    return ROOT / name.lstrip("/")


def run_dir() -> Path:
    """/run/railweld-lab."""
    return path("/run/railweld-lab")


def lib_dir() -> Path:
    """/var/lib/railweld-lab."""
    return path("/var/lib/railweld-lab")


def read_json(file: Path, default: Any) -> Any:
    """Content of a JSON file, `default` when there is none."""
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return default


def write_file(file: Path, text: str) -> None:
    """Replace a file by rename, so that no reader sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    temporary = Path(name)
    temporary.chmod(0o644)
    temporary.replace(file)


def kernel() -> str:
    """Release of the running kernel."""
    return str(profile().get("kernel") or os.uname().release)


def profile() -> dict[str, Any]:
    """The node's hardware as it came from the factory."""
    found: dict[str, Any] = read_json(lib_dir() / "profile.json", {})
    return found


def faults() -> dict[str, Any]:
    """Effects of the active faults, with every key present."""
    return {**NO_FAULT, "active": {}, **read_json(lib_dir() / "faults.json", {})}


def write_faults(values: dict[str, Any]) -> None:
    """Store faults."""
    write_file(lib_dir() / "faults.json", json.dumps(values, indent=1, sort_keys=True) + "\n")


def gpus() -> list[dict[str, Any]]:
    """GPUs that are on the bus: the last ones are those that a fault takes away."""
    found: list[dict[str, Any]] = profile().get("gpus", [])
    return found[: max(0, len(found) - int(faults()["gpu_missing"]))]


def nvswitches() -> int:
    """Number of NVSwitches on the bus."""
    return int(profile().get("nvswitches", 0))


def hcas() -> list[dict[str, Any]]:
    """Adapters with the state of their port: `is_up`, `rate_gbps` as negotiated, where it leads."""
    active = faults()
    return [
        {
            **hca,
            "is_up": hca["name"] not in active["hca_down"],
            "rate_gbps": active["link_rate"].get(hca["name"], hca["rate_gbps"]),
            **active["cable_moved"].get(hca["name"], {}),
        }
        for hca in profile().get("hcas", [])
    ]


def secure_boot() -> str:
    """`on`, `off` or `unsupported`."""
    return str(faults()["secure_boot"] or profile().get("secure_boot", "off"))


def enrolled_keys() -> list[str]:
    """Common names of the keys that the firmware accepts modules from."""
    return [*profile().get("enrolled_keys", []), *faults().get("enrolled_keys", [])]


def installed_modules() -> dict[str, dict[str, Any]]:
    """Modules that packages installed beside the kernel's own."""
    folder = lib_dir() / "kernel-modules"
    if not folder.is_dir():
        return {}
    return {file.stem: read_json(file, {}) for file in sorted(folder.glob("*.json"))}


def install_module(name: str, **fields: Any) -> None:
    """What a package's postinst calls: put a module on disk. It is loaded by modprobe or a boot."""
    file = lib_dir() / "kernel-modules" / f"{name}.json"
    write_file(file, json.dumps(fields, indent=1, sort_keys=True) + "\n")


def remove_module(name: str) -> None:
    """What a package's prerm calls: take a module off the disk. A loaded one stays loaded."""
    (lib_dir() / "kernel-modules" / f"{name}.json").unlink(missing_ok=True)


def loaded_modules() -> dict[str, str]:
    """Loaded modules in the order of loading, with their versions."""
    folder = run_dir() / "modules"
    if not folder.is_dir():
        return {}
    files = sorted(folder.iterdir(), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return {file.name: file.read_text().strip() for file in files}
