"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.cluster import packages
from railweld.slurm import conf, stage
from railweld.verify.context import Context


def exact_packages(
    node: Mapping[str, Any],
    railweld: Mapping[str, Any],
    host: Mapping[str, Any],
    slurm: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Packages with the version to install, empty where nobody knows it yet."""
    return packages.exact(Context(railweld["site"], host, node, slurm=slurm), "slurm")


def files(slurm: Mapping[str, Any]) -> list[str]:
    """Paths of the configuration files that the role keeps on this host."""
    if not stage.needs_files(slurm):
        return []
    return [f"{conf.FOLDER}/{name}" for name in conf.files(slurm)]


class FilterModule:
    """Filters of role slurm."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "slurm_packages": exact_packages,
            "slurm_files": files,
            "slurm_database_conf": conf.slurmdbd_conf,
        }
