"""A configuration as a tree, and the text that EOS prints for it.

What was typed and what is printed are two things: the tree holds the meaning, one entry per
setting, and `render` prints it in the switch's own order and spelling, leaving out what
equals a default. That is the trap that a line-by-line comparison falls into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Final

from railweld.lab.veos.platforms import STRATA, Family, Platform, Release, natural

ROOT: Final = "root"
INTERFACE: Final = "interface"
PROFILE: Final = "qos-profile"
IF_QUEUE: Final = "if-queue"
PROFILE_QUEUE: Final = "profile-queue"
MMU: Final = "mmu"
POLICY: Final = "policy-map"
POLICY_CLASS: Final = "policy-class"
FOREIGN: Final = "foreign"


@dataclass
class Block:
    """A mode's settings: `lines` by what they set, `blocks` by what opens them."""

    kind: str
    header: str = ""
    lines: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)

    def copy(self) -> Block:
        """Copy deeply; sessions edit copies."""
        return Block(
            self.kind,
            self.header,
            dict(self.lines),
            {slot: block.copy() for slot, block in self.blocks.items()},
        )

    def find(self, path: tuple[str, ...]) -> Block | None:
        """Follow slots down the tree."""
        block: Block | None = self
        for slot in path:
            block = block.blocks.get(slot) if block is not None else None
        return block


@dataclass(frozen=True, slots=True)
class Echo:
    """How a release and a family spell what they print."""

    hide_defaults: bool = True
    merge_dscp: bool = False
    uc_tx_queue_maps: bool = False
    zero_weight: bool = True

    @classmethod
    def of(cls, platform: Platform, release: Release) -> Echo:
        """4.35 merges DSCPs and prints the queue's hardware name (avd #6402, PR #6318)."""
        newer = release.at_least(4, 35)
        return cls(
            merge_dscp=newer,
            uc_tx_queue_maps=newer and platform.family in STRATA,
            zero_weight=platform.family is not Family.SAND,
        )


# --------------------------------------------------------------------------- order

_ROOT_ORDER: Final = (
    "boot ", "no aaa root", "username ", "enable ", "agent ", "alias ", "vlan internal",
    "errdisable ", "load-interval", "transceiver ", "queue-monitor ", "service ", "hostname ",
    "ip name-server", "dns ", "ip domain", "ntp ", "lldp", "logging ", "snmp-server ",
    "platform sand", "platform fap", "platform trident mmu headroom-pool", "hardware ",
    "qos profile ", "spanning-tree ", "system ", "clock ", "tacacs-server ", "radius-server ",
    "aaa ", "vlan ", "vrf ", "port-channel ", "interface Port-Channel", "interface Ethernet",
    "interface Loopback", "interface Management", "interface Vlan", "interface Vxlan",
    "mac ", "ip access-list", "ip routing", "no ip routing", "ip prefix-list", "ip route",
    "ip ", "ipv6 ", "mlag", "monitor ", "class-map ", "policy-map ", "qos rewrite ",
    "qos random-detect ", "qos tx-queue ", "qos map cos", "qos map dscp", "qos map exp",
    "qos map traffic-class", "priority-flow-control all", "priority-flow-control pause",
    "route-map ", "platform trident mmu queue profile", "router ", "banner ", "management ",
)  # fmt: skip

_INTERFACE_ORDER: Final = (
    "description ", "shutdown", "load-interval", "mtu ", "l2 mtu", "flowcontrol ", "dcbx ",
    "speed ", "error-correction", "switchport", "no switchport", "channel-group", "lacp ",
    "vrf ", "ip ", "ipv6 ", "lldp", "no lldp", "bfd", "isis", "mpls", "pim", "ptp", "mac ",
    "service-policy", "service-profile ", "qos trust", "no qos trust", "qos ", "shape ",
    "priority-flow-control on", "no priority-flow-control",
    "priority-flow-control priority", "sflow", "logging ", "snmp", "no snmp",
    "tx-queue ", "mc-tx-queue ", "uc-tx-queue ", "storm-control ", "spanning-tree ",
)  # fmt: skip

_PROFILE_ORDER: Final = (
    "qos trust", "no qos trust", "qos ", "shape ", "service-policy",
    "priority-flow-control on", "no priority-flow-control",
    "priority-flow-control pause watchdog", "priority-flow-control priority",
    "tx-queue ", "mc-tx-queue ", "uc-tx-queue ",
)  # fmt: skip

_QUEUE_ORDER: Final = (
    "priority", "no priority", "bandwidth percent", "bandwidth ", "shape ", "scheduler ",
    "random-detect drop", "random-detect ecn count", "random-detect ecn ",
)  # fmt: skip

_MMU_ORDER: Final = (
    "ingress reserved", "ingress threshold", "ingress headroom", "ingress resume",
    "ingress priority-group", "egress unicast", "egress multicast",
)  # fmt: skip

_ORDERS: Final = {
    ROOT: _ROOT_ORDER,
    INTERFACE: _INTERFACE_ORDER,
    PROFILE: _PROFILE_ORDER,
    IF_QUEUE: _QUEUE_ORDER,
    PROFILE_QUEUE: _QUEUE_ORDER,
    MMU: _MMU_ORDER,
}


def _rank(kind: str, text: str) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    order = _ORDERS.get(kind)
    if order is None:
        # Lines of a mode that only others configure stay in the order they came in.
        return (0, ())
    for place, start in enumerate(order):
        if text.startswith(start):
            return (place, natural(text))
    return (len(order), ())


def _group(text: str) -> str:
    """Lines of one command family stand together between two `!`."""
    words = text.removeprefix("no ").split()
    return " ".join(words[:2]) if words[:1] in (["qos"], ["platform"], ["ip"]) else words[0]


# --------------------------------------------------------------------------- print

#: Traffic class of a DSCP's class selector when no map line says otherwise.
_DEFAULT_CLASS: Final = (1, 0, 2, 3, 4, 5, 6, 7)


def default_class(dscp: int) -> int:
    """EOS's own DSCP map: 0-7 to class 1, 8-15 to class 0, the rest by its top bits."""
    return _DEFAULT_CLASS[dscp // 8]


_ALWAYS_DEFAULT: Final = frozenset(
    {
        "errdisable recovery interval 300",
        "priority-flow-control pause watchdog action errdisable",
        "lldp run",
        "flowcontrol receive off",
        "flowcontrol send off",
        "mtu 1500",
        "priority strict",
        "no shutdown",
        "switchport",
        "lldp transmit",
        "lldp receive",
        "no priority-flow-control",
    }
)


def _is_default(kind: str, text: str, routed: bool) -> bool:
    if text in _ALWAYS_DEFAULT:
        return True
    if kind == INTERFACE and text == ("qos trust dscp" if routed else "qos trust cos"):
        return True
    return kind in {ROOT, INTERFACE, PROFILE} and any(
        match is not None and equals(match)
        for match, equals in ((pattern.fullmatch(text), equals) for pattern, equals in _DEFAULTS)
    )


#: Lines that equal what the switch does without them.
_DEFAULTS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], bool]], ...]] = (
    (re.compile(r"priority-flow-control priority \d drop"), lambda _: True),
    (
        re.compile(r"qos map dscp (\d+) to traffic-class (\d)"),
        lambda line: default_class(int(line[1])) == int(line[2]),
    ),
    (
        re.compile(r"qos map cos (\d) to traffic-class (\d)"),
        lambda line: _DEFAULT_CLASS[int(line[1])] == int(line[2]),
    ),
    (
        re.compile(r"qos map traffic-class (\d) to tx-queue (\d)"),
        lambda line: line[1] == line[2],
    ),
)


def _spelt(lines: list[str], echo: Echo) -> list[str]:
    """The spelling of the lines of one mode, after defaults are gone."""
    if echo.uc_tx_queue_maps:
        lines = [
            re.sub(r"^(qos map traffic-class \d to )tx-queue", r"\1uc-tx-queue", line)
            for line in lines
        ]
    if not echo.zero_weight:
        lines = [
            line.removesuffix(" weight 0") if line.startswith("random-detect ecn m") else line
            for line in lines
        ]
    if echo.merge_dscp:
        merged: dict[str, list[int]] = {}
        kept = []
        for line in lines:
            match = re.fullmatch(r"qos map dscp (\d+) to traffic-class (\d)", line)
            if match is None:
                kept.append(line)
            else:
                merged.setdefault(match[2], []).append(int(match[1]))
        lines = kept + [
            f"qos map dscp {' '.join(map(str, sorted(dscps)))} to traffic-class {tc}"
            for tc, dscps in sorted(merged.items())
        ]
    return lines


def _entries(block: Block, echo: Echo) -> list[tuple[str, Block | None]]:
    """Lines and sub-blocks in the switch's order."""
    routed = block.lines.get("switchport") == "no switchport"
    lines = [
        text
        for text in block.lines.values()
        if not (echo.hide_defaults and _is_default(block.kind, text, routed))
    ]
    entries: list[tuple[str, Block | None]] = [(text, None) for text in _spelt(lines, echo)]
    entries += [(child.header, child) for child in block.blocks.values()]
    return sorted(entries, key=lambda entry: _rank(block.kind, entry[0]))


def _indent(kind: str) -> str:
    # AVD's golden configurations print this one mode with four blanks.
    return "    " if kind == MMU else "   "


def _body(block: Block, echo: Echo, depth: str) -> Iterator[str]:
    inner = depth + _indent(block.kind)
    for text, child in _entries(block, echo):
        if child is None:
            yield from (inner + line for line in text.split("\n"))
        else:
            yield inner + "!"
            yield inner + text
            yield from _body(child, echo, inner)


def render(root: Block, echo: Echo) -> list[str]:
    """The configuration's lines, without the header comment."""
    out: list[str] = []
    group = ""
    for text, child in _entries(root, echo):
        this = text if child is not None else _group(text)
        if this != group:
            out.append("!")
            group = this
        out += text.split("\n")
        if child is not None:
            out += _body(child, echo, "")
    return [*out, "!", "end"]


def diff(before: list[str], after: list[str], session: str) -> list[str]:
    """`show session-config diffs`: nothing at all when nothing changes."""
    return list(
        unified_diff(
            before, after, "system:/running-config", f"session:/{session}-session-config",
            lineterm="",
        )
    )  # fmt: skip
