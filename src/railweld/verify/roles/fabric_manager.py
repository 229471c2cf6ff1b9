"""Fabric manager: exactly the driver's version where NVSwitches are, nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context, packages_as_pinned
from railweld.verify.roles import nvidia_driver

ROLE: Final = "fabric_manager"

#: GPUs of the fifth NVLink generation: their switches are reached through an InfiniBand port,
#: do not show on the host's PCI bus as NVSwitches and need the subnet manager nvlsm.
NVLINK5_MODELS: Final = frozenset({"B100", "B200", "B300", "GB200", "GB300"})
NVLINK5_MODULES: Final = ("mlx5_ib", "ib_umad")

#: GPUs that join NVLink without reporting a fabric state of their own.
NO_FABRIC_STATE: Final = ("V100", "A100", "A800")

#: How the package is spelled by NVIDIA's and the distributions' repositories.
MANAGER_PACKAGES: Final = (
    "cuda-drivers-fabricmanager",
    "nvidia-fabric-manager",
    "nvidia-fabricmanager",
)


def is_nvlink5(ctx: Context) -> bool:
    """True for GPUs whose switches hide behind an InfiniBand device."""
    words = str(ctx.wanted("gpu.model", "")).replace("-", " ").split()
    return not NVLINK5_MODELS.isdisjoint(words)


def is_wanted(ctx: Context) -> bool:
    """True where the hardware has switches to manage."""
    return ctx.has_nvswitch or is_nvlink5(ctx)


def strays(ctx: Context) -> dict[str, str]:
    """Installed fabric manager packages that this host should not have."""
    wanted = {name for name, _ in ctx.pins("fabric_manager")} if is_wanted(ctx) else set()
    return {
        name: str(item.get("version"))
        for name, item in ctx.seen("packages", {}).items()
        if name.startswith((*MANAGER_PACKAGES, "libnvidia-nscq"))
        and name not in wanted
        and str(item.get("status", ""))[1:2] not in "nc"
    }


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse a driver that is not the described one, and switches that nothing could manage."""
    if ctx.seen("pci.nvswitches") is None:
        yield ctx.could_not_look(
            "fabric_manager.nvswitches",
            ran="lspci -d 10de:",
            found="no observation of the PCI bus",
            expected="a count of NVSwitches",
            fix="run `lspci -d 10de:` on this host and repair what it complains about",
        )
        return
    if not is_wanted(ctx):
        return
    yield from nvidia_driver.running(ctx)
    version = str(ctx.wanted("driver.version"))
    managers = [(n, v) for n, v in ctx.pins("fabric_manager") if n.startswith(MANAGER_PACKAGES)]
    yield ctx.judge(
        "fabric_manager.pin",
        ok=bool(managers) and all(_upstream(v) == version for _, v in managers),
        ran="railweld check",
        found=", ".join(f"{name}={pin}" for name, pin in managers) or "no package pinned",
        expected=f"a fabric manager package of exactly {version}",
        fix="choose a version set whose fabric_manager equals its driver, and do not override one "
        "without the other",
    )
    if is_nvlink5(ctx):
        yield from _nvlink5(ctx)


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable."""
    extra = strays(ctx)
    yield ctx.judge(
        "fabric_manager.only_where_needed",
        ok=not extra,
        ran="dpkg-query -W '*fabric*manager*'; lspci -d 10de:",
        found=", ".join(f"{name} {version}" for name, version in sorted(extra.items()))
        or "no other fabric manager",
        expected="one fabric manager, of the driver's version"
        if is_wanted(ctx)
        else "no fabric manager on a host without NVSwitch",
        fix="rerun the fabric_manager role on this host; it removes what does not belong here",
    )
    if is_wanted(ctx):
        yield from packages_as_pinned(ctx, "fabric_manager", role=ROLE)
        yield from ready(ctx)


def ready(ctx: Context) -> Iterator[Check]:
    """NVLink is up: what CUDA asks for, because without it every CUDA call ends with error 802."""
    if not is_wanted(ctx):
        return
    loaded = ctx.seen("driver.loaded")
    version = ctx.seen("fabric_manager.version")
    yield ctx.judge(
        "fabric_manager.version",
        ok=bool(version) and version == loaded,
        ran="nv-fabricmanager --version; cat /sys/module/nvidia/version",
        found=f"fabric manager {version or 'absent'}, driver {loaded or 'not loaded'}",
        expected="fabric manager and loaded driver of one version",
        fix="rerun playbooks/deploy-base.yml on this host; CUDA fails with error 802 while the "
        "two differ",
    )
    active = bool(ctx.seen("fabric_manager.active"))
    yield ctx.judge(
        "fabric_manager.service",
        ok=active,
        ran="systemctl is-active nvidia-fabricmanager",
        found="active" if active else "not active",
        expected="active",
        fix="`journalctl -u nvidia-fabricmanager` and /var/log/fabricmanager.log",
    )
    yield from _fabric_state(ctx)


def _upstream(pin: str) -> str:
    """Version without epoch and revision: `515.86.01-1` is 515.86.01."""
    return pin.rpartition(":")[2].split("-", 1)[0]


def _nvlink5(ctx: Context) -> Iterator[Check]:
    names = [name for name, _ in ctx.pins("fabric_manager")]
    yield ctx.judge(
        "fabric_manager.nvlsm",
        ok="nvlsm" in names,
        ran="railweld check",
        found=", ".join(names) or "no package pinned",
        expected="nvlsm beside the fabric manager on GPUs of the fifth NVLink generation",
        fix="use a version set that pins nvlsm for this vendor repository",
    )
    missing = sorted(set(NVLINK5_MODULES) - set(ctx.seen("modules", [])))
    yield ctx.judge(
        "fabric_manager.management_modules",
        ok=not missing,
        ran=f"lsmod | grep -E '{'|'.join(NVLINK5_MODULES)}'",
        found=f"not loaded: {', '.join(missing)}" if missing else "loaded",
        expected=", ".join(NVLINK5_MODULES),
        fix="install linux-modules-extra for the running kernel, then modprobe "
        + " ".join(NVLINK5_MODULES),
    )


def _fabric_state(ctx: Context) -> Iterator[Check]:
    state = str(ctx.seen("fabric_manager.fabric_state", "")).strip()
    lowered = state.lower()
    silent = lowered in ("", "n/a", "[n/a]", "not supported")
    if silent and str(ctx.wanted("gpu.model", "")).startswith(NO_FABRIC_STATE):
        return
    ok = lowered.startswith("completed") and ("/" not in lowered or "success" in lowered)
    yield ctx.judge(
        "fabric_manager.fabric_state",
        ok=ok,
        ran="nvidia-smi -q | grep -A2 -w Fabric",
        found=state or "no fabric state",
        expected="Completed/Success",
        fix="a state that stays In Progress means that the fabric manager does not reach the "
        "switches: `journalctl -u nvidia-fabricmanager`",
    )
