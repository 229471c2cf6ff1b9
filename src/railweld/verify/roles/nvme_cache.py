"""The node's fast disk: a cache that is kept and a scratch folder for jobs."""

from __future__ import annotations

import os.path
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from railweld import names
from railweld.record import Check, judge
from railweld.verify.context import Context

ROLE: Final = "nvme_cache"
#: What the role asks of the probe beyond what it always reads.
PROBE: Final = {"package_patterns": ["e2fsprogs", "xfsprogs"], "units": [names.SCRATCH_TIMER]}

#: Label of the file system; its UUID is derived, so a reinstalled node finds its cache again.
LABEL: Final = "railweld-cache"
_NAMESPACE: Final = uuid.UUID("6f5f2c1e-8a3b-5d0c-9a77-2f5b1f6f0c11")

_REF: Final = "docs/base.md"


def filesystem_uuid(site: str, host: str) -> str:
    """UUID of this node's cache file system."""
    return str(uuid.uuid5(_NAMESPACE, f"{site}/{host}"))


def mount_point(cache: Mapping[str, Any]) -> str | None:
    """Folder that holds both paths: the file system is mounted there. None without a common one."""
    first = PurePosixPath(str(cache["cache_path"]))
    second = PurePosixPath(str(cache["scratch_path"]))
    common = PurePosixPath(os.path.commonpath([first, second]))
    return None if common in (PurePosixPath("/"), first, second) else str(common)


def mount_unit(path: str) -> str:
    """Name of systemd's unit for a mount point, as `systemd-escape --path` gives it."""
    text = "-".join(
        "".join(
            char if (char.isascii() and char.isalnum()) or char in ":_." else _hex(char)
            for char in part
        )
        for part in path.split("/")
        if part
    )
    return (_hex(".") + text[1:] if text.startswith(".") else text) + ".mount"


def _hex(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def folders(cache: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What the role keeps: by the name of its check, the folder and its mode."""
    jobs = str(cache["job_scratch_path"])
    return {
        "cache_path": (str(cache["cache_path"]), "1777"),
        "scratch_path": (str(cache["scratch_path"]), "1777"),
        # Jobs' folders are open to whoever reaches them: this one keeps all but root away.
        "job_scratch_closed": (str(PurePosixPath(jobs).parent), "700"),
        "job_scratch_path": (jobs, "1777"),
    }


def folders_differ(node: Mapping[str, Any], cache: Mapping[str, Any]) -> bool:
    """Whether a folder is missing or has another mode."""
    return any(_mode(node, path) != mode for path, mode in folders(cache).values())


def _mode(node: Mapping[str, Any], path: str) -> str | None:
    """Mode of a folder; None for one that is not there."""
    return ((node.get("folders") or {}).get(path) or {}).get("mode")


def _mount(ctx: Context, path: str) -> Mapping[str, Any] | None:
    """What is mounted at a folder: `{source, uuid}`."""
    disks = ctx.node.get("disks") or {}
    mount = (disks.get("mounts") or {}).get(path)
    if not isinstance(mount, Mapping):
        return None
    uuids = {device["path"]: device.get("uuid") for device in _flat(disks.get("blockdevices"))}
    return {"source": mount.get("source"), "uuid": uuids.get(mount.get("source"))}


def _flat(devices: Any) -> Iterator[Mapping[str, Any]]:
    """Disks and everything below them, as lsblk nests it."""
    for device in devices or []:
        yield device
        yield from _flat(device.get("children"))


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse to hide files, to share a mount point, or to use a device that is not there.

    Whether the device may be formatted is decided on the node by the module that formats it,
    in the same breath; an observation made earlier would be no proof.
    """
    cache = ctx.host.get("cache") or {}
    device = cache.get("device")
    if not device:
        return
    target = str(ctx.host["name"])
    mount = mount_point(cache)
    yield judge(
        id="nvme_cache.common_parent",
        target=target,
        ok=mount is not None,
        ran="railweld check",
        found=f"{cache['cache_path']} and {cache['scratch_path']}",
        expected="two folders below one common folder, where the disk is mounted",
        fix="choose railweld_cache_path and railweld_scratch_path below one folder, such as "
        "/local/cache and /local/scratch",
        ref=_REF,
    )
    if mount is None:
        return
    seen = _mount(ctx, mount)
    wanted = filesystem_uuid(str(ctx.site["name"]), target)
    yield judge(
        id="nvme_cache.mount_point_free",
        target=target,
        ok=seen is None or seen.get("uuid") == wanted,
        ran=f"findmnt {mount}",
        found=f"{seen.get('source')} mounted at {mount}" if seen else f"nothing mounted at {mount}",
        expected=f"{mount} free, or file system {wanted}",
        fix=f"unmount it and remove it from /etc/fstab, or choose other paths than {mount}",
        ref=_REF,
    )


def checks(ctx: Context) -> Iterator[Check]:
    """Cache and scratch exist with the right modes, on the described disk if there is one."""
    cache = ctx.host.get("cache")
    if not cache:
        return
    target = str(ctx.host["name"])
    if cache.get("device"):
        mount = mount_point(cache)
        seen = _mount(ctx, mount) if mount else None
        wanted = filesystem_uuid(str(ctx.site["name"]), target)
        yield judge(
            id="nvme_cache.mounted",
            target=target,
            ok=seen is not None and seen.get("uuid") == wanted,
            ran=f"findmnt -o SOURCE,UUID {mount}",
            found=f"{seen.get('source')} with UUID {seen.get('uuid')}" if seen else "not mounted",
            expected=f"file system {wanted} at {mount}",
            fix="run the nvme_cache role; journalctl says why the mount unit failed",
            ref=_REF,
        )
    for name, (path, mode) in folders(cache).items():
        seen_mode = _mode(ctx.node, path)
        yield judge(
            id=f"nvme_cache.{name}",
            target=target,
            ok=seen_mode == mode,
            ran=f"stat -c %a {path}",
            found=f"mode {seen_mode}" if seen_mode else "absent",
            expected=f"folder with mode {mode}",
            fix="run the nvme_cache role",
            ref=_REF,
        )
    timer = ctx.seen("units", {}).get(names.SCRATCH_TIMER) or {}
    yield judge(
        id="nvme_cache.scratch_timer",
        target=target,
        ok=timer.get("active") == "active" and timer.get("enabled") == "enabled",
        ran=f"systemctl status {names.SCRATCH_TIMER}",
        found=f"{timer.get('active', 'absent')}, {timer.get('enabled', 'not enabled')}",
        expected="active, enabled: it removes the scratch folders of jobs that have ended",
        fix="run the nvme_cache role",
        ref=_REF,
    )
