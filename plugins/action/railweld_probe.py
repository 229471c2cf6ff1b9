# SPDX-License-Identifier: Apache-2.0
"""Observes a node once and hands the result to roles and checks as facts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from railweld.base.families import CLUSTER_FAMILIES, FAMILIES
from railweld.base.run import run_id
from railweld.verify import registry

_LISTS = ("package_patterns", "files", "contents", "units", "candidates", "urls")
#: Packages that belong to no family and still decide about a role.
_OTHER_PACKAGES = (
    "chrony",
    "containerd*",
    "dkms",
    "iproute2",
    "lldpd",
    "mokutil",
    "ntp*",
    "openntpd",
    "systemd-timesyncd",
    "unattended-upgrades",
)


_RDMA = ("hcas", "rdma")
_GPU = ("driver", "gpus", "fabric_manager", "cuda", "nccl")
#: Role → areas that it cannot change. When it looks again after its work, what this run has seen of
#: them still holds; reading ports or GPUs takes most of an observation's time.
_UNCHANGED_BY = {
    "package_lock": _RDMA,
    "chrony": _RDMA + _GPU,
    "nvidia_driver": _RDMA,
    "fabric_manager": _RDMA,
    "cuda": _RDMA,
    "nccl": _RDMA,
    "rail_network": _GPU,
    "lldp": _RDMA + _GPU,
    "nvme_cache": _RDMA + _GPU,
    "observe_cluster": _RDMA + _GPU,
    "containerd": _RDMA + _GPU,
    "kubernetes": _RDMA + _GPU,
    "cni": _RDMA + _GPU,
}


#: Areas that a stage adds: asked for once, then every look of the play has them.
_STAGES = ("cluster", "slurm")


class ActionModule(ActionBase):
    """Fills the module's arguments from the model, runs it, returns facts."""

    _supports_check_mode = True
    _VALID_ARGS = frozenset(
        {*_LISTS, "url_timeout", "if_missing", "health", "await_member", *_STAGES}
    )

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the facts `railweld_node` and `railweld_host`; with `if_missing`, only once."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        name = variables["inventory_hostname"]
        arguments = {key: list(self._task.args.get(key) or []) for key in _LISTS}
        known = variables.get("railweld_node")
        if (
            self._task.args.get("if_missing")
            and isinstance(known, dict)
            and known.get("run") == run_id()
            and all(stage in known for stage in _STAGES if self._task.args.get(stage))
        ):
            return {**result, "changed": False, "reused": True}

        model = variables.get("railweld") or {}
        host = (model.get("hosts") or {}).get(name)
        if model and host is None:
            raise AnsibleActionFail(
                f"{name}: found no model of this host, expected one in the site description; "
                "switches are not configured by roles. Fix: see `railweld check`"
            )
        host = host or {}
        arguments["package_patterns"] += [
            *_OTHER_PACKAGES,
            *(pattern for patterns in FAMILIES.values() for pattern in patterns),
            *(pattern for patterns in CLUSTER_FAMILIES.values() for pattern in patterns),
            *(pin["name"] for pins in (host.get("packages") or {}).values() for pin in pins),
        ]
        for wanted in registry.probe_arguments():
            for key in _LISTS:
                arguments[key] += list(wanted.get(key) or [])
        arguments = {key: sorted(set(values)) for key, values in arguments.items() if values}
        for stage in _STAGES:
            if variables.get(f"railweld_{stage}") or self._task.args.get(stage):
                arguments[stage] = True
        if self._task.args.get("health"):
            arguments["health"] = True
        for key in ("url_timeout", "await_member"):
            if key in self._task.args:
                arguments[key] = self._task.args[key]

        role = self._task._role.get_name() if self._task._role else ""
        if isinstance(known, dict) and known.get("run") == run_id():
            areas = _UNCHANGED_BY.get(role, ())
            arguments["carry"] = {area: known[area] for area in areas if area in known}
        started = time.time()
        answer = self._execute_module(
            module_name="railweld_probe", module_args=arguments, task_vars=variables
        )
        if answer.get("failed") or answer.get("unreachable"):
            return {**result, **answer}
        node = answer.pop("node")
        node["run"] = run_id()
        node["time"]["skew_to_controller_s"] = skew(node["now"], started, time.time())
        node["is_controller"] = self._is_controller(node)
        result.update(changed=False)
        result["ansible_facts"] = {"railweld_node": node, "railweld_host": host}
        return result

    def _is_controller(self, node: dict[str, Any]) -> bool:
        """True when the node is the machine that Ansible itself runs on."""
        if str(self._connection.transport).rpartition(".")[2] == "local":
            return True
        try:
            own = Path("/etc/machine-id").read_text().strip()
        except OSError:
            return False
        return bool(own) and own == node["os"].get("machine_id")


def skew(there: float, started: float, ended: float) -> float:
    """Return how far a clock that was read between two moments is off, 0 if it may be right."""
    if there < started:
        return round(there - started, 3)
    return round(max(there - ended, 0.0), 3)
