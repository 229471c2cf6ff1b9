"""A lab whose nodes have their base and are no cluster yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from railweld.lab.access import lab_state_dir
from tests.integration.cluster.helpers import Cluster
from tests.labs import command, running_lab, write_inventory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One control-plane node and two nodes with GPUs."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("cluster"), site="cluster", third_octet=20, gpu_nodes=2
    )
    with running_lab(inventory) as lab:
        command(["railweld", "lab", "kubernetes", "-i", str(inventory)], timeout=2400)
        images = lab_state_dir(inventory.name) / "images"
        command(
            [
                *("railweld", "images", "save", "--stand-ins"),
                *("--output", str(images), "-i", str(inventory)),
            ],
            timeout=1200,
        )
        lab.play().assert_ok()
        yield Cluster(lab)
