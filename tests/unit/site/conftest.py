"""A small site that is right, and ways to make it wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.site import Problem, Site, SiteError, build_site, load_inventory

RAILS = [
    {
        "rail": number,
        "hca": f"mlx5_{number - 1}",
        "netdev": f"rail{number}",
        "subnet": f"10.10.{number}.0/24",
        "switch": "leaf1",
        "port": "Ethernet{index}/1" if number == 1 else "Ethernet{index+16}/1",
    }
    for number in (1, 2)
]
HOSTS = {
    "control_plane": {"head1": "10.0.0.10"},
    "slurm_head": {"head1": None},
    "time_servers": {"head1": None},
    "gpu_nodes": {"gpu1": "10.0.0.11", "gpu2": "10.0.0.12"},
    "leaves": {"leaf1": "10.0.0.21"},
}
GROUP_VARS = {
    "all": {
        "railweld_site": "tiny",
        "railweld_version_set": "current",
        "railweld_vendor_repository": "ubuntu2404",
    },
    "gpu_nodes": {
        "railweld_gpu_count": 8,
        "railweld_gpu_model": "H100 80GB HBM3",
        "railweld_cpus": 128,
        "railweld_sockets": 2,
        "railweld_memory_mib": 1000000,
        "railweld_rails": RAILS,
    },
    "leaves": {"railweld_switch_model": "DCS-7050CX3-32S"},
}


class Draft:
    """The right site as plain data; a test changes it and asks what the check says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, dict[str, str | None]] = copy.deepcopy(HOSTS)
        self.group_vars: dict[str, dict[str, Any]] = copy.deepcopy(GROUP_VARS)
        self.host_vars: dict[str, dict[str, Any]] = {}

    @property
    def rails(self) -> list[dict[str, Any]]:
        """The rails of the GPU nodes."""
        rails: list[dict[str, Any]] = self.group_vars["gpu_nodes"]["railweld_rails"]
        return rails

    def write(self) -> Path:
        """Write the inventory folder."""
        groups = {
            group: {"hosts": {name: {"ansible_host": a} if a else {} for name, a in hosts.items()}}
            for group, hosts in self.hosts.items()
        }
        self._dump("hosts.yml", {"all": {"children": groups}})
        for group, values in self.group_vars.items():
            self._dump(f"group_vars/{group}.yml", values)
        for host, values in self.host_vars.items():
            self._dump(f"host_vars/{host}.yml", values)
        return self.folder

    def _dump(self, name: str, data: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(data, sort_keys=False))

    def check(self, **extra_vars: Any) -> list[Problem]:
        """Everything that the check says about the draft."""
        try:
            return build_site(load_inventory([str(self.write())], extra_vars))[1]
        except SiteError as error:
            return list(error.problems)

    def site(self) -> Site:
        """The site; fails the test with what the check says if there is none."""
        site, problems = build_site(load_inventory([str(self.write())]))
        assert site is not None, "\n".join(problem.sentence() for problem in problems)
        return site

    def only_error(self, **extra_vars: Any) -> Problem:
        """The one error that the draft has."""
        errors = [problem for problem in self.check(**extra_vars) if problem.is_error]
        assert len(errors) == 1, "\n".join(problem.sentence() for problem in errors)
        return errors[0]

    def line(self, name: str, text: str) -> str:
        """`path:line` of the first line with this text, as a finding would name it."""
        path = self.folder / name
        number = next(n for n, line in enumerate(path.read_text().split("\n"), 1) if text in line)
        return f"{path}:{number}"


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """The right site, to be changed."""
    return Draft(tmp_path / "site")


@pytest.fixture
def files(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Write files by name and text; returns their folder."""

    def write(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
