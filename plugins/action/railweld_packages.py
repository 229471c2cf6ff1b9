# SPDX-License-Identifier: Apache-2.0
"""Gives the package transaction its component's family and the site's lock timeout."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from railweld.base.families import (
    CLUSTER_FAMILIES,
    NOT_DRIVER,
    family_patterns,
    host_components,
)


class ActionModule(ActionBase):
    """Arguments are the module's; `family` and `not_family` come from `railweld.base.families`."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the family of `component`, or of all that the host gets."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = dict(self._task.args)
        component = arguments.get("component")
        site = (variables.get("railweld") or {}).get("site") or {}
        host = variables.get("railweld_host") or {}
        components = [str(component)] if component else host_components(site, host)
        family = sorted({pattern for each in components for pattern in family_patterns(each)})
        arguments.setdefault("family", family)
        # The container toolkit is no part of the driver; of its own family it is.
        arguments.setdefault(
            "not_family", [] if component in CLUSTER_FAMILIES else list(NOT_DRIVER)
        )
        pins = {
            pin["name"]: pin["version"]
            for packages in (host.get("packages") or {}).values()
            for pin in packages
            if pin["version"]
        }
        arguments.setdefault("pins", pins)
        if "apt_lock_timeout_s" in site:
            arguments.setdefault("lock_timeout", site["apt_lock_timeout_s"])
        answer = self._execute_module(
            module_name="railweld_packages", module_args=arguments, task_vars=variables
        )
        if answer.get("repaired"):
            broken = ", ".join(answer["repaired"])
            answer.setdefault("warnings", []).append(
                f"{variables.get('inventory_hostname')}: an earlier run was cut off: dpkg had left "
                f"{broken} half installed; configured now"
            )
        return {**result, **answer}
