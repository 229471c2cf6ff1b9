"""The cluster as its first control-plane node reports it: one line per node, not one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Columns of the report. At a thousand nodes whole objects would be tens of megabytes.
_COLUMNS: Final = (
    "{.metadata.name}",
    "{.spec.podCIDR}",
    '{.status.addresses[?(@.type=="InternalIP")].address}',
    "{.status.nodeInfo.kubeletVersion}",
    "{.spec.unschedulable}",
    '{.status.conditions[?(@.type=="Ready")].status}',
)
TEMPLATE: Final = "{range .items[*]}" + '{"\\t"}'.join(_COLUMNS) + '{"\\n"}{end}'

COMMAND: Final = (
    "kubectl",
    "--kubeconfig",
    "/etc/kubernetes/admin.conf",
    "--request-timeout=10s",
    "get",
    "nodes",
    "--output",
    f"jsonpath={TEMPLATE}",
)


def parse(result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read what the command answered, whatever became of it.

    Args:
        result: a registered command result; None when it was not run.

    Returns:
        `reachable`, `error`, and `nodes` by name.
    """
    if result is None or result.get("rc", 1) != 0:
        lines = str((result or {}).get("stderr") or (result or {}).get("msg") or "").splitlines()
        return {"reachable": False, "error": lines[-1] if lines else "not asked", "nodes": {}}
    nodes = {}
    for line in str(result.get("stdout", "")).splitlines():
        name, cidr, address, version, unschedulable, ready = (line.split("\t") + [""] * 6)[:6]
        if name:
            nodes[name] = {
                "pod_cidr": cidr or None,
                "address": address or None,
                "version": version.removeprefix("v"),
                "unschedulable": unschedulable == "true",
                "ready": ready == "True",
            }
    return {"reachable": True, "error": "", "nodes": nodes}
