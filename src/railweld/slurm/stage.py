"""The Slurm stage: inputs of its role, and whether a host still needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from railweld.base.convergence import RoleState, inputs_digest, knobs, role_state
from railweld.verify.context import Context

ROLE: Final = "slurm"


def inputs(roles_folder: Path, slurm: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    """Digest of all that decides what the role does on a host.

    A node that takes its configuration from slurmctld does not depend on the other nodes.

    Args:
        roles_folder: where the roles are.
        slurm: the host's view.
        variables: the host's variables without those of a role.
    """
    folder = roles_folder / ROLE
    site = {key: value for key, value in slurm.items() if key != "host"}
    if not needs_files(slurm):
        site["nodes"] = {name: slurm["nodes"][name] for name in slurm["host"]["daemons"]}
        site["partitions"] = []
    given = {name: variables[name] for name in knobs(folder) if name in variables}
    return inputs_digest(folder, site, slurm["host"], given)


def needs_files(slurm: Mapping[str, Any]) -> bool:
    """True if the host has slurm.conf as a file of the role's."""
    return "controller" in slurm["host"]["parts"] or slurm["config"] == "files"


def plan(ctx: Context, digest: str) -> RoleState:
    """Judge the role on one host."""
    return role_state(ctx, ROLE, digest)
