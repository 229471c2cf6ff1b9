"""A small site with a Slurm head, and ways to say what is different."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.record import Status
from railweld.site import Site, load_site
from railweld.slurm import model
from railweld.verify import registry
from railweld.verify.context import Context

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

#: A site whose nodes run a slurmd of their own, from its own builds.
OWN = {"slurm": {"url": "http://mirror/slurm", "key_file": "/etc/keys/slurm.asc"}}
PLAIN = {
    "railweld_mirrors": OWN,
    "railweld_partitions": [{"name": "plain", "group": "gpu_nodes", "bridge": False}],
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


def bad_on(
    described: Site,
    role: str,
    seen_on: Callable[[dict[str, Any]], dict[str, Any]],
    *changes: tuple[str, Any],
    host: str = "head1",
) -> dict[str, str]:
    """Checks of a role that do not pass on a host, by id, with what was found.

    Args:
        described: the site.
        role: whose checks.
        seen_on: what the probe sees on a host that is as described.
        *changes: path below `slurm` of what it sees, and what is there instead.
        host: which host.
    """
    slurm = model.fact(described)
    node = copy.deepcopy(seen_on(slurm))
    for path, value in changes:
        *parents, last = path.split(".")
        here = node["slurm"]
        for key in parents:
            here = here[key]
        here[last] = value
    fact = described.fact()
    ctx = Context(
        site=fact["site"],
        host=fact["hosts"][host],
        node=node,
        slurm=model.view(slurm, host),
    )
    found = [each for each in registry.evaluate(ctx, [role]) if each.status is not Status.PASS]
    assert all(each.fix and each.expected for each in found)
    return {each.id: each.found for each in found}
