"""The question to the control plane and exact packages, from the code that judges both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.cluster import packages, seen
from railweld.verify.context import Context


def exact_packages(
    node: Mapping[str, Any],
    railweld: Mapping[str, Any],
    host: Mapping[str, Any],
    cluster: Mapping[str, Any],
    component: str,
) -> list[dict[str, Any]]:
    """Packages of a component with the version to install, empty where nobody knows it yet."""
    return packages.exact(Context(railweld["site"], host, node, cluster), component)


class FilterModule:
    """Filters of role observe_cluster."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "observe_cluster_command": lambda _cluster: list(seen.COMMAND),
            "observe_cluster_packages": exact_packages,
        }
