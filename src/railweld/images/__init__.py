"""Container images that railweld makes itself: the clock guard, and the lab's stand-ins."""

from railweld.images.catalog import Entry, catalog
from railweld.images.make import build, push

__all__ = ["Entry", "build", "catalog", "push"]
