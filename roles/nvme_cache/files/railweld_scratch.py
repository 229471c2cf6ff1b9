#!/usr/bin/env python3
# Managed by railweld: role nvme_cache.
"""Remove the scratch folders of jobs whose pods are gone from this node.

usage: railweld-scratch FOLDER

For each run of a job the kubelet makes a folder in FOLDER and mounts it into the job's pod. It
undoes its own mount when the pod has ended, so a folder that nothing on this node has mounted
belongs to no pod. What is in it was a user's: no link is followed, no name trusted.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

#: Names of a job's objects in Kubernetes.
NAME = re.compile(r"slurm-[a-z0-9]([a-z0-9._-]*[a-z0-9])?-r[0-9]+")
#: What the kernel says of a process that has ended, or is about to.
ENDED = (errno.ENOENT, errno.ESRCH, errno.EINVAL)
#: Whom the kubelet runs as.
OWNER = 0
#: Between making a folder and mounting it.
YOUNG_SECONDS = 30.0


class ScratchError(Exception):
    """Something is not as expected; nothing is removed for it."""


def mounted(proc=Path("/proc")):
    """Last part of the folder that each mount shows, over all mount namespaces."""
    found, seen = set(), set()
    for process in sorted(proc.glob("[0-9]*")):
        try:
            namespace = str((process / "ns" / "mnt").readlink())
            if namespace in seen:
                continue
            lines = (process / "mountinfo").read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            if error.errno in ENDED:
                continue
            raise ScratchError(f"{process}/mountinfo: {error.strerror}; run as root") from error
        if lines:
            seen.add(namespace)
            found.update(line.split()[3].rpartition("/")[2] for line in lines)
    if not found:
        raise ScratchError(f"{proc}: found no mounts at all")
    return found


def is_folder(state):
    """Whether it is a folder, no link to one, that the kubelet has made."""
    return stat.S_ISDIR(state.st_mode) and state.st_uid == OWNER


def leftovers(folder, used, now):
    """Folders of runs that no pod has, and what else lies there."""
    gone, strange = [], []
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        state = entry.stat(follow_symlinks=False)
        # The kubelet makes them; with another owner or name it is not one of a job.
        if not (is_folder(state) and NAME.fullmatch(entry.name)):
            strange.append(entry.name)
        elif entry.name not in used and now - state.st_ctime > YOUNG_SECONDS:
            gone.append(entry.name)
    return gone, strange


def say(text):
    """A line in the journal."""
    sys.stderr.write(f"railweld-scratch: {text}\n")


def main(arguments=None):
    """Remove what is left over; 1 if something could not be, or does not belong there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    try:
        if not is_folder(folder.lstat()):
            say(f"{folder}: expected a folder of root's; run the nvme_cache role")
            return 1
        gone, strange = leftovers(folder, mounted(), time.time())
    except (OSError, ScratchError) as error:
        say(error)
        return 1
    failed = False
    for name in strange:
        say(f"{folder}/{name}: no folder of a job's; left")
        failed = True
    for name in gone:
        # Of any depth, and no link leads it out: rm opens each folder from the one above.
        done = subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", f"./{name}"], cwd=folder, check=False
        )
        if done.returncode == 0:
            say(f"removed {folder}/{name}")
        failed = failed or done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
