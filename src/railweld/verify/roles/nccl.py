"""NCCL: the described library, seen in the file itself, built for a CUDA that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context, packages_as_pinned
from railweld.verify.roles import cuda, nvidia_driver

ROLE: Final = "nccl"


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse while driver or toolkit are not the described ones, or NCCL's CUDA is beyond them."""
    yield from nvidia_driver.running(ctx)
    yield from cuda.toolkit(ctx)
    built_for = ctx.wanted("nccl.cuda")
    release = ctx.seen("cuda.release")
    if built_for and release:
        major = int(str(release).split(".", 1)[0])
        yield ctx.judge(
            "nccl.built_for",
            ok=int(str(built_for).split(".", 1)[0]) <= major,
            ran="nvcc --version",
            found=f"NCCL built for CUDA {built_for} over toolkit {release}",
            expected=f"an NCCL build for CUDA {major} or older",
            fix="choose an NCCL build whose +cuda suffix is not newer than the toolkit "
            "(railweld_version_overrides)",
        )


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable."""
    yield from packages_as_pinned(ctx, "nccl", role=ROLE)
    yield from installed(ctx)


def installed(ctx: Context) -> Iterator[Check]:
    """Library and header are the described ones: what is linked against NCCL asks for it."""
    expected = str(ctx.wanted("nccl.version"))
    for what, key, path in (
        ("library", "nccl.version", "ls -l /usr/lib/*/libnccl.so.*"),
        ("header", "nccl.header", "grep -E 'NCCL_(MAJOR|MINOR|PATCH)' /usr/include/nccl.h"),
    ):
        seen = ctx.seen(key)
        yield ctx.judge(
            f"nccl.{what}",
            ok=seen == expected,
            ran=path,
            found=f"NCCL {seen}" if seen else f"no NCCL {what}",
            expected=f"NCCL {expected}",
            fix="rerun the nccl role on this host; remove a copy that was not installed by apt",
        )
