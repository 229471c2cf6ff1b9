"""Everything about a description that is refused or explained.

One function per subject; each reports all it sees and none stops another. A function must cope
with half a description, since what did not validate is simply absent.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from railweld import names
from railweld.errors import RailweldError
from railweld.site.build import (
    KNOWN_GROUPS,
    PREFIX,
    REFERENCE,
    Description,
    near,
    network,
    partition_hosts,
    show,
)
from railweld.site.model import Hca, Host, Site
from railweld.site.problem import Severity
from railweld.site.variables import FABRIC_VARIABLES, Partition, SiteVariables
from railweld.versions import RuleResult

#: Where the NIC's and the switch's default map put a DSCP: its upper three bits.
_DSCP_PER_PRIORITY: Final = 8
#: Queue 1 is best effort on EOS, queue 7 the switch's own control traffic.
_TAKEN_QUEUES: Final = {1: "best effort", 7: "the switch's own control traffic"}
#: An RDMA MTU of 4096 plus RoCEv2 headers does not fit below this.
_ROCE_4096: Final = 4200
_DNS_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_LABEL_VALUE = 63
_SLURM_WORDS: Final = frozenset({"default", "localhost", "all", "none"})
_DATACENTER = re.compile(r"^(Tesla |A100|A30|A40|A10|A2\b|H\d|GH\d|B\d|GB\d|L4|L40|T4|V100|P100)")
_CONSUMER = re.compile(r"^(GeForce|TITAN)", re.IGNORECASE)
_LAST_PORT: Final = 65535
#: Prefix length of a node's own part of the pods' addresses: kube-controller-manager's default.
_PODS_OF_A_NODE: Final = 24
_VARIABLE = re.compile(r"railweld_[a-z0-9_]+")


def check(description: Description, site: Site | None) -> None:
    """Add every finding to the description."""
    subjects: tuple[Callable[[Description], None], ...] = (
        _groups,
        _host_names,
        _required,
        _one_value_per_site,
        _addresses,
        _rails,
        _cluster_networks,
        _link_layers,
        _switch_ports,
        _classes,
        _mtu,
        _partitions,
        _slurm,
        _mirrors,
        _paths,
    )
    for subject in subjects:
        subject(description)
    if site is not None:
        _rules(description, site)
        _fabric(description, site)


# --- hosts and groups --------------------------------------------------------------------------


def _groups(description: Description) -> None:
    raw = description.raw
    for group, hosts in raw.groups.items():
        guess = near(group, KNOWN_GROUPS)
        if group not in KNOWN_GROUPS and guess and hosts and _is_typo(group, guess):
            description.report(
                "group.unknown",
                host=hosts[0],
                key="groups",
                found=f"group {group}",
                expected=f"{guess}, if that is what it means",
                fix=f"did you mean {guess}?",
                file=raw.place_of_host(hosts[0]),
                severity="warning",
            )
    for name in description.names:
        groups = raw.hosts[name].groups
        for exclusive in names.EXCLUSIVE_GROUPS:
            both = [group for group in exclusive if group in groups]
            if len(both) > 1:
                description.report(
                    "group.exclusive",
                    host=name,
                    key="groups",
                    found=f"{name} in {' and '.join(both)}",
                    expected=f"at most one of {', '.join(exclusive)}",
                    fix=f"remove {name} from one of them",
                    file=raw.place_of_host(name),
                )
    outside = [name for name in raw.hosts if name not in set(description.names)]
    if outside:
        description.report(
            "group.none",
            hosts=outside,
            key="groups",
            found="hosts in no group that railweld knows",
            expected=f"one of {', '.join(KNOWN_GROUPS)}",
            fix="add them to a group, or ignore this if they are not railweld's",
            file=raw.place_of_host(outside[0]),
            severity="warning",
        )
    if not raw.groups.get(names.GROUP_GPU_NODES):
        description.report(
            "group.no_gpu_nodes",
            key="groups",
            found=f"no host in {names.GROUP_GPU_NODES}",
            expected="the nodes that run jobs",
            fix=f"put them into the group {names.GROUP_GPU_NODES}",
            file=raw.place_of_host(""),
            severity="warning",
        )
    if not raw.groups.get(names.GROUP_TIME_SERVERS) and not description.site.get("time_sources"):
        description.report(
            "group.no_time_server",
            key="groups",
            found=f"no host in {names.GROUP_TIME_SERVERS} and no {PREFIX}time_sources",
            expected="a time source: MUNGE, TLS and log order need one clock",
            fix=f"put a host into {names.GROUP_TIME_SERVERS} or set {PREFIX}time_sources",
            file=raw.place_of_host(""),
        )


def _is_typo(group: str, known: str) -> bool:
    # gpu_nodes_rack1 extends a name on purpose; gpu_node and gpu-nodes do not.
    return not group.startswith(f"{known}_")


def _host_names(description: Description) -> None:
    for name in description.node_names:
        reason = _name_refused(name)
        if reason:
            description.report(
                "host.name",
                host=name,
                key="inventory_hostname",
                found=f"{name!r}: {reason}",
                expected="a name that Kubernetes and Slurm carry: lower-case letters, digits and "
                "inner hyphens",
                fix="rename the host; keep the old name reachable with ansible_host",
                file=description.raw.place_of_host(name),
            )
        elif "." in name:
            description.report(
                "host.name_dotted",
                host=name,
                key="inventory_hostname",
                found=f"{name!r}, a name with dots",
                expected="a short name: Slurm cannot shorten lists of dotted names",
                fix="use the short name and put the full one into ansible_host",
                file=description.raw.place_of_host(name),
                severity="warning",
            )


def _name_refused(name: str) -> str:
    if len(name) > _LABEL_VALUE:
        return f"{len(name)} characters, Kubernetes labels a node with at most {_LABEL_VALUE}"
    if name in _SLURM_WORDS:
        return "a word that Slurm gives another meaning"
    if re.fullmatch(r"[0-9.]+", name):
        return "an address or number, not a name"
    bad = [label for label in name.split(".") if not _DNS_LABEL.match(label)]
    return f"{bad[0]!r} is no DNS label" if bad else ""


def _required(description: Description) -> None:
    for field in ("site", "version_set"):
        key = PREFIX + field
        if field not in description.site and key not in description.invalid:
            _missing(description, key, description.names, "group_vars/all.yml")
    nodes = description.host_values
    gpu_nodes = [name for name in nodes if _in(description, name, names.GROUP_GPU_NODES)]
    for field, hosts in (
        ("vendor_repository", list(nodes)),
        ("gpu_count", gpu_nodes),
        ("gpu_model", gpu_nodes),
    ):
        key = PREFIX + field
        without = [
            name
            for name in hosts
            if nodes[name].get(field) is None and (key, name) not in description.invalid_for
        ]
        if without:
            _missing(description, key, without, "group_vars")
    without = [
        name
        for name, values in description.switch_values.items()
        if values.get("switch_model") is None
        and (f"{PREFIX}switch_model", name) not in description.invalid_for
    ]
    if without:
        _missing(description, f"{PREFIX}switch_model", without, "group_vars/leaves.yml or spines")
    bare = [
        name
        for name in gpu_nodes
        if not nodes[name].get("rails") and (f"{PREFIX}rails", name) not in description.invalid_for
    ]
    if bare:
        _missing(description, f"{PREFIX}rails", bare, "group_vars/gpu_nodes.yml", "warning")


def _in(description: Description, name: str, group: str) -> bool:
    return group in description.raw.hosts[name].groups


def _missing(
    description: Description,
    key: str,
    hosts: Iterable[str],
    where: str,
    severity: Severity = "error",
) -> None:
    description.report(
        "variable.missing",
        hosts=tuple(hosts),
        key=key,
        found="nothing",
        expected="a value" if severity == "error" else "a value, unless jobs need no fabric",
        fix=f"set it in {where}; {REFERENCE} explains it",
        severity=severity,
    )


def _one_value_per_site(description: Description) -> None:
    for field, spread in description.spread.items():
        key = PREFIX + field
        audience = description.switch_names if field in FABRIC_VARIABLES else description.names
        kinds: list[tuple[Any, list[str]]] = []
        for name, value in spread.items():
            for known, hosts in kinds:
                if known is value or known == value:
                    hosts.append(name)
                    break
            else:
                kinds.append((value, [name]))
        if len(kinds) > 1:
            secret = "secret" in field
            kinds.reverse()
            kinds.sort(key=lambda kind: len(kind[1]))
            said = "; ".join(
                f"{'(hidden)' if secret else show(value)} on {_some(hosts)}"
                for value, hosts in kinds
            )
            description.report(
                "variable.site_wide",
                hosts=tuple(kinds[0][1]),
                key=key,
                found=said,
                expected="one value for the whole site",
                fix="set it once, in group_vars/all.yml",
            )
            continue
        without = [
            name
            for name in audience
            if name not in spread and (key, name) not in description.invalid_for
        ]
        if without and spread:
            having = list(spread)
            description.report(
                "variable.site_wide",
                hosts=tuple(having),
                key=key,
                found=f"set on {_some(having)} but not on {_some(without)}",
                expected="one value for the whole site",
                fix="move it to group_vars/all.yml",
            )


def _some(hosts: list[str]) -> str:
    shown = ", ".join(hosts[:3])
    return f"{shown} and {len(hosts) - 3} more" if len(hosts) > 3 else shown


# --- addresses and cables ----------------------------------------------------------------------


def _addresses(description: Description) -> None:
    by_address: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in description.names:
        raw = description.raw.hosts[name].variables
        # The same address with another port is a forwarded port, not a mistake.
        port = str(raw.get("ansible_port", ""))
        by_address[description.address(name), port].append(name)
    for (address, _), hosts in by_address.items():
        if len(hosts) > 1:
            description.report(
                "address.duplicate",
                host=hosts[-1],
                key="ansible_host",
                found=f"{address} for {' and '.join(hosts)}",
                expected="an address of its own for each host",
                fix="correct one of them",
            )


def _rails(description: Description) -> None:
    managed = {description.address(name): name for name in description.names}
    owners: dict[str, tuple[str, Hca]] = {}
    gateways: dict[str, str] = {}
    for name, host in description.hosts.items():
        _rails_of_host(description, host)
        for position, hca in enumerate(host.hcas):
            path = (position, "subnet")
            if hca.gateway is not None:
                gateways.setdefault(hca.gateway, name)
            if hca.address is None:
                continue
            address = hca.address.partition("/")[0]
            other = owners.setdefault(address, (name, hca))
            taken = ""
            if other != (name, hca):
                taken = f"{other[0]} {other[1].name}"
            elif address in managed:
                taken = f"{managed[address]} (ansible_host)"
            elif address == hca.gateway:
                taken = "the gateway of its own rail"
            if taken:
                description.report(
                    "rail.address_duplicate",
                    host=name,
                    key=f"{PREFIX}rails",
                    path=path,
                    found=f"{address} for {name} {hca.name} and for {taken}",
                    expected="an address of its own for each HCA",
                    fix=f"correct {PREFIX}node_index, the subnet or {PREFIX}hca_overrides",
                )


def _rails_of_host(description: Description, host: Host) -> None:
    where: dict[str, Any] = {"host": host.name, "key": f"{PREFIX}rails"}
    for attribute, word in (("name", "hca"), ("netdev", "netdev"), ("rail", "rail")):
        seen: set[Any] = set()
        for position, hca in enumerate(host.hcas):
            value = getattr(hca, attribute)
            if value is not None and value in seen:
                description.report(
                    "rail.duplicate",
                    **where,
                    path=(position, word),
                    found=f"{word} {value} on two rails of one host",
                    expected="each once",
                    fix=f"correct one {word}",
                )
            seen.add(value)
    for position, hca in enumerate(host.hcas):
        net = network(hca.subnet) if hca.subnet else None
        if hca.gateway is not None and not _is_host_of(hca.gateway, net):
            description.report(
                "rail.gateway",
                **where,
                path=(position, "gateway"),
                found=show(hca.gateway),
                expected=f"a host address of {net}" if net else "no gateway without a subnet",
                fix="correct the gateway or leave it out",
            )


def _cluster_networks(description: Description) -> None:
    """Addresses inside the cluster belong to nobody else: traffic to an owner outside is lost."""
    members = _cluster_members(description)
    if not members:
        return
    inside = {
        field: net
        for field in ("pod_cidr", "service_cidr")
        if (text := _value(description, field)) and (net := network(text)) is not None
    }
    taken = {f"{PREFIX}{field}": net for field, net in inside.items()}
    for name in description.names:
        address = network(description.address(name))
        if address is not None:
            taken.setdefault(f"{name} ({address.network_address})", address)
        host = description.hosts.get(name)
        for hca in host.hcas if host else ():
            if hca.subnet and (rail := network(hca.subnet)) is not None:
                taken.setdefault(f"the rail network {rail}", rail)
    for field, net in inside.items():
        others = [
            name
            for name, other in taken.items()
            if name != f"{PREFIX}{field}" and net.overlaps(other)
        ]
        if others:
            description.report(
                "cluster.network_taken",
                key=PREFIX + field,
                found=f"{net}, which holds addresses of {_some(others)}",
                expected="a network that nothing else uses; nodes could not reach the others",
                fix=f"choose another {PREFIX}{field}; of a running cluster it cannot be changed",
            )
    pods = inside.get("pod_cidr")
    room = 2 ** max(0, _PODS_OF_A_NODE - pods.prefixlen) if pods else 0
    if pods and len(members) > room:
        description.report(
            "cluster.pod_cidr_small",
            key=f"{PREFIX}pod_cidr",
            found=f"{pods}, enough for {room} nodes with a /{_PODS_OF_A_NODE} each",
            expected=f"room for the {len(members)} nodes of the cluster",
            fix=f"widen {PREFIX}pod_cidr; of a running cluster it cannot be changed",
        )


def _cluster_members(description: Description) -> list[str]:
    """Nodes of the cluster; empty for a site without a control plane."""
    groups = description.raw.groups
    if not groups.get(names.GROUP_CONTROL_PLANE):
        return []
    return list(
        dict.fromkeys((
            *groups[names.GROUP_CONTROL_PLANE],
            *groups.get(names.GROUP_GPU_NODES, ()),
        ))
    )  # fmt: skip


def _is_host_of(text: str, net: ipaddress.IPv4Network | None) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    if net is None or address not in net:
        return False
    edges = (net.network_address, net.broadcast_address)
    return net.prefixlen >= 31 or address not in edges


def _link_layers(description: Description) -> None:
    transport = description.site.get("transport", "roce")
    fix = f"one site has one link layer: correct the rail or {PREFIX}transport"
    for host in description.hosts.values():
        for position, hca in enumerate(host.hcas):
            where: dict[str, Any] = {"host": host.name, "key": f"{PREFIX}rails"}
            if transport == "infiniband":
                if hca.subnet is not None:
                    description.report(
                        "link_layer.mixed",
                        **where,
                        path=(position, "subnet"),
                        found=f"subnet {hca.subnet} on {hca.name}, transport infiniband",
                        expected="no IPv4 subnet on an InfiniBand rail",
                        fix=fix,
                    )
                if hca.switch in description.switches:
                    description.report(
                        "link_layer.mixed",
                        **where,
                        path=(position, "switch"),
                        found=f"{hca.name} on {hca.switch}, an Ethernet switch of this inventory",
                        expected="an InfiniBand switch, which is in no group of the inventory",
                        fix=fix,
                    )
                continue
            if hca.netdev and re.match(r"^ib(\d|p|s)", hca.netdev):
                description.report(
                    "link_layer.mixed",
                    **where,
                    path=(position, "netdev"),
                    found=f"{hca.netdev} on {hca.name}, an InfiniBand device, transport roce",
                    expected="an Ethernet device",
                    fix=fix,
                )
            for part, value in (("subnet", hca.subnet), ("netdev", hca.netdev)):
                if value is None:
                    description.report(
                        "link_layer.mixed",
                        **where,
                        path=(position,),
                        found=f"no {part} on {hca.name}, transport roce",
                        expected=f"a {part} on every rail of a RoCE site",
                        fix=fix,
                    )


def _switch_ports(description: Description) -> None:
    ours = description.switches
    for host in description.hosts.values():
        for position, hca in enumerate(host.hcas):
            where: dict[str, Any] = {"host": host.name, "key": f"{PREFIX}rails"}
            if hca.switch is not None and ours and hca.switch not in ours:
                # Without any switch in the inventory the names only serve to verify cabling.
                guess = near(hca.switch, list(ours))
                description.report(
                    "switch.unknown",
                    **where,
                    path=(position, "switch"),
                    found=hca.switch,
                    expected=f"one of {_some(list(ours))}",
                    fix=f"did you mean {guess}?" if guess else "add it to leaves or spines",
                )
            if (
                hca.switch is not None
                and hca.port is None
                and not _had_port(description, host, hca)
            ):
                description.report(
                    "switch_port.missing",
                    **where,
                    path=(position,),
                    found=f"{hca.name} on {hca.switch} without a port",
                    expected="the port at the other end of the cable",
                    fix="add port to the rail",
                )
    users: dict[tuple[str, str], str] = {}
    for host in description.hosts.values():
        for position, hca in enumerate(host.hcas):
            if hca.switch is None or hca.port is None:
                continue
            user = f"{host.name} {hca.name}"
            other = users.setdefault((hca.switch, hca.port), user)
            if other != user:
                description.report(
                    "switch_port.duplicate",
                    host=host.name,
                    key=f"{PREFIX}rails",
                    path=(position, "port"),
                    found=f"{hca.switch} {hca.port} for {other} and for {user}",
                    expected="one cable per port",
                    fix="correct the port, e.g. with {index+16} for the second rail of a switch",
                )
    _uplinks(description, users)


def _had_port(description: Description, host: Host, hca: Hca) -> bool:
    """True if a port was given but could not be expanded, which has been reported."""
    rails = description.host_values[host.name].get("rails", ())
    return any(rail.hca == hca.name and rail.port is not None for rail in rails)


def _uplinks(description: Description, users: dict[tuple[str, str], str]) -> None:
    ours = list(description.switches)
    for name in ours:
        for position, uplink in enumerate(description.switch_values[name].get("uplinks", ())):
            where: dict[str, Any] = {"host": name, "key": f"{PREFIX}uplinks"}
            if uplink.peer not in description.switches or uplink.peer == name:
                guess = near(uplink.peer, [other for other in ours if other != name])
                description.report(
                    "switch.unknown",
                    **where,
                    path=(position, "peer"),
                    found=uplink.peer,
                    expected="another switch of leaves or spines",
                    fix=f"did you mean {guess}?" if guess else "add it to the inventory",
                )
            cable = " - ".join(
                sorted((f"{name} {uplink.port}", f"{uplink.peer} {uplink.peer_port}"))
            )
            for port, part in (
                ((name, uplink.port), "port"),
                ((uplink.peer, uplink.peer_port), "peer_port"),
            ):
                user = f"the uplink {cable}"
                other = users.setdefault(port, user)
                if other != user:
                    description.report(
                        "switch_port.duplicate",
                        **where,
                        path=(position, part),
                        found=f"{port[0]} {port[1]} for {other} and for {user}",
                        expected="one cable per port",
                        fix="correct one of them",
                    )


# --- the lossless class ------------------------------------------------------------------------


def _value(description: Description, field: str) -> Any:
    """A site variable, or its default; None if what was given did not validate."""
    if PREFIX + field in description.invalid:
        return None
    return description.site.get(field, SiteVariables.model_fields[field].default)


def _classes(description: Description) -> None:
    if _value(description, "transport") == "infiniband":
        return
    priority, dscp = _value(description, "lossless_priority"), _value(description, "lossless_dscp")
    cnp, cnp_dscp = _value(description, "cnp_priority"), _value(description, "cnp_dscp")
    queue = _value(description, "lossless_queue")
    queue = priority if queue is None else queue
    # The roles and the switch templates write the map out, so another one can work. But a hop that
    # is not ours keeps the default, and data in the wrong class is dropped without a word;
    # notifications there are only late.
    classes: tuple[tuple[str, Any, Any, Severity], ...] = (
        ("lossless_dscp", dscp, priority, "error"),
        ("cnp_dscp", cnp_dscp, cnp, "warning"),
    )
    for field, mark, wanted, severity in classes:
        if mark is not None and wanted is not None and mark // _DSCP_PER_PRIORITY != wanted:
            low = wanted * _DSCP_PER_PRIORITY
            other = field.replace("dscp", "priority")
            description.report(
                "class.dscp_priority",
                key=PREFIX + field,
                found=f"DSCP {mark} with {PREFIX}{other} {wanted}; NICs put DSCP {mark} into "
                f"priority {mark // _DSCP_PER_PRIORITY}",
                expected=f"a DSCP from {low} to {low + 7}",
                fix=f"change {PREFIX}{field} or {PREFIX}{other}, so that hosts and switches pause "
                "the class that carries the traffic",
                severity=severity,
            )
    if dscp is not None and dscp == cnp_dscp:
        description.report(
            "class.dscp_shared",
            key=f"{PREFIX}cnp_dscp",
            found=f"{cnp_dscp} for congestion notifications and for the lossless class",
            expected="a DSCP of their own",
            fix="the defaults are 26 and 48",
        )
    if priority is not None and priority == cnp:
        description.report(
            "class.cnp_lossless",
            key=f"{PREFIX}cnp_priority",
            found=f"{cnp}, which is the lossless priority",
            expected="another priority: notifications must not wait behind the congestion they "
            "report",
            fix="the defaults are 3 and 6",
        )
    elif queue is not None and (queue in _TAKEN_QUEUES or queue == cnp):
        key = "lossless_queue" if "lossless_queue" in description.site else "lossless_priority"
        description.report(
            "class.queue_shared",
            key=PREFIX + key,
            found=f"queue {queue}, which is {_TAKEN_QUEUES.get(queue, 'congestion notification')}",
            expected="a queue of its own for the lossless class",
            fix=f"leave {PREFIX}lossless_queue out: it follows the priority",
        )
    elif queue is not None and priority is not None and queue != priority:
        description.report(
            "class.queue_priority",
            key=f"{PREFIX}lossless_queue",
            found=f"queue {queue} for priority {priority}",
            expected=f"{priority}: PFC pauses the priority, ECN and the watchdog act on the queue",
            fix=f"leave {PREFIX}lossless_queue out unless the switches are mapped that way",
            severity="warning",
        )


def _mtu(description: Description) -> None:
    host, switch = _value(description, "host_mtu"), _value(description, "switch_mtu")
    if host is None or switch is None:
        return
    if host > switch:
        description.report(
            "mtu.host_above_switch",
            key=f"{PREFIX}host_mtu",
            found=f"{host}, and {PREFIX}switch_mtu {switch}",
            expected=f"at most {switch}: larger packets would vanish in the fabric",
            fix="lower the one or raise the other",
        )
    if _value(description, "transport") == "roce" and host < _ROCE_4096:
        description.report(
            "mtu.small",
            key=f"{PREFIX}host_mtu",
            found=host,
            expected=f"at least {_ROCE_4096}, the least that carries an RDMA MTU of 4096",
            fix="set it to 9000 where the fabric allows",
            severity="warning",
        )


# --- Slurm partitions --------------------------------------------------------------------------


def _partitions(description: Description) -> None:
    partitions = description.site.get("partitions")
    key = f"{PREFIX}partitions"
    if key in description.invalid:
        return
    given = partitions is not None
    partitions = partitions or SiteVariables.model_fields["partitions"].default
    seen: set[str] = set()
    defaults = [partition.name for partition in partitions if partition.default]
    if len(defaults) > 1:
        description.report(
            "partition.default",
            key=key,
            found=f"{' and '.join(defaults)} as default",
            expected="at most one default partition",
            fix="keep default: true on one of them",
        )
    for position, partition in enumerate(partitions):
        if partition.name in seen:
            description.report(
                "partition.duplicate",
                key=key,
                path=(position, "name"),
                found=f"a second partition {partition.name}",
                expected="each name once",
                fix="rename one or join them",
            )
        seen.add(partition.name)
        if given:
            _members(description, position, partition.group, partition.hosts)
        hosts = [
            description.hosts[name]
            for name in (*description.raw.groups.get(partition.group or "", ()), *partition.hosts)
            if name in description.hosts
        ]
        _alike(description, partition.name, hosts)


def _members(
    description: Description, position: int, group: str | None, hosts: Iterable[str]
) -> None:
    where: dict[str, Any] = {"key": f"{PREFIX}partitions"}
    if group is not None and group not in description.raw.groups:
        guess = near(group, list(description.raw.groups))
        description.report(
            "partition.group",
            **where,
            path=(position, "group"),
            found=f"group {group}, which the inventory does not have",
            expected="an Ansible group",
            fix=f"did you mean {guess}?" if guess else "add the group or list hosts",
        )
    for number, name in enumerate(hosts):
        if name not in description.hosts:
            guess = near(name, list(description.hosts))
            description.report(
                "partition.host",
                **where,
                path=(position, "hosts", number),
                found=f"{name}, which is no node of the inventory",
                expected="a host name",
                fix=f"did you mean {guess}?" if guess else "remove it",
            )
    if group is None and not hosts:
        description.report(
            "partition.empty",
            **where,
            path=(position,),
            found="neither group nor hosts",
            expected="the nodes of the partition",
            fix="add group or hosts",
        )


def _alike(description: Description, partition: str, hosts: list[Host]) -> None:
    subjects: tuple[tuple[str, str, Severity, Callable[[Host], Any]], ...] = (
        ("gpu_count", "GPUs", "error", lambda host: host.gpu.count if host.gpu else None),
        ("rails", "HCAs", "error", lambda host: len(host.hcas) if host.hcas else None),
        ("gpu_model", "GPU model", "warning", lambda host: host.gpu.model if host.gpu else None),
    )
    for field, word, severity, read in subjects:
        kinds: dict[Any, list[str]] = defaultdict(list)
        for host in hosts:
            value = read(host)
            if value is not None:
                kinds[value].append(host.name)
        if len(kinds) < 2:
            continue
        # The odd one out; of two equal halves the later, which is likelier the exception.
        few = min(reversed(kinds.values()), key=len)
        said = "; ".join(f"{value} on {_some(members)}" for value, members in kinds.items())
        description.report(
            f"partition.{field}",
            hosts=tuple(few),
            key=PREFIX + field,
            found=f"{word} in partition {partition}: {said}",
            expected="the same on all nodes of a partition: a job gets nodes of one kind",
            fix=f"correct it, or give the others a partition of their own in {PREFIX}partitions",
            severity=severity,
        )


# --- Slurm -------------------------------------------------------------------------------------

#: What stands in a partition's line because of railweld_partitions.
_OF_PARTITION: Final = frozenset({"default", "maxtime", "nodes", "partitionname", "state"})
_GRES = re.compile(r"\bgres/([A-Za-z][\w-]*)(?::([\w-]+))?", re.IGNORECASE)


def _slurm(description: Description) -> None:
    """Parameters that railweld derives, resources that Slurm would not know, node hardware."""
    site = description.site
    _derived_parameters(description, site.get("slurm_parameters", {}))
    for position, partition in enumerate(site.get("partitions") or ()):
        path = (position, "parameters")
        for key in partition.parameters:
            if key.lower() in _OF_PARTITION:
                description.report(
                    "slurm.derived",
                    key=f"{PREFIX}partitions",
                    path=(*path, key),
                    found=f"{key} as a parameter of partition {partition.name}",
                    expected="what the partition's other entries say, in one place",
                    fix="use default, max_time, group or hosts",
                )
        _gres(description, f"{PREFIX}partitions", path, partition.parameters)
        if partition.bridge:
            _whole_nodes(description, partition, path)
    partitions = site.get("partitions") or SiteVariables.model_fields["partitions"].default
    bridged = [each for each in partitions if each.bridge]
    if any("preemptmode" not in map(str.lower, each.parameters) for each in bridged):
        _suspends(description, f"{PREFIX}slurm_parameters", (), site.get("slurm_parameters", {}))
    _gres(description, f"{PREFIX}slurm_parameters", (), site.get("slurm_parameters", {}))
    _hardware(description)
    _virtual_ports(description)


def _derived_parameters(description: Description, parameters: Mapping[str, str]) -> None:
    from railweld.slurm.conf import (  # noqa: PLC0415 - it needs the model of this package
        DERIVED,
        OF_BRIDGE,
    )

    partitions = (
        description.site.get("partitions") or SiteVariables.model_fields["partitions"].default
    )
    free = OF_BRIDGE if not any(each.bridge for each in partitions) else frozenset()
    derived = {key.lower(): (key, where) for key, where in DERIVED.items() if key not in free}
    for key in parameters:
        if key.lower() in derived:
            known, where = derived[key.lower()]
            description.report(
                "slurm.derived",
                key=f"{PREFIX}slurm_parameters",
                path=(key,),
                found=f"{known}, which follows from the description",
                expected=f"no second value; it is decided by {where}",
                fix="remove it",
            )


def _whole_nodes(
    description: Description, partition: Partition, path: tuple[str | int, ...]
) -> None:
    """What would give a bridge partition's node to a second job: Kubernetes knows nothing of it."""
    _suspends(description, f"{PREFIX}partitions", path, partition.parameters)
    for name, value in partition.parameters.items():
        if name.lower() in ("oversubscribe", "shared") and value.upper() != "EXCLUSIVE":
            description.report(
                "slurm.whole_nodes",
                key=f"{PREFIX}partitions",
                path=(*path, name),
                found=f"{name}={value} in bridge partition {partition.name}",
                expected="EXCLUSIVE, which is the default there: a job's pods get whole nodes",
                fix="remove it, or bridge: false",
            )


def _suspends(
    description: Description, key: str, path: tuple[str | int, ...], parameters: Mapping[str, str]
) -> None:
    """Pods run on while their job is suspended, and hold the GPUs that another job was given."""
    for name, value in parameters.items():
        if name.lower() == "preemptmode" and {"SUSPEND", "GANG"} & set(value.upper().split(",")):
            description.report(
                "slurm.suspends",
                key=key,
                path=(*path, name),
                found=f"{name}={value} for a bridge partition",
                expected="REQUEUE, CANCEL or OFF there: pods of a suspended job run on",
                fix="give each bridge partition a PreemptMode of its own in its parameters",
            )


def _gres(
    description: Description, key: str, path: tuple[str | int, ...], parameters: Mapping[str, str]
) -> None:
    """A resource that no node has makes jobs wait for ever; its name is `gpu` and nothing else."""
    kinds = {host.gpu.gres_type for host in description.hosts.values() if host.gpu}
    for name, value in parameters.items():
        for match in _GRES.finditer(value):
            resource, kind = match[1].lower(), (match[2] or "").lower()
            if resource == "gpu" and (not kind or kind in kinds):
                continue
            known = ["gres/gpu", *(f"gres/gpu:{each}" for each in sorted(kinds))]
            description.report(
                "slurm.gres",
                key=key,
                path=(*path, name),
                found=f"{match[0]}, which no node has",
                expected=f"one of {', '.join(known)}: Slurm's name for what Kubernetes calls "
                f"{names.RESOURCE_GPU}",
                fix=f"did you mean {known[0]}?",
            )


def _hardware(description: Description) -> None:
    heads = description.raw.groups.get(names.GROUP_SLURM_HEAD, ())
    partitions = (
        description.site.get("partitions") or SiteVariables.model_fields["partitions"].default
    )
    inside = {name for each in partitions for name in partition_hosts(description, each)}
    for name in description.host_values:
        if name not in inside:
            continue
        host = description.hosts[name]
        parts = host.sockets * host.threads_per_core
        if host.cpus is not None and host.cpus % parts:
            description.report(
                "slurm.cpus",
                host=name,
                key=f"{PREFIX}cpus",
                found=f"{host.cpus} CPUs on {host.sockets} sockets with {host.threads_per_core} "
                "threads per core",
                expected=f"a multiple of {parts}",
                fix="correct it by what lscpu prints on the node",
            )
    without = [
        name
        for name in description.host_values
        if heads
        and name in inside
        and (description.hosts[name].cpus is None or description.hosts[name].memory_mib is None)
    ]
    if without:
        description.report(
            "slurm.hardware",
            hosts=tuple(without),
            key=f"{PREFIX}cpus",
            found="no cpus or no memory_mib",
            expected="both, as `slurmd -C` prints them: Slurm places jobs by them",
            fix="set them in group_vars/gpu_nodes.yml before deploy-slurm.yml",
            severity="warning",
        )


def _virtual_ports(description: Description) -> None:
    first = _value(description, "slurm_virtual_port")
    if first is None:
        return
    last = first + len(description.host_values)
    if last > _LAST_PORT:
        description.report(
            "slurm.ports",
            key=f"{PREFIX}slurm_virtual_port",
            found=f"{first}, and {len(description.host_values)} nodes",
            expected=f"a port for each of them, up to {_LAST_PORT}",
            fix="lower it",
        )


# --- mirrors and paths -------------------------------------------------------------------------


def _mirrors(description: Description) -> None:
    for name, values in description.host_values.items():
        for kind, mirror in values.get("mirrors", {}).items():
            where: dict[str, Any] = {"host": name, "key": f"{PREFIX}mirrors"}
            if mirror.key_url and not mirror.key_file and mirror.key_fingerprint is None:
                description.report(
                    "mirror.unverified_key",
                    **where,
                    path=(kind, "key_url"),
                    found="a key to fetch without key_fingerprint",
                    expected="the fingerprint: a fetched key proves nothing by itself",
                    fix="add key_fingerprint (gpg --show-keys --with-fingerprint FILE)",
                )
            elif mirror.key_fingerprint == "":
                lab = "lab_mirror_fingerprint" in description.raw.hosts[name]
                description.report(
                    "mirror.no_fingerprint",
                    **where,
                    path=(kind, "key_fingerprint"),
                    found="an empty fingerprint" + (" (lab not up)" if lab else ""),
                    expected="40 hexadecimal digits",
                    fix="run `railweld lab up`: it makes the mirror's key" if lab else "fill it in",
                    severity="warning" if lab else "error",
                )


def _paths(description: Description) -> None:
    for name, host in description.hosts.items():
        if host.cache_path == host.scratch_path:
            description.report(
                "cache.same_path",
                host=name,
                key=f"{PREFIX}scratch_path",
                found=f"{host.scratch_path} for scratch and for cache",
                expected="two folders: scratch is emptied after each job, the cache is kept",
                fix="the defaults are /local/cache and /local/scratch",
            )


# --- versions and fabric -----------------------------------------------------------------------


def _rules(description: Description, site: Site) -> None:
    """Compatibility rules, once per kind of node."""
    kinds: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for host in description.hosts.values():
        if host.is_gpu_node:
            model = host.gpu.model if host.gpu else None
            count = host.gpu.count if host.gpu else None
            kinds[
                host.vendor_repository,
                host.driver_modules,
                host.cuda_compat,
                model,
                count,
                bool(host.secure_boot_signer),
            ].append(host.name)
    for (repository, modules, compat, model, count, signer), hosts in kinds.items():
        facts = {
            "vendor_repository": repository,
            "modules": modules,
            "cuda_compat": compat,
            "gpu_model": model,
            "gpu_datacenter": _is_datacenter(model),
            "nvswitch": _has_nvswitch(model, count),
            "module_signer": True if signer else None,
            "gpudirect": site.gpudirect,
            "rdma_stack": site.rdma_stack,
            "transport": site.transport,
            "network_mode": site.network_mode,
            **_slurm_builds(site),
        }
        try:
            results = site.versions.judge(facts)
        except RailweldError as error:
            _broken(description, error)
            return
        for result in results:
            _rule(description, result, hosts)


def _slurm_builds(site: Site) -> dict[str, str]:
    """Facts about Slurm's packages where they are not those of the version set."""
    from railweld.slurm import model  # noqa: PLC0415 - it needs the model of this package

    hosts = [site.hosts[name] for name in model.participants(site) if name in site.hosts]
    own = [host.name for host in hosts if model.uses_own_builds(host)]
    if not own:
        return {}
    return {"slurm_origin": f"the site's own builds on {_some(own)}", "slurm_package": "own build"}


def _broken(description: Description, error: RailweldError) -> None:
    description.report(
        "versions.rules",
        key=f"{PREFIX}version_set",
        found=str(error),
        expected="rules that can be judged",
        fix="correct versions/rules.yml",
    )


def _rule(description: Description, result: RuleResult, hosts: list[str]) -> None:
    named = _VARIABLE.findall(f"{result.fix} {result.found}")
    owner = description.raw.hosts[hosts[0]]
    # The variable that the fix names, if the site sets it; else the set that brought the values.
    key = next((name for name in named if name in owner), f"{PREFIX}version_set")
    description.report(
        f"versions.{result.rule}",
        hosts=tuple(hosts),
        key=key,
        found=result.found,
        expected=f"{result.expected}. {result.reason}".rstrip("."),
        fix=result.fix.rstrip("."),
        severity=result.severity,
    )


def _is_datacenter(model: str | None) -> bool | None:
    if model is None:
        return None
    if _DATACENTER.match(model):
        return True
    return False if _CONSUMER.match(model) else None


def _has_nvswitch(model: str | None, count: int | None) -> bool | None:
    """Eight SXM GPUs are joined by NVSwitches; of other machines the description cannot tell."""
    if model is None or count is None:
        return None
    return True if count >= 8 and re.search(r"SXM|HBM3|B200|B300", model) else None


#: Findings of the fabric that this module reports itself, with the host's file and line.
_REPORTED_HERE: Final[Mapping[str, str]] = {
    "priority_range": "variable.type",
    "dscp_range": "variable.type",
    "dscp_shared": "class.dscp_shared",
    "cnp_lossless": "class.cnp_lossless",
    "control_queue": "class.queue_shared",
    "queue_shared": "class.queue_shared",
    "host_mtu": "mtu.host_above_switch",
    "port_twice": "switch_port.duplicate",
}


def _fabric(description: Description, site: Site) -> None:
    """What the switches would refuse: models, releases, port names, thresholds, timers."""
    if not site.switches:
        return
    # The fabric stage knows its platforms; only a site with switches pays for loading it.
    from railweld.fabric import model, rules  # noqa: PLC0415 - it needs the model of this package

    reported = {problem.id for problem in description.problems}
    for finding in rules.findings(model.from_site(site)):
        if _REPORTED_HERE.get(finding.id) in reported:
            continue
        host = finding.target.split(" ", 1)[0]
        if finding.key == f"{PREFIX}switch_model" and not site.switches[host].switch_model:
            continue
        owner = host if host in description.switches else ""
        for end in finding.ends:
            if end in description.raw.hosts and finding.key in description.raw.hosts[end]:
                owner = end
                break
        description.report(
            f"fabric.{finding.id}",
            host=owner,
            key=finding.key,
            found=finding.found,
            expected=finding.expected,
            fix=finding.fix,
            severity=finding.severity,
        )
