"""Slurm's compact lists of host names: `gpu[001-003,7],head1` and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: More names than any cluster has; `n[0-999999999]` must not take the memory of a daemon.
LIMIT = 100000

_SPAN = re.compile(r"(\d+)(?:-(\d+))?\Z")
_NUMBERED = re.compile(r"(.*?)(\d+)\Z")


class HostlistError(ValueError):
    """The text is no host list."""


def expand(text: str) -> list[str]:
    """Every name, in the order in which the list gives them: the order of Slurm's node ranks.

    Raises:
        HostlistError: brackets that do not match, a span that runs backwards, too many names.
    """
    names: list[str] = []
    for part in _parts(text):
        for name in _product(part):
            if len(names) >= LIMIT:
                raise HostlistError(f"found more than {LIMIT} hosts")
            names.append(name)
    return names


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            if position > start:
                yield text[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise HostlistError(f"found brackets that do not match in {text!r}")
    if depth:
        raise HostlistError(f"found brackets that do not match in {text!r}")
    if start < len(text):
        yield text[start:]


def _product(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    spans, _, tail = rest.partition("]")
    for number in _numbers(spans):
        for ending in _product(tail):
            yield head + number + ending


def _numbers(spans: str) -> Iterator[str]:
    for span in spans.split(","):
        match = _SPAN.match(span)
        if match is None:
            raise HostlistError(f"found the span {span!r}, expected numbers as in 1-3")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise HostlistError(f"found the span {span!r}, which runs backwards")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def compress(names: Iterable[str]) -> str:
    """A short list of the same names in the same order; numbers at the end are joined."""
    groups: list[list[str]] = []
    for name in names:
        match = _NUMBERED.match(name)
        if match is None:
            groups.append([name])
            continue
        prefix, digits = match.groups()
        last = groups[-1] if groups else [""]
        if len(last) > 1 and last[0] == prefix and _one_span(last[-1], digits):
            last.append(digits)
        else:
            groups.append([prefix, digits])
    return ",".join(_written(group) for group in groups)


def _one_span(left: str, right: str) -> bool:
    """Whether two numbers are padded alike."""
    return len(left) == len(right) or not (left.startswith("0") or right.startswith("0"))


def _written(group: list[str]) -> str:
    if len(group) <= 2:
        return "".join(group)
    spans: list[list[str]] = []
    for digits in group[1:]:
        if spans and int(digits) == int(spans[-1][-1]) + 1:
            spans[-1][1:] = [digits]
        else:
            spans.append([digits])
    return f"{group[0]}[{','.join('-'.join(span) for span in spans)}]"
