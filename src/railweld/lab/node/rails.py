"""Network interfaces of the rails: real ones, wired to the rails of all other nodes.

Each rail is one end of a veth pair. The other end, `lab-RAIL`, stands for the switch port: it is a
port of the bridge `lab-switch`, which has the lab's fabric network (`lab-fabric`) as uplink. Taking
`lab-RAIL` down takes the carrier from the rail, like pulling its cable.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from railweld.lab.node import hardware, state

FABRIC_MTU = 9216
BRIDGE = "lab-switch"
UPLINK = "lab-fabric"
STANDARD_RULES = {0, 32766, 32767}


def ip(*arguments: str) -> str:
    """Run `ip` and return what it printed."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False).stdout


def batch(lines: Sequence[str]) -> None:
    """Run many `ip` commands in one process; one that fails does not stop the others."""
    if lines:
        text = "".join(f"{line}\n" for line in lines)
        subprocess.run(["ip", "-force", "-batch", "-"], input=text, text=True, check=False)


def exists(name: str) -> bool:
    """True if the node has this network interface."""
    return state.path(f"/sys/class/net/{name}").exists()


def reset_network() -> None:
    """Forget what a power cycle forgets: the network namespace outlives a container's restart."""
    rails = [hca["netdev"] for hca in state.profile().get("hcas", [])]
    lines = [f"link delete {name}" for name in rails if exists(name)]
    for line in ip("rule", "show").splitlines():
        preference = line.partition(":")[0]
        if preference.isdecimal() and int(preference) not in STANDARD_RULES:
            lines.append(f"rule delete preference {preference}")
    batch(lines)
    for table in ("filter", "nat"):
        subprocess.run(["iptables", "-w", "-t", table, "-F"], check=False)
    for scope in ("all", "default"):
        for key in ("arp_ignore", "arp_announce", "rp_filter"):
            setting = state.path(f"/proc/sys/net/ipv4/conf/{scope}/{key}")
            if setting.exists():
                setting.write_text("0\n")


def build(hcas: Sequence[dict[str, Any]]) -> None:
    """Make the rails that are missing, with the adapter's MAC address, up, and the default MTU."""
    if not exists(UPLINK):
        return
    missing = [hca for hca in hcas if not exists(hca["netdev"])]
    lines = [] if exists(BRIDGE) else [f"link add {BRIDGE} mtu {FABRIC_MTU} type bridge"]
    lines += [
        f"link add {hca['netdev']} mtu {FABRIC_MTU} address {hca['mac']} type veth "
        f"peer name {port_of(hca)} mtu {FABRIC_MTU}"
        for hca in missing
    ]
    batch(lines)
    # No addresses on the switch side: it is no part of the node.
    for name in (BRIDGE, UPLINK, *map(port_of, missing)):
        setting = state.path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if setting.exists():
            setting.write_text("1\n")
    lines = [f"link set {UPLINK} master {BRIDGE} mtu {FABRIC_MTU} up", f"link set {BRIDGE} up"]
    for hca in missing:
        lines.append(f"link set {port_of(hca)} master {BRIDGE}")
        lines.append(f"link set {hca['netdev']} mtu 1500 up")
    batch(lines)
    set_cables()
    for hca in missing:
        hardware.dress_netdev(hca, state.loaded_modules())


def remove() -> None:
    """What unloading the adapter's driver does."""
    batch([f"link delete {hca['netdev']}" for hca in state.hcas() if exists(hca["netdev"])])
    hardware.remove_tree(state.run_dir() / "net")


def port_of(hca: dict[str, Any]) -> str:
    """The switch port's end of a rail."""
    return f"lab-{hca['netdev']}"


def set_cables() -> None:
    """Give every rail its carrier, or take it away where a fault says so."""
    batch(
        [
            f"link set {port_of(hca)} {'up' if hca['is_up'] else 'down'}"
            for hca in state.hcas()
            if exists(port_of(hca))
        ]
    )


def default_route(gateway: str) -> None:
    """The management network's default route, which leads to a node of the lab and ends there."""
    if gateway:
        ip("route", "replace", "default", "via", gateway, "dev", "eth0")
