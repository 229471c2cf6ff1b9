"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import cuda


def strays(node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]) -> list[str]:
    """Names of installed compat packages that the set does not ask for."""
    return sorted(cuda.strays(Context(site=site, host=host, node=node)))


class FilterModule:
    """Filters of role cuda."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function, as Ansible asks for them."""
        return {"cuda_strays": strays}
