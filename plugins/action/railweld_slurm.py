# SPDX-License-Identifier: Apache-2.0
"""The Slurm stage's part of the description, as a host sees it, and whether a host needs work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.run import run_id
from railweld.errors import RailweldError
from railweld.site import build_site, inventory_from_task_vars
from railweld.slurm import model, stage
from railweld.verify.context import Context

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):
    """Argument `state`: `site` (once per play), `view` (per host), `plan` (per host)."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"state"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the part that was asked for; changes nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        state = self._task.args.get("state", "view")
        try:
            found = {"site": self.site, "view": self.view, "plan": self.plan}[state](variables)
        except KeyError as error:
            raise AnsibleActionFail(
                f"railweld_slurm: found state {state!r} or no {error} in the play, expected the "
                "role slurm to have observed the host (tasks_from: observe)"
            ) from error
        except RailweldError as error:
            raise AnsibleActionFail(f"no machine was touched:\n{error}") from error
        return {**result, "changed": False, **found}

    @staticmethod
    def site(variables: dict[str, Any]) -> dict[str, Any]:
        """The whole Slurm as described, with every host's part."""
        loaded = variables.get("railweld_slurm_site")
        if isinstance(loaded, dict) and loaded.get("run") == run_id():
            return {**loaded, "reused": True}
        described, problems = build_site(inventory_from_task_vars(variables))
        if described is None:
            raise RailweldError("\n".join(problem.sentence() for problem in problems))
        return {"run": run_id(), **model.fact(described)}

    @staticmethod
    def view(variables: dict[str, Any]) -> dict[str, Any]:
        """This host's view and the inputs of the role, as facts."""
        name = variables["inventory_hostname"]
        slurm = {
            key: value
            for key, value in variables["railweld_slurm_site"].items()
            if key not in ("run", "reused", "changed", "failed")
        }
        found = model.view(slurm, name)
        inputs = {
            **(variables.get("railweld_inputs") or {}),
            stage.ROLE: stage.inputs(_ROLES, found, variables["hostvars"][name]),
        }
        return {"ansible_facts": {"railweld_slurm": found, "railweld_inputs": inputs}}

    @staticmethod
    def plan(variables: dict[str, Any]) -> dict[str, Any]:
        """Whether this host needs the role, as the fact `railweld_todo`."""
        ctx = Context(
            site=variables["railweld"]["site"],
            host=variables["railweld_host"],
            node=variables["railweld_node"],
            slurm=variables["railweld_slurm"],
        )
        state = stage.plan(ctx, variables["railweld_inputs"][stage.ROLE])
        todo = [] if state.converged else [stage.ROLE]
        return {
            "msg": f"{ctx.name}: {'converged' if not todo else 'to do: slurm'}",
            "reasons": {stage.ROLE: list(state.reasons)} if state.reasons else {},
            "checks": [check.to_dict() for check in state.checks],
            "ansible_facts": {"railweld_todo": todo, "railweld_roles": [stage.ROLE]},
        }
