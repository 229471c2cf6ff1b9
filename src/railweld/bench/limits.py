"""What the hardware of a site could give: the figure that a measured bus bandwidth is set beside.

nccl-tests' bus bandwidth is independent of the number of ranks and comparable with the speed of
the slowest link on the way (its doc/PERFORMANCE.md): NVLink inside a node, the rails between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from railweld.errors import RailweldError
from railweld.gpus import nvlink
from railweld.site.model import Host, Site

#: Share of the rails' line rate that is enough between nodes. Requirement: 10 GB/s on 100G
#: (12.5 GB/s); the reference site's 42.3 GB/s on four of them is 0.85.
NETWORK_GATE: Final = 0.8
#: Share of NVLink's rate that is enough inside a node. Measured: 349 GB/s of 450 (0.78) between two
#: H200 at 8 GiB; published eight-GPU runs give 0.77 (A100) and more.
NVLINK_GATE: Final = 0.7


@dataclass(frozen=True)
class Limit:
    """The most that a run could give, in GB/s, and what it follows from. None: not known."""

    gb_per_s: float | None
    source: str
    gate: float


def nvlink_limit(model: str) -> Limit:
    """Inside a node, between GPUs of a model."""
    link = nvlink(model)
    if link is None:
        return Limit(None, f"no NVLink figure for {model or 'an unnamed model'}", NVLINK_GATE)
    return Limit(link.total, f"NVLink of {model}", NVLINK_GATE)


def rail_limit(site: Site, hosts: Sequence[str]) -> Limit:
    """Between nodes: the sum of a node's rails, of the node that has least.

    Raises:
        RailweldError: a node has no rails, so there is nothing to run over.
    """
    sums: dict[str, float] = {}
    for name in hosts:
        host: Host = site.host(name)
        if not host.hcas:
            raise RailweldError(
                f"{name}: found no railweld_rails, expected at least one for a run between nodes "
                "(see: railweld check). Fix: describe its rails, or leave it out with --nodes"
            )
        sums[name] = sum(hca.rate_gbps for hca in host.hcas) / 8
    least = min(sums, key=lambda name: sums[name])
    rails = len(site.host(least).hcas)
    return Limit(sums[least], f"{rails} rails of {least}", NETWORK_GATE)
