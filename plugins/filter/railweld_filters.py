# SPDX-License-Identifier: Apache-2.0
"""Small derivations that templates share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def release_url(repository: Mapping[str, Any]) -> str:
    """Return the address of a repository's index: what apt asks for first."""
    base = str(repository["url"]).rstrip("/")
    suite = str(repository.get("suite") or "").strip("/")
    if not suite:
        return f"{base}/Release"
    return f"{base}/dists/{suite}/Release"


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"railweld_release_url": release_url}
