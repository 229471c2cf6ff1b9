"""What the action plugins of the later stages share: a stage's part of the description and plan.

`site` builds the stage's whole part once per play, `view` is what one host sees of it, `plan` says
whether the host needs work. A stage fills in what differs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.run import run_id
from railweld.errors import RailweldError
from railweld.site import Site, build_site, inventory_from_task_vars

if TYPE_CHECKING:
    from railweld.base.convergence import RoleState
    from railweld.verify.context import Context

#: Keys of a registered result that are Ansible's or this class's, not the stage's.
_BOOKKEEPING = ("run", "reused", "changed", "failed")


class StageAction(ActionBase):
    """Argument `state`: `site` (once per play), `view` (per host), `plan` (per host)."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"state"})

    #: Name of the plugin; its site part is registered as `NAME_site`.
    NAME: ClassVar[str]
    #: What has to have run before, for the error text.
    OBSERVED_BY: ClassVar[str]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the part that was asked for; changes nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        state = self._task.args.get("state", "view")
        try:
            found = {"site": self.site, "view": self.view, "plan": self.plan}[state](variables)
        except KeyError as error:
            raise AnsibleActionFail(
                f"{self.NAME}: found state {state!r} or no {error} in the play, expected "
                f"{self.OBSERVED_BY}"
            ) from error
        except RailweldError as error:
            raise AnsibleActionFail(f"no machine was touched:\n{error}") from error
        return {**result, "changed": False, **found}

    def site(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The stage's part of the description for all hosts; built once per play."""
        loaded = variables.get(f"{self.NAME}_site")
        if isinstance(loaded, dict) and loaded.get("run") == run_id():
            return {**loaded, "reused": True}
        described, problems = build_site(inventory_from_task_vars(variables))
        if described is None:
            raise RailweldError("\n".join(problem.sentence() for problem in problems))
        return {"run": run_id(), **self.fact(described)}

    def loaded_site(self, variables: dict[str, Any]) -> dict[str, Any]:
        """What `site` returned, without what Ansible added to it."""
        found = variables[f"{self.NAME}_site"]
        return {key: value for key, value in found.items() if key not in _BOOKKEEPING}

    @staticmethod
    def todo(ctx: Context, states: Sequence[RoleState]) -> dict[str, Any]:
        """Which roles this host needs, as the fact `railweld_todo`, and why."""
        todo = [state.role for state in states if not state.converged]
        return {
            "msg": f"{ctx.name}: {'converged' if not todo else 'to do: ' + ', '.join(todo)}",
            "reasons": {state.role: list(state.reasons) for state in states if state.reasons},
            "checks": [check.to_dict() for state in states for check in state.checks],
            "ansible_facts": {
                "railweld_todo": todo,
                "railweld_roles": [state.role for state in states],
            },
        }

    @abstractmethod
    def fact(self, site: Site) -> dict[str, Any]:
        """The stage's part of a description."""

    @abstractmethod
    def view(self, variables: dict[str, Any]) -> dict[str, Any]:
        """This host's view and the inputs of its roles, as facts."""

    @abstractmethod
    def plan(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Which roles this host needs, as the fact `railweld_todo`."""
