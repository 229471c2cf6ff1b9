"""Package families: names that move together or not at all.

A family is what has to be on hold once a component is installed. The pins of a version set name
the packages that railweld asks for; apt adds dependencies, and those must not move alone either.
Families stand here and not in the version sets: a node that moves from one set to another holds,
and gives way to, the names of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

#: The same names come from the distribution or from DOCA-OFED, never from both.
_RDMA_USERLAND: Final = (
    "ibverbs-*",
    "infiniband-diags",
    "libibmad*",
    "libibnetdisc*",
    "libibumad*",
    "libibverbs*",
    "librdmacm*",
    "mstflint",
    "perftest",
    "rdma-core",
    "rdmacm-utils",
)

#: component → shell patterns of package names, as apt spells them.
FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "driver": (
        "firmware-nvidia-*",
        "libcuda1",
        "cuda-drivers",
        "cuda-drivers-[0-9]*",
        "libnvidia-*",
        "linux-modules-nvidia-*",
        "linux-objects-nvidia-*",
        "nvidia-*",
        "xserver-xorg-video-nvidia*",
    ),
    "fabric_manager": (
        "cuda-drivers-fabricmanager*",
        "libnvidia-nscq*",
        "libnvsdm*",
        "nvidia-fabric-manager*",
        "nvidia-fabricmanager*",
        "nvidia-imex*",
        "nvlink5*",
        "nvlsm",
    ),
    "cuda": (
        "cuda-*-[0-9]*-[0-9]*",
        "cuda-toolkit-*",
        "gds-tools-*",
        "libcublas-*",
        "libcufft-*",
        "libcufile-*",
        "libcurand-*",
        "libcusolver-*",
        "libcusparse-*",
        "libnpp-*",
        "libnvjitlink-*",
        "libnvjpeg-*",
        "nsight-compute*",
        "nsight-systems*",
    ),
    "nccl": ("libnccl-dev", "libnccl2"),
    "rdma": _RDMA_USERLAND,
    "doca": (
        *_RDMA_USERLAND,
        "doca-*",
        "iser-dkms",
        "isert-dkms",
        "kernel-mft-dkms",
        "knem*",
        "libopensm*",
        "mft*",
        "mlnx-*",
        "ofed-scripts",
        "srp-dkms",
        "xpmem*",
    ),
}

#: The same for later stages. deploy-base.yml leaves these alone.
CLUSTER_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "containerd": ("containerd", "containerd.io", "runc"),
    "container_toolkit": ("libnvidia-container*", "nvidia-container-*"),
    "dcgm": ("datacenter-gpu-manager*",),
    "kubernetes": ("cri-tools", "kubeadm", "kubectl", "kubelet", "kubernetes-cni"),
    # Debian's package `slurm` alone is another program.
    "slurm": (
        "libmunge*",
        "libslurm*",
        "mariadb-server*",
        "munge",
        "slurm-*",
        "slurmctld",
        "slurmd",
        "slurmdbd",
        "slurmrestd",
    ),
}

#: The driver's `nvidia-*` also matches the container toolkit, which the cluster stage pins.
NOT_DRIVER: Final = (*CLUSTER_FAMILIES["container_toolkit"], "nvidia-docker*")


def host_components(site: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the components whose families railweld keeps on a host: none without GPUs."""
    if not host.get("is_gpu_node", bool(host.get("gpu"))):
        return ()
    stack = "doca" if site.get("rdma_stack") == "doca" else "rdma"
    return ("driver", "fabric_manager", "cuda", "nccl", stack)


def family_patterns(component: str) -> tuple[str, ...]:
    """Return the shell patterns of a component's family, empty for one without a family."""
    return FAMILIES.get(component) or CLUSTER_FAMILIES.get(component, ())


@cache
def in_family(component: str, name: str) -> bool:
    """Tell whether a package name belongs to a component's family."""
    others = (*NOT_DRIVER, *FAMILIES["fabric_manager"])
    if component == "driver" and _matches(name, others):
        return False
    return _matches(name, family_patterns(component))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
