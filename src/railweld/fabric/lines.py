"""Lines of an EOS configuration: where they stand, what they mean, what they set.

EOS prints other text than was typed. Here every line gets one spelling (`canonical`) and the name
of the setting that it makes (`key`), so that the rest of the package never compares words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

Path = tuple[str, ...]  #: section headers down to a line, the line last

#: Switches of a fabric say the same things: lines that were brought to one spelling are kept.
_remembered = lru_cache(maxsize=1 << 15)

QUEUE: Final = re.compile(r"^(?:uc-)?tx-queue (\d+)$")


def parse(config: str) -> Iterator[Path]:
    """Lines of a configuration as paths, by indentation; comments and banners left out."""
    stack: list[tuple[int, str]] = []
    banner = False
    for raw in config.splitlines():
        line = raw.rstrip()
        text = line.strip()
        if banner:
            banner = text != "EOF"
            continue
        if line.startswith("banner "):
            banner = True
            continue
        if not text or text.startswith("!") or text == "end":
            continue
        depth = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= depth:
            stack.pop()
        stack.append((depth, text))
        yield tuple(word for _, word in stack)


def leaves(paths: Iterable[Path]) -> list[Path]:
    """Paths that are no section header of another one."""
    every = list(paths)
    headers = {path[:length] for path in every for length in range(1, len(path))}
    return [path for path in every if path not in headers]


def settings(config: str) -> tuple[tuple[Path, tuple[Path, ...]], ...]:
    """Each line that sets something: as it stands, and in its one spelling (see `canonical`)."""
    return tuple((raw, canonical(raw)) for raw in leaves(parse(config)))


@_remembered
def canonical(path: Path) -> tuple[Path, ...]:
    """One spelling for a line; a line that says several things becomes several."""
    heads = tuple(_header(text) for text in path[:-1])
    return tuple((*heads, text) for text in _texts(path[-1]))


def _header(text: str) -> str:
    text = " ".join(text.split())
    found = QUEUE.match(text)
    if found:
        return f"tx-queue {found[1]}"
    port = re.match(r"^interface (?:Et|Eth|ethernet|Ethernet) ?(\d\S*)$", text)
    return f"interface Ethernet{port[1]}" if port else text


#: Lines that name several numbers at once: the numbers, and what one line of them reads.
_LISTS: Final = (
    (
        re.compile(r"^qos map dscp (?P<many>[\d ,-]+) to traffic-class (?P<to>\d+)$"),
        "qos map dscp {number} to traffic-class {to}",
    ),
    (
        re.compile(r"^qos map traffic-class (?P<many>[\d ,-]+) to (?:uc-)?tx-queue (?P<to>\d+)$"),
        "qos map traffic-class {number} to tx-queue {to}",
    ),
    (
        re.compile(r"^priority-flow-control priority (?P<many>[\d ,-]+) (?P<to>no-drop|drop)$"),
        "priority-flow-control priority {number} {to}",
    ),
)


def _texts(raw: str) -> tuple[str, ...]:
    text = _header(raw)
    for pattern, form in _LISTS:
        found = pattern.match(text)
        if found:
            return tuple(
                form.format(number=number, to=found["to"]) for number in _numbers(found["many"])
            )
    return (_one(text),)


def _one(text: str) -> str:
    if text == "priority-flow-control mode on":
        return "priority-flow-control on"
    if text.startswith("priority-flow-control pause watchdog"):
        return re.sub(r"(?<= )\d+(?:\.\d+)?(?= |$)", _decimal, text)
    if text.startswith("random-detect ecn minimum-threshold"):
        return _ecn(text)
    if text.startswith("storm-control "):
        return re.sub(r"(?<=level )\S+$", _decimal, text)
    # A size without a unit is in bytes.
    return re.sub(
        r"^(ingress (?:headroom|reserved|priority-group \d+ reserved)) (\d+)$", r"\1 bytes \2", text
    )


def _decimal(value: re.Match[str]) -> str:
    try:
        return f"{float(value[0]):g}"
    except ValueError:
        return value[0]


def _ecn(text: str) -> str:
    text = re.sub(r"(\d+) mbytes", lambda m: f"{int(m[1]) * 1000} kbytes", text)
    text = re.sub(r"(\d+)000 bytes", lambda m: f"{m[1]} kbytes", text)
    if "max-mark-probability" not in text:
        text += " max-mark-probability 100"
    return text if " weight " in text else f"{text} weight 0"


def _numbers(text: str) -> Iterator[int]:
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


_KEYS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"^qos map dscp \d+ to traffic-class",
        r"^qos map traffic-class \d+ to tx-queue",
        r"^priority-flow-control pause watchdog default (?:timeout|recovery-time|polling-interval)",
        r"^priority-flow-control pause watchdog (?:port )?(?:action|timer)",
        r"^priority-flow-control pause watchdog",
        r"^priority-flow-control priority \d+",
        r"^priority-flow-control",
        r"^platform trident mmu headroom-pool limit",
        r"^mtu",
        r"^flowcontrol receive",
        r"^service-profile",
        r"^qos trust",
        r"^priority",
        r"^bandwidth percent",
        r"^bandwidth guaranteed",
        r"^random-detect ecn minimum-threshold",
        r"^storm-control \S+",
        r"^ingress priority-group \d+ (?:reserved|threshold)",
        r"^ingress (?:reserved|threshold|headroom|resume)",
        r"^egress unicast queue \d+ (?:reserved|threshold)",
    )
)


@_remembered
def key(text: str) -> str:
    """What a line sets, without the value: two lines with one key cannot stand side by side."""
    bare = text.removeprefix("no ")
    if re.match(r"^platform trident mmu queue profile \S+ apply$", bare):
        return "platform trident mmu queue profile apply"
    for pattern in _KEYS:
        found = pattern.match(bare)
        if found:
            return found[0]
    return bare
