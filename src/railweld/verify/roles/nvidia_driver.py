"""The GPU driver: one version, built for every kernel, loaded, and all GPUs answering."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.base.families import in_family
from railweld.record import Check
from railweld.verify.context import Context, packages_as_pinned
from railweld.verify.roles import chrony

ROLE: Final = "nvidia_driver"

#: Where the GPU operator mounts a driver that it brings in a container.
CONTAINER_DRIVER: Final = "/run/nvidia/driver"

#: In-tree drivers that would take the GPUs; nova is nouveau's successor.
RIVALS: Final = ("nouveau", "nova", "nova_core", "nova_drm")

#: Modules built beforehand for one kernel, by Ubuntu's name for them.
PREBUILT: Final = "linux-modules-nvidia-"

#: Kernel modules in their two flavours, which must not stand beside each other.
_MODULE_PACKAGE: Final = re.compile(r"^nvidia-(dkms|kernel-source|kernel-dkms|kernel-open-dkms)\b")

#: A branch in a package name: `nvidia-driver-515`, `libnvidia-compute-580-server`.
_BRANCH: Final = re.compile(r"-(\d{3})(?:-|$)")

#: A driver's version, with or without an epoch: `580.173.02-1ubuntu1`. Others have versions of
#: their own, such as Debian's nvidia-kernel-common.
_DRIVER_VERSION: Final = re.compile(r"(?:\d+:)?(\d{3})\.\d+")

#: Mode → what nvidia-smi calls it in a query.
_MODE_QUERY: Final[Mapping[str, str]] = {
    "persistence": "persistence_mode",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
}


def uses_dkms(ctx: Context) -> bool:
    """True unless the set brings modules that were built for one kernel beforehand."""
    return not any(name.startswith(PREBUILT) for name, _ in ctx.pins("driver"))


def strays(ctx: Context) -> dict[str, str]:
    """Installed driver packages of another branch, and kernel modules of the other flavour.

    Pinned names move in place to their version and are judged by their pins.
    """
    branch = str(ctx.wanted("driver.version")).split(".", 1)[0]
    pinned = {name for name, _ in ctx.pins("driver")}
    found: dict[str, str] = {}
    for name, item in (ctx.seen("packages", {})).items():
        if name in pinned or not in_family("driver", name) or in_family("fabric_manager", name):
            continue
        # Without a branch in the name (nvidia-persistenced) the version tells it.
        carried = _BRANCH.search(name) or _DRIVER_VERSION.match(str(item.get("version")))
        foreign = bool(carried and carried.group(1) != branch) or bool(_MODULE_PACKAGE.match(name))
        # Removed packages that left their configuration behind do no harm.
        if foreign and str(item.get("status", ""))[1:2] not in "nc":
            found[name] = str(item.get("version"))
    return found


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse before anything is installed: clock, GPUs, kernel, headers, signatures."""
    yield from chrony.gate(ctx)
    yield from hardware(ctx)
    if ctx.setting("gpudirect") == "peermem":
        yield from _ofed_first(ctx)


def hardware(ctx: Context) -> Iterator[Check]:
    """What only people can change: GPUs on PCI, the kernel, its headers, Secure Boot."""
    yield from _gpus_on_pci(ctx)
    yield from _kernel(ctx)
    yield from _secure_boot_plan(ctx)
    yield from _no_container_driver(ctx)


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable, once the node has rebooted where it had to."""
    yield from installed(ctx)
    yield from booted(ctx)


def installed(ctx: Context) -> Iterator[Check]:
    """What must hold right after the installation, whether or not a reboot is still to come."""
    yield from _gpus_on_pci(ctx)
    yield from packages_as_pinned(ctx, "driver", role=ROLE)
    yield from _one_branch(ctx)
    yield from _modules_on_disk(ctx)
    yield from _blacklist(ctx)


def booted(ctx: Context) -> Iterator[Check]:
    """What the installed driver shows once it is the one that runs."""
    yield from _in_tree_drivers(ctx)
    yield from running(ctx)
    if ctx.seen("driver.loaded") == ctx.wanted("driver.version") and ctx.seen("driver.smi.ok"):
        yield from _gpus(ctx)


def running(ctx: Context) -> Iterator[Check]:
    """The described driver is the one that runs: what every later role asks for."""
    expected = str(ctx.wanted("driver.version"))
    loaded = ctx.seen("driver.loaded")
    if ctx.seen("driver.on_disk") == expected:
        fix = (
            "the installed driver waits for a reboot: rerun with railweld_reboot: allow, or run "
            "`systemctl reboot` on this host and rerun"
        )
    else:
        fix = "run playbooks/deploy-base.yml, or the nvidia_driver role alone, on this host first"
    yield ctx.judge(
        "nvidia_driver.loaded",
        ok=loaded == expected,
        ran="cat /sys/module/nvidia/version",
        found=f"driver {loaded}" if loaded else "no NVIDIA driver loaded",
        expected=f"driver {expected}",
        fix=fix,
    )
    if loaded != expected:
        return
    answers = bool(ctx.seen("driver.smi.ok"))
    yield ctx.judge(
        "nvidia_driver.smi",
        ok=answers,
        ran="nvidia-smi",
        found="nvidia-smi answers" if answers else f"nvidia-smi: {ctx.seen('driver.smi.error')}",
        expected="nvidia-smi answers",
        fix="a version mismatch means that libraries and module differ: reboot; otherwise "
        "`dmesg | grep -i nvrm` names the GPU that failed",
    )


def _gpus_on_pci(ctx: Context) -> Iterator[Check]:
    found = ctx.seen("pci.gpus")
    expected = f"{ctx.wanted('gpu.count')} GPUs (railweld_gpu_count)"
    if found is None:
        yield ctx.could_not_look(
            "nvidia_driver.pci_gpus",
            ran="lspci -d 10de:",
            found="no observation of the PCI bus",
            expected=expected,
            fix="run `lspci -d 10de:` on this host and repair what it complains about",
        )
        return
    yield ctx.judge(
        "nvidia_driver.pci_gpus",
        ok=int(found) == int(ctx.wanted("gpu.count")),
        ran="lspci -d 10de:",
        found=f"{found} GPUs on PCI",
        expected=expected,
        fix="a GPU that is missing on PCI is hardware: power-cycle the node, then reseat or "
        "replace it; if the description is wrong, correct railweld_gpu_count",
    )


def _kernel(ctx: Context) -> Iterator[Check]:
    running_kernel = ctx.seen("kernel.running")
    newest = ctx.seen("kernel.newest_installed")
    if newest:
        yield ctx.judge(
            "nvidia_driver.kernel",
            ok=running_kernel == newest,
            ran="uname -r; ls /boot/vmlinuz-*",
            found=f"running {running_kernel}, newest installed {newest}",
            expected="the newest installed kernel running",
            fix="reboot into the newest kernel, or remove it, so that the driver is built for "
            "the kernel that the node boots",
        )
    if uses_dkms(ctx):
        package = f"linux-headers-{running_kernel}"
        there = bool(ctx.seen("kernel.headers_installed"))
        offers = ctx.seen("apt.candidates", {}).get(package) or {}
        obtainable = bool(offers.get("candidate"))
        state = "neither installed nor in any repository"
        if there or obtainable:
            state = "installed" if there else "in the repository"
        yield ctx.judge(
            "nvidia_driver.headers",
            ok=there or obtainable,
            ran=f"apt-cache policy {package}",
            found=f"{package} {state}",
            expected=f"{package}, because the module is built for the running kernel",
            fix=f"make {package} available in the OS mirror, or boot a kernel whose headers are "
            "there",
        )


def _secure_boot_plan(ctx: Context) -> Iterator[Check]:
    state = ctx.seen("kernel.secure_boot")
    expected = "Secure Boot off, or modules signed by a key that the firmware knows"
    if state is None:
        yield ctx.could_not_look(
            "nvidia_driver.secure_boot",
            ran="mokutil --sb-state",
            found="no observation of Secure Boot",
            expected=expected,
            fix="run `mokutil --sb-state` on this host and repair what it complains about",
        )
        return
    signer = ctx.wanted("secure_boot_signer")
    yield ctx.judge(
        "nvidia_driver.secure_boot",
        ok=state != "on" or not uses_dkms(ctx) or bool(signer),
        ran="mokutil --sb-state",
        found=f"Secure Boot {state}"
        + (f", modules signed by {signer}" if signer else ", no signer named for DKMS modules"),
        expected=expected,
        fix="the kernel would refuse the module that DKMS builds. Enroll DKMS's key (mokutil "
        "--import /var/lib/shim-signed/mok/MOK.der, reboot, confirm on the console) and name its "
        "CN in railweld_secure_boot_signer; or use a repository with signed modules (Ubuntu's "
        "linux-modules-nvidia-*); or turn Secure Boot off in the firmware",
    )
    if state == "on" and signer:
        yield from _enrolled(ctx, f"{signer} (railweld_secure_boot_signer)", str(signer))


def _enrolled(ctx: Context, expected: str, signer: str) -> Iterator[Check]:
    """The firmware knows the key that a DKMS module is signed with; silent where it cannot say."""
    enrolled = ctx.seen("kernel.secure_boot_keys")
    if isinstance(enrolled, list):
        yield ctx.judge(
            "nvidia_driver.secure_boot_key",
            ok=any(signer in str(key) for key in enrolled),
            ran="mokutil --list-enrolled",
            found=f"enrolled: {', '.join(map(str, enrolled)) or 'no key'}",
            expected=expected,
            fix="mokutil --import the key's DER file, reboot and confirm it on the console",
        )


def _no_container_driver(ctx: Context) -> Iterator[Check]:
    there = bool(ctx.seen("driver.container"))
    yield ctx.judge(
        "nvidia_driver.host_owned",
        ok=not there,
        ran=f"ls {CONTAINER_DRIVER}",
        found=f"a container's driver at {CONTAINER_DRIVER}" if there else "no driver container",
        expected="no driver container; the host's packages own the driver",
        fix="install the GPU operator with driver.enabled=false and reboot the node",
    )


def _ofed_first(ctx: Context) -> Iterator[Check]:
    """nvidia-peermem is built against OFED's symbols, so OFED has to be there first."""
    ofed = ctx.seen("rdma.ofed")
    yield ctx.judge(
        "rdma.ofed",
        ok=bool(ofed),
        ran="ofed_info -s",
        found=ofed or "no OFED",
        expected="OFED before the driver is built (railweld_gpudirect: peermem)",
        fix="run playbooks/deploy-base.yml on this host, which puts the rdma role first in this "
        "mode; or choose railweld_gpudirect: dmabuf",
    )


def _one_branch(ctx: Context) -> Iterator[Check]:
    found = strays(ctx)
    version = ctx.wanted("driver.version")
    yield ctx.judge(
        "nvidia_driver.one_branch",
        ok=not found,
        ran="dpkg-query -W '*nvidia*' 'cuda-drivers*'",
        found=", ".join(f"{name} {seen}" for name, seen in sorted(found.items()))
        or "no package of another branch",
        expected=f"driver packages of {version} only",
        fix="rerun the nvidia_driver role on this host; it removes what other branches left",
    )


def _modules_on_disk(ctx: Context) -> Iterator[Check]:
    expected = str(ctx.wanted("driver.version"))
    on_disk = ctx.seen("driver.on_disk")
    yield ctx.judge(
        "nvidia_driver.on_disk",
        ok=on_disk == expected,
        ran="modinfo -F version nvidia",
        found=on_disk or "no module nvidia for the running kernel",
        expected=expected,
        fix="`dkms status` and /var/lib/dkms/nvidia/*/build/make.log show why it was not built; "
        "then rerun the nvidia_driver role on this host",
    )
    booted_next = {ctx.seen("kernel.running"), ctx.seen("kernel.newest_installed")} - {None}
    for release in sorted(booted_next | set(ctx.seen("kernel.installed", []))):
        yield _built_for(ctx, release, expected, needed=release in booted_next)
    flavour = ctx.wanted("driver.modules")
    seen = ctx.seen("driver.disk_flavour")
    if flavour and on_disk:
        yield ctx.judge(
            "nvidia_driver.flavour",
            ok=seen == flavour,
            ran="modinfo -F license nvidia",
            found=f"{seen or 'unknown'} kernel modules",
            expected=f"{flavour} kernel modules (railweld_driver_modules)",
            fix="rerun the nvidia_driver role on this host; it swaps the packages, and then the "
            "node has to reboot",
        )
    if ctx.seen("kernel.secure_boot") == "on" and on_disk:
        signer = ctx.wanted("secure_boot_signer")
        found = ctx.seen("driver.signer")
        yield ctx.judge(
            "nvidia_driver.signer",
            ok=bool(found) and (not signer or str(signer) in str(found)),
            ran="modinfo -F signer nvidia",
            found=found or "an unsigned module",
            expected=f"signed by {signer}" if signer else "a signed module",
            fix="with Secure Boot on the kernel refuses this module: sign it with the enrolled "
            "key (dkms does when /etc/dkms/framework.conf names it) and rebuild it",
        )
        # A distribution's own modules are signed by a key that no list of enrolled ones has.
        if found and uses_dkms(ctx):
            yield from _enrolled(ctx, f"{found}, which signed the module on disk", str(found))


def _built_for(ctx: Context, release: str, expected: str, *, needed: bool) -> Check:
    """Judge one kernel: dpkg is content when a DKMS build failed, DKMS itself is not.

    The running and the newest kernel need a module; an older one is only what somebody could pick
    in the boot menu, so it is a warning.
    """
    done = re.compile(
        rf"nvidia[\w-]*[/,] ?{re.escape(expected)}, {re.escape(release)}, [^:]*: installed"
    )
    lines = [line for line in map(str, ctx.seen("driver.dkms", [])) if release in line]
    prebuilt = sorted(
        name
        for name in ctx.seen("packages", {})
        if name.startswith(PREBUILT) and name.endswith(release) and ctx.installed_version(name)
    )
    built = bool(prebuilt) or any(done.match(line) for line in lines)
    if not built and not needed:
        return ctx.warn(
            f"nvidia_driver.module_built.{release}",
            ran="dkms status",
            found=f"no module for the older kernel {release}",
            expected="a module for every kernel of the boot menu",
            fix=f"apt purge linux-image-{release}, or install linux-headers-{release}",
        )
    return ctx.judge(
        f"nvidia_driver.module_built.{release}",
        ok=built,
        ran="dkms status",
        found="; ".join(lines + prebuilt) or f"no module for kernel {release}",
        expected=f"nvidia {expected} installed for kernel {release}",
        fix=f"do not reboot into {release}: read /var/lib/dkms/nvidia/{expected}/build/make.log, "
        f"install linux-headers-{release}, then run dkms autoinstall -k {release}",
    )


def _blacklist(ctx: Context) -> Iterator[Check]:
    left_out = [name for name in RIVALS if name not in ctx.seen("nouveau.rivals_blacklisted", [])]
    missing = ctx.seen("nouveau.in_initramfs") is False
    found = "blacklisted"
    if left_out:
        found = f"not blacklisted: {', '.join(left_out)}"
    elif missing:
        found = "a blacklist that the initramfs lacks"
    yield ctx.judge(
        "nvidia_driver.blacklist",
        ok=not left_out and not missing,
        ran="grep -r blacklist /etc/modprobe.d; lsinitramfs /boot/initrd.img-$(uname -r)",
        found=found,
        expected="nouveau and nova blacklisted in /etc/modprobe.d and in the initramfs",
        fix="rerun the nvidia_driver role on this host; it rebuilds the initramfs",
    )


def _in_tree_drivers(ctx: Context) -> Iterator[Check]:
    loaded = [str(name) for name in ctx.seen("nouveau.rivals_loaded", [])]
    yield ctx.judge(
        "nvidia_driver.nouveau",
        ok=not loaded,
        ran="lsmod | grep -E 'nouveau|nova'",
        found=f"loaded: {', '.join(loaded)}" if loaded else "neither loaded",
        expected="nouveau and nova not loaded",
        fix="the blacklist takes effect at boot: rerun with railweld_reboot: allow, or run "
        "`systemctl reboot` on this host and rerun",
    )


def _gpus(ctx: Context) -> Iterator[Check]:
    seen: list[Mapping[str, Any]] = list(ctx.seen("gpus", []))
    yield ctx.judge(
        "nvidia_driver.gpu_count",
        ok=len(seen) == int(ctx.wanted("gpu.count")),
        ran="nvidia-smi -L",
        found=f"{len(seen)} GPUs answer",
        expected=f"{ctx.wanted('gpu.count')} GPUs (railweld_gpu_count)",
        fix="`dmesg | grep -iE 'nvrm|xid'` names the GPU that fell off; power-cycle the node",
    )
    if not seen:
        return
    models = sorted({str(gpu.get("name", "")).removeprefix("NVIDIA ") for gpu in seen})
    yield ctx.judge(
        "nvidia_driver.gpu_model",
        ok=models == [ctx.wanted("gpu.model")],
        ran="nvidia-smi --query-gpu=name --format=csv,noheader",
        found=", ".join(models),
        expected=f"{ctx.wanted('gpu.model')} (railweld_gpu_model)",
        fix="correct railweld_gpu_model, or move the node to the group that it belongs to",
    )
    for mode in _MODE_QUERY:
        yield from _mode(ctx, mode, seen)
    active = bool(ctx.seen("driver.persistence_unit"))
    yield ctx.judge(
        "nvidia_driver.persistenced",
        ok=active,
        ran="systemctl is-active nvidia-persistenced",
        found="active" if active else "not active",
        expected="nvidia-persistenced active",
        fix="journalctl -u nvidia-persistenced",
    )


def _mode(ctx: Context, mode: str, seen: list[Mapping[str, Any]]) -> Iterator[Check]:
    """One mode as described on every GPU. A GPU that has no such mode counts as off."""
    wanted = ctx.wanted(f"gpu.{mode}")
    if wanted is None:
        return
    wrong = [str(gpu.get("index")) for gpu in seen if is_on(gpu.get(mode)) is not bool(wanted)]
    word = "on" if wanted else "off"
    yield ctx.judge(
        f"nvidia_driver.{mode}",
        ok=not wrong,
        ran=f"nvidia-smi --query-gpu=index,{_MODE_QUERY[mode]} --format=csv",
        found=f"not {word} on GPU {', '.join(wrong)}" if wrong else f"{word} on all GPUs",
        expected=f"{mode} {word} on every GPU (railweld_gpu_{mode})",
        fix="rerun the nvidia_driver role on this host; changes of ECC and MIG take effect with a "
        "GPU reset or a reboot",
    )


def is_on(value: object) -> bool:
    """Read a mode as the probe or nvidia-smi spells it."""
    if isinstance(value, bool):
        return value
    return str(value).strip().lower() in ("enabled", "on", "1", "true")
