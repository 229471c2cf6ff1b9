"""What firmware, kernel and udev leave behind at every boot of a node.

Mounts first: plain folders over those parts of /sys and /proc that belong to hardware which is not
there. Then the rails, then the modules that udev would load. What was loaded before the reboot is
gone, because /run is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from railweld.lab.node import bootfiles, faults, hardware, modules, rails, state
from railweld.lab.node.mounts import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    mount,
)


def main() -> int:
    """Boot the stand-ins. Errors go to the journal and fail the unit."""
    release = state.kernel()
    for folder in ("modules", "real"):
        (state.run_dir() / folder).mkdir(parents=True, exist_ok=True)
    state.write_file(state.run_dir() / "kernel", f"{release}\n")
    first_boot(release)
    count_boot()
    mount_stand_ins()
    command_line = bootfiles.command_line(release)
    show_command_line(command_line)
    rails.reset_network()
    loaded = modules.autoload(
        modules.rules(text=bootfiles.initramfs_modprobe(release)), command_line
    )
    hardware.refresh(state.loaded_modules())
    rails.build(state.hcas() if "mlx5_core" in loaded else [])
    rails.default_route(str(state.profile().get("gateway", "")))
    faults.reapply()
    sys.stdout.write(f"railweld lab: loaded {', '.join(loaded) or 'no module'}\n")
    # As in other containers: with a writable /sys, networkd waits for a udev that is not there.
    mount("", "/sys", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    return 0


def count_boot() -> None:
    """Keep how often the node has booted: the kernel's own boot id is the machine's."""
    path = state.path("/var/lib/railweld-lab/boots")
    before = int(path.read_text()) if path.exists() else 0
    state.write_file(path, f"{before + 1}\n")


def first_boot(release: str) -> None:
    """What the installation of the operating system left in /boot."""
    if not state.path(bootfiles.GRUB_CONFIG).exists():
        bootfiles.write_grub_config()
    if not bootfiles.initramfs(release).exists():
        bootfiles.build_initramfs(release)


def mount_stand_ins() -> None:
    """Lay plain folders over /sys/module, /sys/class and the like, keeping what is real in them."""
    builtin = copy_sys_module()
    mount("railweld-lab", "/sys/module", "tmpfs", 0)
    for name, attributes in builtin.items():
        for key, value in attributes.items():
            hardware.write_attribute(state.path(f"/sys/module/{name}/{key}"), value)
        state.path(f"/sys/module/{name}").mkdir(exist_ok=True)
    lay_over("/sys/class", "class")
    lay_over("/sys/kernel/mm", "mm")
    for place in ("/sys/bus/pci/devices", "/sys/bus/pci/drivers"):
        if not Path(place).is_dir():
            lay_over("/sys/bus", "bus")
            Path(place).mkdir(parents=True)
        else:
            mount("railweld-lab", place, "tmpfs", 0)
    mount("railweld-lab", "/proc/driver", "tmpfs", 0)
    if Path("/sys/kernel/debug").is_dir():
        mount("railweld-lab", "/sys/kernel/debug", "tmpfs", 0)


def copy_sys_module() -> dict[str, dict[str, str]]:
    """/sys/module of the machine's own kernel: versions and parameters of what is built in."""
    found: dict[str, dict[str, str]] = {}
    for folder in Path("/sys/module").iterdir():
        attributes = found.setdefault(folder.name, {})
        for file in [folder / "version", *folder.glob("parameters/*")]:
            try:
                attributes[str(file.relative_to(folder))] = file.read_text().strip()
            except OSError:
                continue  # write-only parameters
    names = sorted(found)
    state.write_file(state.run_dir() / "builtin.json", json.dumps(names))
    return found


def lay_over(place: str, name: str) -> None:
    """Mount a plain folder over `place`, with every real entry bound or linked back into it."""
    if not Path(place).is_dir():
        return
    real = state.run_dir() / "real" / name
    real.mkdir()
    mount(place, str(real), "", MS_BIND)
    mount("railweld-lab", place, "tmpfs", 0)
    for entry in sorted(real.iterdir()):
        target = Path(place) / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.is_dir():
            target.mkdir()
            mount(str(entry), str(target), "", MS_BIND)
        else:
            target.touch()
            mount(str(entry), str(target), "", MS_BIND)


def show_command_line(text: str) -> None:
    """/proc/cmdline as the node's own boot loader wrote it."""
    file = state.run_dir() / "cmdline"
    state.write_file(file, f"{text}\n")
    mount(str(file), "/proc/cmdline", "", MS_BIND)
