"""Filters of role nvme_cache: the functions that the role's checks use too, so both agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from railweld.verify.roles import nvme_cache


class FilterModule:
    """Names as the role's tasks and templates call them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters."""
        return {
            "nvme_cache_uuid": lambda railweld, host: nvme_cache.filesystem_uuid(
                railweld["site"]["name"], host["name"]
            ),
            "nvme_cache_mount_point": lambda host: nvme_cache.mount_point(host["cache"]),
            "nvme_cache_unit": nvme_cache.mount_unit,
            "nvme_cache_folders_differ": lambda node, host: nvme_cache.folders_differ(
                node, host["cache"]
            ),
        }
