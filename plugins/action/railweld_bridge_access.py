# SPDX-License-Identifier: Apache-2.0
"""Gives the bridge on the Slurm head its way into the cluster, and renews what has ended."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld import names
from railweld.bridge import access
from railweld.errors import RailweldError
from railweld.slurm.conf import USER


class ActionModule(ActionBase):
    """Argument `state`: `guard` (refuse what could not be done) or `present`.

    The token is asked for on the controller, with the administrator's kubeconfig of the site's
    state folder, and written to the head; it shows in no result.
    """

    _supports_check_mode = True
    _VALID_ARGS = frozenset({"state"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether something was written, and why."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._variables = task_vars or {}
        slurm, node = self._variables["railweld_slurm"], self._variables["railweld_node"]
        site, context = slurm["name"], slurm["bridge"]["context"]
        seen = node["slurm"]["bridge"]
        why = access.needs_token(seen, float(node["now"]))
        guards = self._task.args.get("state") == "guard"
        try:
            if guards or self._task.check_mode:
                if why or not seen["kubeconfig"]["sha256"]:
                    access.issue(site, context, dry_run=True)
                token = ""
            else:
                token = access.issue(site, context) if why else ""
            admin = access.admin(site)
            # Another operator's controller may not have it; the head's own stays then.
            text = access.kubeconfig(admin.read_text(), context) if admin.is_file() else None
        except RailweldError as error:
            raise AnsibleActionFail(f"{self._variables['inventory_hostname']}: {error}") from error
        if guards:
            return {**result, "changed": False, "reason": why}
        written = self._write(names.BRIDGE_KUBECONFIG, text) if text is not None else {}
        if written.get("failed"):
            return {**result, **written}
        if token:
            given = self._write(names.BRIDGE_TOKEN, token)
            if given.get("failed"):
                return {**result, **given}
        changed = bool(written.get("changed")) or bool(why)
        return {**result, "changed": changed, "reason": why}

    def _write(self, path: str, text: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="railweld_secret_file",
            module_args={
                "path": path,
                "content": access.encoded(text),
                "owner": USER,
                "group": USER,
                "mode": "0600",
            },
            task_vars=self._variables,
        )
        return answer
