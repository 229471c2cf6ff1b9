"""Stage `links`: every described rail's port, its address and its neighbour, seen from the host."""

from __future__ import annotations

from typing import Final

from railweld.verify import hosts
from railweld.verify.stages import Request, Verified

ROLES: Final = frozenset({"rdma", "rail_network", "lldp"})


def verify_site(request: Request) -> Verified:
    """Judge ports, rails and neighbours; name HCAs whose firmware differs from the others'."""
    nodes, silent = hosts.contexts(request)
    checks = hosts.judge_roles(nodes, ROLES)
    firmware: dict[str, dict[str, object]] = {}
    for ctx in nodes:
        for hca in ctx.seen("hcas", []):
            board = str(hca.get("board_id") or "")
            firmware.setdefault(board, {})[f"{ctx.name}/{hca['name']}"] = hca.get("fw_version")
    for values in firmware.values():
        checks += hosts.outliers(
            "links.same_firmware",
            values,
            what="firmware",
            ran="cat /sys/class/infiniband/*/fw_ver",
            layer="link",
        )
    return Verified([*checks, *silent])
