"""The stack of a site: every add-on's arguments, in order, and what the site loses by its versions.

Both the Pulumi program and `railweld stack render` start here, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from railweld import names
from railweld.cluster.model import gpu_runtime
from railweld.errors import RailweldError
from railweld.nccl import profiles_for
from railweld.stack import (
    bridge,
    clock_guard,
    gpu_operator,
    gpu_plugin,
    metrics,
    namespaces,
    nccl_profile,
    networks,
    nfd,
    policies,
    quota,
    rdma_plugin,
)
from railweld.stack.images import Reference, images_for
from railweld.stack.objects import Manifest, owned
from railweld.versions.rules import version_key

if TYPE_CHECKING:
    from railweld.site import Host, Site


class Addon(NamedTuple):
    """One component of the stack: its objects, and what has to be there before it."""

    name: str
    manifests: tuple[Manifest, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Arguments of every add-on that the site has; None for those that it leaves out."""

    site: str
    kubernetes: str
    namespaces: namespaces.NamespacesArgs
    nccl_profile: nccl_profile.NcclProfileArgs
    quota: quota.QuotaArgs
    nfd: nfd.NfdArgs | None
    gpu_plugin: gpu_plugin.GpuPluginArgs | None
    gpu_operator: gpu_operator.GpuOperatorArgs | None
    rdma_plugin: rdma_plugin.RdmaPluginArgs | None
    networks: networks.NetworksArgs | None
    clock_guard: clock_guard.ClockGuardArgs | None
    metrics: metrics.MetricsArgs | None
    policies: policies.PoliciesArgs | None
    bridge: bridge.BridgeArgs | None
    #: What the site's versions or choices cost, one sentence each.
    warnings: tuple[str, ...] = ()

    def addons(self) -> Iterator[Addon]:
        """Every add-on with its objects, in the order in which they are made."""
        base = ("namespaces",)
        yield self._addon("namespaces", namespaces.render(self.namespaces), ())
        yield self._addon("nccl-profile", nccl_profile.render(self.nccl_profile), base)
        yield self._addon("quota", quota.render(self.quota), base)
        if self.policies:
            # Before anything that could start pods.
            yield self._addon("policies", policies.render(self.policies), base)
        if self.nfd:
            yield self._addon("nfd", nfd.render(self.nfd), base)
        if self.gpu_plugin:
            yield self._addon("gpu-plugin", gpu_plugin.render(self.gpu_plugin), base)
        if self.rdma_plugin:
            yield self._addon("rdma-plugin", rdma_plugin.render(self.rdma_plugin), base)
        if self.networks:
            yield self._addon("networks", networks.render(self.networks), base)
        if self.clock_guard:
            yield self._addon("clock-guard", clock_guard.render(self.clock_guard), base)
        if self.metrics:
            yield self._addon("metrics", metrics.render(self.metrics), base)
        if self.bridge:
            yield self._addon("bridge", bridge.render(self.bridge), (*base, "quota"))

    def manifests(self) -> list[Manifest]:
        """All objects, in order."""
        return [manifest for addon in self.addons() for manifest in addon.manifests]

    def _addon(self, name: str, manifests: list[Manifest], after: tuple[str, ...]) -> Addon:
        return Addon(name, tuple(owned(each, self.site) for each in manifests), after)


def stack_for(site: Site) -> Stack:
    """Derive the stack of a site; raises RailweldError for what cannot be derived."""
    try:
        return _derive(site)
    except ValueError as error:
        raise RailweldError(f"site {site.name}: {error}") from error


def _derive(site: Site) -> Stack:
    images = images_for(site)
    without = set(site.stack_without)
    secrets = tuple(site.image_pull_secrets)
    version = site.versions.component("kubernetes").version
    nodes = [host for host in site.hosts.values() if host.is_gpu_node]
    hcas = [hca for node in nodes for hca in node.hcas]
    resource = site.rdma_resource if hcas else ""
    shares = site.rdma_shares or max((len(node.hcas) for node in nodes), default=1)
    gpus = sum(node.gpu.count for node in nodes if node.gpu)
    host_network = site.network_mode == "host"
    admission = _at_least(version, policies.SINCE)
    operator = site.gpu_stack == "operator"
    profiles = _profiles(site)
    runtime = _gpu_runtime(site, nodes)
    return Stack(
        site=site.name,
        kubernetes=version,
        namespaces=namespaces.NamespacesArgs(),
        nccl_profile=profiles,
        quota=quota.QuotaArgs(
            gpus=gpus if site.job_gpu_quota is None else site.job_gpu_quota,
            rdma_resource=resource,
            rdma=shares * len(nodes) if resource else 0,
        ),
        nfd=nfd.NfdArgs(image=images["nfd"], pull_secrets=secrets)
        if "nfd" not in without
        else None,
        gpu_plugin=gpu_plugin.GpuPluginArgs(
            image=images["device_plugin"],
            device_list="cdi-cri" if runtime == "cdi" else "envvar",
            runtime=runtime != "none",
            pull_secrets=secrets,
        )
        if "gpu_plugin" not in without and not operator
        else None,
        gpu_operator=gpu_operator.GpuOperatorArgs(
            version=site.versions.versions.charts["gpu_operator"],
            source=site.charts.get("gpu_operator"),
            nfd="nfd" not in without,
            metrics="metrics" not in without,
        )
        if "gpu_plugin" not in without and operator
        else None,
        rdma_plugin=rdma_plugin.RdmaPluginArgs(
            image=images["rdma_device_plugin"],
            resource=resource,
            shares=shares,
            transport=site.transport,
            netdevs=tuple(sorted({hca.netdev for hca in hcas if hca.netdev})),
            pull_secrets=secrets,
        )
        if "rdma_plugin" not in without and resource
        else None,
        networks=_networks(site),
        clock_guard=clock_guard.ClockGuardArgs(
            image=images["clock_guard"],
            max_offset_ms=site.time_max_offset_ms,
            local_clock_nodes=_local_clocks(site),
            restrict=admission,
            pull_secrets=secrets,
        )
        if "clock_guard" not in without
        else None,
        metrics=metrics.MetricsArgs(
            image=images["dcgm_exporter"],
            rdma_resource=site.rdma_resource,
            hcas=min((len(node.hcas) for node in nodes), default=0),
            lossless_priority=site.lossless_priority if site.transport == "roce" else None,
            max_offset_ms=site.time_max_offset_ms,
            operator=site.prometheus == "operator",
            runtime=runtime != "none",
            pull_secrets=secrets,
        )
        if "metrics" not in without
        else None,
        policies=policies.PoliciesArgs(
            rdma_resource=resource,
            nccl=site.versions.component("nccl").version,
            transport=site.transport,
            host_paths=job_host_paths(site),
            registries=tuple(site.job_registries),
            host_network=host_network,
        )
        if "policies" not in without and admission
        else None,
        bridge=bridge.BridgeArgs(
            templates=_templates(site, profiles),
            image=str(Reference.parse(site.job_image)) if site.job_image else images["cuda_test"],
            rdma_resource=resource,
            host_network=host_network,
            networks=() if host_network else tuple(f"rail{rail}" for rail in _rails(site)),
            shm_gib=site.job_shm_gib,
            volumes=tuple(
                bridge.Volume(
                    name=each.name,
                    mount=each.mount,
                    host_path=each.host_path,
                    claim=each.claim,
                    read_only=each.read_only,
                )
                for each in site.job_volumes
            ),
            pin=_at_least(version, bridge.PIN_SINCE),
            runtime=runtime == "runtime",
            pull_secrets=secrets,
        )
        if "bridge" not in without
        else None,
        warnings=tuple(_warnings(site, version, images, without)),
    )


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    # A pre-release or a vendor's suffix behind the number does not matter here.
    return (version_key(version) or ())[:2] >= wanted


def _gpu_runtime(site: Site, nodes: list[Host]) -> str:
    """How pods get GPUs on every node; the plugin's answer is the same for all of them."""
    found = {gpu_runtime(site, node): node.name for node in nodes}
    if len(found) > 1:
        words = ", ".join(f"{runtime} on {name}" for runtime, name in sorted(found.items()))
        raise ValueError(f"railweld_gpu_runtime: found {words}, expected one for all GPU nodes")
    return next(iter(found), "none")


def _profiles(site: Site) -> nccl_profile.NcclProfileArgs:
    partitions = site.partitions
    default = next((each.name for each in partitions if each.default), partitions[0].name)
    return nccl_profile.NcclProfileArgs(
        nccl=site.versions.component("nccl").version,
        transport=site.transport,
        profiles=profiles_for(site),
        bench=profiles_for(site, bench=True)[default],
        default=default,
    )


def _templates(site: Site, profiles: nccl_profile.NcclProfileArgs) -> tuple[bridge.Template, ...]:
    templates = []
    for partition in site.partitions:
        nodes = [site.host(name) for name in partition.hosts]
        counts = {node.gpu.count for node in nodes if node.gpu}
        if not counts:
            continue
        caches = {(n.cache_device is not None, n.cache_path, n.scratch_path) for n in nodes}
        has_cache, cache, scratch = min(caches)
        templates.append(
            bridge.Template(
                name=names.pod_template(partition.name),
                partition=partition.name,
                gpus=min(counts),
                nccl=nccl_profile.config_map_name(profiles, partition.name),
                cache=cache if has_cache and len(caches) == 1 else None,
                scratch=scratch if has_cache and len(caches) == 1 else None,
                cuda_compat=any(node.cuda_compat for node in nodes),
            )
        )
    return tuple(templates)


def job_host_paths(site: Site) -> tuple[str, ...]:
    """Folders of their node that jobs may mount, with what is below them."""
    paths = {volume.host_path for volume in site.job_volumes if volume.host_path}
    for node in site.hosts.values():
        if node.is_gpu_node and node.cache_device:
            paths |= {node.cache_path, names.job_scratch(node.scratch_path)}
    return tuple(sorted(paths))


def _rails(site: Site) -> dict[int, networks.RailNetwork]:
    found: dict[int, networks.RailNetwork] = {}
    ports = [hca for host in site.hosts.values() for hca in host.hcas]
    for hca in sorted(ports, key=lambda each: each.rail):
        same = found.get(hca.rail)
        if same is not None and (same.netdev, same.subnet) != (hca.netdev, hca.subnet):
            raise ValueError(
                f"rail {hca.rail}: found {same.netdev} on {same.subnet} and {hca.netdev} on "
                f"{hca.subnet}, expected one of each for railweld_network_mode {site.network_mode}"
            )
        if hca.netdev is None:
            raise ValueError(
                f"rail {hca.rail}: found no netdev, expected one for railweld_network_mode "
                f"{site.network_mode}"
            )
        if same is None:
            taken = tuple(
                each.address.partition("/")[0]
                for each in ports
                if each.rail == hca.rail and each.address
            )
            found[hca.rail] = networks.RailNetwork(
                rail=hca.rail,
                netdev=hca.netdev,
                subnet=hca.subnet,
                gateway=hca.gateway,
                taken=taken,
            )
    return found


def _networks(site: Site) -> networks.NetworksArgs | None:
    if site.network_mode == "host":
        return None
    if site.network_mode == "dra":
        raise ValueError(
            "railweld_network_mode: found dra, expected host, macvlan or sriov: the stack does "
            "not make device classes and claims yet"
        )
    return networks.NetworksArgs(
        mode=site.network_mode, mtu=site.host_mtu, rails=tuple(_rails(site).values())
    )


def _local_clocks(site: Site) -> tuple[str, ...]:
    """The first time server of a site without sources serves its own clock, by design."""
    if site.time_sources:
        return ()
    return tuple(site.groups.get(names.GROUP_TIME_SERVERS, ()))[:1]


#: Images that add-ons run; the rest is for tests and for jobs.
_USED: Final = {
    "nfd": "nfd",
    "device_plugin": "gpu_plugin",
    "rdma_device_plugin": "rdma_plugin",
    "clock_guard": "clock_guard",
    "dcgm_exporter": "metrics",
    "cuda_test": "bridge",
}


def _warnings(
    site: Site, version: str, images: dict[str, str], without: Collection[str]
) -> Iterator[str]:
    if not _at_least(version, policies.SINCE):
        yield (
            f"Kubernetes {version} has no ValidatingAdmissionPolicy v1 (since 1.30): nothing "
            "refuses GPU pods without RDMA, memlock or /dev/shm, and clock guards are not held to "
            "their own node"
        )
    if not _at_least(version, bridge.PIN_SINCE):
        yield (
            f"Kubernetes {version} has no MutatingAdmissionPolicy v1 (since 1.36): the bridge "
            + (
                "places pods by gates and patches, which takes longer"
                if _at_least(version, bridge.GATES_SINCE)
                else "lets the scheduler spread pods over the job's nodes and ranks them by these"
            )
        )
    if site.gpu_stack == "operator" and "gpu_plugin" not in without:
        yield "the gpu-operator is a Helm release: `stack render` prints its command, not its YAML"
    loose = [
        name
        for name, addon in _USED.items()
        if addon not in without and "@sha256:" not in images[name] and name != "clock_guard"
    ]
    if loose and not site.image_archives:
        yield (
            f"images without a digest: {', '.join(loose)}. Pin them on your mirror with "
            "railweld_image_overrides"
        )
