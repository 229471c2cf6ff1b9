"""Limits and priorities of jobs."""

from __future__ import annotations

import pulumi
from railweld.stack.quota import QuotaArgs, render

from components.base import Component


class Quota(Component):
    """A ResourceQuota and PriorityClasses; no LimitRange."""

    def __init__(
        self,
        name: str,
        args: QuotaArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Quota", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"gpus": args.gpus, "rdma": args.rdma})
