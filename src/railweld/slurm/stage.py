"""The Slurm stage: inputs of its role, and whether a host still needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from railweld.base.convergence import RoleState, inputs_digest, knobs, role_state
from railweld.bridge import bundle
from railweld.verify.context import Context

ROLE: Final = "slurm"
#: The bridge's client, daemon and credentials, on the Slurm head.
BRIDGE: Final = "bridge"


def roles(ctx: Context) -> tuple[str, ...]:
    """Roles of a host; the bridge's also where it is described no more and still there."""
    is_head = "controller" in ctx.slurm["host"]["parts"]
    has_bridge = ctx.slurm["bridge"] or ctx.seen("slurm.bridge.present")
    return (ROLE, BRIDGE) if is_head and has_bridge else (ROLE,)


def inputs(
    roles_folder: Path, slurm: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, str]:
    """Digest of all that decides what each role does on a host.

    A node that takes its configuration from slurmctld depends neither on the other nodes nor on
    what the bridge is like, only on whether there is one.

    Args:
        roles_folder: where the roles are.
        slurm: the host's view.
        variables: the host's variables without those of a role.
    """
    site = {key: value for key, value in slurm.items() if key != "host"}
    if not needs_files(slurm):
        site["nodes"] = {name: slurm["nodes"][name] for name in slurm["host"]["daemons"]}
        site["partitions"], site["bridge"] = [], slurm["bridge"] is not None
    of_bridge = {"bridge": slurm["bridge"], "program": bundle.build().digest}
    return {
        role: inputs_digest(
            roles_folder / role,
            part,
            slurm["host"],
            {name: variables[name] for name in knobs(roles_folder / role) if name in variables},
        )
        for role, part in ((ROLE, site), (BRIDGE, of_bridge))
    }


def needs_files(slurm: Mapping[str, Any]) -> bool:
    """True if the host has slurm.conf as a file of the role's."""
    return "controller" in slurm["host"]["parts"] or slurm["config"] == "files"


def plan(ctx: Context, inputs: Mapping[str, str]) -> list[RoleState]:
    """Judge each role of a host, in their order."""
    return [role_state(ctx, role, inputs[role]) for role in roles(ctx)]
