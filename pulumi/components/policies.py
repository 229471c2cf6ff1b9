"""What the API server refuses."""

from __future__ import annotations

import pulumi
from railweld.stack.policies import PoliciesArgs, render

from components.base import Component


class Policies(Component):
    """ValidatingAdmissionPolicies with their bindings."""

    def __init__(
        self,
        name: str,
        args: PoliciesArgs,
        *,
        site: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Policies", name, site=site, manifests=render(args), opts=opts)
        self.register_outputs({"host_paths": list(args.host_paths)})
