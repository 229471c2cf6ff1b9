# SPDX-License-Identifier: Apache-2.0
"""The cluster stage's part of the description, as a host sees it, and what a host still needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railweld.base.stage_action import StageAction
from railweld.cluster import model, seen, stage
from railweld.site import Site
from railweld.verify.context import Context

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(StageAction):
    """Also `seen`: what the first control-plane node reported, for `view`."""

    _VALID_ARGS = frozenset({"state", "seen"})

    NAME = "railweld_cluster"
    OBSERVED_BY = "the role observe_cluster to have run"

    def fact(self, site: Site) -> dict[str, Any]:
        """The whole cluster as described, with every host's part and the image archives."""
        found = model.fact(site)
        return {**found, "images": stage.read_index(found["image_archives"])}

    def view(self, variables: dict[str, Any]) -> dict[str, Any]:
        """This host's view and the inputs of its roles, as facts."""
        name = variables["inventory_hostname"]
        cluster = self.loaded_site(variables)
        found = stage.host_view(cluster, name, seen.parse(self._task.args.get("seen")))
        found.pop("images", None)
        own = variables["hostvars"][name]
        inputs = {
            **(variables.get("railweld_inputs") or {}),
            **stage.inputs(_ROLES, found, own),
        }
        return {"ansible_facts": {"railweld_cluster": found, "railweld_inputs": inputs}}

    def plan(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Which roles this host needs, as the fact `railweld_todo`."""
        ctx = Context(
            site=variables["railweld"]["site"],
            host=variables["railweld_host"],
            node=variables["railweld_node"],
            cluster=variables["railweld_cluster"],
        )
        return self.todo(ctx, stage.plan(ctx, variables["railweld_inputs"]))
