"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import nvidia_driver


def strays(node: Mapping[str, Any], host: Mapping[str, Any], site: Mapping[str, Any]) -> list[str]:
    """Names of installed driver packages that carry another branch."""
    return sorted(nvidia_driver.strays(Context(site=site, host=host, node=node)))


def gpus_to_switch(node: Mapping[str, Any], mode: str, wanted: bool) -> list[str]:
    """Indexes of GPUs that have the mode and will not be in the wanted state at the next reset."""
    found = []
    for gpu in node.get("gpus") or []:
        state = gpu.get(f"{mode}_pending", gpu.get(mode))
        if state is not None and nvidia_driver.is_on(state) is not bool(wanted):
            found.append(str(gpu["index"]))
    return found


class FilterModule:
    """Filters of role nvidia_driver."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function, as Ansible asks for them."""
        return {
            "nvidia_driver_strays": strays,
            "nvidia_driver_gpus_to_switch": gpus_to_switch,
        }
