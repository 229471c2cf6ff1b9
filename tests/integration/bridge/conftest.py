"""One Slurm, one control plane and one daemon for all tests; pods of its nodes are processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from railweld.site import load_site
from railweld.stack.graph import Stack, stack_for
from tests.integration.bridge import proxy as proxies
from tests.integration.bridge import world as worlds
from tests.integration.bridge.proxy import Proxy
from tests.integration.bridge.world import World
from tests.integration.stack import plane as planes
from tests.integration.stack.plane import ROOT

NODES = 16


@pytest.fixture(scope="session")
def stack() -> Stack:
    """The lab's stack."""
    # Quotas follow from the described nodes, which are three.
    extra = {"railweld_job_gpu_quota": NODES * 8, "railweld_rdma_shares": NODES}
    # Nodes with a disk, so that jobs get cache and scratch; kubelets.py makes folders of it.
    extra |= {"railweld_cache_device": "/dev/nvme1n1"}
    return stack_for(load_site([str(ROOT / "inventories/lab")], extra))


@pytest.fixture(autouse=True)
def _recovered(world: World) -> Iterator[None]:
    yield
    world.recover()


@pytest.fixture
def no_go(world: World) -> None:
    """Bodies that wait for /data/go wait."""
    world.slurm.sh("rm -f /data/go")


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    """A daemon that reaches the API server through a proxy."""
    direct = world.config["kubeconfig"]
    with proxies.running(world.plane) as found:
        world.restart_daemon("TERM", kubeconfig=str(found.kubeconfig(Path(direct))))
        yield found
        found.faults.clear()
        if world.slurm.pids("railweld.bridge.daemon"):
            world.stop_daemon("KILL")
        world.start_daemon(kubeconfig=direct)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[World]:
    """Everything, with 16 nodes of 8 GPUs."""
    folder = tmp_path_factory.mktemp("bridge")
    with planes.running(folder / "plane") as plane:
        plane.nodes(NODES, {"nvidia.com/gpu": "8", "rdma/hca": "4"}, alive=False)
        worlds.apply_stack(plane, stack)
        with worlds.running(folder, plane, NODES) as started:
            yield started
