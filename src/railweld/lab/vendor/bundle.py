"""Makes one executable file out of a stand-in program and the modules that it shares."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

from railweld.lab.vendor.programs.machine import Build

SOURCE = Path(__file__).parent / "programs"
PACKAGE = "railweld.lab.vendor.programs"
#: Zip files cannot say anything earlier; the same input gives the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)


@cache
def _modules() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(SOURCE.glob("*.py"))}


def program(function: str, build: Build) -> bytes:
    """Return an executable Python archive.

    Args:
        function: `MODULE.FUNCTION` in `programs`, called with argv, the constants and the node.
        build: constants of the package.
    """
    module, _, name = function.partition(".")
    main = (
        "# railweld lab: stands in for the vendor's program.\n"
        "import sys\n"
        f"from {PACKAGE}.machine import Machine\n"
        f"from {PACKAGE}.{module} import {name}\n"
        f"sys.exit({name}(sys.argv[1:], {dict(sorted(build.items()))!r}, Machine()))\n"
    )
    folder = PACKAGE.replace(".", "/")
    files = {"__main__.py": main.encode()}
    for depth in range(1, PACKAGE.count(".") + 1):
        files["/".join(folder.split("/")[:depth]) + "/__init__.py"] = b""
    files |= {f"{folder}/{file}": content for file, content in _modules().items()}
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
