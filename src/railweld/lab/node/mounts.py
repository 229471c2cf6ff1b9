"""mount(2), for the parts of /sys and /proc that show hardware which is not there."""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096


def mount(source: str, target: str, kind: str, flags: int = 0, options: str | None = None) -> None:
    """Mount something.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    data = None if options is None else options.encode()
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")
