"""Stage `base`: time, package locks, disks of every node, and whether nodes are alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from railweld.record import Check
from railweld.verify import hosts
from railweld.verify.context import Context
from railweld.verify.roles import preflight
from railweld.verify.stages import Request, Verified

ROLES: Final = frozenset({"package_lock", "chrony", "nvme_cache"})
#: Size of a huge page in KiB where the kernel's parameters name none.
_USUAL_KIB: Final = 2048
_UNITS: Final = {"K": 1, "M": 1024, "G": 1024**2}


def verify_site(request: Request) -> Verified:
    """Judge what the base stage leaves beside driver and rails; name nodes that differ."""
    nodes, silent = hosts.contexts(request)
    checks = hosts.judge_roles(nodes, ROLES, _node)
    gpu_nodes = [ctx for ctx in nodes if ctx.host.get("is_gpu_node")]
    for path, what, ran in (
        ("kernel.running", "kernel", "uname -r"),
        ("kernel.cgroup", "cgroup", "stat -fc %T /sys/fs/cgroup"),
        (
            "kernel.huge_pages.transparent", "transparent huge pages",
            "cat /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        ("os.version_id", "operating system", "cat /etc/os-release"),
    ):  # fmt: skip
        values = {ctx.name: ctx.seen(path) for ctx in gpu_nodes}
        checks += hosts.outliers(f"base.same_{what.replace(' ', '_')}", values, what=what, ran=ran)
    return Verified([*checks, *silent])


def _node(ctx: Context) -> Iterator[Check]:
    yield from preflight.free_space(ctx)
    yield from _huge_pages(ctx)


def _huge_pages(ctx: Context) -> Iterator[Check]:
    """Where parameters ask for huge pages: a kernel that finds no room at boot gives fewer."""
    if not ctx.host.get("hcas"):
        return  # the role that sets kernel parameters is not on it
    reserved = ctx.seen("kernel.huge_pages.reserved", {})
    for size, wanted in described_huge_pages(ctx.wanted("kernel.parameters", [])).items():
        found = int(reserved.get(str(size), 0))
        yield ctx.judge(
            "base.huge_pages",
            ok=found >= wanted,
            ran=f"cat /sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages",
            found=f"{found} pages of {size} KiB",
            expected=f"{wanted} pages of {size} KiB (railweld_kernel_parameters)",
            fix="reboot the node; if they stay fewer, memory is too full or in too small pieces: "
            "ask for fewer",
        )


def described_huge_pages(parameters: Iterable[str]) -> dict[int, int]:
    """Pages that kernel parameters reserve, by size in KiB: `hugepagesz=1G hugepages=0:8,1:8`."""
    words = [word.partition("=")[::2] for word in parameters]
    size = next((_kib(v) for name, v in words if name == "default_hugepagesz"), _USUAL_KIB)
    found: dict[int, int] = {}
    for name, value in words:
        if name == "hugepagesz":
            size = _kib(value)
        elif name == "hugepages":
            # Of every NUMA node a number of its own, or one for all. A second one of a size is
            # ignored by the kernel.
            found.setdefault(size, sum(int(each.rpartition(":")[2]) for each in value.split(",")))
    return found


def _kib(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1:].upper()]
