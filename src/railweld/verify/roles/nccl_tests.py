"""nccl-tests: built with the toolkit and against the NCCL that are on the node now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.names import NCCL_TESTS_STAMP
from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import cuda, nccl, nvidia_driver

ROLE: Final = "nccl_tests"
PROBE: Final = {"contents": [NCCL_TESTS_STAMP]}
_FIX: Final = "run playbooks/deploy-bench.yml on this host"


def built(node: Mapping[str, Any]) -> dict[str, str]:
    """What the programs on a node were built from; empty if there are none."""
    found = (node.get("files") or {}).get(NCCL_TESTS_STAMP) or {}
    try:
        stamp = json.loads(found.get("content") or "")
    except ValueError:
        # A power cut can leave half a file.
        return {}
    return stamp if isinstance(stamp, dict) else {}


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse while driver, compiler or NCCL are not the described ones."""
    yield from nvidia_driver.running(ctx)
    yield from cuda.toolkit(ctx)
    yield from nccl.installed(ctx)


def checks(ctx: Context) -> Iterator[Check]:
    """The programs are of this node's compiler and library; an upgrade leaves old ones behind."""
    stamp = built(ctx.node)
    here = (str(ctx.seen("cuda.nvcc")), str(ctx.seen("nccl.version")))
    yield ctx.judge(
        "nccl_tests.built",
        ok=(stamp.get("nvcc"), stamp.get("nccl")) == here,
        ran=f"cat {NCCL_TESTS_STAMP}",
        found=f"built with nvcc {stamp.get('nvcc')} against NCCL {stamp.get('nccl')}"
        if stamp
        else "not built",
        expected=f"built with nvcc {here[0]} against NCCL {here[1]}",
        fix=_FIX,
    )
