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
    silent, crowded = [], []
    for hca in ctx.host.get("hcas") or []:
        netdev = hca["netdev"]
        if not hca.get("switch") or not netdev:
            continue
        heard = neighbours.get(netdev) or []
        if not heard:
            silent.append(netdev)
            continue
        described = [seen for seen in heard if _is_described(seen, hca)]
        names = " and ".join(f"{seen.get('chassis')} {seen.get('port')}" for seen in heard)
        if described and len(heard) > 1:
            crowded.append(f"{names} on {netdev}")
        yield judge(
            id="lldp.cabling",
            layer="link",
            target=f"{target}/{netdev}",
            ok=bool(described),
            ran=f"lldpcli show neighbors ports {netdev}",
            found=names,
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
    if crowded:
        yield ctx.warn(
            "lldp.neighbours",
            layer="link",
            ran="lldpcli show neighbors",
            found="; ".join(crowded),
            expected="one neighbour on every rail",
            fix="look again once the entry of a moved cable has lapsed (its TTL, mostly 120 s); "
            "where both stay, a device between the rail and the switch lets LLDP through",
        )


def _is_described(seen: Mapping[str, Any], hca: Mapping[str, Any]) -> bool:
    """The neighbour is the described switch and, where one is described, port."""
    described = _same_switch(seen.get("chassis"), hca["switch"])
    return described and (not hca.get("port") or seen.get("port") == hca["port"])


def _same_switch(seen: Any, wanted: str) -> bool:
    """Switches announce their host name with or without the domain."""
    return str(seen or "").partition(".")[0].lower() == wanted.partition(".")[0].lower()
