"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import chrony


def missing_sources(
    node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]
) -> list[str]:
    """Time servers that the running daemon does not ask."""
    return chrony.missing_sources(Context(site=site, host=host, node=node))


def competitors(
    node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]
) -> list[str]:
    """Units of other time daemons that run or would run after the next boot."""
    return chrony.competitors(Context(site=site, host=host, node=node))


class FilterModule:
    """Filters of role chrony."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function, as Ansible asks for them."""
        return {
            "chrony_missing_sources": missing_sources,
            "chrony_competitors": competitors,
        }
