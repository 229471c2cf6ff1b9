"""The namespaces of the stack and of the jobs."""

from __future__ import annotations

import pulumi
from railweld.stack.namespaces import NamespacesArgs, render

from components.base import Component


class Namespaces(Component):
    """Two namespaces with their Pod Security levels."""

    def __init__(
        self,
        name: str,
        args: NamespacesArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Namespaces", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"system": args.system, "jobs": args.jobs})
