"""Digests of what each role would be given on a host, the same in every task of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from railweld.base.convergence import inputs_digest, knobs


def host_inputs(
    roles_folder: Path,
    roles: Iterable[str],
    site: Mapping[str, Any],
    host: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> dict[str, str]:
    """Return the input digest of each role.

    Args:
        roles_folder: where the roles are.
        roles: their names.
        site: `railweld.site`.
        host: the host's model.
        variables: the host's variables without those of a role (Ansible's `hostvars[NAME]`), so
            that the answer does not depend on the task that asks. Only the role's public knobs
            are read: registered results and facts are no input.
    """
    digests = {}
    for role in roles:
        folder = roles_folder / role
        given = {name: variables[name] for name in knobs(folder) if name in variables}
        digests[role] = inputs_digest(folder, site, host, given)
    return digests
