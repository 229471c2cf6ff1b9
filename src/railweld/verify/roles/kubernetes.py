"""A node of the cluster: kubelet as described and registered, API server, certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from railweld.cluster import releases
from railweld.cluster.model import API_PORT
from railweld.cluster.packages import in_place
from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import chrony, containerd

ROLE: Final = "kubernetes"
_AGAIN: Final = "run playbooks/deploy-cluster.yml on this host"
#: Certificates that end sooner than this are a finding: time enough for a maintenance window.
CERTIFICATE_DAYS: Final = 30
_DAY_S: Final = 86400
_KUBELET_KEYS: Final = (
    *("cpuManagerPolicy", "topologyManagerPolicy", "reservedSystemCPUs"),
    "imageGCHighThresholdPercent",
)
#: The kubelet's word for a policy that is off; a setting that is not there counts as the same.
UNSET: Final = "none"


def guard(ctx: Context) -> Iterator[Check]:
    """What must hold before a node is started or joined, and before anything is touched."""
    yield from chrony.gate(ctx)
    yield from _versions(ctx)
    yield from _other_cluster(ctx)
    yield from _addresses(ctx)


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable."""
    yield from in_place(ctx, "kubernetes", role=ROLE)
    yield from containerd.running(ctx)
    yield from _unfinished(ctx)
    yield from _kernel(ctx)
    yield from _member(ctx)
    if ctx.member("host.role") == "control_plane":
        yield from _api(ctx)
        yield from _controllers(ctx)
    yield from _certificates(ctx)


def is_member(ctx: Context) -> bool:
    """True when this node has credentials of the cluster and its last init or join ended well."""
    return ctx.seen("cluster.node") is not None and not ctx.seen("cluster.unfinished")


def _versions(ctx: Context) -> Iterator[Check]:
    """Another version than the running one is an upgrade, which has a playbook of its own."""
    wanted = str(ctx.member("version"))
    seen = ctx.seen("cluster.node.kubelet_version")
    running = ctx.seen("cluster.api.version") or seen
    if not running:
        return
    problem = releases.upgrade_problem(str(running), wanted) if running != wanted else ""
    yield ctx.judge(
        "kubernetes.version",
        ok=running == wanted,
        ran="kubectl get nodes",
        found=f"Kubernetes {running}" + (f": {problem}" if problem else ""),
        expected=f"Kubernetes {wanted} (version set, railweld_version_overrides)",
        fix="ansible-playbook playbooks/upgrade-cluster.yml upgrades control plane and nodes in "
        "order, one minor release at a time",
        layer="cluster",
    )


def _other_cluster(ctx: Context) -> Iterator[Check]:
    """A node that this cluster does not have, and whose kubelet talks to another API server.

    One that was taken out of this cluster and could not be reached then is no stranger: it is reset
    and joins again.
    """
    if ctx.seen("cluster.node") is None or not ctx.member("seen.reachable"):
        return
    server = ctx.seen("cluster.node.server")
    stranger = (
        ctx.name not in ctx.member("seen.nodes", {})
        and not ctx.seen("cluster.unfinished")
        and server not in own_servers(ctx)
    )
    yield ctx.judge(
        "kubernetes.same_cluster",
        ok=not stranger,
        ran="grep server: /etc/kubernetes/kubelet.conf",
        found=f"a kubelet of the API server at {server or 'an unknown address'}"
        if stranger
        else "no other cluster's",
        expected=f"a bare node, or one of cluster {ctx.member('name')} at {ctx.member('endpoint')}",
        fix="if the other cluster does not need it: drain and delete it there, `kubeadm reset` on "
        f"{ctx.name}, then this again",
        layer="cluster",
    )


def own_servers(ctx: Context) -> set[str]:
    """Where a kubelet of this cluster may look for the API server.

    On a control-plane node that is the node itself since Kubernetes 1.31.
    """
    addresses = ctx.member("control_plane_addresses", [])
    return {str(ctx.member("endpoint")), *(f"{each}:{API_PORT}" for each in addresses)}


def _addresses(ctx: Context) -> Iterator[Check]:
    swap = ctx.seen("cluster.swap", [])
    if swap:
        yield ctx.warn(
            "kubernetes.swap",
            ran="swapon --show",
            found=f"swap on {', '.join(swap)}",
            expected="no swap: memory limits of pods do not hold with it",
            fix="swapoff -a and remove it from /etc/fstab",
            layer="cluster",
        )


def _unfinished(ctx: Context) -> Iterator[Check]:
    step = ctx.seen("cluster.unfinished")
    yield ctx.judge(
        "kubernetes.finished",
        ok=not step,
        ran="cat /var/lib/railweld/kubeadm-unfinished",
        found=f"kubeadm {step} that did not end" if step else "no unfinished kubeadm run",
        expected="no unfinished kubeadm run",
        fix=f"{_AGAIN}; it resets what was begun and does it again",
        layer="cluster",
    )


def _kernel(ctx: Context) -> Iterator[Check]:
    for key, meaning in (
        ("net/ipv4/ip_forward", "packets of pods are forwarded"),
        ("net/bridge/bridge-nf-call-iptables", "Services work between pods of one node"),
    ):
        value = ctx.seen("cluster.sysctls", {}).get(key)
        yield ctx.judge(
            f"kubernetes.{key.rpartition('/')[2]}",
            ok=value == "1",
            ran=f"cat /proc/sys/{key}",
            found="absent (br_netfilter not loaded)" if value is None else value,
            expected=f"1: {meaning}",
            fix=_AGAIN,
            layer="cluster",
        )


def _member(ctx: Context) -> Iterator[Check]:
    node: dict[str, Any] | None = ctx.seen("cluster.node")
    error = "no kubelet.conf" if node is None else str(node.get("error", ""))
    yield ctx.judge(
        "kubernetes.member",
        ok=not error,
        ran=f"kubectl --kubeconfig /etc/kubernetes/kubelet.conf get node {ctx.name}",
        found=error or f"{ctx.name} registered",
        expected=f"registered with cluster {ctx.member('name')} at {ctx.member('endpoint')}",
        fix=f"{_AGAIN}; journalctl -u kubelet shows why a node that was there is gone",
        layer="cluster",
    )
    if error or node is None:
        return
    yield ctx.judge(
        "kubernetes.kubelet",
        ok=bool(ctx.seen("cluster.kubelet.active")) and not ctx.seen("cluster.kubelet.stale"),
        ran="systemctl status kubelet",
        found="not active"
        if not ctx.seen("cluster.kubelet.active")
        else "running with older settings than its file"
        if ctx.seen("cluster.kubelet.stale")
        else "active",
        expected="kubelet active, with the settings of its file",
        fix=f"journalctl -u kubelet; {_AGAIN}",
        layer="cluster",
    )
    for key, found, wanted in kubelet_settings(ctx):
        section, _, name = key.rpartition(".")
        yield ctx.judge(
            f"kubernetes.kubelet.{key}",
            ok=found == wanted,
            ran=f"grep {f'-A4 {section}' if section else name} /var/lib/kubelet/config.yaml",
            found="not set" if found == UNSET else found,
            expected="not set" if wanted == UNSET else wanted,
            fix=_AGAIN,
            layer="cluster",
        )
    wrong = missing_labels(ctx)
    yield ctx.judge(
        "kubernetes.labels",
        ok=not wrong,
        ran=f"kubectl get node {ctx.name} --show-labels",
        found=f"without {', '.join(f'{k}={v}' for k, v in wrong.items())}"
        if wrong
        else "as described",
        expected="the labels that follow from the description",
        fix=_AGAIN,
        layer="cluster",
    )
    absent = missing_taints(ctx)
    yield ctx.judge(
        "kubernetes.taints",
        ok=not absent,
        ran=f"kubectl describe node {ctx.name} | grep Taints",
        found=f"without {', '.join(absent)}" if absent else "as described",
        expected="the taints that follow from the description",
        fix=_AGAIN,
        layer="cluster",
    )


def kubelet_settings(ctx: Context) -> Iterator[tuple[str, str, str]]:
    """Each setting of the kubelet that follows from the description: name, found, wanted."""
    there = ctx.seen("cluster.kubelet.settings", {})
    for key in _KUBELET_KEYS:
        yield key, there.get(key) or UNSET, str(ctx.member(f"host.kubelet.{key}") or UNSET)
    reserved = there.get("systemReserved") or {}
    for name, wanted in sorted(ctx.member("host.kubelet.systemReserved", {}).items()):
        yield f"systemReserved.{name}", str(reserved.get(name) or UNSET), str(wanted)


def kubelet_differences(ctx: Context) -> list[str]:
    """Names of the settings that a member's kubelet has otherwise than described."""
    return [key for key, found, wanted in kubelet_settings(ctx) if found != wanted]


def missing_labels(ctx: Context) -> dict[str, str]:
    """Labels of the description that the node object has not, or has otherwise."""
    there = ctx.seen("cluster.node.labels", {})
    wanted: dict[str, str] = ctx.member("host.labels", {})
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def missing_taints(ctx: Context) -> list[str]:
    """Taints of the description that the node object lacks, as kubectl writes them."""
    there = {(each.get("key"), each.get("effect")) for each in ctx.seen("cluster.node.taints", [])}
    return [
        f"{each['key']}:{each['effect']}"
        for each in ctx.member("host.taints", [])
        if (each["key"], each["effect"]) not in there
    ]


def _api(ctx: Context) -> Iterator[Check]:
    version, error = ctx.seen("cluster.api.version"), ctx.seen("cluster.api.error", "")
    yield ctx.judge(
        "kubernetes.api",
        ok=version == ctx.member("version"),
        ran="kubectl --kubeconfig /etc/kubernetes/admin.conf version",
        found=f"API server {version}" if version else error or "no API server described here",
        expected=f"API server {ctx.member('version')} at {ctx.member('endpoint')}",
        fix="crictl ps -a and crictl logs show the API server's containers; "
        f"journalctl -u kubelet what it cannot start; {_AGAIN}",
        layer="cluster",
    )


def _controllers(ctx: Context) -> Iterator[Check]:
    if ctx.seen("cluster.controllers") is None:
        # No control plane here yet: kubernetes.member and kubernetes.api say so.
        return
    for key, found, wanted in controller_settings(ctx):
        yield ctx.judge(
            f"kubernetes.controllers.{key}",
            ok=found == wanted,
            ran=f"grep {key} /etc/kubernetes/manifests/kube-controller-manager.yaml",
            found=found,
            expected=f"{wanted} (railweld_controller_qps)",
            fix=_AGAIN,
            layer="cluster",
        )


def controller_settings(ctx: Context) -> Iterator[tuple[str, str, str]]:
    """Each argument of the controllers that follows from the description: name, found, wanted."""
    there = ctx.seen("cluster.controllers") or {}
    for key, wanted in sorted(ctx.member("host.controllers", {}).items()):
        yield key, str(there.get(key) or "not set"), str(wanted)


def controller_differences(ctx: Context) -> list[str]:
    """Names of the arguments that a control-plane node's controllers have otherwise."""
    return [key for key, found, wanted in controller_settings(ctx) if found != wanted]


def _certificates(ctx: Context) -> Iterator[Check]:
    left = ctx.seen("cluster.certificates", {})
    if not left:
        return
    short = {
        name: int(seconds) // _DAY_S
        for name, seconds in left.items()
        if seconds is not None and seconds < CERTIFICATE_DAYS * _DAY_S
    }
    shown = ", ".join(f"{name}: {days} days" for name, days in sorted(short.items()))
    first = min((int(each) for each in left.values() if each is not None), default=0) // _DAY_S
    yield ctx.judge(
        "kubernetes.certificates",
        ok=not short,
        ran="kubeadm certs check-expiration",
        found=shown or f"the first one ends in {first} days",
        expected=f"at least {CERTIFICATE_DAYS} days",
        fix="kubeadm certs renew all, then restart the control plane's containers; a cluster that "
        "is upgraded once a year renews them with it",
        layer="cluster",
    )
