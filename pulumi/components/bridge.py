"""What the Slurm bridge needs in the cluster."""

from __future__ import annotations

import pulumi
from railweld.stack.bridge import BridgeArgs, render

from components.base import Component


class Bridge(Component):
    """Account, rights, pin policy and templates of job pods."""

    def __init__(
        self,
        name: str,
        args: BridgeArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Bridge", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs(
            {"templates": [template.name for template in args.templates], "pin": args.pin}
        )
