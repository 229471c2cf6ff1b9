# SPDX-License-Identifier: Apache-2.0
"""Reads key files of the controller, then sets up the repositories on the node."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Arguments are the module's; `key_file` of a repository is a path on the controller."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the content of the key files."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        repositories = []
        for repository in self._task.args.get("repositories") or []:
            entry = {key: value for key, value in dict(repository).items() if value is not None}
            if entry.get("key_file"):
                path = Path(str(entry["key_file"])).expanduser()
                try:
                    entry["key_data"] = base64.b64encode(path.read_bytes()).decode()
                except OSError as error:
                    raise AnsibleActionFail(
                        f"repository {entry.get('id')}: found that {path} cannot be read "
                        f"({error.strerror}), expected the repository's public key. Fix: correct "
                        f"railweld_mirrors.{entry.get('id')}.key_file"
                    ) from error
            repositories.append(entry)
        answer = self._execute_module(
            module_name="railweld_repositories",
            module_args={**self._task.args, "repositories": repositories},
            task_vars=task_vars,
        )
        return {**result, **answer}
