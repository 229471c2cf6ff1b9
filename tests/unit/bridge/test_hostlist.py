"""Slurm's host lists, against themselves and what Slurm printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.bridge.pod import hostlist

#: Printed by `scontrol show hostnames` of Slurm 22.05.8.
PRINTED = {
    "gpu[1-3]": ["gpu1", "gpu2", "gpu3"],
    "gpu[001-003,007]": ["gpu001", "gpu002", "gpu003", "gpu007"],
    "gpu[9-11]": ["gpu9", "gpu10", "gpu11"],
    "r[1-2]n[01-02],head": ["r1n01", "r1n02", "r2n01", "r2n02", "head"],
    "a,b,c": ["a", "b", "c"],
    "": [],
    "n[5,3]": ["n5", "n3"],
    "x[1-2]-ib": ["x1-ib", "x2-ib"],
}


@pytest.mark.parametrize("text", PRINTED)
def test_lists_are_expanded_in_their_order(text: str) -> None:
    assert hostlist.expand(text) == PRINTED[text]


@pytest.mark.parametrize("text", ["n[1-2", "n1-2]", "n[2-1]", "n[a-b]", "n[[1]]", "n[]", "n[1-]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(hostlist.HostlistError):
        hostlist.expand(text)


def test_a_list_of_absurd_length_is_refused_and_not_made() -> None:
    with pytest.raises(hostlist.HostlistError, match="more than"):
        hostlist.expand("n[0-999999999]")
    with pytest.raises(hostlist.HostlistError, match="more than"):
        hostlist.expand("n[0-99999]m[0-99999]")


NAMES = st.lists(
    st.one_of(
        st.from_regex(r"[a-z]{1,3}(0{0,2}[1-9][0-9]{0,2})?", fullmatch=True),
        st.from_regex(r"r[1-9]n0[1-9]", fullmatch=True),
    ),
    max_size=30,
)


@given(NAMES)
def test_compressing_loses_neither_names_nor_their_order(names: list[str]) -> None:
    assert hostlist.expand(hostlist.compress(names)) == names


def test_a_thousand_nodes_are_one_span() -> None:
    names = [f"gpu{n:04d}" for n in range(1, 1281)]
    assert hostlist.compress(names) == "gpu[0001-1280]"
