# SPDX-License-Identifier: Apache-2.0
"""The Slurm area of the probe: munge, the daemons, and what slurmctld reports.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import ssl
import stat
import urllib.error
import urllib.request

from ansible.module_utils.railweld_cluster_probe import is_stale, read_process

CONFIG = "/etc/slurm"
APPLIED = "/var/lib/railweld/slurm/applied"
MUNGE_KEY = "/etc/munge/munge.key"
DAEMONS = ("slurmctld", "slurmdbd", "slurmd", "mariadb", "munge")
#: One line per node: name, state, GRES, CPUs, MiB, reason.
NODES = "%N|%T|%G|%c|%m|%E"
#: Seconds that a command of Slurm may take; without slurmctld they retry for minutes.
TIMEOUT = "10"
#: Of what a command says when it fails.
ERROR_CHARACTERS = 400
#: The bridge on the Slurm head, under the names of railweld.names.
BRIDGE_UNIT = "bridged.service"
BRIDGE_UNIT_FILE = "/etc/systemd/system/bridged.service"
BRIDGE_PROGRAMS = "/usr/lib/railweld"
BRIDGE_CLIENT = "/usr/libexec/railweld/exec"
BRIDGE_EPILOG = "/usr/libexec/railweld/epilog"
BRIDGE_CONFIG = "/etc/railweld/bridge.json"
BRIDGE_KUBECONFIG = "/etc/railweld/bridge.kubeconfig"
BRIDGE_TOKEN = "/var/lib/railweld/bridge/token"  # noqa: S105 - a path, not a token
BRIDGE_MONITOR = "127.0.0.1:6831"
#: Something that only the bridge's account may see; reading it needs its token.
BRIDGE_LOOK = "/api/v1/namespaces/railweld-jobs/podtemplates?limit=1"
#: Seconds for one answer of the daemon or the API server.
ANSWER_S = 5


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
        "bridge": read_bridge(node),
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
    """Whether slurmctld answers from here, what it runs with, and what is said instead."""
    code, text, said = node.run(("timeout", TIMEOUT, "scontrol", "show", "config"))
    text = text if code == 0 else ""
    values = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key.strip()] = value.strip()
    up = bool(re.search(r"^Slurmctld\(primary\) at \S+ is UP", text, re.MULTILINE))
    wanted = ("SLURM_VERSION", "ClusterName", "BOOT_TIME", "SLURM_CONF")
    error = "" if up else " ".join(said.split())[:ERROR_CHARACTERS]
    return {"up": up, "error": error, **{key: values.get(key) for key in wanted}}


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
            "cpus": int(cpus) if cpus.isdecimal() else None,
            "memory_mib": int(memory) if memory.isdecimal() else None,
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
        if not name.isdecimal():
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


# --- the bridge --------------------------------------------------------------------------------


def read_bridge(node):
    """What is there of the bridge: files, unit, way into the cluster, and what the daemon says."""
    found = node.names(BRIDGE_PROGRAMS)
    programs = [name for name in found if re.match(r"bridged-\w+\.pyz$", name)]
    unit = read_unit(node, BRIDGE_UNIT)
    parts = (BRIDGE_CLIENT, BRIDGE_EPILOG, BRIDGE_CONFIG, BRIDGE_KUBECONFIG, BRIDGE_TOKEN)
    there = [name for name in parts if node.exists(name)]
    process = read_process(node, BRIDGE_UNIT)
    return {
        "present": bool(programs or unit or there),
        "programs": sorted(programs),
        "unit": unit,
        "digests": {name: node.sha256(name) for name in (BRIDGE_CLIENT, BRIDGE_EPILOG)},
        "stale": is_stale(node, process, [BRIDGE_UNIT_FILE, BRIDGE_CONFIG, BRIDGE_KUBECONFIG]),
        "kubeconfig": read_secret(node, BRIDGE_KUBECONFIG),
        "token": {**read_secret(node, BRIDGE_TOKEN), **read_claims(node.read(BRIDGE_TOKEN))},
        "api": read_api(node),
        "ready": read_ready(node) if process else None,
    }


def read_secret(node, name):
    """Digest, mode and owner of a file that nobody else may read; nothing where there is none."""
    try:
        path = node.path(name)
        status = path.stat()
    except OSError:
        return {"sha256": None, "mode": None, "owner": None}
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    return {"sha256": node.sha256(name), "mode": mode, "owner": owner(path)}


def read_claims(token):
    """When a token was issued and when it ends; its signature is not looked at."""
    found = {"issued": None, "expires": None}
    try:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return {"issued": float(said["iat"]), "expires": float(said["exp"])}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return found


def read_api(node):
    """What the API server says to the bridge's token: `ok`, `refused: ...` or `no answer: ...`."""
    token = (node.read(BRIDGE_TOKEN) or "").strip()
    try:
        # The role writes it as JSON, which is YAML.
        cluster = json.loads(node.read(BRIDGE_KUBECONFIG) or "")["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        trust = ssl.create_default_context(cadata=authority)
    except (KeyError, IndexError, TypeError, ValueError, OSError):
        return None
    if not token:
        return None
    request = urllib.request.Request(  # noqa: S310 - https, from the role's own file
        cluster["server"] + BRIDGE_LOOK, headers={"Authorization": "Bearer " + token}
    )
    try:
        with urllib.request.urlopen(  # noqa: S310 - the same
            request, timeout=ANSWER_S, context=trust
        ):
            return "ok"
    except urllib.error.HTTPError as error:
        kind = "refused" if error.code in (401, 403) else "no answer"
        return f"{kind}: {error.code}"
    except (OSError, ValueError) as error:
        return f"no answer: {getattr(error, 'reason', error)}"


def read_ready(node):
    """What the daemon says of itself: `ok`, its problems, or that it does not answer."""
    try:
        address = json.loads(node.read(BRIDGE_CONFIG) or "{}").get("monitor", BRIDGE_MONITOR)
    except ValueError:
        address = BRIDGE_MONITOR
    if not address:
        return None
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=ANSWER_S) as answer:
            return answer.read().decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace").strip() or str(error.code)
    except (OSError, ValueError) as error:
        return f"no answer: {getattr(error, 'reason', error)}"
