# SPDX-License-Identifier: Apache-2.0
"""Plans, pushes and verifies the switches of the play; the code of `railweld fabric`."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.errors import RailweldError
from railweld.fabric.push import Report, Settings
from railweld.fabric.stage import Looked, Stage, stage_from_inventory
from railweld.record import Status
from railweld.site import inventory_from_task_vars


class ActionModule(ActionBase):
    """Arguments: `state` (pushed, verified) and the options of a push.

    One task works on every switch of the play, so it runs once; the play's own connection is not
    used. In check mode `pushed` only plans, and `--diff` shows the lines.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(
        {"state", "commit_timer", "batch", "disruptive", "observe", "allow_pause", "jobs"}
    )

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do what `state` asks for and return what each switch is in."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        state = str(self._task.args.get("state", "pushed"))
        if state not in {"pushed", "verified"}:
            raise AnsibleActionFail(
                f"railweld_fabric: found state {state!r}, expected pushed or verified"
            )
        try:
            stage = stage_from_inventory(
                inventory_from_task_vars(variables),
                settings=settings_from(self._task.args),
                limit=variables.get("ansible_play_hosts_all") or (),
            )
            if stage.fabric.transport == "infiniband" or state == "verified":
                return {**result, **verified(stage)}
            warnings = [finding.sentence() for finding in stage.refuse_bad_description()]
            outcome = planned(stage) if self._task.check_mode else pushed(stage)
        except RailweldError as error:
            raise AnsibleActionFail(str(error)) from error
        outcome["warnings"] = [*warnings, *outcome.get("warnings", [])]
        return {**result, **outcome}


def settings_from(args: dict[str, Any]) -> Settings:
    """Options of the task; names and meaning are those of the command line."""
    batch = str(args.get("batch", "1"))
    if batch != "all" and (not batch.isdecimal() or int(batch) < 1):
        raise AnsibleActionFail(
            f"railweld_fabric: found batch {batch!r}, expected 1, a larger number, or all"
        )
    return Settings(
        commit_timer_s=int(args.get("commit_timer", 300)),
        batch=None if batch == "all" else int(batch),
        disruptive=str(args.get("disruptive", False)).lower() in {"true", "yes", "1"},
        observe_s=float(args.get("observe", 5)),
        pause_allowance=int(args.get("allow_pause", 0)),
        jobs=int(args.get("jobs", 32)),
    )


def planned(stage: Stage) -> dict[str, Any]:
    """A plan; fails when a switch could not be read."""
    seen = stage.looks()
    if seen.failures:
        raise AnsibleActionFail("\n".join(seen.failures.values()))
    return described(seen)


def pushed(stage: Stage) -> dict[str, Any]:
    """A push; fails when a switch is not in the new state, and says which state it is in."""
    seen, report = stage.push(lambda looked: bool(looked.changed))
    return described(seen) if report is None else {**described(seen), **reported(report)}


def described(seen: Looked) -> dict[str, Any]:
    """Changes per switch, also in the form that `--diff` prints."""
    changes = {
        name: [change.sentence() for change in plan.changes] for name, plan in seen.changed.items()
    }
    total = sum(map(len, changes.values()))
    return {
        "changed": bool(changes),
        "changes": changes,
        "diff": [
            {"prepared": "\n".join([f"{name}:", *(f"  {text}" for text in texts)]) + "\n"}
            for name, texts in changes.items()
        ],
        "warnings": [
            f"{name}: {text}" for name, look in seen.looks.items() for text in look.warnings
        ],
        "msg": f"{total} changes on {len(changes)} of {len(seen.looks)} switches",
    }


def reported(report: Report) -> dict[str, Any]:
    """What a push left, as a task result."""
    bad = [outcome.sentence() for outcome in report.outcomes if not outcome.ok]
    done = [outcome for outcome in report.outcomes if outcome.changes and outcome.ok]
    return {
        "changed": bool(done),
        "failed": bool(bad),
        "run": report.run,
        "switches": {
            outcome.switch: {"result": str(outcome.result), "state": str(outcome.state)}
            for outcome in report.outcomes
        },
        "warnings": [
            f"{outcome.switch}: {text}" for outcome in report.outcomes for text in outcome.warnings
        ],
        "msg": "\n".join(bad) or f"{len(done)} switches pushed, confirmed and saved",
    }


def verified(stage: Stage) -> dict[str, Any]:
    """Checks of every switch as a task result."""
    checks = stage.verify()
    bad = [check.sentence() for check in checks if check.is_bad]
    return {
        "changed": False,
        "failed": bool(bad),
        "checks": [check.to_dict() for check in checks],
        "warnings": [check.sentence() for check in checks if check.status is Status.WARN],
        "msg": "\n".join(bad)
        or "; ".join(check.ref for check in checks if check.status is Status.SKIPPED)
        or f"{len(checks)} checks pass",
    }
