"""Slurm's files as text, from the site's model. The same model gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from railweld.bridge import hook
from railweld.names import BRIDGE_EPILOG
from railweld.slurm.hostlist import fold, fold_numbers
from railweld.slurm.model import CONTROLLER_PORT, DATABASE_PORT, GRES, NODE_PORT

FOLDER: Final = "/etc/slurm"
STATE: Final = "/var/lib/slurm/slurmctld"
LOGS: Final = "/var/log/slurm"
SPOOL: Final = "/var/spool/slurmd"
#: What stands for a virtual node's GPUs: Slurm drops GPUs without a file that exists.
GPU_FILES: Final = "/var/lib/railweld/slurm/gpu"
#: The bridge's plugin: jobs of its partitions begin with its client.
HOOK: Final = "job_submit.lua"
DATABASE: Final = "slurm_acct_db"
#: Its daemons' user, and the bridge's: may set nodes and comments.
USER: Final = "slurm"

HEADER: Final = "# Managed by railweld, role slurm. Change the site description, not this file."

#: Parameters that follow from the description or that other parts rely on → where to change them.
DERIVED: Final[Mapping[str, str]] = {
    "AccountingStorageHost": "railweld_slurm_accounting",
    "AccountingStorageTRES": "railweld_gpu_model",
    "AccountingStorageType": "railweld_slurm_accounting",
    "AuthType": "nowhere: every host has munge",
    "ClusterName": "railweld_site",
    "CredType": "nowhere: every host has munge",
    "Epilog": "railweld_partitions (bridge)",
    "EpilogSlurmctld": "railweld_partitions (bridge)",
    "GresTypes": "railweld_gpu_count",
    "JobFileAppend": "nowhere: a requeued job must not cut its output",
    "JobSubmitPlugins": "railweld_partitions (bridge)",
    "NodeName": "the inventory",
    "PartitionName": "railweld_partitions",
    "PropagateResourceLimitsExcept": "nowhere: a login shell's memlock would reach RDMA jobs",
    "ReturnToService": "nowhere: a node that was set down would come back by itself",
    "SlurmctldHost": "the group slurm_head",
    "SlurmctldPidFile": "nowhere: the role's units read it",
    "SlurmctldPort": "nowhere",
    "SlurmdPidFile": "nowhere: the role's units read it",
    "SlurmdPort": "nowhere",
    "SlurmdSpoolDir": "nowhere: every slurmd needs a folder of its own",
    "SlurmUser": "nowhere: Debian's packages make it",
    "StateSaveLocation": "nowhere: the role backs it up",
}

#: Of these, what a site without a bridge may set itself.
OF_BRIDGE: Final = frozenset({"Epilog", "EpilogSlurmctld", "JobSubmitPlugins"})


def slurm_conf(slurm: Mapping[str, Any]) -> str:
    """`slurm.conf` of the whole cluster, the same on every host."""
    lines = [HEADER, *(f"{key}={value}" for key, value in parameters(slurm).items()), ""]
    lines += _node_lines(slurm["nodes"])
    lines += [_partition_line(partition) for partition in slurm["partitions"]]
    return "\n".join(lines) + "\n"


def parameters(slurm: Mapping[str, Any]) -> dict[str, str]:
    """Every global parameter; the site's own replace the defaults and never the derived ones."""
    real = _real(slurm)
    virtual = len(slurm["nodes"]) > len(real)
    kinds = sorted({node["gpu"]["type"] for node in slurm["nodes"].values() if node["gpu"]})
    values = {
        "ClusterName": slurm["name"],
        "SlurmctldHost": f"{slurm['head']}({slurm['head_address']})",
        "SlurmctldPort": str(CONTROLLER_PORT),
        "SlurmdPort": str(NODE_PORT),
        "SlurmUser": USER,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "StateSaveLocation": STATE,
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmctldLogFile": f"{LOGS}/slurmctld.log",
        # %n: many slurmds may run on one host.
        "SlurmdPidFile": "/run/slurmd-%n.pid",
        "SlurmdLogFile": f"{LOGS}/slurmd-%n.log",
        "SlurmdSpoolDir": f"{SPOOL}/%n",
        "ReturnToService": "1",
        "JobFileAppend": "1",
        "PropagateResourceLimitsExcept": "MEMLOCK",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # Debian's build names pmix as its default and has no library for it.
        "MpiDefault": "none",
        "KillWait": "60",
        "UnkillableStepTimeout": "180",
        **_tracking(bool(real)),
    }
    if kinds:
        values["GresTypes"] = GRES
    if virtual:
        # A virtual node has the described hardware, whatever its host has.
        values["SlurmdParameters"] = "config_overrides"
    if real and slurm["config"] == "configless":
        values["SlurmctldParameters"] = "enable_configless"
    if slurm["bridge"]:
        values["JobSubmitPlugins"] = "lua"
        # One for all nodes: the role puts a file that does nothing onto those with plain jobs.
        values["Epilog"] = BRIDGE_EPILOG
        values["EpilogSlurmctld"] = BRIDGE_EPILOG
    if slurm["accounting"]:
        values["AccountingStorageType"] = "accounting_storage/slurmdbd"
        values["AccountingStorageHost"] = slurm["head"]
        if kinds:
            tres = [f"gres/{GRES}", *(f"gres/{GRES}:{kind}" for kind in kinds)]
            values["AccountingStorageTRES"] = ",".join(tres)
    else:
        values["AccountingStorageType"] = "accounting_storage/none"
    return {**values, **slurm["parameters"]}


def _tracking(real: bool) -> dict[str, str]:
    """How processes of jobs are followed. Virtual nodes share their host with each other."""
    if real:
        return {
            "ProctrackType": "proctrack/cgroup",
            "TaskPlugin": "task/affinity,task/cgroup",
            "JobAcctGatherType": "jobacct_gather/linux",
        }
    return {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none"}


def uses_cgroup(slurm: Mapping[str, Any]) -> bool:
    """True if any plugin reads cgroup.conf."""
    values = parameters(slurm)
    keys = ("ProctrackType", "TaskPlugin", "JobAcctGatherType")
    return any("cgroup" in values.get(key, "") for key in keys)


def cgroup_conf() -> str:
    """`cgroup.conf`: a job gets the cores, memory and devices that it was given, no others."""
    return "\n".join(
        (
            HEADER,
            "CgroupPlugin=autodetect",
            "ConstrainCores=yes",
            "ConstrainDevices=yes",
            "ConstrainRAMSpace=yes",
            "",
        )
    )


def gres_conf(slurm: Mapping[str, Any]) -> str:
    """`gres.conf`: as many GPU files per node as GPUs are described."""
    lines = [HEADER]
    for names, node in _alike(slurm["nodes"], ("placement", "gpu")):
        if node["gpu"]:
            lines.append(
                f"NodeName={fold(names)} Name={GRES} Type={node['gpu']['type']} "
                f"File={gpu_files(node)}"
            )
    return "\n".join(lines) + "\n"


def gpu_files(node: Mapping[str, Any]) -> str:
    """Files of a node's GPUs: the driver's devices, or empty ones on the head."""
    numbers = fold_numbers(range(node["gpu"]["count"]))
    return f"{GPU_FILES}/{numbers}" if node["placement"] == "virtual" else f"/dev/nvidia{numbers}"


def empty_files(slurm: Mapping[str, Any]) -> list[str]:
    """Files that stand for the GPUs of the virtual nodes on a host: Slurm needs them to exist."""
    counts = [
        slurm["nodes"][name]["gpu"]["count"]
        for name in slurm["host"]["daemons"]
        if slurm["nodes"][name]["placement"] == "virtual" and slurm["nodes"][name]["gpu"]
    ]
    return [f"{GPU_FILES}/{number}" for number in range(max(counts, default=0))]


def slurmdbd_conf(slurm: Mapping[str, Any]) -> str:
    """`slurmdbd.conf`. The database knows slurmdbd by its system user: no password exists."""
    return "\n".join(
        (
            HEADER,
            "AuthType=auth/munge",
            f"DbdHost={slurm['head']}",
            f"DbdPort={DATABASE_PORT}",
            f"SlurmUser={USER}",
            f"LogFile={LOGS}/slurmdbd.log",
            "PidFile=/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={USER}",
            f"StorageLoc={DATABASE}",
            "",
        )
    )


def files(slurm: Mapping[str, Any]) -> dict[str, str]:
    """The files that every daemon of the cluster must have alike, by name."""
    found = {"slurm.conf": slurm_conf(slurm), "gres.conf": gres_conf(slurm)}
    if uses_cgroup(slurm):
        found["cgroup.conf"] = cgroup_conf()
    if slurm["bridge"]:
        partitions = list(slurm["bridge"]["config"]["partitions"])
        found[HOOK] = hook.render(partitions, slurm["bridge"]["paths"])
    return found


def _real(slurm: Mapping[str, Any]) -> list[str]:
    return [name for name, node in slurm["nodes"].items() if node["placement"] == "real"]


def _node_lines(nodes: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    keys = ("placement", "cpus", "sockets", "threads_per_core", "memory_mib", "gpu")
    for names, node in _alike(nodes, keys):
        parts = [f"NodeName={fold(names)}"]
        if node["placement"] == "virtual":
            ports = fold_numbers(nodes[name]["port"] for name in names)
            parts += [
                f"NodeHostname={node['hostname']}",
                f"NodeAddr={node['address']}",
                f"Port={ports}",
            ]
        else:
            parts.append(f"NodeAddr={','.join(nodes[name]['address'] for name in names)}")
        cores = node["cpus"] // (node["sockets"] * node["threads_per_core"])
        parts += [
            f"Sockets={node['sockets']}",
            f"CoresPerSocket={cores}",
            f"ThreadsPerCore={node['threads_per_core']}",
            f"RealMemory={node['memory_mib']}",
        ]
        if node["gpu"]:
            parts.append(f"Gres={GRES}:{node['gpu']['type']}:{node['gpu']['count']}")
        yield " ".join(parts)


def _alike(
    nodes: Mapping[str, Mapping[str, Any]], keys: tuple[str, ...]
) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Nodes with the same values of `keys`, together, in the order of their first one."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, node in nodes.items():
        gpu = node["gpu"] or {}
        kind = tuple(tuple(gpu.items()) if key == "gpu" else node[key] for key in keys)
        groups.setdefault(kind, []).append(name)
    return [(names, nodes[names[0]]) for names in groups.values()]


def _partition_line(partition: Mapping[str, Any]) -> str:
    values = {
        "Nodes": fold(partition["nodes"]),
        "Default": "YES" if partition["default"] else "NO",
        "MaxTime": partition["max_time"],
        "State": "UP",
        # A pod gets whole nodes: what Slurm packs beside it, Kubernetes would not know of.
        **({"OverSubscribe": "EXCLUSIVE"} if partition["bridge"] else {}),
        **partition["parameters"],
    }
    words = " ".join(f"{key}={value}" for key, value in values.items())
    return f"PartitionName={partition['name']} {words}"
