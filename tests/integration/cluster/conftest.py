"""A lab whose nodes have their base and are no cluster yet, shared by the suite's modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cluster.helpers import (
    GPU_NODES,
    Cluster,
    eventually,
    has_devices,
    provide,
    waiting_agents,
)
from tests.integration.stack.plane import Pulumi
from tests.labs import running_lab, write_inventory


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One control-plane node and two nodes with GPUs."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("cluster"), site="cluster", third_octet=20, gpu_nodes=2
    )
    with running_lab(inventory) as lab:
        provide(inventory)
        lab.play().assert_ok()
        found = Cluster(lab)
        # Of an earlier lab of this name.
        found.kubeconfig.unlink(missing_ok=True)
        yield found


@pytest.fixture(scope="session")
def engine(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Pulumi:
    """The real engine and provider, aimed at that cluster, which is brought up if need be."""
    cluster.deploy().assert_ok()
    return Pulumi(cluster, tmp_path_factory.mktemp("pulumi"), cluster.lab.inventory)


@pytest.fixture(scope="module")
def stack(cluster: Cluster, engine: Pulumi) -> Cluster:
    """The cluster with the stack on it, whose agents have come up."""
    engine.up()
    eventually(lambda: waiting_agents(cluster), lambda found: found == [])
    for node in GPU_NODES:
        has_devices(cluster, node)
    return cluster
