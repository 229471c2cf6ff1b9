"""Node lists as Slurm writes them: `gpu[001-016,020],head1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_DIGITS: Final = re.compile(r"^(.*?)(\d+)(\D*)$")
#: Slurm reads a number in brackets with at most this many digits.
_WIDEST: Final = 9


def fold(names: Iterable[str]) -> str:
    """Write names as one expression that lists them in the given order.

    Only neighbours are joined: the order decides which port of a list belongs to which name.
    Numbers are joined when they have the same width, so that `gpu9` and `gpu10` stay apart from
    `gpu09`.
    """
    parts: list[str] = []
    for prefix, suffix, numbers in _runs(names):
        if not numbers:
            parts.append(prefix)
        elif len(numbers) == 1:
            parts.append(f"{prefix}{numbers[0]}{suffix}")
        else:
            parts.append(f"{prefix}[{','.join(_ranges(numbers))}]{suffix}")
    return ",".join(parts)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Write ports the same way: `17001`, `[17001-17016]`."""
    text = ",".join(_ranges([str(number) for number in numbers]))
    return f"[{text}]" if "-" in text or "," in text else text


def unfold(expression: str) -> list[str]:
    """The names of a node list: the inverse of `fold`."""
    found: list[str] = []
    for part in _split(expression):
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        numbers, _, suffix = rest.partition("]")
        for span in numbers.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return found


def _split(expression: str) -> Iterable[str]:
    """Parts between commas that are in no brackets."""
    depth, part = 0, ""
    for letter in expression:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part:
        yield part


def _runs(names: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Neighbours with the same text before and behind their last number."""
    current: tuple[str, str, list[str]] | None = None
    for name in names:
        match = _DIGITS.match(name)
        if match is None or len(match[2]) > _WIDEST:
            key, number = (name, ""), None
        else:
            key, number = (match[1], match[3]), match[2]
        if current and number is not None and current[2] and current[:2] == key:
            current[2].append(number)
            continue
        if current:
            yield current
        current = (*key, [number] if number is not None else [])
    if current:
        yield current


def _ranges(numbers: list[str]) -> Iterator[str]:
    start = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and int(number) == int(last) + 1 and _same_width(last, number):
            last = number
            continue
        yield start if start == last else f"{start}-{last}"
        if number is not None:
            start = last = number


def _same_width(one: str, next_one: str) -> bool:
    # Slurm counts `[9-10]` as 9, 10 and `[09-10]` as 09, 10: what matters is padding.
    if len(one) == len(next_one):
        return True
    return not one.startswith("0") and not next_one.startswith("0")
