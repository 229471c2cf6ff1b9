"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import containerd


def _context(
    node: Mapping[str, Any],
    railweld: Mapping[str, Any],
    host: Mapping[str, Any],
    cluster: Mapping[str, Any],
) -> Context:
    return Context(site=railweld["site"], host=host, node=node, cluster=cluster)


def missing_images(
    node: Mapping[str, Any],
    railweld: Mapping[str, Any],
    host: Mapping[str, Any],
    cluster: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Image archives that this node has still to load."""
    return [
        dict(each) for each in containerd.missing_images(_context(node, railweld, host, cluster))
    ]


class FilterModule:
    """Filters of role containerd."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "containerd_missing_images": missing_images,
        }
