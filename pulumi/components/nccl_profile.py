"""The NCCL profile of every partition."""

from __future__ import annotations

import pulumi
from railweld.stack.nccl_profile import NcclProfileArgs, render

from components.base import Component


class NcclProfile(Component):
    """ConfigMaps that jobs take their environment from."""

    def __init__(
        self,
        name: str,
        args: NcclProfileArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("NcclProfile", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"nccl": args.nccl, "partitions": sorted(args.profiles)})
