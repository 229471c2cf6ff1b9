"""Second stage of role rdma: the host side, which comes after the driver, CUDA and the reboot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import rdma

ROLE: Final = "rdma_host"


def guard(ctx: Context) -> Iterator[Check]:
    """Everything that the first stage asks for, and the running driver and CUDA."""
    if not ctx.host.get("hcas"):
        return
    yield from rdma.guard(ctx)
    yield from rdma.predecessors(ctx)
