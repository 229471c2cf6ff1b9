"""A job's own interface on every rail, where jobs do not use the host's network.

One attachment per rail, for Multus; addresses come from the rail's subnet through whereabouts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from railweld import names
from railweld.stack.objects import Manifest, make


@dataclass(frozen=True, kw_only=True)
class RailNetwork:
    """One rail as pods see it."""

    rail: int
    netdev: str
    subnet: str | None
    gateway: str | None = None
    taken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the attachment."""
        return f"rail{self.rail}"


@dataclass(frozen=True, kw_only=True)
class NetworksArgs:
    """What the attachments follow from.

    Attributes:
        namespace: where jobs run.
        mode: how a pod gets its interface.
        mtu: of the rails.
        rails: in order.
    """

    namespace: str = names.NAMESPACE_JOBS
    mode: Literal["macvlan", "sriov"]
    mtu: int
    rails: tuple[RailNetwork, ...]


def render(args: NetworksArgs) -> list[Manifest]:
    """One NetworkAttachmentDefinition per rail."""
    return [_attachment(args, rail) for rail in args.rails]


def _attachment(args: NetworksArgs, rail: RailNetwork) -> Manifest:
    config: dict[str, Any] = {"cniVersion": "0.3.1", "name": rail.name}
    annotations = {}
    if args.mode == "macvlan":
        config |= {"type": "macvlan", "master": rail.netdev, "mode": "bridge", "mtu": args.mtu}
    else:
        config |= {"type": "sriov", "mtu": args.mtu}
        annotations["k8s.v1.cni.cncf.io/resourceName"] = f"nvidia.com/{rail.name}"
    if rail.subnet:
        config["ipam"] = {
            "type": "whereabouts",
            "range": rail.subnet,
            # Addresses of the hosts themselves.
            "exclude": [f"{address}/32" for address in rail.taken],
            **({"gateway": rail.gateway} if rail.gateway else {}),
        }
    return make(
        "k8s.cni.cncf.io/v1",
        "NetworkAttachmentDefinition",
        rail.name,
        args.namespace,
        annotations=annotations,
        spec={"config": json.dumps(config, indent=2)},
    )
