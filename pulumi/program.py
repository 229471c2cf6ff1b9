"""Composes the stack of a site: which components, in which order, with which provider."""

from __future__ import annotations

from pathlib import Path

import pulumi
import pulumi_kubernetes as k8s
from railweld import names
from railweld.errors import RailweldError
from railweld.site import load_site
from railweld.stack.api import Cluster
from railweld.stack.diff import extra_data, remove_extra_data
from railweld.stack.graph import Stack, stack_for
from railweld.stack.preflight import preflight
from railweld.state import site_state_dir

from components.base import Component
from components.bridge import Bridge
from components.clock_guard import ClockGuard
from components.gpu_operator import GpuOperator
from components.gpu_plugin import GpuPlugin
from components.metrics import Metrics
from components.namespaces import Namespaces
from components.nccl_profile import NcclProfile
from components.networks import Networks
from components.nfd import NodeFeatureDiscovery
from components.policies import Policies
from components.quota import Quota
from components.rdma_plugin import RdmaPlugin

#: Components beside the namespaces, in order: name, attribute of `Stack`, class.
COMPONENTS = (
    ("nccl-profile", "nccl_profile", NcclProfile),
    ("quota", "quota", Quota),
    ("policies", "policies", Policies),
    ("nfd", "nfd", NodeFeatureDiscovery),
    ("gpu-plugin", "gpu_plugin", GpuPlugin),
    ("gpu-operator", "gpu_operator", GpuOperator),
    ("rdma-plugin", "rdma_plugin", RdmaPlugin),
    ("networks", "networks", Networks),
    ("clock-guard", "clock_guard", ClockGuard),
    ("metrics", "metrics", Metrics),
    ("bridge", "bridge", Bridge),
)
#: What the others' objects refer to.
_FIRST = ("namespaces", "quota", "policies")


def main() -> None:
    """Deploy the site that `railweld:site` names; refuse in words, without a stack trace."""
    try:
        _deploy(pulumi.Config("railweld"))
    except RailweldError as error:
        raise pulumi.RunError(str(error)) from None


def _deploy(config: pulumi.Config) -> None:
    inventory = config.get("site")
    if inventory is None:
        raise RailweldError(
            "railweld:site: found nothing, expected the site's inventory. Fix: pulumi config set "
            "railweld:site ../inventories/SITE"
        )
    stack = stack_for(load_site([str(Path(inventory).expanduser())]))
    if pulumi.get_stack() != stack.site:
        raise RailweldError(
            f"railweld:site: found the description of {stack.site} for the stack "
            f"{pulumi.get_stack()}, expected one name for both. Fix: pulumi stack select "
            f"{stack.site}, or correct railweld:site"
        )
    for warning in stack.warnings:
        pulumi.log.warn(warning)
    kubeconfig = Path(
        config.get("kubeconfig") or site_state_dir(stack.site) / names.KUBECONFIG
    ).expanduser()
    context = config.get("context") or names.kube_context(stack.site)
    patience = config.get_float("patience")
    cluster = Cluster.connect(kubeconfig, context, patience=20.0 if patience is None else patience)
    try:
        preflight(cluster, stack.site, stack.manifests())
        _clean(cluster, stack)
    finally:
        cluster.close()
    provider = k8s.Provider(
        "cluster",
        # The path, not the content: the state holds no credential.
        kubeconfig=str(kubeconfig.absolute()),
        context=context,
        # Another path or address of the same cluster replaces nothing.
        cluster_identifier=stack.site,
        # Changed in place; a checksum restarts whoever reads them only once.
        enable_config_map_mutable=True,
    )
    compose(stack, provider)


def _clean(cluster: Cluster, stack: Stack) -> None:
    """Take out what someone added to a ConfigMap: jobs take every key into their environment.

    The provider cannot: it changes fields of its own only.
    """
    for finding in extra_data(cluster, stack.manifests()):
        for difference in finding.differences:
            done = "to be taken out" if pulumi.runtime.is_dry_run() else "taken out"
            pulumi.log.warn(f"{finding.key}: {difference.sentence()}: {done}")
        if not pulumi.runtime.is_dry_run():
            remove_extra_data(cluster, finding)


def compose(stack: Stack, provider: k8s.Provider) -> dict[str, Component]:
    """Make the components; everything else waits for the namespaces and the policies."""
    components: dict[str, Component] = {}
    components["namespaces"] = Namespaces(
        "namespaces",
        stack.namespaces,
        site=stack.site,
        opts=pulumi.ResourceOptions(provider=provider),
    )
    for name, attribute, made in COMPONENTS:
        args = getattr(stack, attribute)
        if args is None:
            continue
        after = [components[each] for each in _FIRST if each in components]
        components[name] = made(
            name,
            args,
            site=stack.site,
            opts=pulumi.ResourceOptions(provider=provider, depends_on=after),
        )
    pulumi.export("site", stack.site)
    pulumi.export("kubernetes", stack.kubernetes)
    pulumi.export("components", sorted(components))
    return components
