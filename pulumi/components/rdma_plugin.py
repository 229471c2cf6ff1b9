"""HCAs for pods."""

from __future__ import annotations

import pulumi
from railweld.stack.rdma_plugin import RdmaPluginArgs, render

from components.base import Component


class RdmaPlugin(Component):
    """The RDMA shared device plugin on nodes with HCAs."""

    def __init__(
        self,
        name: str,
        args: RdmaPluginArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("RdmaPlugin", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"resource": args.resource, "shares": args.shares})
