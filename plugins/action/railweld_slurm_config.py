# SPDX-License-Identifier: Apache-2.0
"""Decides what a changed Slurm configuration needs, refuses what would end jobs, then writes it."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from railweld.slurm import changes, conf, stage


class ActionModule(ActionBase):
    """Argument `state`: `present` (try, write, say what it needs) or `applied` (record it)."""

    _supports_check_mode = True
    _VALID_ARGS = frozenset({"state"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's answer with `effect`: what the daemons need (see railweld.slurm)."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._variables = task_vars or {}
        slurm = self._variables["railweld_slurm"]
        files = conf.files(slurm)
        if self._task.args.get("state") == "applied":
            return {**result, **self._module(state="applied", files=files)}
        known = self._module(state="read")
        if known.get("failed") or known.get("unreachable"):
            return {**result, **known}
        effect = changes.effect(known["applied"], files)
        refused = self._refusal(effect)
        if refused:
            return {**result, "failed": True, "changed": False, "msg": refused}
        answer: dict[str, Any] = {"changed": False, "replaced": []}
        if stage.needs_files(slurm):
            answer = self._module(
                state="present",
                files=files,
                empty_files=conf.empty_files(slurm),
                **self._trial(slurm),
            )
        if answer.get("failed"):
            answer["msg"] = (
                f"{self._variables['inventory_hostname']}: found a configuration that Slurm does "
                f"not take: {answer.get('msg')}; expected one that slurmctld starts with. The "
                f"files in {conf.FOLDER} were not touched. Fix: correct the description "
                "(railweld_slurm_parameters, railweld_partitions)"
            )
        return {**result, **answer, "effect": effect.to_dict()}

    def _trial(self, slurm: dict[str, Any]) -> dict[str, Any]:
        """How the candidate is tried on this host: by a slurmctld, and by slurmd for its nodes."""
        host = slurm["host"]
        # A plan on an empty host has nothing to try it with.
        seen = (self._variables.get("railweld_node") or {}).get("slurm") or {}
        installed = bool(seen.get("version")) or not self._task.check_mode
        kinds: dict[Any, tuple[str, int]] = {}
        if "slurmd" in host["parts"]:
            for name in host["daemons"]:
                gpu = slurm["nodes"][name]["gpu"]
                # One node of a kind says it for all: they have one line in gres.conf.
                kinds.setdefault(str(gpu), (name, gpu["count"] if gpu else 0))
        return {
            "try_controller": "controller" in host["parts"] and installed,
            "try_nodes": dict(kinds.values()) if installed else {},
        }

    def _refusal(self, effect: changes.Effect) -> str:
        """Why the change must wait, or nothing."""
        reasons = []
        if "controller" not in self._variables["railweld_slurm"]["host"]["parts"]:
            return ""  # the head was asked before
        for blocked in effect.blocked:
            answer = self._module(
                state="jobs", nodes=list(blocked.nodes), partition=blocked.partition
            )
            jobs = answer.get("jobs")
            if jobs == []:
                continue
            found = (
                f"jobs {', '.join(' '.join(job.split()[:3]) for job in jobs[:5])}"
                if jobs
                else f"a slurmctld that does not say which jobs there are ({answer.get('error')})"
            )
            where = ", ".join(blocked.nodes) or blocked.partition or "the cluster"
            reasons.append(
                f"{blocked.what}: found {found}, expected none on {where}: {blocked.why}. See: "
                "squeue. Fix: drain it (scontrol update nodename=... state=drain reason=...) and "
                "wait, then run again"
            )
        name = self._variables["inventory_hostname"]
        return "\n".join(f"{name}: {reason}" for reason in reasons)

    def _module(self, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="railweld_slurm_config",
            module_args=arguments,
            task_vars=self._variables,
        )
        return answer
