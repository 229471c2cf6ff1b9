"""Lines of an EOS configuration: where they stand, what they mean, what they set.

EOS prints other text than was typed. Here every line gets one spelling (`canonical`) and the name
of the setting that it makes (`key`), so that the rest of the package never compares words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

Path = tuple[str, ...]  #: section headers down to a line, the line last

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


def _texts(raw: str) -> tuple[str, ...]:
    text = _header(raw)
    found = re.match(r"^qos map dscp ([\d ,-]+) to traffic-class (\d+)$", text)
    if found:
        return tuple(
            f"qos map dscp {dscp} to traffic-class {found[2]}" for dscp in _numbers(found[1])
        )
    found = re.match(r"^qos map traffic-class ([\d ,-]+) to (?:uc-)?tx-queue (\d+)$", text)
    if found:
        return tuple(
            f"qos map traffic-class {tc} to tx-queue {found[2]}" for tc in _numbers(found[1])
        )
    found = re.match(r"^priority-flow-control priority ([\d ,-]+) (no-drop|drop)$", text)
    if found:
        return tuple(
            f"priority-flow-control priority {number} {found[2]}" for number in _numbers(found[1])
        )
    if text == "priority-flow-control mode on":
        return ("priority-flow-control on",)
    if text.startswith("priority-flow-control pause watchdog"):
        return (re.sub(r"(?<= )\d+(?:\.\d+)?(?= |$)", _decimal, text),)
    if text.startswith("random-detect ecn minimum-threshold"):
        return (_ecn(text),)
    found = re.match(r"^(ingress (?:headroom|reserved|priority-group \d+ reserved)) (\d+)$", text)
    if found:
        return (f"{found[1]} bytes {found[2]}",)
    found = re.match(r"^(storm-control \S+ level) (\S+)$", text)
    if found:
        return (f"{found[1]} {_decimal(found[2])}",)
    return (text,)


def _decimal(value: re.Match[str] | str) -> str:
    text = value if isinstance(value, str) else value[0]
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


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
        r"^priority-flow-control pause watchdog (?:default )?(?:timeout|recovery-time|polling-interval)",
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
