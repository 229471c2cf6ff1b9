"""GPUs for pods."""

from __future__ import annotations

import pulumi
from railweld.stack.gpu_plugin import GpuPluginArgs, render

from components.base import Component


class GpuPlugin(Component):
    """NVIDIA's device plugin on nodes with GPUs."""

    def __init__(
        self,
        name: str,
        args: GpuPluginArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("GpuPlugin", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"image": args.image})
