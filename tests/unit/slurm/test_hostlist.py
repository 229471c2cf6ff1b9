"""Node lists: written as Slurm reads them, and read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.slurm.hostlist import fold, fold_numbers, unfold


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu1", "gpu2", "gpu3"], "gpu[1-3]"),
        (["gpu001", "gpu002", "gpu010"], "gpu[001-002,010]"),
        (["gpu9", "gpu10"], "gpu[9-10]"),
        (["gpu09", "gpu10"], "gpu[09-10]"),
        (["gpu09", "gpu010"], "gpu[09,010]"),
        (["gpu3", "gpu1"], "gpu[3,1]"),
        (["head", "gpu1", "login"], "head,gpu1,login"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["n1a", "n2a", "n3b"], "n[1-2]a,n3b"),
        (["gpu1"], "gpu1"),
        ([], ""),
    ],
)
def test_neighbours_are_joined_in_their_order(names: list[str], expected: str) -> None:
    assert fold(names) == expected
    assert unfold(expected) == names


@given(
    st.lists(st.from_regex(r"\A[a-z]{1,3}([0-9]{1,4}[a-z]{0,2}){0,2}\Z"), max_size=30, unique=True)
)
def test_what_is_written_reads_back_as_the_same_names_in_the_same_order(names: list[str]) -> None:
    assert unfold(fold(names)) == names


@given(st.lists(st.integers(min_value=1024, max_value=65535), min_size=1, max_size=30))
def test_ports_keep_their_order(ports: list[int]) -> None:
    assert unfold(fold_numbers(ports)) == [str(port) for port in ports]
