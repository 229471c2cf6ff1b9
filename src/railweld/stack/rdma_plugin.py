"""The RDMA shared device plugin: gives pods the character devices of the described HCAs.

What it advertises is a counter of pods, not a share of the hardware, and does not fall when a port
dies; `railweld verify` counts ports on the node instead.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from railweld import names
from railweld.stack.objects import Manifest, daemon_set, host_path, make, mount, small

NAME: Final = "rdma-shared-device-plugin"
CONFIGMAP: Final = "rdma-devices"
MELLANOX: Final = "15b3"
_LINK_TYPES: Final = {"roce": "ether", "infiniband": "infiniband"}


@dataclass(frozen=True, kw_only=True)
class RdmaPluginArgs:
    """What the plugin has to know.

    Attributes:
        namespace: where it runs.
        image: full reference.
        resource: full name of the extended resource, `PREFIX/NAME`.
        shares: how many pods of a node may have the HCAs at the same time.
        transport: decides the link type that is looked for.
        netdevs: network devices of the rails; on RoCE only their HCAs are given out.
        pull_secrets: Secrets with registry logins.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    image: str
    resource: str
    shares: int
    transport: Literal["roce", "infiniband"]
    netdevs: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prefix, slash, name = self.resource.partition("/")
        if not (prefix and slash and re.fullmatch(r"[a-zA-Z0-9_]+", name)):
            raise ValueError(
                f"railweld_rdma_resource: found {self.resource!r}, expected PREFIX/NAME with a "
                "NAME of letters, digits and underscores: the plugin exits on anything else"
            )
        if self.shares < 1:
            raise ValueError(f"railweld_rdma_shares: found {self.shares}, expected 1 or more")


def config(args: RdmaPluginArgs) -> dict[str, Any]:
    """The plugin's config.json. It ignores unknown keys silently, so none may be misspelt."""
    prefix, _, name = args.resource.partition("/")
    selectors: dict[str, list[str]] = {
        "vendors": [MELLANOX],
        "drivers": ["mlx5_core"],
        "linkTypes": [_LINK_TYPES[args.transport]],
    }
    if args.netdevs and args.transport == "roce":
        # A NIC of the same maker that carries storage or management is not for jobs.
        selectors["ifNames"] = sorted(set(args.netdevs))
    return {
        "periodicUpdateInterval": 300,
        "configList": [
            {
                "resourcePrefix": prefix,
                "resourceName": name,
                "rdmaHcaMax": args.shares,
                "selectors": selectors,
            }
        ],
    }


def render(args: RdmaPluginArgs) -> list[Manifest]:
    """ConfigMap and DaemonSet."""
    text = json.dumps(config(args), indent=2) + "\n"
    kubelet = "/var/lib/kubelet"
    pod = {
        # It reads the HCAs' network devices, which only the host's namespace has.
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "plugin",
                "image": args.image,
                "imagePullPolicy": "IfNotPresent",
                "securityContext": {"privileged": True},
                "resources": small(),
                "volumeMounts": [
                    mount("device-plugins", f"{kubelet}/device-plugins"),
                    # Without it the plugin falls back to a way that hangs after a kubelet restart.
                    mount("registry", f"{kubelet}/plugins_registry"),
                    mount("config", "/k8s-rdma-shared-dev-plugin", read_only=True),
                    mount("devices", "/dev"),
                ],
            }
        ],
        "volumes": [
            host_path("device-plugins", f"{kubelet}/device-plugins"),
            host_path("registry", f"{kubelet}/plugins_registry"),
            {"name": "config", "configMap": {"name": CONFIGMAP}},
            host_path("devices", "/dev"),
        ],
    }
    return [
        make("v1", "ConfigMap", CONFIGMAP, args.namespace, data={"config.json": text}),
        daemon_set(
            NAME,
            args.namespace,
            pod,
            node_selector={names.LABEL_RDMA_AVAILABLE: "true"},
            # Read once, not on SIGHUP.
            config=text,
            pull_secrets=args.pull_secrets,
        ),
    ]
