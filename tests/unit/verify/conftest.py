"""A converged GPU node as observed, and a way to say what is different on another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from railweld.record import Check
from railweld.verify.context import Context

_OBSERVATIONS = Path(__file__).parent / "observations"

#: Removes a key instead of setting it.
ABSENT = object()


@pytest.fixture
def observed() -> Callable[..., Context]:
    """Build the context of the A100 node, changed at dotted paths.

    Paths start with `site.`, `host.` or `node.`; `/` separates where keys contain dots.
    """

    def build(changes: dict[str, Any] | None = None) -> Context:
        tree = json.loads((_OBSERVATIONS / "a100-base.json").read_text())
        for path, value in (changes or {}).items():
            *parents, last = path.split("/") if "/" in path else path.split(".")
            here = tree
            for key in parents:
                here = here.setdefault(key, {})
            if value is ABSENT:
                here.pop(last, None)
            else:
                here[last] = value
        return Context(site=tree["site"], host=tree["host"], node=tree["node"])

    return build


@pytest.fixture
def absent() -> object:
    """The value that removes a key from the observation."""
    return ABSENT


@pytest.fixture
def bad() -> Callable[[Iterable[Check]], dict[str, str]]:
    """Return the bad checks by id, each as the sentence that an operator reads."""

    def collect(checks: Iterable[Check]) -> dict[str, str]:
        return {check.id: check.sentence() for check in checks if check.is_bad}

    return collect
