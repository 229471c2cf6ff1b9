"""Stands in for systemd-modules-load: loads what modules-load.d names."""

from __future__ import annotations

import sys
from pathlib import Path

from railweld.lab.node import modules, state

FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")


def names() -> list[str]:
    """Modules to load, in the order of the files' names; a file in /etc hides its namesakes."""
    files: dict[str, Path] = {}
    for folder in FOLDERS:
        for file in state.path(folder).glob("*.conf"):
            files.setdefault(file.name, file)
    found = []
    for name in sorted(files):
        for line in files[name].read_text().splitlines():
            word = line.strip()
            if word and word[0] not in "#;":
                found.append(word)
    return found


def main() -> int:
    """Load every module; one that is missing or refused fails the unit after the others."""
    code = 0
    for name in names():
        try:
            modules.load(name)
        except modules.ModuleError as error:
            sys.stderr.write(f"Failed to insert module '{name}': {error}\n")
            code = 1
    return code
