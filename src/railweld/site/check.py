"""Everything about a description that is refused or explained."""

from __future__ import annotations

from railweld.site.build import Description
from railweld.site.model import Site


def check(description: Description, site: Site | None) -> None:
    """Add every finding to the description."""
