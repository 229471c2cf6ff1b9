"""From an inventory to the lab that it describes. Pure: no container is touched here.

The lab reads Ansible's `ansible_host`, the site's `railweld_site` and rails, and `lab_*` variables:

    lab_subnet   network of the lab, default: the /24 around the first node
    lab_profile  hardware of a node (profiles.py), default: by group
    lab_mirror   true on the node that serves the apt mirror, default: the first time server
    lab_kernel_parameters, lab_secure_boot: how the node came from the factory
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from railweld import names
from railweld.lab.process import LabError
from railweld.lab.profiles import PROFILES, Rail, hardware
from railweld.site.inventory import RawHost, RawInventory, load_inventory
from railweld.site.model import expand_port

DEFAULT_SITE = "lab"
NODE_LIMIT = 200


@dataclass(frozen=True)
class NodePlan:
    """One node: a container with an address and the hardware that it shows."""

    name: str
    address: str
    groups: tuple[str, ...]
    is_mirror: bool
    hardware: dict[str, Any] = field(hash=False)

    @property
    def mac(self) -> str:
        """Of its management interface: a machine that was off is where its neighbours expect it."""
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x4C, *map(int, self.address.split("."))))

    def digest(self, *parts: str) -> str:
        """Changes when the node has to be made anew."""
        described = [self.name, self.address, self.mac, self.is_mirror, self.hardware, *parts]
        text = json.dumps(described)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LabPlan:
    """All nodes of one lab."""

    site: str
    subnet: ipaddress.IPv4Network
    nodes: tuple[NodePlan, ...]
    #: Name to address of every switch; `switches.py` serves them.
    switches: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: The inventory that this was read from, for processes that read it again.
    sources: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The podman network that SSH and apt use."""
        return f"railweld-{self.site}"

    @property
    def fabric_network(self) -> str:
        """The podman network behind the rails of all nodes."""
        return f"railweld-{self.site}-fabric"

    @property
    def mirror(self) -> NodePlan:
        """The node that serves the apt mirror."""
        return next(node for node in self.nodes if node.is_mirror)

    @property
    def fabric(self) -> dict[str, dict[str, Any]]:
        """What the nodes' stand-in for nccl-tests has to know of each other: nodes with GPUs."""
        return {
            node.name: {
                "address": node.address,
                "rails_gbps": sum(hca["rate_gbps"] for hca in node.hardware["hcas"]),
            }
            for node in self.nodes
            if node.hardware["gpus"]
        }

    def container(self, node: str) -> str:
        """Container name of a node."""
        return f"railweld-{self.site}-{node}"

    def node(self, name: str) -> NodePlan:
        """The plan of one node.

        Raises:
            LabError: the inventory has no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise LabError(f"{name}: no node of lab {self.site}, expected one of {known}")


def plan_lab(sources: Sequence[str]) -> LabPlan:
    """Read an inventory and plan its lab."""
    plan = plan_from_inventory(load_inventory(list(sources)))
    return replace(plan, sources=tuple(sources))


def plan_from_inventory(raw: RawInventory) -> LabPlan:
    """Plan the lab of an inventory that has been read.

    Raises:
        LabError: the inventory cannot be a lab; the text names every reason.
    """
    hosts = [host for host in raw.hosts.values() if not _is_switch(host)]
    switches = [host for host in raw.hosts.values() if _is_switch(host)]
    if not hosts:
        raise LabError("lab: found no host besides switches in the inventory, expected nodes")
    site = str(hosts[0].get("railweld_site", DEFAULT_SITE))
    problems: list[str] = []
    addresses: dict[str, str] = {}
    for host in [*hosts, *switches]:
        address = str(host.get("ansible_host", ""))
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            problems.append(f"{host.name}: ansible_host is {address!r}, expected an IPv4 address")
            continue
        if address in addresses:
            problems.append(f"{host.name}: {address} is {addresses[address]}'s address too")
        addresses[address] = host.name
        if _is_switch(host):
            continue
        profile = _profile_name(host)
        if profile not in PROFILES:
            known = ", ".join(PROFILES)
            problems.append(f"{host.name}: lab_profile is {profile!r}, expected one of {known}")
    if len(hosts) > NODE_LIMIT:
        problems.append(f"found {len(hosts)} hosts, expected at most {NODE_LIMIT} in a lab")
    if problems:
        raise LabError("lab: " + "; ".join(problems))
    subnet = _subnet(hosts)
    outside = [
        host.name
        for host in [*hosts, *switches]
        if ipaddress.IPv4Address(host["ansible_host"]) not in subnet
    ]
    if outside:
        raise LabError(
            f"lab: {', '.join(outside)}: address outside {subnet}; "
            f"correct ansible_host or lab_subnet"
        )
    mirror = _mirror_name(hosts)
    return LabPlan(
        site=site,
        subnet=subnet,
        nodes=tuple(
            NodePlan(
                name=host.name,
                address=str(host["ansible_host"]),
                groups=host.groups,
                is_mirror=host.name == mirror,
                hardware=hardware(
                    _profile_name(host),
                    node=host.name,
                    rails=_rails(host),
                    secure_boot=str(host.get("lab_secure_boot", "off")),
                    kernel_parameters=tuple(host.get("lab_kernel_parameters", ())),
                ),
            )
            for host in hosts
        ),
        switches={host.name: str(host["ansible_host"]) for host in switches},
    )


def _is_switch(host: RawHost) -> bool:
    return any(group in names.SWITCH_GROUPS for group in host.groups)


def _profile_name(host: RawHost) -> str:
    default = "a100x8" if names.GROUP_GPU_NODES in host.groups else "head"
    return str(host.get("lab_profile", default))


def _subnet(hosts: Sequence[RawHost]) -> ipaddress.IPv4Network:
    given = str(hosts[0].get("lab_subnet", f"{hosts[0]['ansible_host']}/24"))
    try:
        return ipaddress.IPv4Network(given, strict=False)
    except ValueError as error:
        raise LabError(f"lab_subnet: found {given!r}, expected like 10.213.0.0/24") from error


def _mirror_name(hosts: Sequence[RawHost]) -> str:
    chosen = [host for host in hosts if host.get("lab_mirror", False)]
    servers = [host for host in hosts if names.GROUP_TIME_SERVERS in host.groups]
    return [*chosen, *servers, *hosts][0].name


def _rails(host: RawHost) -> tuple[Rail, ...]:
    rails: Sequence[Mapping[str, Any]] = host.get("railweld_rails") or ()
    return tuple(
        Rail(
            netdev=str(rail.get("netdev", "")),
            hca=str(rail.get("hca", "")),
            rate_gbps=int(rail.get("rate_gbps", 100)),
            is_infiniband=rail.get("subnet") is None,
            switch=str(rail.get("switch") or ""),
            port=_port(str(rail.get("port") or ""), host),
        )
        for rail in rails
    )


def _port(port: str, host: RawHost) -> str:
    """The switch port with the node's index in it, as the site model computes it."""
    index = host.get("railweld_node_index")
    if index is None:
        index = host.name[len(host.name.rstrip("0123456789")) :] or 0
    return expand_port(port, int(index))
