"""Labels for what is found on nodes."""

from __future__ import annotations

import pulumi
from railweld.stack.nfd import NfdArgs, render

from components.base import Component


class NodeFeatureDiscovery(Component):
    """Node Feature Discovery with its rules."""

    def __init__(
        self,
        name: str,
        args: NfdArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("NodeFeatureDiscovery", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"image": args.image})
