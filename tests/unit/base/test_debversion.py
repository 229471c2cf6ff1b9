from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.base.debversion import DebVersion, compare

ORDERED = [
    ("515.65.01-1", "515.86.01-1"),
    ("515.86.01-1", "580.95.05-0ubuntu1"),
    ("2.14.3-1+cuda11.7", "2.28.3-1+cuda13.0"),
    ("2.9.9-1+cuda11.7", "2.14.3-1+cuda11.7"),
    ("1.0~rc1", "1.0"),
    ("1.0~~", "1.0~"),
    ("1.0", "1.0a"),
    ("1.0a", "1.0+b"),
    ("1.0-1", "1.0-1.1"),
    ("9:1.0", "10:0.1"),
    ("1.0", "1:0.1"),
    ("1.2.3", "1.2.10"),
    ("22.05.8-4+deb12u2", "22.05.8-4+deb12u3"),
]
VERSIONS = st.from_regex(r"\A([0-9]:)?[0-9][0-9a-z.+~]{0,8}(-[0-9][0-9a-z.+~]{0,4})?\Z")


@pytest.mark.parametrize(("older", "newer"), ORDERED)
def test_versions_sort_as_dpkg_sorts_them(older: str, newer: str) -> None:
    assert compare(older, newer) == -1
    assert compare(newer, older) == 1
    verdict = subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False)
    assert verdict.returncode == 0


@pytest.mark.parametrize(
    ("left", "right"), [("1.0", "1.0-0"), ("1.00", "1.0"), ("0:1.0", "1.0"), ("1.0-01", "1.0-1")]
)
def test_different_spellings_of_one_version_are_equal(left: str, right: str) -> None:
    assert DebVersion(left) == DebVersion(right)
    assert hash(DebVersion(left)) == hash(DebVersion(right))


@given(VERSIONS, VERSIONS, VERSIONS)
def test_the_order_is_total(a: str, b: str, c: str) -> None:
    assert compare(a, b) == -compare(b, a)
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


def test_a_version_equals_no_other_kind_of_thing() -> None:
    assert DebVersion("1.0") != "1.0"
    assert str(DebVersion("1.0-1")) == "1.0-1"
