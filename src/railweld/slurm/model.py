"""From the site to its Slurm: controller, accounting, nodes, partitions, packages.

Everything is JSON-safe. What Slurm counts (GRES name, type and number, node names) comes from the
same values as Kubernetes' resources, so the two cannot disagree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from railweld import names
from railweld.errors import RailweldError
from railweld.site.model import Host, Site
from railweld.site.variables import Partition
from railweld.stack.bridge import GATES_SINCE, PIN_SINCE
from railweld.versions.rules import version_key

CONTROLLER_PORT: Final = 6817
NODE_PORT: Final = 6818
DATABASE_PORT: Final = 6819
#: The only name that Slurm's GPU plugin knows; `nvidia-gpu` and the like count as another resource.
GRES: Final = "gpu"
#: munge refuses shorter and longer keys (munge(7): 32 to 1024 bytes).
KEY_BYTES: Final = (32, 1024)

#: Repository with a site's own builds, for systems whose archive has another release.
MIRROR: Final = "slurm"
#: Whose package names such builds have.
NAMES_FROM: Final = "debian12"

#: What a host does for Slurm → packages of the version set that it needs for this.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "controller": ("munge", "slurm-client", "slurmctld"),
    "accounting": ("mariadb-server", "munge", "slurmdbd"),
    "slurmd": ("munge", "slurm-client", "slurmd"),
}


def heads(site: Site) -> tuple[str, ...]:
    """Hosts of the group slurm_head."""
    return site.groups.get(names.GROUP_SLURM_HEAD, ())


def members(site: Site) -> tuple[str, ...]:
    """Hosts of any partition, each once, in the order of the inventory."""
    inside = {host for partition in site.partitions for host in partition.hosts}
    return tuple(name for name in site.hosts if name in inside)


def placement(site: Site, host: Host) -> str:
    """Where the slurmd of a node runs: `virtual` (on the head) or `real` (on the node)."""
    if host.slurmd is not None:
        return host.slurmd
    of_host = [partition for partition in site.partitions if host.name in partition.hosts]
    return "virtual" if all(partition.bridge for partition in of_host) else "real"


def bridged(site: Site) -> tuple[Partition, ...]:
    """Partitions whose jobs are pods."""
    return tuple(each for each in site.partitions if each.bridge and each.hosts)


def munge_key(site: Site) -> bytes | None:
    """The key itself, or None where the site has none.

    Raises:
        RailweldError: not base64, or too short or long for munge.
    """
    if site.munge_key is None:
        return None
    try:
        key = base64.b64decode(site.munge_key.get_secret_value(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RailweldError(
            "railweld_munge_key: found text that is not base64, expected a key in base64. Fix: "
            "`head -c 128 /dev/urandom | base64 -w0`, into a vault"
        ) from error
    if not KEY_BYTES[0] <= len(key) <= KEY_BYTES[1]:
        raise RailweldError(
            f"railweld_munge_key: found {len(key)} bytes, expected {KEY_BYTES[0]} to "
            f"{KEY_BYTES[1]}. Fix: `head -c 128 /dev/urandom | base64 -w0`, into a vault"
        )
    return key


def key_id(key: bytes) -> str:
    """What may be shown of a key: enough to tell two apart, nothing to guess it from."""
    return hashlib.sha256(key).hexdigest()[:12]


def problems(site: Site) -> list[str]:
    """What a site must not have when its Slurm is set up; sentences, all at once."""
    found = []
    head = heads(site)
    if len(head) != 1:
        found.append(
            f"site {site.name}: found {len(head)} hosts in group {names.GROUP_SLURM_HEAD}, "
            "expected one, which runs slurmctld. Fix: put exactly one host into the group"
        )
    try:
        if munge_key(site) is None:
            found.append(
                "railweld_munge_key: found nothing, expected a key in base64. Fix: "
                "`head -c 128 /dev/urandom | base64 -w0`, into a vault (group_vars/all)"
            )
    except RailweldError as error:
        found.append(str(error))
    inside = members(site)
    if not inside:
        found.append(
            f"site {site.name}: found no node in any partition, expected some. Fix: see "
            "railweld_partitions"
        )
    for field in ("cpus", "memory_mib"):
        without = [name for name in inside if getattr(site.hosts[name], field) is None]
        if without:
            found.append(
                f"railweld_{field}: found nothing for {_some(without)}, expected what "
                "`slurmd -C` prints there: Slurm places jobs by it. Fix: set it in "
                "group_vars/gpu_nodes.yml"
            )
    found += _packages_missing(site)
    found += [
        f"partition {partition.name}: found no GPUs on its nodes, expected some: the stack makes "
        "pods of GPU nodes only. Fix: railweld_gpu_count, or bridge: false in railweld_partitions"
        for partition in bridged(site)
        if not any(site.hosts[name].gpu for name in partition.hosts)
    ]
    real = [
        name
        for name in inside
        if placement(site, site.hosts[name]) == "real"
        and any(name in partition.hosts for partition in bridged(site))
    ]
    if real:
        found.append(
            f"{_some(real)}: found in a bridge partition, with a slurmd of its own or in a plain "
            "partition too; expected virtual nodes in bridge partitions only: batch steps run "
            "beside the bridge's daemon, and Slurm and Kubernetes must not share a node's GPUs. "
            "Fix: take it out of one of the partitions, or railweld_slurmd: virtual"
        )
    return found


def _packages_missing(site: Site) -> list[str]:
    without: dict[str, list[str]] = {}
    for name in participants(site):
        host = site.hosts[name]
        if host.vendor_repository and _source(site, host) is None:
            without.setdefault(host.vendor_repository, []).append(name)
    version = site.versions.component("slurm").version
    return [
        f"{_some(hosts)}: found vendor repository {repository}, which has no Slurm {version} "
        f"({site.versions.absent('slurm', repository)}), expected one that has. Fix: a Slurm head "
        f"of Debian 12 and virtual nodes (railweld_slurmd), or builds of {version} for these "
        "hosts' system under Debian's package names in a repository railweld_mirrors.slurm"
        for repository, hosts in without.items()
    ]


def uses_own_builds(host: Host) -> bool:
    """True where a site's own repository stands in for an archive without Slurm."""
    return MIRROR in host.mirrors and host.vendor_repository != NAMES_FROM


def _source(site: Site, host: Host) -> str | None:
    """Vendor repository whose package names hold for a host: its own, or that of its mirror."""
    if host.vendor_repository is None:
        return None
    if site.versions.absent("slurm", host.vendor_repository) is None:
        return host.vendor_repository
    if MIRROR in host.mirrors and site.versions.absent("slurm", NAMES_FROM) is None:
        return NAMES_FROM
    return None


def participants(site: Site) -> tuple[str, ...]:
    """Hosts on which something of Slurm runs: the head, and nodes with a slurmd of their own."""
    real = [name for name in members(site) if placement(site, site.hosts[name]) == "real"]
    return tuple(dict.fromkeys((*heads(site), *real)))


def fact(site: Site) -> dict[str, Any]:
    """The Slurm of the whole site, with a view of every participant under `hosts`.

    Raises:
        RailweldError: the description cannot become one; names every reason.
    """
    wrong = problems(site)
    if wrong:
        raise RailweldError("\n".join(wrong))
    head = heads(site)[0]
    inside = members(site)
    places = {name: placement(site, site.hosts[name]) for name in inside}
    virtual = [name for name in inside if places[name] == "virtual"]
    ports = {name: site.slurm_virtual_port + n for n, name in enumerate(virtual)}
    nodes = {
        name: _node(site, site.hosts[name], head, places[name], ports.get(name)) for name in inside
    }
    key = munge_key(site)
    return {
        "name": site.name,
        "version": site.versions.component("slurm").version,
        "head": head,
        "head_address": site.hosts[head].address,
        "accounting": site.slurm_accounting,
        "config": site.slurm_config,
        "parameters": dict(site.slurm_parameters),
        "memlock_kib": site.memlock_kib,
        "munge_key_id": key_id(key) if key else "",
        "nodes": nodes,
        "partitions": [_partition(partition) for partition in site.partitions if partition.hosts],
        "bridge": _bridge(site, head),
        "hosts": {name: _host(site, site.hosts[name], nodes) for name in participants(site)},
    }


def view(slurm: Mapping[str, Any], host: str) -> dict[str, Any]:
    """What one host's roles may depend on.

    Raises:
        RailweldError: nothing of Slurm runs on the host.
    """
    hosts = slurm["hosts"]
    if host not in hosts:
        raise RailweldError(
            f"{host}: found neither the Slurm head nor a node with a slurmd of its own, expected "
            "one of them. Fix: take the host out of this play, or see railweld_slurmd"
        )
    return {**{key: value for key, value in slurm.items() if key != "hosts"}, "host": hosts[host]}


def _bridge(site: Site, head: str) -> dict[str, Any] | None:
    """What follows from the description for the bridge; None where no partition needs one.

    `config` has entries of bridge.json, as railweld.bridge.config describes them.
    """
    partitions = bridged(site)
    if not partitions:
        return None
    counts = {
        partition.name: {
            gpu.count for name in partition.hosts if (gpu := site.hosts[name].gpu) is not None
        }
        for partition in partitions
    }
    # A counter of pods, of which each job's pod takes one (see the stack).
    rdma = {site.rdma_resource: 1} if any(host.hcas for host in site.hosts.values()) else {}
    return {
        "context": names.kube_context(site.name),
        # Where nodes and head have the same folders, under the same path.
        "paths": sorted(volume.mount for volume in site.job_volumes),
        "config": {
            "cluster": site.name,
            "partitions": {each.name: names.pod_template(each.name) for each in partitions},
            "kubeconfig": names.BRIDGE_KUBECONFIG,
            "advertise": f"{site.hosts[head].address}:{names.BRIDGE_PORT}",
            "devices": {
                name: {names.RESOURCE_GPU: min(found), **rdma} for name, found in counts.items()
            },
            "registries": list(site.job_registries),
            "host_network": site.network_mode == "host",
            "placement": pod_placement(site),
        },
    }


def pod_placement(site: Site) -> str:
    """How pod i comes to node i: what the site's Kubernetes can do (see railweld.stack.bridge)."""
    version = tuple((version_key(site.versions.component("kubernetes").version) or ())[:2])
    if version >= PIN_SINCE:
        return "admission"
    return "patch" if version >= GATES_SINCE else "affinity"


def _node(site: Site, host: Host, head: str, place: str, port: int | None) -> dict[str, Any]:
    is_virtual = place == "virtual"
    return {
        "placement": place,
        "address": site.hosts[head].address if is_virtual else host.address,
        "hostname": head if is_virtual else host.name,
        "port": port,
        "cpus": host.cpus,
        "sockets": host.sockets,
        "threads_per_core": host.threads_per_core,
        "memory_mib": host.memory_mib,
        "gpu": {"type": host.gpu.gres_type, "count": host.gpu.count} if host.gpu else None,
    }


def _partition(partition: Partition) -> dict[str, Any]:
    return {
        "name": partition.name,
        "nodes": list(partition.hosts),
        "default": partition.default,
        "bridge": partition.bridge,
        "max_time": partition.max_time,
        "parameters": dict(partition.parameters),
    }


def _host(site: Site, host: Host, nodes: Mapping[str, Any]) -> dict[str, Any]:
    parts = []
    if host.name in heads(site):
        parts.append("controller")
        if site.slurm_accounting:
            parts.append("accounting")
    daemons = [name for name, node in nodes.items() if node["hostname"] == host.name]
    if daemons:
        parts.append("slurmd")
    return {
        "name": host.name,
        "address": host.address,
        "parts": parts,
        # The nodes whose slurmd runs here, under which names.
        "daemons": daemons,
        "packages": {"slurm": _packages(site, host, parts)},
        "repositories": _repositories(site, host),
    }


def _packages(site: Site, host: Host, parts: list[str]) -> list[dict[str, str]]:
    wanted = {name for part in parts for name in PARTS[part]}
    source = _source(site, host)
    if source is None:
        return []
    # The site's own builds carry revisions of their own: the role compares the release.
    own = source != host.vendor_repository
    return [
        {"name": each.name, "version": "" if own else each.version}
        for each in site.versions.packages("slurm", source)
        if each.name in wanted
    ]


def _repositories(site: Site, host: Host) -> list[dict[str, Any]]:
    mirror = host.mirrors.get(MIRROR)
    if mirror is None or _source(site, host) == host.vendor_repository:
        return []
    return [{"id": MIRROR, **mirror.source()}]


def _some(hosts: list[str]) -> str:
    shown = ", ".join(hosts[:3])
    return f"{shown} and {len(hosts) - 3} more" if len(hosts) > 3 else shown
