"""Which roles a node gets, and in which order. The order is data; guards enforce it by observation.

Time comes first: a late clock makes apt refuse signatures and breaks TLS. The driver comes before
everything that talks to a GPU. With nvidia-peermem the RDMA stack has to be there before the
driver is built, because the module is built against it; with DMA-BUF it comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Roles of a GPU node with DMA-BUF, in order.
_DMABUF: Final = (
    "package_lock",
    "chrony",
    "nvidia_driver",
    "fabric_manager",
    "cuda",
    "nccl",
    "rdma",
    "rail_network",
    "lldp",
    "nvme_cache",
)
#: The same with nvidia-peermem: OFED before the driver.
_PEERMEM: Final = (
    "package_lock",
    "chrony",
    "rdma",
    "nvidia_driver",
    "fabric_manager",
    "cuda",
    "nccl",
    "rail_network",
    "lldp",
    "nvme_cache",
)
#: Roles of a node without GPUs.
_EVERY_NODE: Final = frozenset({"package_lock", "chrony", "lldp"})

#: Roles that leave something behind, in any order: what a registry has to know.
ALL_ROLES: Final = frozenset(_DMABUF)


def site_order(site: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all roles of the base stage in the order that this site needs."""
    return _PEERMEM if site.get("gpudirect") == "peermem" else _DMABUF


def host_roles(site: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles that a host gets, in order."""
    gpu = host.get("gpu") or {}
    is_gpu_node = bool(host.get("is_gpu_node", bool(gpu)))
    wanted = {role: role in _EVERY_NODE or is_gpu_node for role in ALL_ROLES}
    if not host.get("hcas"):
        # No rail, nothing to configure or to load for it.
        wanted["rdma"] = wanted["rail_network"] = False
    if not (host.get("cache") or {}).get("device"):
        wanted["nvme_cache"] = False
    return tuple(role for role in site_order(site) if wanted[role])


def predecessors(site: Mapping[str, Any], role: str) -> tuple[str, ...]:
    """Return the roles that run before a role, in order; empty for one outside the order."""
    order = site_order(site)
    return order[: order.index(role)] if role in order else ()
