"""Rails: one address, one routing table and one set of ARP rules per RDMA port."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.record import Check, judge
from railweld.verify.context import Context

ROLE: Final = "rail_network"

#: Rail N routes through table BASE + N; the rule that selects it has the same number offset.
TABLE_BASE: Final = 200
RULE_PRIORITY_BASE: Final = 1000

#: Answer ARP only for addresses of the port that was asked, announce only its own, and accept
#: replies that take another rail's way back (loose reverse path).
SYSCTLS: Final[Mapping[str, int]] = {"arp_announce": 2, "arp_ignore": 1, "rp_filter": 2}

#: Tools that can own an interface, in the order in which a node that has them is believed.
BACKENDS: Final = ("netplan", "networkd", "ifupdown")

_REF: Final = "docs/base.md"


def rails(host: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rails with an IP address, with what the templates need; InfiniBand rails have none."""
    found = []
    for hca in host.get("hcas") or []:
        if not hca.get("address"):
            continue
        interface = ipaddress.ip_interface(hca["address"])
        rail = int(hca["rail"])
        found.append(
            {
                "rail": rail,
                "netdev": hca["netdev"],
                "hca": hca["name"],
                "address": str(interface),
                "ip": str(interface.ip),
                "subnet": str(interface.network),
                "gateway": hca.get("gateway"),
                "table": TABLE_BASE + rail,
                "priority": RULE_PRIORITY_BASE + rail,
            }
        )
    return sorted(found, key=lambda rail: rail["rail"])


def backend(node: Mapping[str, Any]) -> str:
    """Which tool keeps addresses on this node.

    Netplan wins where it is installed, because it regenerates what the others would read. An
    installed ifupdown counts only while its boot unit is enabled. A node with neither gets
    systemd-networkd, which ships with systemd and touches only the ports that a file names.
    """
    tools = (node.get("net") or {}).get("tools") or {}
    if tools.get("netplan"):
        return "netplan"
    if tools.get("networkd_enabled"):
        return "networkd"
    if tools.get("ifupdown") and tools.get("ifupdown_enabled"):
        return "ifupdown"
    return "networkd"


def files(rails: list[dict[str, Any]], backend: str) -> list[str]:
    """Files that describe the rails to a backend."""
    if backend == "networkd":
        return [f"/etc/systemd/network/05-railweld-{rail['netdev']}.network" for rail in rails] + [
            "/etc/systemd/networkd.conf.d/90-railweld.conf"
        ]
    if backend == "netplan":
        return [
            "/etc/netplan/60-railweld-rails.yaml",
            "/etc/systemd/networkd.conf.d/90-railweld.conf",
        ]
    return ["/etc/network/interfaces.d/railweld-rails"]


def _device(ctx: Context, netdev: str) -> Mapping[str, Any] | None:
    device = (ctx.node.get("net") or {}).get(netdev)
    return device if isinstance(device, Mapping) else None


def _devices(ctx: Context) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Network devices of the observation; its other keys are not devices."""
    for name, device in (ctx.node.get("net") or {}).items():
        if isinstance(device, Mapping) and "mtu" in device:
            yield name, device


def _ips(device: Mapping[str, Any]) -> set[str]:
    return {str(address).partition("/")[0] for address in device.get("addresses") or []}


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse to touch the management interface, and rails that the node does not have."""
    target = str(ctx.host["name"])
    wanted = rails(ctx.host)
    net = ctx.node.get("net") or {}
    default = {
        str(name)
        for name in [net.get("default_route_dev"), *(net.get("default_route_devs") or [])]
        if name
    }
    management = str(ctx.host.get("address") or "")
    for rail in wanted:
        netdev = rail["netdev"]
        port = f"{target}/{netdev}"
        device = _device(ctx, netdev)
        yield judge(
            id="rail_network.device_present",
            target=port,
            ok=device is not None,
            ran="ip -brief link",
            found=", ".join(sorted(name for name, _ in _devices(ctx))) or "no device",
            expected=netdev,
            fix=f"correct netdev of rail {rail['rail']} in railweld_rails (names are those of "
            "`ip link`), or find out why the card is missing",
            ref=_REF,
        )
        yield judge(
            id="rail_network.not_default_route",
            target=port,
            ok=netdev not in default,
            ran="ip route show default",
            found=f"the default route leaves by {netdev}"
            if netdev in default
            else f"the default route leaves by {', '.join(sorted(default)) or 'no device'}",
            expected="a rail without the default route",
            fix="move the default route to the management interface; railweld never reconfigures "
            "the device that carries it",
            ref=_REF,
        )
        if device is None:
            continue
        yield judge(
            id="rail_network.not_management",
            target=port,
            ok=management not in _ips(device),
            ran=f"ip -brief address show {netdev}",
            found=f"{', '.join(device.get('addresses') or []) or 'no address'}",
            expected=f"not the management address {management}",
            fix="correct netdev in railweld_rails: this port carries the address that Ansible uses",
            ref=_REF,
        )
        master = device.get("master")
        yield judge(
            id="rail_network.not_enslaved",
            target=port,
            ok=not master,
            ran=f"ip -d link show {netdev}",
            found=f"member of {master}" if master else "no master",
            expected="a port of its own: RDMA rails are not bonded or bridged",
            fix=f"take {netdev} out of {master}",
            ref=_REF,
        )
        elsewhere = sorted(
            name for name, other in _devices(ctx) if name != netdev and rail["ip"] in _ips(other)
        )
        yield judge(
            id="rail_network.address_free",
            target=port,
            ok=not elsewhere,
            ran="ip -brief address",
            found=f"{rail['ip']} on {', '.join(elsewhere)}" if elsewhere else "on no other device",
            expected=f"{rail['ip']} on {netdev} only",
            fix=f"remove it from {', '.join(elsewhere)}, or correct the netdev of the rail",
            ref=_REF,
        )
    yield from _guard_subnets(target, wanted, management)
    yield from _guard_backend(ctx, target, wanted)


def _guard_subnets(target: str, wanted: list[dict[str, Any]], management: str) -> Iterator[Check]:
    try:
        address = ipaddress.ip_address(management)
    except ValueError:
        return
    inside = [rail["subnet"] for rail in wanted if address in ipaddress.ip_network(rail["subnet"])]
    if not wanted:
        return
    yield judge(
        id="rail_network.management_outside_rails",
        target=target,
        ok=not inside,
        ran="railweld check",
        found=f"management address {management} in rail subnet {', '.join(inside)}"
        if inside
        else f"management address {management} in no rail subnet",
        expected="rails and management in different subnets",
        fix="give the rail another subnet: a rule for it would capture management traffic",
        ref=_REF,
    )


def _guard_backend(ctx: Context, target: str, wanted: list[dict[str, Any]]) -> Iterator[Check]:
    tools = (ctx.node.get("net") or {}).get("tools") or {}
    if not wanted:
        return
    used = backend(ctx.node)
    if used == "networkd" and not tools.get("networkd_enabled"):
        waiting = list(tools.get("networkd_files") or [])
        yield judge(
            id="rail_network.networkd_unused",
            target=target,
            ok=not waiting,
            ran="ls /etc/systemd/network /run/systemd/network",
            found=f"networkd off, with files for it: {', '.join(waiting)}"
            if waiting
            else "networkd off, no files for it",
            expected="no files of others, which starting networkd for the rails would apply too",
            fix="remove those files if they are remains, or enable networkd yourself if they are "
            "meant",
            ref=_REF,
        )
    if used != "ifupdown":
        return
    yield judge(
        id="rail_network.ifupdown_sources_directory",
        target=target,
        ok=bool(tools.get("ifupdown_sources")),
        ran="grep -n source /etc/network/interfaces",
        found="a source line for interfaces.d"
        if tools.get("ifupdown_sources")
        else "no source line for interfaces.d",
        expected="source /etc/network/interfaces.d/*",
        fix="add that line to /etc/network/interfaces; railweld does not edit that file",
        ref=_REF,
    )


def checks(ctx: Context) -> Iterator[Check]:
    """Addresses, MTU, routes, rules and ARP settings of every rail, read back from the kernel."""
    target = str(ctx.host["name"])
    for rail in rails(ctx.host):
        yield from _check_rail(ctx, target, rail)


def _check_rail(ctx: Context, target: str, rail: Mapping[str, Any]) -> Iterator[Check]:
    netdev = rail["netdev"]
    port = f"{target}/{netdev}"
    device = _device(ctx, netdev) or {}
    net = ctx.node.get("net") or {}
    fix = "run the rail_network role"
    ipv4 = [str(item) for item in device.get("addresses") or [] if ":" not in str(item)]
    yield judge(
        id="rail_network.address",
        target=port,
        ok=ipv4 == [rail["address"]],
        ran=f"ip -4 -brief address show {netdev}",
        found=", ".join(ipv4) or "no address",
        expected=rail["address"],
        fix=f"{fix}; a second address comes from another tool (networkctl status {netdev})",
        ref=_REF,
    )
    yield judge(
        id="rail_network.mtu",
        target=port,
        ok=device.get("mtu") == ctx.site["host_mtu"],
        ran=f"ip link show {netdev}",
        found=device.get("mtu"),
        expected=ctx.site["host_mtu"],
        fix=fix,
        ref=_REF,
    )
    table = rail["table"]
    routes = [route for route in net.get("routes") or [] if str(route.get("table")) == str(table)]
    wanted = [{"dst": rail["subnet"], "dev": netdev, "gateway": None}]
    if rail["gateway"]:
        wanted.append({"dst": "default", "dev": netdev, "gateway": rail["gateway"]})
    missing = [route for route in wanted if not any(_same_route(route, seen) for seen in routes)]
    yield judge(
        id="rail_network.routes",
        target=port,
        ok=not missing,
        ran=f"ip route show table {table}",
        found="; ".join(_route_text(route) for route in routes) or "empty table",
        expected="; ".join(_route_text(route) for route in wanted),
        fix=fix,
        ref=_REF,
    )
    rules = net.get("rules") or []
    matching = [
        rule
        for rule in rules
        if rule.get("src") == rail["ip"] and str(rule.get("table")) == str(table)
    ]
    yield judge(
        id="rail_network.rule",
        target=port,
        ok=bool(matching),
        ran="ip rule show",
        found=f"{len(matching)} rules from {rail['ip']} to table {table}",
        expected=f"from {rail['ip']} lookup {table}",
        fix=f"{fix}; networkd removes rules of others unless ManageForeignRoutingPolicyRules=no",
        ref=_REF,
    )
    sysctls = device.get("sysctls") or {}
    for key, value in SYSCTLS.items():
        yield judge(
            id=f"rail_network.{key}",
            target=port,
            ok=sysctls.get(key) == value,
            ran=f"cat /proc/sys/net/ipv4/conf/{netdev}/{key}",
            found=sysctls.get(key),
            expected=value,
            fix=f"{fix}; another file in /etc/sysctl.d may sort later",
            ref=_REF,
        )


def _same_route(wanted: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    return all((seen.get(key) or None) == wanted[key] for key in ("dst", "dev", "gateway"))


def _route_text(route: Mapping[str, Any]) -> str:
    via = f" via {route['gateway']}" if route.get("gateway") else ""
    return f"{route.get('dst')}{via} dev {route.get('dev')}"
