"""Network interfaces of the rails: real ones, wired to the rails of all other nodes.

Each rail is one end of a veth pair. The other end, `lab-RAIL`, stands for the switch port: it is a
port of the bridge `lab-switch`, which has the lab's fabric network (`lab-fabric`) as uplink. Taking
`lab-RAIL` down takes the carrier from the rail, like pulling its cable.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from railweld.lab.node import state

FABRIC_MTU = 9216
BRIDGE = "lab-switch"
UPLINK = "lab-fabric"
STANDARD_RULES = {0, 32766, 32767}


def ip(*arguments: str, check: bool = False) -> str:
    """Run `ip` and return what it printed."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)
    return done.stdout


def exists(name: str) -> bool:
    """True if the node has this network interface."""
    return state.path(f"/sys/class/net/{name}").exists()


def reset_network() -> None:
    """Forget what a power cycle forgets: the network namespace outlives a container's restart."""
    for hca in state.profile().get("hcas", []):
        if exists(hca["netdev"]):
            ip("link", "delete", hca["netdev"])
    for line in ip("rule", "show").splitlines():
        preference = line.partition(":")[0]
        if preference.isdigit() and int(preference) not in STANDARD_RULES:
            ip("rule", "delete", "preference", preference)
    for scope in ("all", "default"):
        for key in ("arp_ignore", "arp_announce", "rp_filter"):
            setting = state.path(f"/proc/sys/net/ipv4/conf/{scope}/{key}")
            if setting.exists():
                setting.write_text("0\n")


def build(hcas: Sequence[dict[str, Any]]) -> None:
    """Make the rails that are missing, with the adapter's MAC address, up, and the default MTU."""
    if not exists(UPLINK):
        return
    if not exists(BRIDGE):
        ip("link", "add", BRIDGE, "mtu", str(FABRIC_MTU), "type", "bridge")
    # No addresses on the switch side: it is no part of the node.
    for name in (BRIDGE, UPLINK):
        _no_addresses(name)
    ip("link", "set", UPLINK, "master", BRIDGE, "mtu", str(FABRIC_MTU), "up")
    ip("link", "set", BRIDGE, "up")
    for hca in hcas:
        rail, port = hca["netdev"], f"lab-{hca['netdev']}"
        if exists(rail):
            continue
        mtu = str(FABRIC_MTU)
        ip("link", "add", rail, "mtu", mtu, "address", hca["mac"], "type", "veth",
           "peer", "name", port, "mtu", mtu)  # fmt: skip
        _no_addresses(port)
        ip("link", "set", port, "master", BRIDGE)
        ip("link", "set", port, "up" if hca["is_up"] else "down")
        ip("link", "set", rail, "mtu", "1500", "up")


def default_route(gateway: str) -> None:
    """The management network's default route, which leads to a node of the lab and ends there."""
    if gateway:
        ip("route", "replace", "default", "via", gateway, "dev", "eth0")


def _no_addresses(name: str) -> None:
    setting = state.path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if setting.exists():
        setting.write_text("1\n")
