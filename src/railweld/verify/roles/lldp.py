"""LLDP: one agent per port (the host's), and the cabling that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.record import Check, judge
from railweld.verify.context import Context

ROLE: Final = "lldp"

_REF: Final = "docs/base.md"


def guard(_: Context) -> Iterator[Check]:
    """LLDP needs nothing of the roles before it."""
    yield from ()


def checks(ctx: Context) -> Iterator[Check]:
    """The daemon runs, no firmware agent answers in its place, ports lead where described."""
    target = str(ctx.host["name"])
    lldp = ctx.node.get("lldp") or {}
    yield judge(
        id="lldp.daemon",
        target=target,
        ok=lldp.get("active") is True,
        ran="systemctl is-active lldpd",
        found="active" if lldp.get("active") else "not active",
        expected="active",
        fix="run the lldp role; journalctl -u lldpd says why it stopped",
        ref=_REF,
    )
    agents = lldp.get("firmware_agents") or {}
    for netdev, state in sorted(agents.items()):
        yield judge(
            id="lldp.firmware_agent",
            target=f"{target}/{netdev}",
            ok=state != "on",
            ran=f"ethtool --show-priv-flags {netdev}",
            found=f"firmware LLDP agent {state}",
            expected="off: it swallows the frames that lldpd should see",
            fix="systemctl restart railweld-nic-lldp",
            ref=_REF,
        )
    if lldp.get("active"):
        yield from _check_cabling(ctx, target, lldp)


def _check_cabling(ctx: Context, target: str, lldp: Mapping[str, Any]) -> Iterator[Check]:
    """Compare neighbours with the description. Silence is a warning: a switch may be new."""
    neighbours = lldp.get("neighbours") or {}
    silent = []
    for hca in ctx.host.get("hcas") or []:
        netdev = hca["netdev"]
        seen = neighbours.get(netdev)
        if not hca.get("switch") or not netdev:
            continue
        if not seen:
            silent.append(netdev)
            continue
        yield judge(
            id="lldp.cabling",
            layer="link",
            target=f"{target}/{netdev}",
            ok=_same_switch(seen.get("chassis"), hca["switch"])
            and (not hca.get("port") or seen.get("port") == hca["port"]),
            ran=f"lldpcli show neighbors ports {netdev}",
            found=f"{seen.get('chassis')} {seen.get('port')}",
            expected=f"{hca['switch']} {hca.get('port') or ''}".strip(),
            fix="move the cable, or correct switch and port of this rail in railweld_rails",
            ref=_REF,
        )
    if silent:
        yield ctx.warn(
            "lldp.neighbours",
            layer="link",
            ran="lldpcli show neighbors",
            found=f"no neighbour on {', '.join(silent)}",
            expected="the switch at the other end of every rail",
            fix="switch LLDP on at the switch ports (the fabric stage does), or wait one interval "
            "after link-up",
        )


def _same_switch(seen: Any, wanted: str) -> bool:
    """Switches announce their host name with or without the domain."""
    return str(seen or "").partition(".")[0].lower() == wanted.partition(".")[0].lower()
