"""Stage `base`: time, package locks, disks of every node, and whether nodes are alike."""

from __future__ import annotations

from typing import Final

from railweld.verify import hosts
from railweld.verify.roles import preflight
from railweld.verify.stages import Request, Verified

ROLES: Final = frozenset({"package_lock", "chrony", "nvme_cache"})


def verify_site(request: Request) -> Verified:
    """Judge what the base stage leaves beside driver and rails; name nodes that differ."""
    nodes, silent = hosts.contexts(request)
    checks = hosts.judge_roles(nodes, ROLES, preflight.free_space)
    gpu_nodes = [ctx for ctx in nodes if ctx.host.get("is_gpu_node")]
    for path, what, ran in (
        ("kernel.running", "kernel", "uname -r"),
        ("kernel.cgroup", "cgroup", "stat -fc %T /sys/fs/cgroup"),
        ("os.version_id", "operating system", "cat /etc/os-release"),
    ):
        values = {ctx.name: ctx.seen(path) for ctx in gpu_nodes}
        checks += hosts.outliers(f"base.same_{what.replace(' ', '_')}", values, what=what, ran=ran)
    return Verified([*checks, *silent])
