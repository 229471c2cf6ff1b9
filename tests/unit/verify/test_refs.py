"""A check that points at a document points at one that exists."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def test_every_document_that_a_check_names_exists() -> None:
    named = {
        found.rstrip(".")
        for path in (REPOSITORY / "src/railweld/verify").rglob("*.py")
        for found in re.findall(r"\bdocs/[\w./-]+", path.read_text())
    }
    assert named
    assert [name for name in sorted(named) if not (REPOSITORY / name).is_file()] == []
