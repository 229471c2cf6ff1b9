"""Hand-over to NVIDIA's gpu-operator: which chart, and what it must leave to the roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from railweld import names

REPOSITORY: Final = "https://helm.ngc.nvidia.com/nvidia"
CHART: Final = "gpu-operator"


@dataclass(frozen=True, kw_only=True)
class GpuOperatorArgs:
    """What the release follows from.

    Attributes:
        namespace: where it runs.
        version: of the chart.
        source: path or address of the chart; None: NVIDIA's repository.
        nfd: whether the stack runs NFD itself, of which there may be one only.
        metrics: whether the stack runs the exporter itself.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    version: str
    source: str | None = None
    nfd: bool = True
    metrics: bool = True


def values(args: GpuOperatorArgs) -> dict[str, Any]:
    """Driver, fabric manager and toolkit are the roles' work, on the host."""
    return {
        "driver": {"enabled": False},
        "toolkit": {"enabled": False},
        "nfd": {"enabled": not args.nfd},
        "dcgmExporter": {"enabled": not args.metrics},
        "devicePlugin": {"enabled": True},
        "migManager": {"enabled": False},
        "daemonsets": {"tolerations": [{"operator": "Exists"}]},
    }


def command(args: GpuOperatorArgs) -> str:
    """The same release for people who render instead of deploying."""
    where = args.source or f"{CHART} --repo {REPOSITORY} --version {args.version}"
    return f"helm template gpu-operator {where} --namespace {args.namespace} --values VALUES"
