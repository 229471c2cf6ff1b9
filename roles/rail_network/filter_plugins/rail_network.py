"""Filters of role rail_network: the functions that the role's checks use too, so both agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from railweld.verify.roles import rail_network


class FilterModule:
    """Names as the role's tasks and templates call them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters."""
        return {
            "rail_network_rails": rail_network.rails,
            "rail_network_backend": rail_network.backend,
            "rail_network_files": rail_network.files,
            "rail_network_sysctls": lambda _: dict(rail_network.SYSCTLS),
        }
