"""How much all jobs together may ask for, and who goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from railweld import names
from railweld.stack.objects import Manifest, make

PRIORITY_JOB: Final = "railweld-job"
PRIORITY_PROOF: Final = "railweld-proof"


@dataclass(frozen=True, kw_only=True)
class QuotaArgs:
    """Limits of the jobs' namespace.

    Attributes:
        namespace: where jobs run.
        gpus: GPUs that all jobs together may ask for.
        rdma_resource: extended resource of the site; empty without RDMA.
        rdma: how many of it.
    """

    namespace: str = names.NAMESPACE_JOBS
    gpus: int
    rdma_resource: str = ""
    rdma: int = 0

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.rdma < 0:
            raise ValueError(f"quota: found {self.gpus} GPUs and {self.rdma} RDMA, expected >= 0")


def render(args: QuotaArgs) -> list[Manifest]:
    """Priorities and the quota; no LimitRange.

    A LimitRange's `max` of an extended resource would also become the default of every container,
    and pods without GPUs would wait for ever.
    """
    # Extended resources have `requests.` only: `limits.` is refused.
    hard = {f"requests.{names.RESOURCE_GPU}": str(args.gpus)}
    if args.rdma_resource:
        hard[f"requests.{args.rdma_resource}"] = str(args.rdma)
    return [
        make(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            PRIORITY_JOB,
            value=100_000,
            preemptionPolicy="Never",
            globalDefault=False,
            description="Jobs: Slurm has decided already, so they evict nobody.",
        ),
        make(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            PRIORITY_PROOF,
            value=1_000,
            preemptionPolicy="Never",
            globalDefault=False,
            description="Checks of the cluster: they give way to jobs.",
        ),
        make("v1", "ResourceQuota", "railweld-jobs", args.namespace, spec={"hard": hard}),
    ]
