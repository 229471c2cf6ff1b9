"""Looks before the first object is touched: the right cluster, and nobody else's objects."""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from railweld import names
from railweld.errors import RailweldError
from railweld.stack.api import Cluster
from railweld.stack.objects import MANAGED_BY, OWNER, Key, Manifest, is_owned, key

#: Groups whose kinds the stack defines itself.
OWN_GROUPS = ("nfd.k8s-sigs.io",)


class PreflightError(RailweldError):
    """The stack may not be deployed here."""


def preflight(cluster: Cluster, site: str, manifests: Iterable[Manifest]) -> None:
    """Refuse a cluster of another name, kinds that it lacks, and objects that are not the stack's.

    Raises:
        PreflightError: with every reason of the first kind that was found.
    """
    wanted = list(manifests)
    refuse_other_cluster(cluster, site)
    _refuse_unknown_kinds(cluster, wanted)
    _refuse_foreign_objects(cluster, site, wanted)


def cluster_name(cluster: Cluster) -> str | None:
    """The name that kubeadm gave the cluster; None when it was not kubeadm's."""
    found = cluster.get(Key("v1", "ConfigMap", "kube-system", "kubeadm-config"))
    if found is None:
        return None
    try:
        configuration = yaml.safe_load((found.get("data") or {})["ClusterConfiguration"])
        return str(configuration["clusterName"])
    except (KeyError, TypeError, yaml.YAMLError):
        return None


def refuse_other_cluster(cluster: Cluster, site: str) -> None:
    """Refuse a cluster that does not say that it is this site's."""
    where = cluster.target.words
    namespace = cluster.get(Key("v1", "Namespace", "", names.NAMESPACE_SYSTEM))
    labels = (namespace or {}).get("metadata", {}).get("labels") or {}
    labelled = labels.get(names.LABEL_SITE)
    name = cluster_name(cluster)
    found = name or labelled
    if found == site and labelled in (None, site):
        return
    if found is None:
        raise PreflightError(
            f"{where}: found a cluster without kubeadm's name, expected proof that it is "
            f"{site}'s. Fix: if it is, say so once: kubectl create namespace "
            f"{names.NAMESPACE_SYSTEM}; kubectl label namespace {names.NAMESPACE_SYSTEM} "
            f"{names.LABEL_SITE}={site} {MANAGED_BY}={OWNER}"
        )
    other = name if name not in (None, site) else labelled
    raise PreflightError(
        f"{where}: found the cluster of site {other}, expected {site}. Fix: check railweld:site, "
        "railweld:kubeconfig and railweld:context of this stack"
    )


def _refuse_unknown_kinds(cluster: Cluster, manifests: list[Manifest]) -> None:
    missing = sorted(
        {
            f"{each['kind']} ({each['apiVersion']})"
            for each in manifests
            if key(each).group not in OWN_GROUPS
            and not cluster.serves(each["apiVersion"], each["kind"])
        }
    )
    if missing:
        raise PreflightError(
            f"{cluster.target.words}: found no {', '.join(missing)}, expected the cluster to have "
            "these kinds. Fix: install what defines them, or change what asks for them "
            "(railweld_prometheus, railweld_network_mode, the Kubernetes version of the set)"
        )


def _refuse_foreign_objects(cluster: Cluster, site: str, manifests: list[Manifest]) -> None:
    foreign = []
    for manifest in manifests:
        live = cluster.get(key(manifest))
        if live is not None and not is_owned(live, site):
            foreign.append(key(manifest))
    if not foreign:
        return
    listing = "\n".join(f"  {adopt_command(each, site)}" for each in foreign)
    raise PreflightError(
        f"{cluster.target.words}: found {len(foreign)} objects that exist already and are not "
        f"this stack's, expected none: {', '.join(map(str, foreign))}. Fix: remove them, or give "
        f"them to the stack, which then makes them as described:\n{listing}"
    )


def adopt_command(wanted: Key, site: str) -> str:
    """What an operator types to hand an object over to the stack."""
    kind = f"{wanted.kind.lower()}.{wanted.group}" if wanted.group else wanted.kind.lower()
    namespace = f" -n {wanted.namespace}" if wanted.namespace else ""
    return (
        f"kubectl label{namespace} {kind}/{wanted.name} --overwrite "
        f"{MANAGED_BY}={OWNER} {names.LABEL_SITE}={site}"
    )
