# SPDX-License-Identifier: Apache-2.0
"""The Slurm area of the probe: munge, the daemons, and what slurmctld reports.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat

from ansible.module_utils.railweld_cluster_probe import is_stale, read_process

CONFIG = "/etc/slurm"
APPLIED = "/var/lib/railweld/slurm/applied"
MUNGE_KEY = "/etc/munge/munge.key"
DAEMONS = ("slurmctld", "slurmdbd", "slurmd", "mariadb", "munge")
#: One line per node: name, state, GRES, CPUs, MiB, reason.
NODES = "%N|%T|%G|%c|%m|%E"
#: Seconds that a command of Slurm may take; without slurmctld they retry for minutes.
TIMEOUT = "10"


def read_slurm(node):
    """Everything about this host as a part of a Slurm cluster."""
    controller = read_controller(node)
    return {
        "version": read_version(node),
        "munge": read_munge(node),
        "units": {name: read_unit(node, name + ".service") for name in DAEMONS},
        "daemons": read_daemons(node),
        "files": read_digests(node, CONFIG),
        "applied": read_digests(node, APPLIED),
        "controller": controller,
        "nodes": read_nodes(node) if controller["up"] else {},
        "accounting": read_accounting(node),
        "outdated": read_outdated(node),
    }


def asked(node, *argv):
    """Output of a command of Slurm, None when it failed or took too long."""
    return node.output("timeout", TIMEOUT, *argv)


def read_version(node):
    """Version of the installed daemons, None without any."""
    for program in ("slurmctld", "slurmd", "slurmdbd"):
        match = re.search(r"slurm\S* (\d+\.\d+\.\d+)", node.output(program, "-V") or "")
        if match:
            return match.group(1)
    return None


def read_unit(node, unit):
    """State of a unit, None where it does not exist."""
    text = node.output("systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", unit)
    found = dict(line.split("=", 1) for line in (text or "").splitlines() if "=" in line)
    if found.get("LoadState", "not-found") == "not-found":
        return None
    return {"active": found.get("ActiveState"), "enabled": found.get("UnitFileState")}


def read_munge(node):
    """The key as far as it may be shown, and whether the daemon runs with it."""
    process = read_process(node, "munge.service")
    found = {"key_id": None, "mode": None, "owner": None}
    try:
        path = node.path(MUNGE_KEY)
        found["key_id"] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        status = path.stat()
        found["mode"] = f"{stat.S_IMODE(status.st_mode):04o}"
        found["owner"] = owner(path)
    except OSError:
        pass
    found["stale"] = is_stale(node, process, [MUNGE_KEY])
    found["works"] = (
        bool(process) and node.output("sh", "-c", "munge -n | unmunge -o /dev/null") is not None
    )
    return found


def owner(path):
    """Name of a file's owner, or the number of one that has no name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)


def read_daemons(node):
    """Instances of slurmd@: name of the node to `active` and `enabled`."""
    found = {}
    listed = node.output(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "slurmd@*.service"
    )
    for line in (listed or "").splitlines():
        words = line.split()
        name = instance(words[0])
        if name:
            found[name] = {"active": words[2], "enabled": False}
    for link in node.glob("/etc/systemd/system/multi-user.target.wants/slurmd@*.service"):
        name = instance(link.rsplit("/", 1)[1])
        found.setdefault(name, {"active": "inactive", "enabled": False})["enabled"] = True
    return found


def instance(unit):
    """`gpu1` of `slurmd@gpu1.service`, empty for the template itself."""
    match = re.match(r"slurmd@(.+)\.service$", unit)
    return match.group(1) if match else ""


def read_digests(node, folder):
    """SHA-256 of each configuration file of a folder."""
    return {
        name: node.sha256(folder + "/" + name)
        for name in node.names(folder)
        if name.endswith((".conf", ".lua"))
    }


def read_controller(node):
    """Whether slurmctld answers from here, and what it runs with."""
    text = asked(node, "scontrol", "show", "config") or ""
    values = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key.strip()] = value.strip()
    up = bool(re.search(r"^Slurmctld\(primary\) at \S+ is UP", text, re.MULTILINE))
    wanted = ("SLURM_VERSION", "ClusterName", "BOOT_TIME", "SLURM_CONF")
    return {"up": up, **{key: values.get(key) for key in wanted}}


def read_nodes(node):
    """What slurmctld knows of each node."""
    found = {}
    text = asked(node, "sinfo", "--Node", "--noheader", "--format", NODES) or ""
    for line in text.splitlines():
        name, state, gres, cpus, memory, reason = (line.split("|", 5) + [""] * 6)[:6]
        found[name] = {
            "state": state.rstrip("*~#!%$@^-+"),
            "responds": "*" not in state,
            # `gpu:a100:8(S:0-1)`: the sockets are no part of the number.
            "gres": re.sub(r"\([^)]*\)", "", gres),
            "cpus": int(cpus) if cpus.isdigit() else None,
            "memory_mib": int(memory) if memory.isdigit() else None,
            "reason": reason,
        }
    return found


def read_accounting(node):
    """Clusters that slurmdbd knows; None where nothing answers."""
    if not node.exists(CONFIG + "/slurmdbd.conf"):
        return None
    text = asked(node, "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    return None if text is None else {"clusters": text.split()}


def read_outdated(node):
    """Daemons that run from a program that an upgrade has replaced."""
    found = set()
    for name in node.names("/proc"):
        if not name.isdigit():
            continue
        try:
            # Path.readlink() is not in Python 3.8.
            program = os.readlink(str(node.path("/proc/" + name + "/exe")))  # noqa: PTH115 - Path.readlink needs Python 3.9
        except OSError:
            continue
        if program.endswith(" (deleted)"):
            daemon = program.split(" ")[0].rsplit("/", 1)[1].split("-")[0]
            if daemon in DAEMONS:
                found.add(daemon)
    return sorted(found)
