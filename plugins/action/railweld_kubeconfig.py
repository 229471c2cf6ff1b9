# SPDX-License-Identifier: Apache-2.0
"""Fetches the cluster's administrator credentials into the site's state folder, mode 0600."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.cluster import kubeconfig
from railweld.errors import RailweldError


class ActionModule(ActionBase):
    """Runs on the first control-plane node; the content never shows in a result."""

    _supports_check_mode = True
    _VALID_ARGS = frozenset()

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the kubeconfig; changed only if it differs from the one that is there."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        cluster = variables["railweld_cluster"]
        target = kubeconfig.path(cluster["name"])
        answer = self._low_level_execute_command("cat /etc/kubernetes/admin.conf")
        if answer.get("rc") != 0:
            if self._task.check_mode:
                return {**result, "changed": True, "msg": f"would write {target}"}
            raise AnsibleActionFail(
                f"{variables['inventory_hostname']}: found no readable /etc/kubernetes/admin.conf, "
                "expected kubeadm's. Fix: run playbooks/deploy-cluster.yml"
            )
        try:
            text = kubeconfig.renamed(answer["stdout"], cluster)
        except RailweldError as error:
            raise AnsibleActionFail(str(error)) from error
        if self._task.check_mode:
            changed = not target.is_file() or target.read_text() != text
        else:
            changed = kubeconfig.write(cluster["name"], text)
        return {**result, "changed": changed, "path": str(target), "context": cluster["context"]}
