"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from railweld.errors import UsageError


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file by rename: a reader sees the old text or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_writable(path: Path, option: str) -> None:
    """Refuse a place that cannot be written to, before minutes of looking.

    Raises:
        UsageError: the folder is not there or not writable, or the path is a folder.
    """
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        found = "a folder" if path.is_dir() else "no writable folder"
        raise UsageError(f"{option} {path}: found {found}, expected a file in a writable folder")


def write_result(path: Path, text: str) -> None:
    """Write what a command was asked for, readable for everybody.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        write_atomically(path, text, 0o644)
    except OSError as error:
        raise UsageError(f"{path}: found {error}, expected a place to write the file to") from error
