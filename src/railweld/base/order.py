"""Which roles a node gets, and in which order. The order is data; guards enforce it by observation.

Time comes first: a late clock makes apt refuse signatures and breaks TLS. The driver comes before
everything that talks to a GPU. RDMA's host side needs the running driver and CUDA; its packages
alone go in before the driver where nvidia-peermem is built against them (see the playbook).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Roles of a GPU node, in order.
ORDER: Final = (
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
#: Roles of a node without GPUs.
_EVERY_NODE: Final = frozenset({"package_lock", "chrony", "lldp"})

#: Roles that leave something behind, in any order: what a registry has to know.
ALL_ROLES: Final = frozenset(ORDER)


def host_roles(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles that a host gets, in order."""
    gpu = host.get("gpu") or {}
    is_gpu_node = bool(host.get("is_gpu_node", bool(gpu)))
    wanted = {role: role in _EVERY_NODE or is_gpu_node for role in ALL_ROLES}
    if not host.get("hcas"):
        # No rail, nothing to configure or to load for it.
        wanted["rdma"] = wanted["rail_network"] = False
    if not (host.get("cache") or {}).get("device"):
        wanted["nvme_cache"] = False
    return tuple(role for role in ORDER if wanted[role])


def predecessors(role: str) -> tuple[str, ...]:
    """Return the roles that run before a role, in order; empty for one outside the order."""
    return ORDER[: ORDER.index(role)] if role in ORDER else ()
