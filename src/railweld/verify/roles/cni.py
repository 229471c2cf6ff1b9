"""The pod network: configuration, routes to every other node, and a node that is Ready with it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import kubernetes

ROLE: Final = "cni"
CONFIG: Final = "/etc/cni/net.d/10-railweld.conflist"
_AGAIN: Final = "run playbooks/deploy-cluster.yml"


def guard(ctx: Context) -> Iterator[Check]:
    """A pod network needs a member of the cluster that got a part of the pods' addresses."""
    yield ctx.judge(
        "cni.member",
        ok=kubernetes.is_member(ctx),
        ran="ls /etc/kubernetes/kubelet.conf",
        found="a member" if kubernetes.is_member(ctx) else "no member of a cluster",
        expected="a node that has joined",
        fix=f"{_AGAIN} on this host",
        layer="cluster",
    )
    if ctx.member("cni") == "bridge" and kubernetes.is_member(ctx):
        cidr = own_cidr(ctx)
        yield ctx.judge(
            "cni.pod_cidr",
            ok=bool(cidr),
            ran=f"kubectl get node {ctx.name} -o jsonpath={{.spec.podCIDR}}",
            found=cidr or "no podCIDR",
            expected=f"a part of {ctx.member('pod_cidr')} (railweld_pod_cidr)",
            fix="the controller manager gives them out: see its log with crictl. A cluster with "
            "more nodes than railweld_pod_cidr has /24 networks needs a larger one from the start",
            layer="cluster",
        )


def checks(ctx: Context) -> Iterator[Check]:
    """What each kind of pod network leaves."""
    mode = ctx.member("cni")
    if mode == "bridge":
        yield from _bridge(ctx)
    if mode == "none":
        if not ctx.seen("cluster.node.ready"):
            yield ctx.warn(
                "cni.ready",
                ran=f"kubectl describe node {ctx.name}",
                found=ctx.seen("cluster.node.ready_reason") or "not Ready",
                expected="Ready, once the operator has installed a pod network",
                fix="install one, or choose railweld_cni: bridge or manifest",
                layer="cluster",
            )
        return
    if silence := ctx.seen("cluster.node.error"):
        yield ctx.could_not_look(
            "cni.ready",
            ran=f"kubectl describe node {ctx.name}",
            found=str(silence),
            expected="Ready",
            fix=f"start the API server on {ctx.member('first')}: crictl ps -a there",
            layer="cluster",
        )
        return
    ready = bool(ctx.seen("cluster.node.ready"))
    yield ctx.judge(
        "cni.ready",
        ok=ready,
        ran=f"kubectl describe node {ctx.name}",
        found="Ready" if ready else ctx.seen("cluster.node.ready_reason") or "not registered",
        expected="Ready",
        fix="journalctl -u kubelet and -u containerd on this host; " + _AGAIN,
        layer="cluster",
    )
    waiting = ctx.seen("cluster.node.waiting_pods", {})
    yield ctx.judge(
        "cni.addons",
        ok=not waiting,
        ran=f"kubectl -n kube-system get pods -o wide --field-selector spec.nodeName={ctx.name}",
        found=", ".join(f"{pod} {reason}" for pod, reason in sorted(waiting.items()))
        or "all ready",
        expected="kube-proxy, and CoreDNS where it is placed here, ready: Services and cluster DNS",
        fix="kubectl -n kube-system logs and describe pod show why; " + _AGAIN,
        layer="cluster",
    )


def own_cidr(ctx: Context) -> str | None:
    """Addresses of this node's pods."""
    own: str | None = ctx.seen("cluster.node.pod_cidr")
    return own or (ctx.member("seen.nodes", {}).get(ctx.name) or {}).get("pod_cidr")


def stale_bridges(ctx: Context) -> list[str]:
    """Interfaces of this node that are in the pods' addresses and not in its own part of them.

    A node that joins again gets another part. The plugin refuses to use a bridge that has kept the
    old one, and pods with old addresses get no answers.
    """
    own = own_cidr(ctx)
    if own is None:
        return []
    # The routes that were read are those of IPv4.
    pods = ipaddress.IPv4Network(ctx.member("pod_cidr"))
    return sorted(
        {
            str(device)
            for text, device in ctx.seen("cluster.pod_network.links", {}).items()
            if text not in ("default", own) and ipaddress.IPv4Network(text).subnet_of(pods)
        }
    )


def peers(ctx: Context) -> dict[str, str]:
    """Addresses of the other nodes' pods, and which node each is behind."""
    return {
        str(node["pod_cidr"]): str(node["address"])
        for name, node in sorted(ctx.member("seen.nodes", {}).items())
        if name != ctx.name and node.get("pod_cidr") and node.get("address")
    }


def service_route(ctx: Context) -> dict[str, str] | None:
    """The route of this node's own processes to Services, or None where its device is not known.

    kube-proxy rewrites such a packet only after the kernel has found a route for it. A node without
    a default route has none, and on one whose default route is another network's, the packet would
    leave with that network's address.
    """
    address = str(ctx.member("host.address"))
    for device, link in ctx.seen("net", {}).items():
        if isinstance(link, dict) and any(
            each.partition("/")[0] == address for each in link.get("addresses", ())
        ):
            return {"cidr": str(ctx.member("service_cidr")), "device": device, "source": address}
    return None


def has_service_route(ctx: Context) -> bool:
    """True when the route is set, or none is wanted."""
    wanted = service_route(ctx)
    return wanted is None or any(
        route.get("dst") == wanted["cidr"] and route.get("dev") == wanted["device"]
        for route in ctx.seen("net.routes", [])
    )


def _bridge(ctx: Context) -> Iterator[Check]:
    subnet, own = ctx.seen("cluster.pod_network.subnet"), own_cidr(ctx)
    there = CONFIG in ctx.seen("cluster.pod_network.files", [])
    # Without the node's object nobody knows which addresses are its own.
    unknown = there and own is None and bool(ctx.seen("cluster.node.error"))
    told: dict[str, str] = {
        "ran": f"cat {CONFIG}",
        "found": f"addresses of {subnet or 'no subnet'}" if there else "absent",
        "expected": f"the bridge of this node's pods, with addresses of {own or 'its own'}",
        "fix": f"{_AGAIN} on this host",
        "layer": "cluster",
    }
    if unknown:
        yield ctx.could_not_look("cni.config", **told)
    else:
        yield ctx.judge("cni.config", ok=there and subnet == own, **told)
    stale = stale_bridges(ctx)
    yield ctx.judge(
        "cni.bridge",
        ok=not stale,
        ran="ip route",
        found=f"{', '.join(stale)} with addresses of another node's pods" if stale else "no other",
        expected=f"no bridge with pods' addresses outside of {own}",
        fix=f"{_AGAIN} on this host; pods that are on it have to be made anew",
        layer="cluster",
    )
    unread = CONFIG in ctx.seen("cluster.pod_network.unread", [])
    yield ctx.judge(
        "cni.loaded",
        ok=not unread,
        ran=f"systemctl show -p ActiveEnterTimestamp containerd; ls -l {CONFIG}",
        found="containerd started before the file was written" if unread else "read by containerd",
        expected="containerd runs with this pod network",
        fix="systemctl restart containerd; containers keep running",
        layer="cluster",
    )
    wanted = service_route(ctx)
    yield ctx.judge(
        "cni.service_route",
        ok=has_service_route(ctx),
        ran=f"ip route show {ctx.member('service_cidr')}",
        found="as described" if has_service_route(ctx) else "no such route",
        expected=f"a route to {ctx.member('service_cidr')} by {(wanted or {}).get('device', '-')}: "
        "the node's own processes reach Services without a default route",
        fix=f"{_AGAIN} on this host",
        layer="cluster",
    )
    if not ctx.member("seen.reachable"):
        yield ctx.could_not_look(
            "cni.routes",
            ran="kubectl get nodes",
            found=f"no list of nodes ({ctx.member('seen.error', 'not asked')})",
            expected="the other nodes and their pods' addresses",
            fix=f"start the API server on {ctx.member('first')}: crictl ps -a there",
            layer="cluster",
        )
        return
    routes = ctx.seen("cluster.pod_network.routes", {})
    wrong = {cidr: via for cidr, via in peers(ctx).items() if routes.get(cidr) != via}
    yield ctx.judge(
        "cni.routes",
        ok=not wrong,
        ran="ip route",
        found=f"no route to {', '.join(f'{c} via {v}' for c, v in wrong.items())}"
        if wrong
        else f"routes to {len(peers(ctx))} nodes",
        expected="a route to the pods of every other node",
        fix=f"{_AGAIN}; it runs on every node when one is added",
        layer="cluster",
    )
