"""kubeadm's files and decisions, from the code that the tests know."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from railweld.cluster import kubeadm, releases
from railweld.verify.context import Context
from railweld.verify.roles import kubernetes

_JOIN = re.compile(r"--token (?P<token>\S+) .*--discovery-token-ca-cert-hash (?P<ca_hash>\S+)")


def join_secrets(command: str) -> dict[str, str]:
    """Token and CA hash of the line that `kubeadm token create --print-join-command` prints."""
    found = _JOIN.search(command)
    if found is None:
        raise ValueError("found no token in kubeadm's answer, expected a join command")
    return found.groupdict()


def missing_labels(
    node: Mapping[str, Any], host: Mapping[str, Any], cluster: Mapping[str, Any]
) -> list[str]:
    """Labels to set, as kubectl writes them."""
    ctx = Context(site={}, host=host, node=node, cluster=cluster)
    return [f"{key}={value}" for key, value in kubernetes.missing_labels(ctx).items()]


def missing_taints(
    node: Mapping[str, Any], host: Mapping[str, Any], cluster: Mapping[str, Any]
) -> list[str]:
    """Taints to set, as kubectl writes them."""
    return kubernetes.missing_taints(Context(site={}, host=host, node=node, cluster=cluster))


def kubelet_differences(node: Mapping[str, Any], cluster: Mapping[str, Any]) -> list[str]:
    """Reservations and policies that a member's kubelet has otherwise than described."""
    return kubernetes.kubelet_differences(Context(site={}, host={}, node=node, cluster=cluster))


def controller_differences(node: Mapping[str, Any], cluster: Mapping[str, Any]) -> list[str]:
    """Arguments that a control-plane node's controllers have otherwise than described."""
    return kubernetes.controller_differences(Context(site={}, host={}, node=node, cluster=cluster))


class FilterModule:
    """Filters of role kubernetes."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "kubernetes_init": kubeadm.init,
            "kubernetes_upload_certificates": kubeadm.upload_certificates,
            "kubernetes_join": kubeadm.join,
            "kubernetes_patch": kubeadm.kubelet_patch,
            "kubernetes_join_secrets": join_secrets,
            "kubernetes_missing_labels": missing_labels,
            "kubernetes_missing_taints": missing_taints,
            "kubernetes_kubelet_differences": kubelet_differences,
            "kubernetes_changed_controllers": kubeadm.changed_controllers,
            "kubernetes_controller_differences": controller_differences,
            "kubernetes_upgrade_problem": releases.upgrade_problem,
            "kubernetes_kubelet_problem": releases.kubelet_problem,
        }
