"""Clocks as labels, conditions and metrics."""

from __future__ import annotations

import pulumi
from railweld.stack.clock_guard import ClockGuardArgs, render

from components.base import Component


class ClockGuard(Component):
    """The clock guard on every node."""

    def __init__(
        self,
        name: str,
        args: ClockGuardArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("ClockGuard", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"image": args.image})
