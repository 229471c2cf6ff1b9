# SPDX-License-Identifier: Apache-2.0
"""Loads the site description into the result that the play registers as `railweld`."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.run import run_id
from railweld.site import build_site, inventory_from_task_vars


class ActionModule(ActionBase):
    """Reads the inventory that the play itself uses, so `-e` and `-i` count."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset()

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the model as `site` and `hosts`; fail with every error of the description."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        loaded = variables.get("railweld")
        if isinstance(loaded, dict) and loaded.get("run") == run_id():
            return {**loaded, "changed": False, "reused": True}
        raw = inventory_from_task_vars(variables)
        site, problems = build_site(raw)
        errors = [problem for problem in problems if problem.severity == "error"]
        if site is None or errors:
            listed = "\n".join(f"  {problem.sentence()}" for problem in errors)
            raise AnsibleActionFail(
                "the site description has errors, so no machine was touched:\n"
                f"{listed}\nSee them with file and line: railweld check -i INVENTORY"
            )
        warnings = [problem.sentence() for problem in problems if problem.severity == "warning"]
        return {"changed": False, "run": run_id(), "problems": warnings, **site.fact()}
