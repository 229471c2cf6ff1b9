"""The layers of a training cluster, from the cable upward: the order in which doctor looks."""

from __future__ import annotations

from enum import StrEnum

from railweld.record import Check


class Layer(StrEnum):
    """One layer; the order of the members is the order from the cable upward."""

    CABLE = "cable"
    SWITCH = "switch"
    HOST = "host"
    GPU = "gpu"
    RDMA = "rdma"
    CLUSTER = "cluster"
    SLURM = "slurm"
    JOB = "job"

    @property
    def height(self) -> int:
        """0 for the cable, growing upward."""
        return list(Layer).index(self)


#: Roles whose checks belong to another layer than their records say (`host` for all of them).
_ROLE_LAYER = {
    "cuda": Layer.GPU,
    "fabric_manager": Layer.GPU,
    "nccl": Layer.GPU,
    "nvidia_driver": Layer.GPU,
    "rdma": Layer.RDMA,
}
_CHECK_LAYER = {
    "gpu": Layer.GPU,
    "link": Layer.CABLE,
    "fabric": Layer.SWITCH,
    "cluster": Layer.CLUSTER,
    "slurm": Layer.SLURM,
    "job": Layer.JOB,
}


def layer_of(check: Check) -> Layer:
    """The layer of a check that no catalogue entry claims."""
    role = check.id.partition(".")[0]
    return _CHECK_LAYER.get(check.layer) or _ROLE_LAYER.get(role, Layer.HOST)
