"""Ids of the checks that the product can emit, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/railweld"
PLACES = ("verify", "fabric", "cluster", "slurm", "bench")
_ID = re.compile(r"(?:[a-z][a-z_0-9]*|\*)\.(?:\*|[a-z][a-z_0-9]*[a-z_0-9.*-]*)$")
_WORD = re.compile(r"[a-z][a-z_0-9]*$")


@cache
def known() -> frozenset[str]:
    """Ids as patterns: `*` stands for what is filled in at run time, such as a GPU's address."""
    found: set[str] = set()
    for place in PLACES:
        for path in (SOURCE / place).rglob("*.py"):
            tree = ast.parse(path.read_text())
            words = {word for word in _words(tree) if _WORD.match(word)}
            for each in filter(_ID.match, _texts(tree)):
                area, _, rest = each.partition(".")
                if rest == "*" and area != "*":
                    # Nothing but the area is fixed: the rest is a word that the module lists.
                    found |= {f"{area}.{word}" for word in words}
                elif rest != "*":
                    found.add(each)
    return frozenset(found)


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values
            )


def _words(tree: ast.AST) -> Iterator[str]:
    """What stands first in a call of a function of the module, in a tuple, or as a key."""
    for node in ast.walk(tree):
        firsts: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            firsts = list(node.args[:1])
        elif isinstance(node, ast.Tuple):
            firsts = list(node.elts[:1])
        elif isinstance(node, ast.Dict):
            firsts = list(node.keys)
        for first in firsts:
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def exists(check: str) -> bool:
    """Whether an id, or a pattern of ids, can come from a check."""
    return any(fnmatchcase(check, each) or fnmatchcase(each, check) for each in known())
