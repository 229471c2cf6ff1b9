"""What stage `base` looks at by itself: huge pages."""

from __future__ import annotations

import pytest

from railweld.record import Check, Status
from railweld.verify.base import _huge_pages, described_huge_pages
from railweld.verify.context import Context


@pytest.mark.parametrize(
    ("parameters", "pages"),
    [
        ([], {}),
        (["quiet", "hugepages=64"], {2048: 64}),
        (["hugepagesz=1G", "hugepages=16"], {1048576: 16}),
        (["hugepages=32", "hugepagesz=1G", "hugepages=0:8,1:8"], {2048: 32, 1048576: 16}),
        (["hugepagesz=1G", "hugepages=16", "hugepages=32"], {1048576: 16}),
        (["hugepages=4", "default_hugepagesz=1G"], {1048576: 4}),
    ],
)
def test_parameters_say_how_many_pages_of_which_size(
    parameters: list[str], pages: dict[int, int]
) -> None:
    assert described_huge_pages(parameters) == pages


def judged(reserved: dict[str, int]) -> list[Check]:
    host = {
        "name": "gpu1", "hcas": [{"name": "mlx5_0"}],
        "kernel": {"parameters": ["hugepagesz=1G", "hugepages=16"]},
    }  # fmt: skip
    node = {"kernel": {"huge_pages": {"reserved": reserved}}}
    return list(_huge_pages(Context(site={}, host=host, node=node)))


@pytest.mark.parametrize(
    ("reserved", "status"),
    [
        ({"1048576": 16}, Status.PASS),
        ({"1048576": 11, "2048": 16}, Status.FAIL),
        ({}, Status.FAIL),
    ],
)
def test_a_kernel_that_found_no_room_for_all_of_them_is_named(
    reserved: dict[str, int], status: Status
) -> None:
    (check,) = judged(reserved)
    assert check.status is status
    assert check.expected == "16 pages of 1048576 KiB (railweld_kernel_parameters)"
