"""A lab with base and fabric as described, on which every fault is made in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import TestLab, command, running_lab, write_inventory


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """Two nodes, two leaves and a spine; no cluster and no Slurm."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("proof"), site="proof", third_octet=37, gpu_nodes=2, switches=True,
        heads=("time_servers",),
    )  # fmt: skip
    with running_lab(inventory) as lab:
        command(
            ["railweld", "up", "-i", str(inventory), "--disruptive", "--report", "report.html"],
            cwd=inventory.parent,
            timeout=3600,
        )
        yield lab
