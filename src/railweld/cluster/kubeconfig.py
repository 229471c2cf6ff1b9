"""The controller's way into the cluster: kubeadm's admin.conf under the site's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from railweld import names
from railweld.errors import RailweldError
from railweld.files import write_atomically
from railweld.state import site_state_dir


def renamed(text: str, cluster: Mapping[str, Any]) -> str:
    """Rewrite admin.conf: context and user say which site they are of, the server is the endpoint.

    Raises:
        RailweldError: not a kubeconfig, or one of another cluster.
    """
    content = yaml.safe_load(text)
    try:
        entry, user = content["clusters"][0], content["users"][0]
        found = entry["name"]
    except (KeyError, IndexError, TypeError) as error:
        raise RailweldError(
            "admin.conf: found no cluster and user in it, expected what kubeadm writes. Fix: "
            "kubeadm init phase kubeconfig admin on the first control-plane node"
        ) from error
    if found != cluster["name"]:
        raise RailweldError(
            f"admin.conf: found cluster {found!r}, expected {cluster['name']!r} (railweld_site). "
            "Fix: the node runs another cluster; correct the inventory"
        )
    context = str(cluster["context"])
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": found,
                    "cluster": {
                        "certificate-authority-data": entry["cluster"][
                            "certificate-authority-data"
                        ],
                        "server": f"https://{cluster['endpoint']}",
                    },
                }
            ],
            "users": [{"name": f"{context}-admin", "user": user["user"]}],
            "contexts": [
                {"name": context, "context": {"cluster": found, "user": f"{context}-admin"}}
            ],
            "current-context": context,
        },
        sort_keys=False,
    )


def path(site: str) -> Path:
    """Where the controller keeps it."""
    return site_state_dir(site) / names.KUBECONFIG


def write(site: str, text: str) -> bool:
    """Write the file with mode 0600 where its content or mode differs; tell whether it did."""
    target = path(site)
    if target.is_file():
        same = target.read_text() == text and target.stat().st_mode & 0o777 == 0o600
        if same:
            return False
    write_atomically(target, text)
    return True
