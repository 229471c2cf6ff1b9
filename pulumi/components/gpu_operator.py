"""GPUs for pods by NVIDIA's gpu-operator, where the site hands them over to it."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from railweld.stack.gpu_operator import CHART, REPOSITORY, GpuOperatorArgs, values

from components.base import Component


class GpuOperator(Component):
    """A Helm release: the chart has hooks, which only Helm runs."""

    def __init__(
        self,
        name: str,
        args: GpuOperatorArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("GpuOperator", name, site=site, manifests=(), opts=opts)
        public = args.source is None
        release = k8s.helm.v3.Release(
            f"{name}/release",
            name=CHART,
            chart=args.source or CHART,
            version=args.version if public else None,
            namespace=args.namespace,
            repository_opts={"repo": REPOSITORY} if public else None,
            values=values(args),
            # As for other agents of nodes: whether they run is for `railweld verify` to say.
            skip_await=True,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=opts.depends_on if opts is not None else None
            ),
        )
        self.objects.append(release)
        self.register_outputs({"version": args.version})
