"""CUDA: the described toolkit, seen by its own compiler, over a driver that can carry it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context, packages_as_pinned
from railweld.verify.roles import fabric_manager, nvidia_driver

ROLE: Final = "cuda"


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse while the described driver does not run, or NVLink is not up."""
    yield from nvidia_driver.running(ctx)
    yield from fabric_manager.ready(ctx)


def strays(ctx: Context) -> dict[str, str]:
    """Installed compat packages that the set does not ask for.

    They are not harmless: an older libcuda in front of a newer driver breaks every CUDA call.
    """
    pinned = {name for name, _ in ctx.pins("cuda")}
    return {
        name: str(item.get("version"))
        for name, item in ctx.seen("packages", {}).items()
        if name.startswith("cuda-compat-")
        and name not in pinned
        and str(item.get("status", ""))[1:2] not in "nc"
    }


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable."""
    yield from packages_as_pinned(ctx, "cuda", role=ROLE)
    yield from toolkit(ctx)
    yield from _compat(ctx)


def toolkit(ctx: Context) -> Iterator[Check]:
    """The compiler itself says the described release: what NCCL asks for."""
    expected = str(ctx.wanted("cuda.release"))
    release = ctx.seen("cuda.release")
    yield ctx.judge(
        "cuda.nvcc",
        ok=release == expected,
        ran=f"/usr/local/cuda-{expected}/bin/nvcc --version",
        found=f"nvcc of CUDA {release} ({ctx.seen('cuda.nvcc')})" if release else "no nvcc",
        expected=f"nvcc of CUDA {expected}",
        fix="run playbooks/deploy-base.yml, or the cuda role alone, on this host; if another "
        "release is the default there, update-alternatives --config cuda",
    )


def _compat(ctx: Context) -> Iterator[Check]:
    wanted = bool(ctx.wanted("cuda.compat"))
    seen = ctx.seen("cuda.compat")
    extra = strays(ctx)
    found = f"cuda-compat {seen}" if seen else "no cuda-compat"
    if extra:
        found += "; also " + ", ".join(f"{name} {v}" for name, v in sorted(extra.items()))
    yield ctx.judge(
        "cuda.compat",
        ok=bool(seen) == wanted and not extra,
        ran="ldconfig -p | grep libcuda.so.1; dpkg-query -W 'cuda-compat-*'",
        found=found,
        expected="cuda-compat, because the driver is older than the CUDA release needs"
        if wanted
        else "no cuda-compat, because the driver carries this CUDA release itself",
        fix="rerun the cuda role on this host",
    )
