#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Formats a disk that is provably empty, and no other."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: nvme_cache_filesystem
short_description: Make a file system on an empty disk
description:
  - Makes the file system with the given UUID unless it is there already. A disk with a signature,
    a partition, a holder, a mount or any byte other than zero in the places looked at is never
    touched; the module fails and says what it found.
  - The look and the format happen under one exclusive handle, which the kernel grants only while
    nothing else uses the disk.
options:
  device:
    description: Block device.
    type: path
    required: true
  uuid:
    description: UUID of the file system.
    type: str
    required: true
  label:
    description: Label of the file system.
    type: str
    required: true
  fstype:
    description: Type of the file system.
    type: str
    choices: [ext4, xfs]
    default: ext4
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Make the cache's file system
  nvme_cache_filesystem:
    device: /dev/nvme0n1
    uuid: 5bd4b0d8-4b7a-5d4e-9a52-0f5f2a9c2a11
    label: railweld-cache
"""

RETURN = r"""
state:
  description: C(ours) when the file system was there, C(formatted) when it was made.
  type: str
  returned: success
device:
  description: The device that has the file system now; another one than asked for when the
    kernel has renamed the disks.
  type: str
  returned: success
"""

MIB = 1 << 20
#: Read whole: where file systems, RAID, LVM, ZFS and LUKS keep what they are known by.
EDGE = 16 * MIB
#: In between, this many places are looked at, spread evenly.
SAMPLES = 512
SAMPLE = 64 * 1024


class RefusedError(Exception):
    """The disk is not provably empty."""


def output(*argv):
    """Output of a command, None when it failed."""
    done = subprocess.run(
        argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return done.stdout if done.returncode == 0 else None


def find_by_uuid(uuid):
    """Device that has the file system, None when no device has."""
    # Neither blkid's cache nor udev's links count: both may tell of a disk as it was. Without -l,
    # blkid looks at every disk itself.
    found = output("blkid", "-c", "/dev/null", "-o", "device", "-t", f"UUID={uuid}") or ""
    for device in found.split():
        if (output("blkid", "-p", "-o", "value", "-s", "UUID", device) or "").strip() == uuid:
            return device
    return None


def tree(device):
    """What lsblk says about the device and everything on it."""
    text = output(
        "lsblk", "--json", "--bytes", "-o", "PATH,TYPE,SIZE,FSTYPE,MOUNTPOINT,PARTTYPE", device
    )
    devices = json.loads(text)["blockdevices"] if text else []
    return devices[0] if devices else {}


def signatures(device):
    """Signatures that wipefs knows: file systems, RAID, LVM, partition tables."""
    text = output("wipefs", "--no-act", "--json", device)
    found = json.loads(text)["signatures"] if text and text.strip() else []
    return sorted({str(each.get("type")) for each in found})


def places(size):
    """Yield (offset, length) of what is read: both edges whole, samples in between."""
    yield 0, min(EDGE, size)
    if size <= EDGE:
        return
    last = max(EDGE, size - EDGE)
    step = max(SAMPLE, (last - EDGE) // SAMPLES)
    for offset in range(EDGE, last, step):
        yield offset, min(SAMPLE, last - offset)
    yield last, size - last


def first_data(handle, size):
    """Offset of the first byte that is not zero in the places looked at, None when all are."""
    for offset, length in places(size):
        handle.seek(offset)
        left = length
        while left:
            block = handle.read(min(MIB, left))
            if not block:
                break
            if block.count(0) != len(block):
                at = offset + length - left
                return at + next(i for i, byte in enumerate(block) if byte)
            left -= len(block)
    return None


def refuse_unless_empty(device, handle, size):
    """Raise RefusedError naming what is on the disk."""
    here = tree(device)
    children = [child["path"] for child in here.get("children") or []]
    if children:
        raise RefusedError(f"it has {', '.join(children)} on it")
    if here.get("mountpoint"):
        raise RefusedError(f"it is mounted at {here['mountpoint']}")
    found = signatures(device)
    if found:
        raise RefusedError(f"it has signatures: {', '.join(found)}")
    at = first_data(handle, size)
    if at is not None:
        raise RefusedError(f"it holds data (first at byte {at}) though no known signature")


def open_exclusively(device):
    """Open a block device so that nothing else can mount or take it meanwhile."""
    try:
        return os.fdopen(os.open(device, os.O_RDWR | os.O_EXCL), "r+b", buffering=0)
    except OSError as error:
        raise RefusedError(f"it is in use ({error.strerror})") from error


def make(device, fstype, uuid, label):
    """Make the file system; mkfs's own refusals stay in force (no force option)."""
    commands = {
        "ext4": ["mkfs.ext4", "-q", "-m", "0", "-U", uuid, "-L", label, device],
        "xfs": ["mkfs.xfs", "-q", "-m", f"uuid={uuid}", "-L", label[:12], device],
    }
    done = subprocess.run(
        commands[fstype],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RefusedError(f"{commands[fstype][0]} failed: {done.stdout.strip()}")


def ensure(device, fstype, uuid, label, *, dry_run):
    """Return (changed, state, device); raise RefusedError when the disk must not be touched."""
    there = find_by_uuid(uuid)
    if there:
        return False, "ours", there
    path = Path(device)
    if not path.exists():
        raise RefusedError("there is no such device")
    if not stat.S_ISBLK(path.stat().st_mode):
        raise RefusedError("it is not a block device")
    kind = tree(device).get("type")
    if kind not in ("disk", "loop", "mpath"):
        raise RefusedError(f"it is {kind or 'nothing that lsblk knows'}, not a whole disk")
    with open_exclusively(device) as handle:
        size = handle.seek(0, os.SEEK_END)
        refuse_unless_empty(device, handle, size)
    if dry_run:
        return True, "formatted", device
    if shutil.which(f"mkfs.{fstype}") is None:
        raise RefusedError(f"mkfs.{fstype} is not installed")
    make(device, fstype, uuid, label)
    return True, "formatted", device


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "device": {"type": "path", "required": True},
            "uuid": {"type": "str", "required": True},
            "label": {"type": "str", "required": True},
            "fstype": {"type": "str", "choices": ["ext4", "xfs"], "default": "ext4"},
        },
        supports_check_mode=True,
    )
    given = module.params
    # A login without a profile may lack the folders of mkfs and wipefs.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        changed, state, device = ensure(
            given["device"],
            given["fstype"],
            given["uuid"],
            given["label"],
            dry_run=module.check_mode,
        )
    except RefusedError as refusal:
        module.fail_json(
            msg=f"{given['device']}: refused to format it: {refusal}. Expected an empty disk or "
            f"file system {given['uuid']}. See: lsblk -f {given['device']}; "
            f"wipefs {given['device']}. Fix: name another disk in railweld_cache_device, or, if "
            "its content is not needed, empty it yourself (blkdiscard, or wipefs -a and zeros) "
            "and run again"
        )
    module.exit_json(changed=changed, state=state, device=device)


if __name__ == "__main__":
    main()
