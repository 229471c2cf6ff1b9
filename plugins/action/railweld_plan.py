# SPDX-License-Identifier: Apache-2.0
"""Decides which roles a host still needs, from what the probe saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from railweld.base import convergence
from railweld.base.inputs import host_inputs
from railweld.base.order import host_roles, predecessors
from railweld.verify import registry
from railweld.verify.context import Context

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):
    """Compares observation and description on the controller; nothing runs on the node.

    Argument: `before`, a role; only the roles in front of it are planned.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"before"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the facts `railweld_todo`, `railweld_inputs` and `railweld_work`.

        `add_group` puts the host into the group of its work, as `group_by` would in its own task.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        ctx = Context(
            site=variables["railweld"]["site"],
            host=variables["railweld_host"],
            node=variables["railweld_node"],
        )
        roles = host_roles(ctx.host)
        if self._task.args.get("before"):
            earlier = predecessors(str(self._task.args["before"]))
            roles = tuple(role for role in roles if role in earlier)
        inputs = host_inputs(_ROLES, roles, ctx.site, ctx.host, variables["hostvars"][ctx.name])
        states = convergence.plan(ctx, inputs, roles)
        todo = [state.role for state in states if not state.converged]
        refusals = [check for check in registry.evaluate_guard(ctx, "preflight") if check.is_bad]
        is_drained = convergence.is_out_of_service(ctx)
        if todo or refusals or is_drained:
            todo.insert(0, "preflight")
        work = "converged"
        if todo:
            moves = is_drained or convergence.replaces_provisioned(ctx)
            work = "upgrade" if moves else "provision"
        changes = [str(change) for change in convergence.version_changes(ctx)]
        result.update(
            changed=False,
            msg=f"{ctx.name}: {'converged' if not todo else 'to do: ' + ', '.join(todo)}",
            reasons={state.role: list(state.reasons) for state in states if state.reasons},
            version_changes=changes,
            checks=[check.to_dict() for state in states for check in state.checks],
        )
        result["ansible_facts"] = {
            "railweld_roles": list(roles),
            "railweld_todo": todo,
            "railweld_inputs": inputs,
            "railweld_work": work,
        }
        result["add_group"], result["parent_groups"] = f"railweld_{work}", ["all"]
        return result
