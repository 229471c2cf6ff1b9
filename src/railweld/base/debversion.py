"""Debian package versions compared as dpkg does, on a controller that may have no dpkg."""

from __future__ import annotations

import re
from functools import total_ordering
from itertools import zip_longest

_PART = re.compile(r"(\D*)(\d*)")


@total_ordering
class DebVersion:
    """`[epoch:]upstream[-revision]`, ordered by the rules of Debian policy 5.6.12."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        epoch, colon, rest = self.text.partition(":")
        if not colon:
            epoch, rest = "0", self.text
        self._epoch = int(epoch) if epoch.isdigit() else 0
        upstream, dash, revision = rest.rpartition("-")
        self._upstream, self._revision = (upstream, revision) if dash else (rest, "0")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DebVersion):
            return NotImplemented
        return self._compare(other) == 0

    def __lt__(self, other: DebVersion) -> bool:
        return self._compare(other) < 0

    def __hash__(self) -> int:
        # Equal versions may be spelled differently (1.0 and 1.00): only the epoch is safe.
        return hash(self._epoch)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"DebVersion({self.text!r})"

    def _compare(self, other: DebVersion) -> int:
        if self._epoch != other._epoch:
            return -1 if self._epoch < other._epoch else 1
        return _compare_text(self._upstream, other._upstream) or _compare_text(
            self._revision, other._revision
        )


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1 as dpkg --compare-versions orders the two."""
    a, b = DebVersion(left), DebVersion(right)
    return 0 if a == b else (-1 if a < b else 1)


def _compare_text(left: str, right: str) -> int:
    for (text_a, digits_a), (text_b, digits_b) in zip_longest(
        _PART.findall(left), _PART.findall(right), fillvalue=("", "")
    ):
        order = _compare_nondigits(text_a, text_b)
        if order:
            return order
        number_a, number_b = int(digits_a or 0), int(digits_b or 0)
        if number_a != number_b:
            return -1 if number_a < number_b else 1
    return 0


def _compare_nondigits(left: str, right: str) -> int:
    for a, b in zip_longest(left, right, fillvalue=""):
        weight_a, weight_b = _weight(a), _weight(b)
        if weight_a != weight_b:
            return -1 if weight_a < weight_b else 1
    return 0


def _weight(character: str) -> int:
    """`~` sorts before the end, the end before letters, letters before the rest."""
    if character == "~":
        return -1
    if not character:
        return 0
    return ord(character) if character.isalpha() else ord(character) + 256
