"""The pod network as text, from the code that judges it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import cni


def _context(
    node: Mapping[str, Any], host: Mapping[str, Any], cluster: Mapping[str, Any]
) -> Context:
    return Context(site={}, host=host, node=node, cluster=cluster)


def stale_routes(
    routes: Mapping[str, str], peers: Mapping[str, str], cluster: Mapping[str, Any]
) -> list[str]:
    """Routes into the pods' addresses that no node of the cluster is behind."""
    pods = ipaddress.ip_network(cluster["pod_cidr"])
    found = []
    for text in routes:
        if text == "default":
            continue
        network = ipaddress.ip_network(text)
        if network.version == pods.version and network.subnet_of(pods) and text not in peers:
            found.append(text)
    return sorted(found)


class FilterModule:
    """Filters of role cni."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "cni_pod_cidr": lambda node, host, cluster: cni.own_cidr(_context(node, host, cluster)),
            "cni_peers": lambda node, host, cluster: cni.peers(_context(node, host, cluster)),
            "cni_stale_routes": stale_routes,
            "cni_stale_bridges": lambda node, host, cluster: cni.stale_bridges(
                _context(node, host, cluster)
            ),
            "cni_service_route": lambda node, host, cluster: cni.service_route(
                _context(node, host, cluster)
            ),
            "cni_has_service_route": lambda node, host, cluster: cni.has_service_route(
                _context(node, host, cluster)
            ),
        }
