# SPDX-License-Identifier: Apache-2.0
"""The cluster stage's part of the description, as a host sees it, and what a host still needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.run import run_id
from railweld.cluster import model, seen, stage
from railweld.errors import RailweldError
from railweld.site import build_site, inventory_from_task_vars
from railweld.verify.context import Context

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):
    """Argument `state`: `site` (once per play), `view` (per host), `plan` (per host)."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"state", "seen"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the part that was asked for; changes nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        state = self._task.args.get("state", "view")
        try:
            found = {"site": self.site, "view": self.view, "plan": self.plan}[state](variables)
        except KeyError as error:
            raise AnsibleActionFail(
                f"railweld_cluster: found state {state!r} or no {error} in the play, expected the "
                "role observe_cluster to have run"
            ) from error
        except RailweldError as error:
            raise AnsibleActionFail(f"no machine was touched:\n{error}") from error
        return {**result, "changed": False, **found}

    @staticmethod
    def site(variables: dict[str, Any]) -> dict[str, Any]:
        """The whole cluster as described, with every host's part and the image archives."""
        loaded = variables.get("railweld_cluster_site")
        if isinstance(loaded, dict) and loaded.get("run") == run_id():
            return {**loaded, "reused": True}
        described, problems = build_site(inventory_from_task_vars(variables))
        if described is None:
            raise RailweldError("\n".join(problem.sentence() for problem in problems))
        found = model.fact(described)
        return {"run": run_id(), **found, "images": stage.read_index(found["image_archives"])}

    def view(self, variables: dict[str, Any]) -> dict[str, Any]:
        """This host's view and the inputs of its roles, as facts."""
        name = variables["inventory_hostname"]
        cluster = {
            key: value
            for key, value in variables["railweld_cluster_site"].items()
            if key not in ("run", "reused", "changed", "failed")
        }
        found = stage.host_view(cluster, name, seen.parse(self._task.args.get("seen")))
        found.pop("images", None)
        own = variables["hostvars"][name]
        inputs = {
            **(variables.get("railweld_inputs") or {}),
            **stage.inputs(_ROLES, found, own),
        }
        return {"ansible_facts": {"railweld_cluster": found, "railweld_inputs": inputs}}

    @staticmethod
    def plan(variables: dict[str, Any]) -> dict[str, Any]:
        """Which roles this host needs, as the fact `railweld_todo`."""
        ctx = Context(
            site=variables["railweld"]["site"],
            host=variables["railweld_host"],
            node=variables["railweld_node"],
            cluster=variables["railweld_cluster"],
        )
        states = stage.plan(ctx, variables["railweld_inputs"])
        todo = [each.role for each in states if not each.converged]
        return {
            "msg": f"{ctx.name}: {'converged' if not todo else 'to do: ' + ', '.join(todo)}",
            "reasons": {each.role: list(each.reasons) for each in states if each.reasons},
            "checks": [check.to_dict() for each in states for check in each.checks],
            "ansible_facts": {
                "railweld_todo": todo,
                "railweld_roles": list(stage.ROLES),
            },
        }
