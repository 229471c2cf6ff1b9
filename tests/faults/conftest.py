"""One lab for the whole suite, and nodes by what a test begins with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import running_lab, write_inventory
from tests.watched import SECRET, FaultLab

NODES = 8


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    """Bare nodes for every fault, on a site that has no later stages: no cluster, no Slurm."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("faults"),
        site="faults",
        third_octet=32,
        gpu_nodes=NODES,
        variables={"railweld_switch_enable_secret": SECRET},
        heads=["time_servers"],
    )
    with running_lab(inventory) as plain:
        lab = FaultLab(plain.inventory)
        # The time server first: every other test is about a node, not about the head.
        lab.play("--limit", "head1").assert_ok()
        yield lab


@pytest.fixture(scope="session")
def unused(lab: FaultLab) -> Iterator[str]:
    """Names of the nodes that no test has touched."""
    assert lab.inventory.is_dir()
    return iter([f"gpu{number}" for number in range(1, NODES + 1)])


@pytest.fixture
def node(unused: Iterator[str]) -> str:
    """A bare node of the test's own."""
    return next(unused)


@pytest.fixture(scope="session")
def refused(unused: Iterator[str]) -> str:
    """The node of the tests in which nothing may be installed: it stays without a driver."""
    return next(unused)


@pytest.fixture(scope="session")
def _provisioned(unused: Iterator[str]) -> str:
    return next(unused)


@pytest.fixture
def provisioned(lab: FaultLab, _provisioned: str) -> str:
    """The node of the tests that begin with a converged one."""
    lab.play("--limit", _provisioned).assert_ok()
    return _provisioned
