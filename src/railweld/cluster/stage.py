"""The cluster stage's roles: order, inputs, and which of them a host still needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from railweld.base.convergence import RoleState, inputs_digest, knobs, role_state
from railweld.cluster.model import view
from railweld.errors import RailweldError
from railweld.verify.context import Context

#: The order follows from what each needs: a runtime, then a node, then its network.
ROLES: Final = ("containerd", "kubernetes", "cni")


def host_view(cluster: Mapping[str, Any], host: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What one host's roles and checks see of the cluster: its view, images and the report."""
    found = view(cluster, host)
    found["host"] = {**found["host"], "images": images(cluster.get("images") or [], found["host"])}
    found["seen"] = dict(seen)
    return found


def images(index: list[Mapping[str, Any]], host: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Image archives that a host loads: those of every node, and its own kind's."""
    kinds = {"node", str(host["role"])}
    return [dict(each) for each in index if each.get("nodes", "node") in kinds]


def read_index(folder: str | None) -> list[dict[str, Any]]:
    """Read `index.json` of a folder of image archives.

    Raises:
        RailweldError: the folder or its index cannot be read.
    """
    if folder is None:
        return []
    path = Path(folder) / "index.json"
    try:
        listed: list[dict[str, Any]] = json.loads(path.read_text())
        missing = [each["file"] for each in listed if not (path.parent / each["file"]).is_file()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RailweldError(
            f"railweld_image_archives: found no readable {path} ({error}), expected a list of "
            "archives with `file`, `images`, `nodes` and `sha256`. Fix: `railweld images save`; "
            "in the lab `railweld lab kubernetes`"
        ) from error
    if missing:
        raise RailweldError(
            f"railweld_image_archives: found in {path} {', '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not in that folder. Fix: copy the archives, "
            "or write the index anew"
        )
    return listed


def inputs(
    roles_folder: Path, cluster: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, str]:
    """Digest of all that decides what each role does on a host.

    Args:
        roles_folder: where the roles are.
        cluster: the host's view.
        variables: the host's variables without those of a role.
    """
    site = {key: value for key, value in cluster.items() if key not in ("host", "seen")}
    digests = {}
    for role in ROLES:
        folder = roles_folder / role
        given = {name: variables[name] for name in knobs(folder) if name in variables}
        host = dict(cluster["host"])
        if role != "containerd":
            # The runtime alone loads archives; another one is no reason to look at the rest.
            host.pop("images", None)
        digests[role] = inputs_digest(folder, site, host, given)
    return digests


def plan(ctx: Context, digests: Mapping[str, str]) -> list[RoleState]:
    """Judge every role of the stage on one host, in order."""
    return [role_state(ctx, role, digests[role]) for role in ROLES]
