# SPDX-License-Identifier: Apache-2.0
"""The Slurm stage's part of the description, as a host sees it, and whether a host needs work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railweld.base.stage_action import StageAction
from railweld.site import Site
from railweld.slurm import model, stage
from railweld.verify.context import Context

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(StageAction):
    """Argument `state`: `site` (once per play), `view` (per host), `plan` (per host)."""

    NAME = "railweld_slurm"
    OBSERVED_BY = "the role slurm to have observed the host (tasks_from: observe)"

    def fact(self, site: Site) -> dict[str, Any]:
        """The whole Slurm as described, with every host's part."""
        return model.fact(site)

    def view(self, variables: dict[str, Any]) -> dict[str, Any]:
        """This host's view and the inputs of the role, as facts."""
        name = variables["inventory_hostname"]
        found = model.view(self.loaded_site(variables), name)
        inputs = {
            **(variables.get("railweld_inputs") or {}),
            **stage.inputs(_ROLES, found, variables["hostvars"][name]),
        }
        return {"ansible_facts": {"railweld_slurm": found, "railweld_inputs": inputs}}

    def plan(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Which roles this host needs, as the fact `railweld_todo`."""
        ctx = Context(
            site=variables["railweld"]["site"],
            host=variables["railweld_host"],
            node=variables["railweld_node"],
            slurm=variables["railweld_slurm"],
        )
        return self.todo(ctx, stage.plan(ctx, variables["railweld_inputs"]))
