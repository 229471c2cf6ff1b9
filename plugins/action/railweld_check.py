# SPDX-License-Identifier: Apache-2.0
"""Judges a node against the description and fails with found, expected and fix."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.order import host_roles
from railweld.record import Check, Status
from railweld.verify import registry
from railweld.verify.context import Context


class ActionModule(ActionBase):
    """Arguments: `roles` (what they must have left), or `guard` (what a role needs)."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"roles", "guard", "report_only"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the checks; fail when one is bad, naming all bad ones."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        ctx = context_from(task_vars or {})
        guard, roles = self._task.args.get("guard"), self._task.args.get("roles")
        if bool(guard) == bool(roles):
            raise AnsibleActionFail("railweld_check: give either `guard: ROLE` or `roles: [...]`")
        if guard:
            checks = registry.evaluate_guard(ctx, str(guard))
            if self._task.check_mode:
                planned = set((task_vars or {}).get("railweld_todo") or ())
                return {**result, **verdict_of_plan(checks, planned)}
        else:
            planned_roles = (task_vars or {}).get("railweld_roles")
            every = planned_roles or host_roles(ctx.host)
            names = every if roles == "all" else [str(role) for role in roles]
            checks = registry.evaluate(ctx, names)
            if roles != "all" and waits_for_reboot(ctx):
                return {**result, **deferred(ctx, checks)}
        return {**result, **verdict(checks, report_only=bool(self._task.args.get("report_only")))}


def context_from(variables: dict[str, Any]) -> Context:
    """Build the context of the current host from the facts of the play."""
    missing = [
        name for name in ("railweld", "railweld_host", "railweld_node") if name not in variables
    ]
    if missing:
        raise AnsibleActionFail(
            f"found no {', '.join(missing)} in the play, expected the `observe` role to have run: "
            "make the role depend on it (meta/main.yml, dependencies)"
        )
    return Context(
        site=variables["railweld"]["site"],
        host=variables["railweld_host"],
        node=variables["railweld_node"],
        cluster=variables.get("railweld_cluster") or {},
        slurm=variables.get("railweld_slurm") or {},
    )


def verdict_of_plan(checks: list[Check], planned: set[str]) -> dict[str, Any]:
    """Judge a guard in check mode: what a planned predecessor would leave cannot be there yet."""
    open_checks = [check for check in checks if check.is_bad and check.id.split(".")[0] in planned]
    result = verdict([check for check in checks if check not in open_checks], report_only=False)
    if open_checks and not result.get("failed"):
        result["msg"] = f"{', '.join(check.id for check in open_checks)} decided when it runs"
    return result


def waits_for_reboot(ctx: Context) -> bool:
    """True when only a reboot can tell what a role left behind.

    Guards never wait: a role that needs the running driver refuses until the reboot has happened.
    With `railweld_reboot: skip` the roles before the reboot do all of theirs too, so that one
    reboot by hand is enough; the first guard after it stops the run.
    """
    return bool(ctx.reboot_reasons) and not ctx.seen("is_controller", False)


def deferred(ctx: Context, checks: list[Check]) -> dict[str, Any]:
    """Report without a verdict; the same checks decide after the reboot."""
    result = verdict(checks, report_only=True)
    open_checks = [check.id for check in checks if check.is_bad]
    if open_checks:
        result["msg"] = (
            f"{ctx.name}: {', '.join(open_checks)} decided after the reboot "
            f"({'; '.join(ctx.reboot_reasons)})"
        )
    result["waits_for_reboot"] = bool(open_checks)
    return result


def verdict(checks: list[Check], *, report_only: bool) -> dict[str, Any]:
    """Turn checks into a task result."""
    bad = [check for check in checks if check.is_bad]
    result: dict[str, Any] = {
        "changed": False,
        "checks": [check.to_dict() for check in checks],
        "warnings": [check.sentence() for check in checks if check.status is Status.WARN],
    }
    if bad and not report_only:
        result["failed"] = True
        result["msg"] = "\n".join(check.sentence() for check in bad)
    else:
        result["msg"] = f"{len(checks) - len(bad)} of {len(checks)} checks pass"
    return result
