"""NVIDIA's device plugin and runtime, where the site does not leave them to the gpu-operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from railweld import names
from railweld.stack.objects import Manifest, daemon_set, host_path, make, mount, small

NAME: Final = "nvidia-device-plugin"


@dataclass(frozen=True, kw_only=True)
class GpuPluginArgs:
    """What the plugin has to know.

    Attributes:
        namespace: where it runs.
        image: full reference.
        device_list: how containers get their devices; `envvar` needs NVIDIA's runtime.
        runtime: whether the nodes have NVIDIA's runtime, through which agents see the GPUs.
        pull_secrets: Secrets with registry logins.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    image: str
    device_list: Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"] = "envvar"
    runtime: bool = True
    pull_secrets: tuple[str, ...] = ()


def render(args: GpuPluginArgs) -> list[Manifest]:
    """RuntimeClass, and a DaemonSet on nodes that are described with GPUs."""
    kubelet = "/var/lib/kubelet/device-plugins"
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "plugin",
                "image": args.image,
                "imagePullPolicy": "IfNotPresent",
                "env": [
                    # A node without a working driver shows a failing pod; `false` would wait
                    # for ever and hide it.
                    {"name": "FAIL_ON_INIT_ERROR", "value": "true"},
                    {"name": "DEVICE_LIST_STRATEGY", "value": args.device_list},
                    {"name": "MIG_STRATEGY", "value": "none"},
                    # The plugin itself must see all GPUs, whatever the runtime's default.
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                    {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"},
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": small(),
                "volumeMounts": [mount("device-plugins", kubelet)],
            }
        ],
        "volumes": [host_path("device-plugins", kubelet)],
    }
    manifests: list[Manifest] = []
    if args.runtime:
        pod["runtimeClassName"] = names.RUNTIME_CLASS_GPU
        name = names.RUNTIME_CLASS_GPU
        manifests.append(make("node.k8s.io/v1", "RuntimeClass", name, handler=name))
    manifests.append(
        daemon_set(
            NAME,
            args.namespace,
            pod,
            node_selector={names.LABEL_GPU_PRESENT: "true"},
            pull_secrets=args.pull_secrets,
        )
    )
    return manifests
