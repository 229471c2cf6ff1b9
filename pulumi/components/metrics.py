"""GPU metrics and alerts."""

from __future__ import annotations

import pulumi
from railweld.stack.metrics import MetricsArgs, render

from components.base import Component


class Metrics(Component):
    """DCGM exporter, its Service, alert rules."""

    def __init__(
        self,
        name: str,
        args: MetricsArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Metrics", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"image": args.image})
