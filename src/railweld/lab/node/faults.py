"""Faults that happen inside a node. Each does the real thing, or takes what a tool would read away.

`railweld lab fault` runs `fault on NAME key=value ...` and `fault off NAME` in the node. A fault
stays over a reboot unless a reboot would mend it on a real machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweld.lab.node import (
    cluster_faults,
    disks,
    hardware,
    locks,
    modules,
    rails,
    slurm_faults,
    state,
)
from railweld.lab.node.making import (
    FaultError,
    Settings,
    in_background,
    run,
    stop_background,
    wait_for,
)

LIBRARY = "/usr/lib/railweld-lab"
NTP_SHIFT_PORT = 10123
NTP_SHIFT_MARK = 0x5257


@dataclass(frozen=True)
class Fault:
    """How to make a fault and how to take it away."""

    on: Callable[[Settings], None]
    off: Callable[[], None]
    #: True if a reboot of a real machine ends it.
    ends_with_boot: bool = False


def turn_on(name: str, settings: Settings) -> None:
    """Make a fault and remember it."""
    fault = FAULTS[name]
    values = state.faults()
    values["active"] = {**values["active"], name: dict(settings)}
    state.write_faults(values)
    try:
        fault.on(settings)
    except (FaultError, OSError):
        forget(name)
        raise


def turn_off(name: str) -> None:
    """Take a fault away; one that is not there does no harm."""
    try:
        FAULTS[name].off()
    finally:
        forget(name)


def forget(name: str) -> None:
    """Drop a fault from the list of active ones."""
    values = state.faults()
    values["active"] = {key: value for key, value in values["active"].items() if key != name}
    state.write_faults(values)


def reapply() -> None:
    """After a boot: make lasting faults again, drop those that the boot ended."""
    for name, settings in list(state.faults()["active"].items()):
        fault = FAULTS.get(name)
        if fault is None or fault.ends_with_boot:
            forget(name)
            continue
        try:
            fault.on(settings)
        except (FaultError, OSError) as error:
            sys.stderr.write(f"fault {name} could not be made again: {error}\n")


def set_effect(**effects: Any) -> None:
    """Change what the hardware answers."""
    state.write_faults({**state.faults(), **effects})
    hardware.refresh(state.loaded_modules())
    rails.set_cables()


# --- hardware --------------------------------------------------------------------------------


def gpu_missing(settings: Settings) -> None:
    """The last GPUs are off the bus."""
    count = int(settings.get("count", "1"))
    known = len(state.profile().get("gpus", []))
    if not 0 < count <= known:
        raise FaultError(f"found {known} GPUs in this node's profile, cannot take {count} away")
    set_effect(gpu_missing=count)


def build_fails(_settings: Settings) -> None:
    """DKMS cannot build the module; dpkg is content all the same."""
    set_effect(dkms_build_fails=True)


def slow_build(settings: Settings) -> None:
    """A DKMS build takes its time, as a real one does: there is a middle to be cut in."""
    set_effect(dkms_seconds=int(settings.get("seconds", "30")))


#: In front of the real one on the path that apt gives dpkg (DPkg::Path), which begins there.
SLOW_DPKG_DEB = Path("/usr/sbin/dpkg-deb")


def slow_unpack(settings: Settings) -> None:
    """dpkg waits in the middle of unpacking a package: there is a half installed one to be cut."""
    name, seconds = settings.get("package", "*"), int(settings.get("seconds", "30"))
    # apt numbers the files where it hands over many: /tmp/apt-dpkg-install-x/07-NAME_VERSION.deb.
    files = " | ".join(f"--fsys-tarfile\\ */{prefix}{name}_*" for prefix in ("", "[0-9]*-"))
    state.write_file(
        SLOW_DPKG_DEB,
        f'#!/bin/sh\ncase "$*" in {files}) sleep {seconds} ;; esac\nexec /usr/bin/dpkg-deb "$@"\n',
    )
    SLOW_DPKG_DEB.chmod(0o755)


def _hca(settings: Settings) -> str:
    known = [hca["name"] for hca in state.profile().get("hcas", [])]
    name = settings.get("hca") or (known[0] if known else "")
    if name not in known:
        raise FaultError(f"found no adapter {name!r}, expected one of {', '.join(known) or 'none'}")
    return name


def hca_down(settings: Settings) -> None:
    """The port has no link: the RDMA port is down and the interface has no carrier."""
    set_effect(hca_down=sorted({*state.faults()["hca_down"], _hca(settings)}))


def link_rate(settings: Settings) -> None:
    """The port came up with fewer lanes."""
    rate = int(settings.get("gbps", "25"))
    set_effect(link_rate={**state.faults()["link_rate"], _hca(settings): rate})


def cable_moved(settings: Settings) -> None:
    """The cable leads to another switch port; unplugging it makes both ends forget the other."""
    name = _hca(settings)
    known = next(hca for hca in state.profile()["hcas"] if hca["name"] == name)
    place = {key: settings.get(key) or known[key] for key in ("switch", "port")}
    _unplug({**state.faults()["cable_moved"], name: place}, [name])


def cables_back() -> None:
    """Every cable is where it was."""
    _unplug({}, list(state.faults()["cable_moved"]))


def _unplug(places: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> None:
    down = state.faults()["hca_down"]
    set_effect(hca_down=sorted({*down, *names}))
    # lldpd looks a second after a change; a cable that is back by then was never gone for it.
    rails = [hca["netdev"] for hca in state.hcas() if hca["name"] in names]
    wait_for(lambda: not any(map(_has_neighbour, rails)), "rail without its old neighbour")
    set_effect(hca_down=down, cable_moved=places)


def _has_neighbour(netdev: str) -> bool:
    """Whether lldpd knows a neighbour of this interface; it may not be installed yet."""
    show = ("lldpcli", "show", "neighbors", "ports", netdev, "-f", "keyvalue")
    return shutil.which(show[0]) is not None and ".chassis." in run(*show, check=False)


def secure_boot(settings: Settings) -> None:
    """The firmware enforces signatures; `enrolled` names a key that it accepts."""
    value = settings.get("state", "on")
    if value not in ("on", "off", "unsupported"):
        raise FaultError(f"state is {value!r}, expected on, off or unsupported")
    keys = [name for name in settings.get("enrolled", "").split(",") if name]
    set_effect(secure_boot=value, enrolled_keys=keys)


# --- driver ----------------------------------------------------------------------------------


def driver_mismatch(settings: Settings) -> None:
    """Another driver version is loaded than the one on disk, as after an upgrade without reboot."""
    loaded = state.loaded_modules()
    if "nvidia" not in loaded:
        raise FaultError("nvidia is not loaded; install the driver and reboot first")
    version = settings.get("version") or _other_version(loaded["nvidia"])
    for name in [each for each in loaded if each in modules.NVIDIA]:
        (state.run_dir() / "modules" / name).write_text(version)
        hardware.write_attribute(state.path(f"/sys/module/{name}/version"), version)
    hardware.refresh(state.loaded_modules())


def _other_version(version: str) -> str:
    parts = version.split(".")
    middle = int(parts[1]) if len(parts) > 1 else 0
    parts[1:2] = [str(middle - 1 if middle else 1)]
    return ".".join(parts)


def driver_match() -> None:
    """Load what is on disk, as a reboot would."""
    module = modules.find("nvidia")
    if module is not None and "nvidia" in state.loaded_modules():
        driver_mismatch({"version": module.version})


def nouveau_loaded(_settings: Settings) -> None:
    """nouveau has the GPUs, whatever modprobe.d says; a driver that was loaded is not any more."""
    folder = state.run_dir() / "modules"
    for name in [each for each in state.loaded_modules() if each in modules.NVIDIA]:
        (folder / name).unlink()
        hardware.remove_tree(state.path(f"/sys/module/{name}"))
    try:
        modules.load("nouveau", use_install=False)
    except modules.ModuleError as error:
        raise FaultError(str(error)) from error


def nouveau_gone() -> None:
    """Unload nouveau and load the driver, if there is one."""
    if "nouveau" in state.loaded_modules():
        modules.unload("nouveau")
    if modules.find("nvidia") is not None:
        try:
            modules.load("nvidia")
        except modules.ModuleError as error:
            raise FaultError(str(error)) from error


# --- time ------------------------------------------------------------------------------------


def clock_offset(settings: Settings) -> None:
    """The node's clock is `ms` behind its time server; on the time server: behind for everybody.

    Nodes share one clock, so the answers of the server are shifted on their way.
    """
    milliseconds = float(settings.get("ms", "800"))
    clear_clock_offset()
    own = state.profile().get("address", "").partition("/")[0]
    gateway = state.profile().get("gateway", "")
    server = settings.get("server") or gateway or own
    command = (f"{LIBRARY}/ntp-shift", str(milliseconds), server, str(NTP_SHIFT_PORT))
    in_background("ntp-shift", *command)
    match: tuple[str, ...] = ("-p", "udp", "--dport", "123")
    if gateway:
        match += ("-m", "mark", "!", "--mark", str(NTP_SHIFT_MARK))
        rule = ("OUTPUT", *match, "-j", "DNAT", "--to-destination", f"{own}:{NTP_SHIFT_PORT}")
    else:
        rule = ("PREROUTING", *match, "-j", "REDIRECT", "--to-ports", str(NTP_SHIFT_PORT))
    run("iptables", "-w", "-t", "nat", "-A", *rule)
    _measure_anew()


def clear_clock_offset() -> None:
    """Let the answers through as they are."""
    stop_background("ntp-shift")
    _delete_rules("nat", str(NTP_SHIFT_PORT))
    _measure_anew()


def no_time_source(_settings: Settings) -> None:
    """No time server answers this node."""
    comment = ("-m", "comment", "--comment", "no-time-source")
    for chain, side, port in (
        ("INPUT", "-i", "--sport"),
        ("INPUT", "-i", "--dport"),
        ("OUTPUT", "-o", "--dport"),
    ):
        match = ("!", side, "lo", "-p", "udp", port, "123")
        run("iptables", "-w", "-A", chain, *match, *comment, "-j", "DROP")
    _measure_anew()


def time_source_back() -> None:
    """Let time servers answer again."""
    _delete_rules("filter", "no-time-source")
    _measure_anew()


def _measure_anew() -> None:
    """A running chronyd remembers its measurements; a new one shows the fault at once."""
    run("systemctl", "try-restart", "chrony.service", check=False)


def chrony_stopped(_settings: Settings) -> None:
    """The time daemon does not run."""
    run("systemctl", "stop", "chrony.service")


def chrony_back() -> None:
    """Start it again."""
    run("systemctl", "start", "chrony.service")


def _delete_rules(table: str, mark: str) -> None:
    for line in run("iptables", "-w", "-t", table, "-S", check=False).splitlines():
        words = line.replace('"', "").split()
        if words[:1] == ["-A"] and any(mark == word or word.endswith(f":{mark}") for word in words):
            run("iptables", "-w", "-t", table, "-D", *words[1:])


# --- packages --------------------------------------------------------------------------------


def apt_lock(settings: Settings) -> None:
    """Somebody holds dpkg's lock for `seconds`."""
    seconds = settings.get("seconds", "60")
    stop_background("apt-lock")
    in_background("apt-lock", f"{LIBRARY}/hold-lock", seconds)
    wait_for(lambda: locks.holder(locks.FRONTEND) is not None, f"lock on {locks.FRONTEND}")


def apt_unlock() -> None:
    """Let go of the lock."""
    stop_background("apt-lock")


SLOW_PACKAGE = "railweld-lab-slow"
SLOW_SECONDS = "/var/lib/railweld-lab/slow-seconds"


def unattended_upgrade(settings: Settings) -> None:
    """unattended-upgrades is in the middle of an upgrade that takes `seconds`."""
    if shutil.which("unattended-upgrade") is None:
        raise FaultError("unattended-upgrades is not installed on this node")
    folder = state.run_dir() / "slow/DEBIAN"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "control").write_text(
        f"Package: {SLOW_PACKAGE}\nVersion: 1\nArchitecture: all\n"
        "Maintainer: railweld lab <lab@railweld.invalid>\nDescription: waits to be upgraded\n"
    )
    state.path(SLOW_SECONDS).write_text(settings.get("seconds", "60"))
    archive = state.run_dir() / "slow.deb"
    run("dpkg-deb", "--build", str(folder.parent), str(archive))
    run("dpkg", "--install", "--force-downgrade", str(archive))
    run("apt-get", "update", "-q")
    state_of_timer = run("systemctl", "is-enabled", "apt-daily-upgrade.service", check=False)
    if "masked" in state_of_timer:
        in_background("unattended", "/usr/bin/unattended-upgrade")
    else:
        # As the timer would start it, without its daily limit.
        place = Path("/run/systemd/system/apt-daily-upgrade.service.d/railweld-lab.conf")
        state.write_file(
            place, "[Service]\nExecStart=\nExecStart=/usr/bin/unattended-upgrade\nExecStartPre=\n"
        )
        run("systemctl", "daemon-reload")
        run("systemctl", "start", "--no-block", "apt-daily-upgrade.service")
    marker = Path("/run/railweld-lab/slow-running")
    wait_for(marker.exists, "upgrade that runs")


def unattended_upgrade_ends() -> None:
    """Let the upgrade come to its end."""
    state.path(SLOW_SECONDS).write_text("0")
    marker = Path("/run/railweld-lab/slow-running")
    wait_for(lambda: not marker.exists(), "end of the upgrade")
    # ignore_errors: the fault may not have been on.
    shutil.rmtree("/run/systemd/system/apt-daily-upgrade.service.d", ignore_errors=True)
    run("systemctl", "daemon-reload")


def headers_missing(_settings: Settings) -> None:
    """The running kernel's headers are neither installed nor to be had."""
    package = f"linux-headers-{state.kernel()}"
    state.write_file(
        Path("/etc/apt/preferences.d/railweld-lab-headers"),
        f"Package: {package}\nPin: version *\nPin-Priority: -1\n",
    )
    run("dpkg", "--purge", "--force-depends", "--force-hold", package, check=False)


def headers_back() -> None:
    """Install them again."""
    Path("/etc/apt/preferences.d/railweld-lab-headers").unlink(missing_ok=True)
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-y", "-q", f"linux-headers-{state.kernel()}")


def repository_down(settings: Settings) -> None:
    """The mirror does not answer: to this node, or to anybody if this node is the mirror."""
    gateway = state.profile().get("gateway", "")
    if not gateway:
        state.path("/var/lib/railweld-lab/mirror-stopped").touch()
        run("systemctl", "stop", "railweld-lab-mirror.service", check=False)
        return
    answer = _answer(is_silent=settings.get("mode") == "silent")
    run("iptables", "-w", "-A", "OUTPUT", "-d", gateway, "-p", "tcp", "--dport", "80",
        "-m", "comment", "--comment", "repository-down", *answer)  # fmt: skip


def repository_back() -> None:
    """Let the mirror answer."""
    if not state.profile().get("gateway", ""):
        state.path("/var/lib/railweld-lab/mirror-stopped").unlink(missing_ok=True)
        run("systemctl", "start", "railweld-lab-mirror.service")
    _delete_rules("filter", "repository-down")


# --- disk, connection ------------------------------------------------------------------------


def disk_full(settings: Settings) -> None:
    """A folder lies on a file system of its own that is full to the last `free_kib`."""
    try:
        disks.fill(settings.get("path", "/var"), int(settings.get("free_kib", "64")))
    except disks.DiskError as error:
        raise FaultError(str(error)) from error


def _answer(*, is_silent: bool) -> tuple[str, ...]:
    """What a refused connection gets: a reset, or, as with a dead cable, nothing."""
    return ("-j", "DROP") if is_silent else ("-j", "REJECT", "--reject-with", "tcp-reset")


def ssh_cut(settings: Settings) -> None:
    """SSH sessions break, and no new one is possible for `seconds`."""
    seconds = float(settings.get("seconds", "20"))
    is_silent = settings.get("mode") == "silent"
    answer = _answer(is_silent=is_silent)
    run("iptables", "-w", "-I", "INPUT", "-p", "tcp", "--dport", "22",
        "-m", "comment", "--comment", "ssh-cut", *answer)  # fmt: skip
    if not is_silent:
        for pid in ssh_sessions():
            os.kill(pid, signal.SIGKILL)
    script = f"sleep {seconds}; {LIBRARY}/fault off ssh-cut"
    in_background("ssh-cut", "/bin/sh", "-c", script)


def ssh_back() -> None:
    """Let SSH through."""
    _delete_rules("filter", "ssh-cut")


def ssh_sessions() -> list[int]:
    """Processes of sshd besides the one that listens."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() != "sshd":
                continue
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue  # ended meanwhile
        if b"[listener]" not in title:
            found.append(int(folder.name))
    return found


FAULTS: dict[str, Fault] = {
    "api-stopped": Fault(cluster_faults.api_stopped, cluster_faults.api_back),
    "apt-lock": Fault(apt_lock, apt_unlock, ends_with_boot=True),
    "build-fails": Fault(build_fails, lambda: set_effect(dkms_build_fails=False)),
    "chrony-stopped": Fault(chrony_stopped, chrony_back, ends_with_boot=True),
    "clock-offset": Fault(clock_offset, clear_clock_offset),
    "disk-full": Fault(disk_full, disks.restore),
    "driver-mismatch": Fault(driver_mismatch, driver_match, ends_with_boot=True),
    "cable-moved": Fault(cable_moved, cables_back),
    "gpu-missing": Fault(gpu_missing, lambda: set_effect(gpu_missing=0)),
    "hca-down": Fault(hca_down, lambda: set_effect(hca_down=[])),
    "headers-missing": Fault(headers_missing, headers_back),
    "image-missing": Fault(cluster_faults.image_missing, cluster_faults.image_back),
    "kubelet-stopped": Fault(
        cluster_faults.kubelet_stopped, cluster_faults.kubelet_back, ends_with_boot=True
    ),
    "link-rate": Fault(link_rate, lambda: set_effect(link_rate={})),
    "munge-skew": Fault(slurm_faults.munge_skew, slurm_faults.munge_right),
    "no-time-source": Fault(no_time_source, time_source_back),
    "nouveau-loaded": Fault(nouveau_loaded, nouveau_gone, ends_with_boot=True),
    "repository-down": Fault(repository_down, repository_back),
    "secure-boot": Fault(secure_boot, lambda: set_effect(secure_boot=None, enrolled_keys=[])),
    "slurmctld-restart": Fault(slurm_faults.slurmctld_restart, lambda: None, ends_with_boot=True),
    "slow-build": Fault(slow_build, lambda: set_effect(dkms_seconds=0)),
    "slow-unpack": Fault(slow_unpack, lambda: SLOW_DPKG_DEB.unlink(missing_ok=True)),
    "ssh-cut": Fault(ssh_cut, ssh_back, ends_with_boot=True),
    "unattended-upgrade": Fault(unattended_upgrade, unattended_upgrade_ends, ends_with_boot=True),
}


def main(arguments: Sequence[str]) -> int:
    """`fault on NAME [key=value ...]`, `fault off NAME`."""
    if len(arguments) < 2 or arguments[0] not in ("on", "off") or arguments[1] not in FAULTS:
        sys.stderr.write(f"usage: fault on|off {'|'.join(FAULTS)} [key=value ...]\n")
        return 64
    try:
        if arguments[0] == "on":
            turn_on(arguments[1], dict(word.split("=", 1) for word in arguments[2:]))
        else:
            turn_off(arguments[1])
    except (FaultError, OSError, ValueError) as error:
        sys.stderr.write(f"{arguments[1]}: {error}\n")
        return 1
    return 0
