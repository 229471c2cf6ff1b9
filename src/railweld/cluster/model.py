"""From the site to what the cluster stage needs: one view of the site and one per host.

Both are JSON-safe and small. A host's view does not name other workers, so a node that is added
changes nothing for the nodes that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from railweld import names
from railweld.cluster import releases
from railweld.errors import RailweldError
from railweld.site.model import Host, Site
from railweld.versions import VersionsError

API_PORT: Final = 6443
#: Components of the version set, in the order of their installation.
COMPONENTS: Final = ("containerd", "container_toolkit", "kubernetes")
REPOSITORIES: Final = ("kubernetes", "container_toolkit")
#: First containerd whose CRI plugin takes CDI devices from the kubelet.
_CDI_CONTAINERD: Final = (1, 7)


def control_plane(site: Site) -> tuple[str, ...]:
    """Control-plane nodes in the order of the inventory; the first one starts the cluster."""
    return site.groups.get(names.GROUP_CONTROL_PLANE, ())


def members(site: Site) -> tuple[str, ...]:
    """All nodes of the cluster, control plane first."""
    workers = site.groups.get(names.GROUP_GPU_NODES, ())
    return tuple(dict.fromkeys((*control_plane(site), *workers)))


def endpoint(site: Site) -> str:
    """`HOST:PORT` of the API server as every node uses it.

    Raises:
        RailweldError: several control-plane nodes and no address in front of them.
    """
    planes = control_plane(site)
    if not planes:
        raise RailweldError(
            f"site {site.name}: found no host in group control_plane, expected one or three. "
            "Fix: put the nodes of the API server into that group"
        )
    given = site.control_plane_endpoint
    if given is None:
        if len(planes) > 1:
            raise RailweldError(
                f"site {site.name}: found {len(planes)} control-plane nodes and no "
                "railweld_control_plane_endpoint, expected the address of their load balancer or "
                "virtual address: without one the cluster dies with its first node. Fix: set it"
            )
        given = site.hosts[planes[0]].address
    return given if ":" in given else f"{given}:{API_PORT}"


def problems(site: Site) -> list[str]:
    """What a site must not have when it becomes a cluster; sentences, all at once."""
    found = []
    try:
        endpoint(site)
    except RailweldError as error:
        found.append(str(error))
    count = len(control_plane(site))
    if count and count % 2 == 0:
        found.append(
            f"site {site.name}: found {count} control-plane nodes, expected an odd number: with an "
            "even one etcd stops as soon as half of them are away. Fix: add one or take one out"
        )
    if site.cni == "manifest" and not site.cni_manifest:
        found.append(
            "railweld_cni: found manifest and no railweld_cni_manifest, expected the path of the "
            "pod network's manifest. Fix: set it, or choose bridge or none"
        )
    return found


def fact(site: Site) -> dict[str, Any]:
    """The view of the whole site, with a view of every member under `hosts`.

    Raises:
        RailweldError: the description cannot become a cluster; names every reason.
    """
    wrong = problems(site)
    if wrong:
        raise RailweldError("\n".join(wrong))
    version = site.versions.component("kubernetes").version
    planes = control_plane(site)
    shared: dict[tuple[Any, ...], dict[str, Any]] = {}
    return {
        "name": site.name,
        "version": version,
        "kubeadm_api": releases.kubeadm_api(version),
        "endpoint": endpoint(site),
        "first": planes[0],
        "control_plane": list(planes),
        "control_plane_addresses": [site.hosts[name].address for name in planes],
        "context": names.kube_context(site.name),
        "pod_cidr": site.pod_cidr,
        "service_cidr": site.service_cidr,
        "cni": site.cni,
        "cni_manifest": site.cni_manifest,
        "image_archives": site.image_archives,
        "pause_image": f"registry.k8s.io/pause:{releases.pause_tag(version)}",
        "memlock_kib": site.memlock_kib,
        "nofile": site.nofile,
        "hosts": {name: _host(site, site.hosts[name], shared) for name in members(site)},
    }


def view(cluster: Mapping[str, Any], host: str) -> dict[str, Any]:
    """What one host's roles may depend on: the site's values and its own, no other member's.

    Raises:
        RailweldError: the host is no member of the cluster.
    """
    hosts = cluster["hosts"]
    if host not in hosts:
        raise RailweldError(
            f"{host}: found in neither control_plane nor gpu_nodes, expected a member of the "
            "cluster. Fix: correct the inventory, or take the host out of this play"
        )
    return {**{key: value for key, value in cluster.items() if key != "hosts"}, "host": hosts[host]}


def _host(site: Site, host: Host, shared: dict[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    kind = (host.vendor_repository, host.is_gpu_node, host.gpu_runtime, tuple(host.mirrors.items()))
    if kind not in shared:
        runtime = gpu_runtime(site, host)
        shared[kind] = {
            "gpu_runtime": runtime,
            "packages": _packages(site, host, runtime),
            "repositories": _repositories(site, host, runtime),
        }
    is_control_plane = names.GROUP_CONTROL_PLANE in host.groups
    return {
        "name": host.name,
        "role": "control_plane" if is_control_plane else "worker",
        "address": host.address,
        **shared[kind],
        "labels": labels(site, host),
        "taints": taints(host),
        "kubelet": kubelet(site, host),
        # Only where it runs: another value is no reason to look at every worker.
        **({"controllers": controllers(site.controller_qps)} if is_control_plane else {}),
    }


def gpu_runtime(site: Site, host: Host) -> str:
    """`cdi`, `runtime` or `none`."""
    if not host.is_gpu_node:
        return "none"
    if host.gpu_runtime is not None:
        return host.gpu_runtime
    containerd = releases.numbers(site.versions.component("containerd").version)
    return "cdi" if containerd >= _CDI_CONTAINERD else "runtime"


def labels(site: Site, host: Host) -> dict[str, str]:
    """Labels that a node has from its registration on: no pod may be placed without them."""
    found = {names.LABEL_SITE: site.name}
    if host.gpu is not None:
        found[names.LABEL_GPU_PRESENT] = "true"
    if host.hcas:
        found[names.LABEL_RDMA_AVAILABLE] = "true"
    return found


def taints(host: Host) -> list[dict[str, str]]:
    """Taints that a node registers with."""
    if host.gpu is None:
        return []
    return [{"key": names.TAINT_GPU, "effect": "NoSchedule"}]


def kubelet(site: Site, host: Host) -> dict[str, Any]:
    """The kubelet's settings that follow from the site and the kind of node."""
    policy = host.topology_policy or ("best-effort" if host.is_gpu_node else "none")
    settings: dict[str, Any] = {"systemReserved": {"memory": host.reserved_memory}}
    if host.reserved_cpus is not None:
        # Named CPUs are the reservation; a number beside them would be ignored.
        settings["reservedSystemCPUs"] = host.reserved_cpus
    else:
        settings["systemReserved"]["cpu"] = "2" if host.is_gpu_node else "500m"
    settings["topologyManagerPolicy"] = policy
    # A job's ranks get whole CPUs beside their GPU and NIC; the kubelet's default shares them.
    settings["cpuManagerPolicy"] = "static" if host.is_gpu_node else "none"
    if site.image_archives:
        # Images from files cannot be pulled again: 100 is the kubelet's word for collecting none.
        settings["imageGCHighThresholdPercent"] = 100
    return settings


def controllers(qps: int) -> dict[str, str]:
    """Arguments of kube-controller-manager that follow from the description.

    It makes the pods of a job one request each, and those of a gang are all wanted at once.
    """
    return {"kube-api-burst": str(2 * qps), "kube-api-qps": str(qps)}


def _packages(site: Site, host: Host, runtime: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {name: [] for name in COMPONENTS}
    for name in COMPONENTS:
        if host.vendor_repository is None or (name == "container_toolkit" and runtime == "none"):
            continue
        try:
            listed = site.versions.packages(name, host.vendor_repository)
        except VersionsError:
            continue
        found[name] = [{"name": each.name, "version": each.version} for each in listed]
    return found


def _repositories(site: Site, host: Host, runtime: str) -> list[dict[str, Any]]:
    """Repositories of the cluster stage: mirrors first, the projects' own for what has none."""
    found = []
    for kind in REPOSITORIES:
        if kind == "container_toolkit" and runtime == "none":
            continue
        vendor = (
            site.versions.repository(host.vendor_repository, kind)
            if host.vendor_repository
            else None
        )
        mirror = host.mirrors.get(kind)
        source = mirror or vendor
        if source is None:
            continue
        entry: dict[str, Any] = {
            "id": kind,
            "url": source.url,
            "suite": source.suite,
            "components": list(source.components),
            "key_url": source.key_url,
            "key_file": getattr(source, "key_file", None),
            "key_fingerprint": source.key_fingerprint or None,
        }
        if mirror and vendor and not mirror.key_url and not mirror.key_file:
            # A mirror that copies signed packages keeps the project's signature.
            entry["key_url"], entry["key_fingerprint"] = vendor.key_url, vendor.key_fingerprint
        found.append(entry)
    return found
