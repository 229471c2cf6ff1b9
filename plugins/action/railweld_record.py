# SPDX-License-Identifier: Apache-2.0
"""Records on the node what a role ran with and which files it manages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.inputs import host_inputs

_ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):
    """Arguments: `role`, and `files`, the paths on the node that the role manages."""

    _supports_check_mode = True
    _VALID_ARGS = frozenset({"role", "files"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the record; changed only if it differs from the one that is there."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        role = self._task.args.get("role")
        if not role:
            raise AnsibleActionFail("railweld_record: `role` is missing")
        host, name = variables["railweld_host"], variables["inventory_hostname"]
        inputs = (variables.get("railweld_inputs") or {}).get(role)
        if inputs is None:
            site = variables["railweld"]["site"]
            known = host_inputs(_ROLES, [role], site, host, variables["hostvars"][name])
            inputs = known[role]
        answer = self._execute_module(
            module_name="railweld_record",
            module_args={
                "role": role,
                "inputs": inputs,
                "files": list(self._task.args.get("files") or []),
                "version_set": variables["railweld"]["site"]["version_set"],
            },
            task_vars=variables,
        )
        return {**result, **answer}
