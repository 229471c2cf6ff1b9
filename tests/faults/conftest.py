"""One lab for the whole suite; every test takes a node of its own and leaves it behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs import TestLab, running_lab, write_inventory

NODES = 18


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """A lab with enough bare nodes for every fault."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("faults"), site="faults", third_octet=32, gpu_nodes=NODES
    )
    with running_lab(inventory) as lab:
        # The time server first: every other test is about a node, not about the head.
        lab.play("--limit", "head1").assert_ok()
        yield lab


@pytest.fixture(scope="session")
def _nodes() -> Iterator[str]:
    return (f"gpu{number}" for number in range(1, NODES + 1))


@pytest.fixture
def node(_nodes: Iterator[str]) -> str:
    """A bare node that no other test has touched."""
    return next(_nodes)
