"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import fabric_manager


def wanted(node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]) -> bool:
    """True where the hardware has switches to manage."""
    return fabric_manager.is_wanted(Context(site=site, host=host, node=node))


def strays(node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]) -> list[str]:
    """Names of installed fabric manager packages that the host should not have."""
    return sorted(fabric_manager.strays(Context(site=site, host=host, node=node)))


class FilterModule:
    """Filters of role fabric_manager."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function, as Ansible asks for them."""
        return {"fabric_manager_wanted": wanted, "fabric_manager_strays": strays}
