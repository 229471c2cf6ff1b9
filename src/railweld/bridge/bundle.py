"""The daemon as one file: an archive that Python runs, the same bytes for the same source.

The Slurm head gets no virtual environment and nothing from PyPI: Debian's Python with its own
aiohttp and PyYAML, which the archive or the site's mirror of it updates, and this file. The file's
name has the digest of its content, so two releases never mix and an old one can be run again.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from railweld import names

PACKAGE: Final = "railweld"
DAEMON: Final = "railweld.bridge.daemon"
#: The commands for people are in the archive too: `python3 bridged.pyz ask explain 12`.
ASK: Final = "railweld.bridge.ask"
#: What the daemon reads from its own package and does not import.
CARRIED: Final = ("railweld.bridge.pod",)
_SOURCES: Final = Path(__file__).parents[2]
_MAIN: Final = f"""\
import sys

if sys.argv[1:2] == ["ask"]:
    from {ASK} import main

    sys.exit(main(sys.argv[2:]))
from {DAEMON} import main

sys.exit(main())
"""
#: Zip archives know no earlier one; a real one would make each build another.
_MOMENT: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """The archive and its name."""

    content: bytes
    digest: str

    @property
    def path(self) -> str:
        """Where it lies on the head."""
        return f"{names.BRIDGE_PROGRAMS}/bridged-{self.digest}.pyz"


@cache
def build() -> Bundle:
    """Collect the daemon's modules, and theirs, into one archive."""
    files = {"__main__.py": _MAIN.encode(), **{name: path.read_bytes() for name, path in _files()}}
    buffer = io.BytesIO()
    # Stored and not compressed: other releases of zlib make other bytes.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), content)
    content = buffer.getvalue()
    return Bundle(content, hashlib.sha256(content).hexdigest()[:12])


def _files() -> Iterator[tuple[str, Path]]:
    for path in sorted(modules().values()):
        yield path.relative_to(_SOURCES).as_posix(), path


def modules() -> dict[str, Path]:
    """Every module of this package that the daemon needs, by name."""
    found: dict[str, Path] = {}
    waiting = [DAEMON, ASK]
    for package in CARRIED:
        folder = _SOURCES / package.replace(".", "/")
        waiting += [f"{package}.{path.stem}" for path in sorted(folder.glob("[a-z]*.py"))]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if path is None or name in found:
            continue
        found[name] = path
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        waiting += _imported(path)
    return found


def _path(name: str) -> Path | None:
    base = _SOURCES / name.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imported(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports; also names that may be modules of one."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            every = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            every = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        else:
            continue
        yield from (each for each in every if each.split(".")[0] == PACKAGE)
