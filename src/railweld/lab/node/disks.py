"""A full disk: the folder moves to a small file system of its own, which then runs full.

The machine's disk is shared by all nodes and cannot be filled. A file system in a file behaves as a
small disk does: real ENOSPC, real numbers in df, and it is still full after a reboot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from railweld.lab.node import state

IMAGE = Path("/.railweld-lab-disk")
MOUNT_POINT_FILE = Path("/.railweld-lab-disk.path")
FILLER = ".railweld-lab-filler"
#: Room for journal and tables, on top of what lies in the folder.
OVERHEAD = 16 * 1024 * 1024


class DiskError(Exception):
    """The small disk could not be made."""


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def fill(path: str, free_kib: int) -> None:
    """Move a folder to a disk of its own and fill that up; after a reboot only mount it again."""
    folder = Path(path)
    if not folder.is_dir() or folder == Path("/"):
        raise DiskError(f"{path}: found no such folder, expected one below /")
    if is_mounted():
        raise DiskError(f"the disk of {MOUNT_POINT_FILE.read_text()} is full already")
    under = state.run_dir() / "disk-under"
    under.mkdir(parents=True, exist_ok=True)
    inside = mounts_below(folder)
    _run("mount", "--rbind", str(folder), str(under))
    is_new = not IMAGE.exists()
    if is_new:
        used = int(_run("du", "-sx", "-B1", path).split()[0])
        with IMAGE.open("wb") as file:
            file.truncate(used + used // 4 + OVERHEAD)
        _run("mkfs.ext4", "-q", "-m", "0", "-i", "4096", str(IMAGE))
        MOUNT_POINT_FILE.write_text(path)
    fresh = state.run_dir() / "disk"
    fresh.mkdir(exist_ok=True)
    mount_image(fresh)
    if is_new:
        _run("cp", "-ax", f"{under}/.", f"{fresh}/")
        (fresh / "lost+found").rmdir()
    _run("mount", "--bind", str(fresh), path)
    for place in inside:
        _run("mount", "--bind", str(under / place.relative_to(folder)), str(place))
    write_filler(folder / FILLER, free_kib)


def write_filler(file: Path, free_kib: int) -> None:
    """Write until only `free_kib` are left."""
    file.unlink(missing_ok=True)
    stat = os.statvfs(file.parent)
    wanted = stat.f_bavail * stat.f_frsize - free_kib * 1024
    with file.open("wb", buffering=0) as handle:
        if wanted > 0:
            os.posix_fallocate(handle.fileno(), 0, wanted)
    # Metadata of the filler itself took some: give back until the room is as promised.
    stat = os.statvfs(file.parent)
    lacking = free_kib * 1024 - stat.f_bavail * stat.f_frsize
    if lacking > 0:
        os.truncate(file, max(0, file.stat().st_size - lacking))


def restore() -> None:
    """Bring the folder, as it is now, back to the node's own disk."""
    if not IMAGE.exists():
        return
    folder = Path(MOUNT_POINT_FILE.read_text())
    if is_mounted():
        inside = mounts_below(folder)
        under, fresh = state.run_dir() / "disk-under", state.run_dir() / "disk"
        (folder / FILLER).unlink(missing_ok=True)
        for place in reversed(inside):
            _run("umount", "--lazy", str(place))
        kept = {(under / place.relative_to(folder)) for place in inside}
        empty(under, kept)
        _run("cp", "-ax", f"{fresh}/.", f"{under}/")
        _run("umount", "--lazy", str(folder))
        _run("umount", "--lazy", str(fresh))
        _run("umount", "--recursive", "--lazy", str(under))
    IMAGE.unlink()
    MOUNT_POINT_FILE.unlink()


def empty(folder: Path, kept: set[Path]) -> None:
    """Remove everything below a folder except mount points and what leads to them."""
    for entry in folder.iterdir():
        if entry in kept:
            continue
        if any(place.is_relative_to(entry) for place in kept):
            empty(entry, kept)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def is_mounted() -> bool:
    """True while the small disk is in use."""
    return os.path.ismount(state.run_dir() / "disk")


def mounts_below(folder: Path) -> list[Path]:
    """Mount points below a folder, outermost first."""
    places = [Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted({place for place in places if folder in place.parents})


def mount_image(place: Path) -> None:
    """Mount the image. The loop device frees itself with the last mount, also if the node dies."""
    device = Path(_run("losetup", "--find").strip())
    if not device.exists():
        # The kernel made another one after this node got its /dev.
        number = int(device.name.removeprefix("loop"))
        os.mknod(device, 0o060660, os.makedev(7, number))
    _run("mount", "-o", "loop", str(IMAGE), str(place))
