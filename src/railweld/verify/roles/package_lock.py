"""Nothing moves on its own: families on hold, automatic updates off, dpkg in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.base.families import host_components
from railweld.record import Check
from railweld.verify.context import Context, unheld

ROLE: Final = "package_lock"
_AGAIN: Final = "run playbooks/deploy-base.yml, or the package_lock role alone, on this host"
#: apt's own switches, and what they have to be while railweld holds the node.
_PERIODIC: Final = ("Update-Package-Lists", "Unattended-Upgrade")


def guard(ctx: Context) -> Iterator[Check]:
    """The node has to be one whose packages apt manages."""
    distribution = ctx.seen("os.id")
    yield ctx.judge(
        "package_lock.distribution",
        ok=distribution in ("debian", "ubuntu"),
        ran="cat /etc/os-release",
        found=distribution,
        expected="debian or ubuntu",
        fix="install a supported distribution on this host, or take it out of the inventory",
    )


def checks(ctx: Context) -> Iterator[Check]:
    """Holds, dpkg and automatic updates."""
    yield dpkg_in_order(ctx)
    yield from _holds(ctx)
    if ctx.setting("patching", "held") == "held":
        yield from _updates_off(ctx)
    else:
        yield from _updates_on(ctx)


def dpkg_in_order(ctx: Context) -> Check:
    """No package half installed, no dpkg killed in the middle."""
    broken = ctx.seen("dpkg.audit", [])
    interrupted = bool(ctx.seen("dpkg.interrupted", False))
    found = f"half installed: {', '.join(broken)}" if broken else "every package configured"
    if interrupted:
        found += "; dpkg was interrupted"
    return ctx.judge(
        "package_lock.dpkg",
        ok=not broken and not interrupted,
        ran="dpkg --audit",
        found=found,
        expected="every package configured",
        fix=f"{_AGAIN}: it runs `dpkg --configure -a`",
    )


def _holds(ctx: Context) -> Iterator[Check]:
    components = host_components(ctx.site, ctx.host)
    loose = sorted({name for component in components for name in unheld(ctx, component)})
    yield ctx.judge(
        "package_lock.holds",
        ok=not loose,
        ran="apt-mark showhold",
        found=f"not held: {', '.join(loose)}" if loose else "all held",
        expected="every installed package of a GPU family on hold",
        fix=_AGAIN,
    )


def _updates_off(ctx: Context) -> Iterator[Check]:
    for unit, state in sorted((ctx.seen("apt.units", {})).items()):
        if state is None:
            continue
        stopped = state.get("active") in ("inactive", "failed")
        yield ctx.judge(
            f"package_lock.unit.{unit}",
            ok=state.get("enabled") == "masked" and stopped,
            ran=f"systemctl status {unit}",
            found=f"{state.get('enabled') or state.get('load')}, {state.get('active')}",
            expected="masked, inactive",
            fix=_AGAIN,
        )
    periodic = ctx.seen("apt.periodic", {})
    for key in _PERIODIC:
        yield ctx.judge(
            f"package_lock.periodic.{key}",
            ok=periodic.get(key) == "0",
            ran="apt-config dump APT::Periodic",
            found=f"APT::Periodic::{key} {periodic.get(key, 'unset')}",
            expected=f"APT::Periodic::{key} 0",
            fix=_AGAIN,
        )


def _updates_on(ctx: Context) -> Iterator[Check]:
    for unit, state in sorted((ctx.seen("apt.units", {})).items()):
        if state is None:
            continue
        yield ctx.judge(
            f"package_lock.unit.{unit}",
            ok=state.get("enabled") != "masked",
            ran=f"systemctl status {unit}",
            found=state.get("enabled"),
            expected="not masked (railweld_patching: restored)",
            fix=_AGAIN,
        )
