"""A small site with a Slurm head, and ways to say what is different."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.site import Site, load_site

KEY = base64.b64encode(bytes(range(64))).decode()
ALL = {
    "railweld_site": "tiny",
    "railweld_version_set": "a100-2023",
    "railweld_vendor_repository": "ubuntu2204",
    "railweld_munge_key": KEY,
}
GPU_NODES = {
    "railweld_gpu_count": 8,
    "railweld_gpu_model": "A100-SXM4-80GB",
    "railweld_cpus": 128,
    "railweld_sockets": 2,
    "railweld_memory_mib": 1000000,
    "railweld_rails": [
        {"rail": 1, "hca": "mlx5_0", "netdev": "rail1", "subnet": "10.10.1.0/24"},
    ],
}

SiteMaker = Callable[..., Site]


@pytest.fixture
def site(tmp_path: Path) -> SiteMaker:
    """Build a site with the given variables and number of nodes; gpu9 has variables of its own."""

    def build(
        *,
        nodes: int = 3,
        everywhere: dict[str, Any] | None = None,
        gpus: dict[str, Any] | None = None,
        last: dict[str, Any] | None = None,
        heads: int = 1,
    ) -> Site:
        folder = tmp_path / "site"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        (folder / "group_vars/all.yml").write_text(yaml.safe_dump({**ALL, **(everywhere or {})}))
        (folder / "group_vars/gpu_nodes.yml").write_text(
            yaml.safe_dump({**GPU_NODES, **(gpus or {})})
        )
        hosts = {
            f"gpu{n}": {"ansible_host": f"10.0.0.{20 + n}", **((last or {}) if n == nodes else {})}
            for n in range(1, nodes + 1)
        }
        head = {"ansible_host": "10.0.0.10", "railweld_vendor_repository": "debian12"}
        (folder / "hosts.yml").write_text(
            yaml.safe_dump(
                {
                    "all": {
                        "children": {
                            "slurm_head": {
                                "hosts": {
                                    f"head{n}": {**head, "ansible_host": f"10.0.0.{9 + n}"}
                                    for n in range(1, heads + 1)
                                }
                            },
                            "time_servers": {"hosts": {"head1": None}},
                            "gpu_nodes": {"hosts": hosts},
                        }
                    }
                }
            )
        )
        return load_site([str(folder)])

    return build
