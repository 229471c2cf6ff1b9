from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.bench.judge import Run, checks, culprits
from railweld.bench.limits import nvlink_limit
from railweld.bench.schedule import fewest_rounds, rounds
from railweld.record import Status
from tests.unit.bench.made import LIMIT, run


def statuses(one: Run) -> dict[str, Status]:
    return {check.id: check.status for check in checks(one, command="x")}


@given(st.integers(0, 33))
def test_every_pair_meets_once_in_the_fewest_rounds(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    schedule = rounds(nodes)
    met = [frozenset(pair) for each in schedule for pair in each]
    assert sorted(map(sorted, met)) == sorted(map(sorted, combinations(nodes, 2)))
    assert len(schedule) == fewest_rounds(count)
    for each in schedule:
        busy = [node for pair in each for node in pair]
        assert len(busy) == len(set(busy)) == count - count % 2


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (run("a", "b"), {"bench.wrong": Status.PASS, "bench.busbw": Status.PASS}),
        (run("a", "b", busbw=39.99), {"bench.wrong": Status.PASS, "bench.busbw": Status.FAIL}),
        (run("a", "b", wrong="1"), {"bench.wrong": Status.FAIL, "bench.busbw": Status.PASS}),
        (run("a", "b", wrong="N/A"), {"bench.wrong": Status.WARN, "bench.busbw": Status.PASS}),
        (run("a", "b", size=1 << 20), {"bench.wrong": Status.PASS, "bench.busbw": Status.WARN}),
        (run("a", "b", end=False), {"bench.ran": Status.UNKNOWN}),
        (Run(("a",), LIMIT, None, "gone"), {"bench.ran": Status.UNKNOWN}),
        (
            run("a", limit=nvlink_limit("A100-PCIE-40GB")),
            {"bench.wrong": Status.PASS, "bench.busbw": Status.SKIPPED},
        ),
    ],
)
def test_a_run_is_judged_by_its_end_its_sums_and_its_largest_message(
    one: Run, expected: dict[str, Status]
) -> None:
    assert statuses(one) == expected


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("A100-SXM4-80GB", 300),
        ("NVIDIA H200", 450),
        ("Tesla V100-SXM2-32GB", 150),
        ("H100 PCIe", None),
        ("H100 NVL", None),
        ("L40S", None),
        ("", None),
    ],
)
def test_nvlink_rates_follow_from_the_model(model: str, rate: float | None) -> None:
    assert nvlink_limit(model).gb_per_s == rate


def matrix(nodes: Iterable[str], slow: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Run]:
    bad = {frozenset(pair) for pair in slow}
    return {
        pair: run(*pair, busbw=20 if frozenset(pair) in bad else 42)
        for pair in combinations(nodes, 2)
    }


def test_a_node_that_is_slow_with_everyone_is_named_and_its_partners_are_not() -> None:
    found = culprits(matrix("abcdef", [("c", other) for other in "abdef"]))
    assert (found.nodes, found.links) == (("c",), ())


def test_one_slow_pair_of_fast_nodes_is_a_link() -> None:
    found = culprits(matrix("abcdef", [("b", "e")]))
    assert (found.nodes, found.links) == ((), (("b", "e"),))


def test_a_slow_node_and_a_slow_link_elsewhere_are_both_named() -> None:
    slow = [("c", other) for other in "abdef"] + [("a", "b")]
    found = culprits(matrix("abcdef", slow))
    assert (found.nodes, found.links) == (("c",), (("a", "b"),))


def test_two_nodes_alone_blame_their_link() -> None:
    assert culprits(matrix("ab", [("a", "b")])).links == (("a", "b"),)


def test_a_pair_without_a_result_is_unknown_and_blames_nobody() -> None:
    runs = matrix("abc", [])
    runs["a", "b"] = Run(("a", "b"), LIMIT, None, "unreachable")
    found = culprits(runs)
    assert (found.nodes, found.links, found.unknown) == ((), (), (("a", "b"),))


@given(st.integers(5, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_whichever_node_is_slow_it_alone_is_named(case: tuple[int, int]) -> None:
    count, bad = case
    nodes = [f"n{number:02}" for number in range(count)]
    slow = [(nodes[bad], other) for other in nodes if other != nodes[bad]]
    assert culprits(matrix(nodes, slow)).nodes == (nodes[bad],)
