"""A job's interface on every rail."""

from __future__ import annotations

import pulumi
from railweld.stack.networks import NetworksArgs, render

from components.base import Component


class Networks(Component):
    """One network attachment per rail."""

    def __init__(
        self,
        name: str,
        args: NetworksArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Networks", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"rails": [rail.name for rail in args.rails]})
