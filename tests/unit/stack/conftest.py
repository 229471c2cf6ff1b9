"""Sites to render, and the Pulumi program's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railweld.site import Site, load_site

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", autouse=True)
def program_modules() -> Iterator[None]:
    """`components` and `program` as the Pulumi program imports them."""
    sys.path.insert(0, str(ROOT / "pulumi"))
    yield
    sys.path.remove(str(ROOT / "pulumi"))


@pytest.fixture(scope="session")
def site() -> Callable[..., Site]:
    """A site by inventory name and extra variables; each is loaded once."""
    cache: dict[tuple[str, str], Site] = {}

    def load(name: str = "example-a100", **variables: Any) -> Site:
        extra = {f"railweld_{key}": value for key, value in variables.items()}
        token = (name, repr(sorted(extra.items())))
        if token not in cache:
            cache[token] = load_site([str(ROOT / "inventories" / name)], extra)
        return cache[token]

    return load
