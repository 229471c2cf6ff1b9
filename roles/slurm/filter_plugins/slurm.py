"""What the role decides with the same code that judges it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from railweld.cluster import packages
from railweld.names import BRIDGE_EPILOG
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


def upgraded(node: Mapping[str, Any], wanted: list[dict[str, Any]]) -> list[str]:
    """Slurm's installed packages that the transaction replaces: `NAME OLD -> NEW`."""
    installed = node.get("packages") or {}
    return [
        f"{each['name']} {found['version']} -> {each['version']}"
        for each in wanted
        if each["name"].startswith("slurm")
        and (found := installed.get(each["name"]))
        and each["version"]
        and found["version"] != each["version"]
    ]


def files(slurm: Mapping[str, Any]) -> list[str]:
    """Paths of the configuration files that the role keeps on this host."""
    if not stage.needs_files(slurm):
        return []
    return [f"{conf.FOLDER}/{name}" for name in conf.files(slurm)]


def epilog(_: Any) -> str:
    """Path of Slurm's Epilog on sites with a bridge."""
    return BRIDGE_EPILOG


def beyond(items: list[str], count: int) -> list[str]:
    """What comes after the first `count` items."""
    return items[count:]


class FilterModule:
    """Filters of role slurm."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "slurm_packages": exact_packages,
            "slurm_upgraded": upgraded,
            "slurm_beyond": beyond,
            "slurm_epilog": epilog,
            "slurm_files": files,
            "slurm_database_conf": conf.slurmdbd_conf,
        }
