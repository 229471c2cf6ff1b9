"""Configuration commands: which lines a mode knows, and what they do to the tree.

The grammar follows the schema and golden configurations of Arista's own generator (AVD) and
the fabric reference, and nothing else: it must be able to refuse what the product sends.
Refusals for which no public text exists are marked *unverified*.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from railweld.lab.veos.config import (
    FOREIGN,
    IF_QUEUE,
    INTERFACE,
    MMU,
    POLICY,
    POLICY_CLASS,
    PROFILE,
    PROFILE_QUEUE,
    ROOT,
    Block,
)
from railweld.lab.veos.grammar import (
    INVALID,
    UNAVAILABLE,
    Check,
    CliError,
    Grammar,
    Match,
)
from railweld.lab.veos.platforms import (
    STRATA,
    VIRTUAL,
    Family,
    Platform,
    Release,
    natural,
    short_name,
)

NO_PFC: Final = (
    "% The hardware does not support priority flow control, "
    "or forwarding agent is still initializing."
)

_FRACTIONS: Final = frozenset(
    {"1/128", "1/64", "1/32", "1/16", "1/8", "1/4", "1/2", "1", "2", "4", "8"}
)
_CAUSES: Final = frozenset(
    {
        "acl", "arp-inspection", "bpduguard", "dot1x", "hitless-reload-down", "lacp-rate-limit",
        "link-flap", "no-internal-vlan", "portchannelguard", "portsec", "speed-misconfigured",
        "storm-control", "stuck-queue", "tapagg", "uplink-failure-detection",
        "xcvr-misconfigured", "xcvr-overheat", "xcvr-power-unsupported", "xcvr-unsupported",
    }
)  # fmt: skip


def _one_of(words: Iterable[str]) -> Check:
    known = frozenset(words)
    return lambda word: word if word in known else None


def _vlans(word: str) -> str | None:
    return word if re.fullmatch(r"\d+(?:[-,]\d+)*", word) else None


_TYPES: Final[dict[str, Check]] = {
    "fraction": _one_of(_FRACTIONS),
    "drop-fraction": lambda word: word if re.fullmatch(r"\d+(?:/\d+)?", word) else None,
    "cause": _one_of(_CAUSES),
    "vlans": _vlans,
}


_HARDWARE: Final = frozenset(Family) - VIRTUAL
_SAND: Final = frozenset({Family.SAND})
_NOT_CEOS: Final = frozenset(Family) - {Family.CEOS}

#: Which families know a gated keyword.
_KNOWN_BY: Final[dict[str, frozenset[Family]]] = {
    "map-queue": STRATA | {Family.HELIX},
    "ecn": STRATA | _SAND,
    "ecn-count-interface": STRATA | _SAND,
    "ecn-count-profile": _SAND,
    "bandwidth-percent": STRATA | _SAND,
    "guaranteed-interface": _HARDWARE,
    "guaranteed-profile": _SAND | {Family.TOMAHAWK},
    "mmu": STRATA,
    "sand": _SAND,
    "l2-mtu": _SAND,
    "queue-monitor-notifying": _SAND,
    "storm": _NOT_CEOS,
    "qos-policy": _NOT_CEOS,
    "send-pause": STRATA,
    "hardware": _HARDWARE,
    "never": frozenset(),
}


@dataclass(frozen=True)
class Target:
    """What the grammar needs to know of the switch to judge a line."""

    platform: Platform
    release: Release
    interfaces: frozenset[str]
    agent_ready: bool = True

    def gate(self, name: str, word: str) -> str | None:
        """The refusal of a gated keyword, or None."""
        if name == "pfc":
            return NO_PFC if self.platform.virtual or not self.agent_ready else None
        return None if self._knows(name, word) else UNAVAILABLE

    def _knows(self, name: str, word: str) -> bool:
        if name == "queue":
            return word in self.platform.queue_words
        if name == "unit":
            return word in self.platform.ecn_units and not self.platform.virtual
        family = self.platform.family
        if name == "ecn-count-profile" and family in STRATA:
            # Where the line may stand on Strata moved; one source says around 4.31.
            return self.release.at_least(4, 31)
        return family in _KNOWN_BY[name]


# --------------------------------------------------------------------------- edits

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of configuration mode: what the prompt shows and which blocks it edits."""

    kind: str
    prompt: str
    targets: tuple[Path, ...]


TOP: Final = Frame(ROOT, "", ((),))


@dataclass
class Edit:
    """One accepted line on its way into the tree."""

    root: Block
    frame: Frame
    target: Target
    match: Match[Rule]
    verb: str  # "set", "no" or "default"
    opened: Frame | None = None
    warning: str = ""

    def blocks(self) -> list[Block]:
        """The blocks that the current mode edits."""
        found = [self.root.find(path) for path in self.frame.targets]
        return [block for block in found if block is not None]


@dataclass(frozen=True)
class Rule:
    """A configuration command."""

    apply: Callable[[Edit], None]


def _fill(template: str, match: Match[Rule]) -> str:
    return template.format(**match.values) if "{" in template else template


def line(
    slot: str,
    *,
    text: Callable[[Match[Rule]], str] | None = None,
    no_text: str | None = None,
    check: Callable[[Edit], str] | None = None,
) -> Rule:
    """A line that stands alone: `slot` names what it sets, so that a later one replaces it."""

    def apply(edit: Edit) -> None:
        key = _fill(slot, edit.match) if slot else edit.match.text
        if edit.verb == "set":
            value = text(edit.match) if text is not None else edit.match.text
            if check is not None:
                edit.warning = check(edit)
        for block in edit.blocks():
            if edit.verb == "set":
                block.lines[key] = value
            elif edit.verb == "no" and no_text is not None:
                block.lines[key] = no_text
            else:
                block.lines.pop(key, None)

    return Rule(apply)


def opens(kind: str, slot: str, prompt: str) -> Rule:
    """A line that opens a mode of its own."""

    def apply(edit: Edit) -> None:
        key = _fill(slot, edit.match) if slot else edit.match.text
        for block in edit.blocks():
            if edit.verb == "set":
                block.blocks.setdefault(key, Block(kind, key))
            else:
                block.blocks.pop(key, None)
        if edit.verb == "set":
            edit.opened = Frame(
                kind,
                f"{edit.frame.prompt}-{_fill(prompt, edit.match)}",
                tuple((*path, key) for path in edit.frame.targets),
            )

    return Rule(apply)


def _each(name: str, slot: str, text: str) -> Rule:
    """One line that sets the same for several values, kept one by one."""

    def apply(edit: Edit) -> None:
        for value in edit.match.lists[name]:
            values = {**edit.match.values, name: value}
            for block in edit.blocks():
                if edit.verb == "set":
                    block.lines[slot.format(**values)] = text.format(**values)
                else:
                    block.lines.pop(slot.format(**values), None)

    return Rule(apply)


# --------------------------------------------------------------------------- interfaces

_LONG_NAMES: Final = (
    ("Ethernet", "ethernet"),
    ("Management", "management"),
    ("Port-Channel", "port-channel"),
    ("Loopback", "loopback"),
    ("Vlan", "vlan"),
    ("Vxlan", "vxlan"),
)


def _base_and_rest(text: str) -> tuple[str, str] | None:
    match = re.match(r"([A-Za-z-]+)\s*(.*)", text)
    if match is None:
        return None
    typed = match[1].lower()
    for long, word in _LONG_NAMES:
        if len(typed) >= 2 and word.startswith(typed):
            return long, match[2]
    return None


def expand_interfaces(text: str, known: frozenset[str]) -> list[str]:
    """`Et1/1-2/1,Ethernet 5/1` as names; raises `CliError` for what the switch lacks.

    A range runs over the last number only, as the reference's `Ethernet1/1-16` shows: those
    are lanes of port 1, not sixteen ports.
    """
    names: list[str] = []
    base = ""
    for part in text.split(","):
        rest = part.strip()
        if not rest[:1].isdecimal():
            parsed = _base_and_rest(rest)
            if parsed is None:
                raise CliError(INVALID, 1, part)
            base, rest = parsed
        match = re.fullmatch(r"((?:\d+/)*)(\d+)(?:-(?:(?:\d+/)*)(\d+))?", rest)
        if match is None or not base:
            raise CliError(INVALID, 1, part.strip())
        first, last = int(match[2]), int(match[3] or match[2])
        for number in range(first, last + 1):
            name = f"{base}{match[1]}{number}"
            fixed = base in {"Ethernet", "Management"}
            if (fixed and name not in known) or last - first > 4096:
                raise CliError(INVALID, 1, part.strip())
            names.append(name)
        if last < first:
            raise CliError(INVALID, 1, part.strip())
    return names


def _interface(edit: Edit) -> None:
    typed = edit.match.values["names"]
    names = expand_interfaces(typed, edit.target.interfaces)
    fixed = ("Ethernet", "Management")
    for name in names:
        slot = f"interface {name}"
        if edit.verb == "set":
            edit.root.blocks.setdefault(slot, Block(INTERFACE, slot))
        elif name.startswith(fixed):
            # A port is there whether configured or not: its settings go, it stays.
            edit.root.blocks[slot] = Block(INTERFACE, slot)
        else:
            edit.root.blocks.pop(slot, None)
    if edit.verb == "set":
        shown = short_name(names[0])
        if len(names) > 1:
            shown += re.sub(r"^[A-Za-z-]+\s*[\d/]+", "", typed, count=1)
        edit.opened = Frame(INTERFACE, f"-if-{shown}", tuple((f"interface {n}",) for n in names))


# --------------------------------------------------------------------------- checks


def _ecn(edit: Edit) -> str:
    words = edit.match.words
    low, unit = int(words[3]), words[4]
    high, other = int(words[6]), words[7]
    if unit != other:
        raise CliError(INVALID, 7, other)
    if low > high:
        # unverified text
        raise CliError("% Minimum threshold must be less than or equal to maximum threshold")
    return ""


def _pool(edit: Edit) -> str:
    size = int(edit.match.values["size"])
    limit = 131072 if "cells" in edit.match.words else 33554432
    if size > limit:
        raise CliError(INVALID, len(edit.match.words) - 1, str(size))
    return ""


def _with_bytes(match: Match[Rule]) -> str:
    """A size without a unit means bytes, and is printed with it."""
    words = list(match.words)
    if not {"bytes", "cells"} & set(words):
        words.insert(len(words) - 1, "bytes")
    return " ".join(words)


def _polling(edit: Edit) -> str:
    """A polling interval longer than half a timer is kept, and not obeyed."""
    lines = edit.blocks()[0].lines
    prefix = "priority-flow-control pause watchdog default "
    new = edit.match.text.removeprefix(prefix).split()
    values = {
        name: float(lines[prefix + name].split()[-1])
        for name in ("timeout", "recovery-time", "polling-interval")
        if prefix + name in lines
    }
    values[new[0]] = float(new[1])
    limits = [values[name] for name in ("timeout", "recovery-time") if name in values]
    if limits and values.get("polling-interval", 0) > min(limits) / 2:
        return (
            "! polling-interval is longer than half of timeout or recovery-time, "
            f"using {min(limits) / 2:g} second(s)"
        )
    return ""


# --------------------------------------------------------------------------- the commands

_UNITS: Final = (
    "(segments@unit|bytes@unit|kbytes@unit|mbytes@unit|microseconds@unit|milliseconds@unit)"
)
_THRESHOLDS: Final = (
    f"minimum-threshold <min:1-256000000> {_UNITS} maximum-threshold <max:1-256000000> {_UNITS}"
)
_DROP: Final = f"random-detect@ecn drop [drop-precedence <dp:0-2>] {_THRESHOLDS}"


def _add_root(grammar: Grammar[Rule]) -> None:
    add = grammar.add
    add("interface <names:line>", Rule(_interface))
    add("qos profile <name>", opens(PROFILE, "qos profile {name}", "qos-profile-{name}"))
    add("qos map dscp <dscp:0-63>+ to traffic-class <tc:0-7>",
        _each("dscp", "qos map dscp {dscp}", "qos map dscp {dscp} to traffic-class {tc}"),
        negated_from=4)  # fmt: skip
    add("qos map cos <cos:0-7>+ to traffic-class <tc:0-7>",
        _each("cos", "qos map cos {cos}", "qos map cos {cos} to traffic-class {tc}"),
        negated_from=4)  # fmt: skip
    add("qos map traffic-class <tc:0-7>+ to (tx-queue|uc-tx-queue@map-queue) <queue:0-7>",
        _each("tc", "qos map tc {tc} queue", "qos map traffic-class {tc} to tx-queue {queue}"),
        negated_from=6)  # fmt: skip
    add("qos map traffic-class <tc:0-7>+ to mc-tx-queue@map-queue <queue:0-7>",
        _each("tc", "qos map tc {tc} mc", "qos map traffic-class {tc} to mc-tx-queue {queue}"),
        negated_from=6)  # fmt: skip
    add("qos map traffic-class <tc:0-7>+ to dscp <dscp:0-63>",
        _each("tc", "qos map tc {tc} dscp", "qos map traffic-class {tc} to dscp {dscp}"),
        negated_from=6)  # fmt: skip
    add("qos map traffic-class <tc:0-7>+ to cos <cos:0-7>",
        _each("tc", "qos map tc {tc} cos", "qos map traffic-class {tc} to cos {cos}"),
        negated_from=6)  # fmt: skip
    add("qos rewrite (dscp|cos)", line(""))
    add("qos random-detect@ecn ecn allow non-ect [chip-based]", line("qos ecn non-ect"),
        negated_from=5)  # fmt: skip
    add(f"qos random-detect@ecn ecn global-buffer {_THRESHOLDS}", line("qos ecn global-buffer"),
        negated_from=4)  # fmt: skip
    add("qos tx-queue@sand shape rate percent adaptive", line(""))
    add("qos tx-queue@sand <queue:0-7> scheduler profile responsive", line(""))
    pfc = "priority-flow-control@pfc"
    watchdog = f"{pfc} pause watchdog"
    add(f"{pfc} all off", line(""))
    for name, kind in (
        ("timeout", "dec2,0.01,60"),
        ("recovery-time", "dec2,0.01,60"),
        ("polling-interval", "dec3,0.005,30"),
    ):
        slot = f"priority-flow-control pause watchdog default {name}"
        add(f"{watchdog} default {name} <value:{kind}>", line(slot, check=_polling),
            negated_from=5)  # fmt: skip
    add(f"{watchdog} action (drop|errdisable|notify-only)",
        line("priority-flow-control pause watchdog action"), negated_from=4)  # fmt: skip
    add(f"{watchdog} override action drop", line(""), negated_from=4)
    add("errdisable recovery cause <cause:cause>", line("errdisable recovery cause {cause}"),
        negated_from=4)  # fmt: skip
    add("errdisable recovery cause <cause:cause> interval <seconds:30-86400>",
        line("errdisable recovery cause {cause} interval"))  # fmt: skip
    add("errdisable recovery interval <seconds:30-86400>", line("errdisable recovery interval"),
        negated_from=3)  # fmt: skip
    add("errdisable detect cause <cause>", line(""), negated_from=4)
    add("platform trident@mmu mmu headroom-pool limit [bytes|cells] <size:1-33554432>",
        line("platform trident mmu headroom-pool", text=_with_bytes, check=_pool),
        negated_from=5)  # fmt: skip
    add("platform trident@mmu mmu queue profile <name> apply",
        line("platform trident mmu queue profile apply"), negated_from=7)  # fmt: skip
    add("platform trident@mmu mmu queue profile <name>",
        opens(MMU, "platform trident mmu queue profile {name}", "queue-{name}"))  # fmt: skip
    add("platform fap@sand voq credit rates unified", line(""))
    add("platform sand@sand <rest:line>", line(""))
    add("hardware counter feature ecn@sand out", line(""))
    add("hardware speed-group <rest:line>", line(""))
    add("queue-monitor length", line(""))
    add("queue-monitor length notifying@queue-monitor-notifying", line(""))
    add("policy-map type quality-of-service@qos-policy <name>",
        opens(POLICY, "policy-map type quality-of-service {name}", "pmap-qos-{name}"))  # fmt: skip
    add("class-map type qos (match-any|match-all) <name>", opens(FOREIGN, "", "cmap-qos-{name}"))
    add("lldp run", line("lldp run", no_text="no lldp run"), negated_from=2)
    add("lldp (timer|hold-time) <seconds:1-65535>", line(""))
    add("hostname <name>", line("hostname"), negated_from=1)
    add("ip routing", line("ip routing"), negated_from=2)
    add("ip access-list [standard] <name>", opens(FOREIGN, "", "acl-{name}"))
    add("vlan <vlans:vlans>", opens(FOREIGN, "vlan {vlans}", "vlan-{vlans}"))
    add("vrf instance <name>", opens(FOREIGN, "", "vrf-{name}"))
    add("router <rest:line>", opens(FOREIGN, "", "router"))
    add("route-map <rest:line>", opens(FOREIGN, "", "route-map"))
    add("management <rest:line>", opens(FOREIGN, "", "mgmt"))
    add("mlag configuration", opens(FOREIGN, "", "mlag"))
    for word in (
        "aaa", "alias", "boot", "clock", "dns", "enable", "load-interval", "logging", "mac",
        "monitor", "ntp", "port-channel", "radius-server", "service", "snmp-server",
        "spanning-tree", "system", "tacacs-server", "transceiver", "username",
    ):  # fmt: skip
        add(f"{word} <rest:line>", line(""))
    for words in ("ip name-server", "ip domain", "ip route", "ip prefix-list", "ip host"):
        add(f"{words} <rest:line>", line(""))


def _add_pfc(grammar: Grammar[Rule]) -> None:
    """Lines that a port and a profile share."""
    add = grammar.add
    add("priority-flow-control@pfc on", line("priority-flow-control"), negated_from=1)
    add("priority-flow-control@pfc priority <priority:0-7> (no-drop|drop)",
        line("priority-flow-control priority {priority}"), negated_from=3)  # fmt: skip
    add("qos trust (dscp|cos)", line("qos trust", no_text="no qos trust"), negated_from=2)
    add("qos dscp <dscp:0-63>", line("qos dscp"), negated_from=2)
    add("qos cos <cos:0-7>", line("qos cos"), negated_from=2)
    add("shape rate <rate:line>", line("shape rate"), negated_from=2)
    add("service-policy type qos input <name>", line("service-policy qos"), negated_from=4)


def _add_queues(grammar: Grammar[Rule], kind: str) -> None:
    for word, prompt in (("uc-tx-queue", "uc-txq"), ("mc-tx-queue", "mc-txq"), ("tx-queue", "txq")):
        grammar.add(
            f"{word}@queue <queue:0-7>", opens(kind, f"{word} {{queue}}", f"{prompt}-{{queue}}")
        )


def _add_interface(grammar: Grammar[Rule]) -> None:
    add = grammar.add
    _add_pfc(grammar)
    _add_queues(grammar, IF_QUEUE)
    add("mtu <mtu:68-9214>", line("mtu"), negated_from=1)
    add("l2 mtu@l2-mtu <mtu:68-65535>", line("l2 mtu"), negated_from=2)
    add("description <text:line>", line("description"), negated_from=1)
    add("shutdown", line("shutdown", no_text="no shutdown"))
    add("switchport", line("switchport", no_text="no switchport"))
    add("switchport mode <mode>", line("switchport mode"), negated_from=2)
    add("switchport access vlan <vlan:1-4094>", line("switchport access vlan"), negated_from=3)
    add("switchport trunk (allowed|native) vlan <vlans:line>", line(""), negated_from=4)
    add("speed <speed:line>", line("speed"), negated_from=1)
    add("load-interval <seconds:0-600>", line("load-interval"), negated_from=1)
    add("error-correction <rest:line>", line("error-correction"), negated_from=1)
    add("channel-group <group:1-2000> mode (active|passive|on)", line("channel-group"),
        negated_from=1)  # fmt: skip
    add("vrf <name>", line("vrf"), negated_from=1)
    add("ip address <address:line>", line("ip address"), negated_from=2)
    add("ip <rest:line>", line(""))
    add("flowcontrol receive (on|off|desired)", line("flowcontrol receive"), negated_from=2)
    add("flowcontrol send@send-pause (on|off|desired)", line("flowcontrol send"), negated_from=2)
    add("service-profile <name>", line("service-profile"), negated_from=1)
    add("storm-control@storm (broadcast|multicast|unknown-unicast|all) level <v:dec2,0,100>",
        _STORM, negated_from=2)  # fmt: skip
    add("storm-control@storm (broadcast|multicast|unknown-unicast|all) [level] pps <v:1-99999999>",
        _STORM, negated_from=2)  # fmt: skip
    add("dcbx@hardware mode (ieee|cee|none)", line("dcbx mode"), negated_from=2)
    add("lldp (transmit|receive)", _LLDP)
    add("logging event <rest:line>", line(""))
    for word in ("bfd", "ipv6", "isis", "lacp", "mac", "mpls", "pim", "ptp", "sflow", "snmp",
                 "spanning-tree"):  # fmt: skip
        add(f"{word} <rest:line>", line(""))


def _storm(edit: Edit) -> None:
    key = " ".join(edit.match.words[:2])
    for block in edit.blocks():
        if edit.verb == "set":
            block.lines[key] = edit.match.text
        else:
            block.lines.pop(key, None)


def _lldp(edit: Edit) -> None:
    key = edit.match.text
    for block in edit.blocks():
        if edit.verb == "no":
            block.lines[key] = f"no {key}"
        else:
            block.lines.pop(key, None)


_STORM: Final = Rule(_storm)
_LLDP: Final = Rule(_lldp)


def _add_profile(grammar: Grammar[Rule]) -> None:
    add = grammar.add
    _add_pfc(grammar)
    _add_queues(grammar, PROFILE_QUEUE)
    watchdog = "priority-flow-control@pfc pause watchdog"
    slot = "priority-flow-control pause watchdog"
    add(watchdog, line(slot))
    add(f"{watchdog} port timer timeout <t:dec2,0.01,60> polling-interval (auto|<p:dec3,0.005,30>)"
        " recovery-time <r:dec2,0.01,60> [forced]", line(f"{slot} port timer"),
        negated_from=5)  # fmt: skip
    add(f"{watchdog} port action (drop|notify-only)", line(f"{slot} port action"),
        negated_from=5)  # fmt: skip
    # Refused in a profile itself on the families that were tried (avd PR #1331).
    add("bandwidth guaranteed@never <rest:line>", line(""))


def _add_queue(grammar: Grammar[Rule], place: str) -> None:
    add = grammar.add
    add("priority strict", line("priority", no_text="no priority"), negated_from=1)
    add("bandwidth percent@bandwidth-percent <percent:1-100>", line("bandwidth percent"),
        negated_from=2)  # fmt: skip
    guaranteed = f"bandwidth guaranteed@guaranteed-{place}"
    add(f"{guaranteed} percent <percent:1-100>", line("bandwidth guaranteed"), negated_from=2)
    add(f"{guaranteed} <rate:1-400000000> [kbps]", line("bandwidth guaranteed"))
    add("shape rate <rate:line>", line("shape rate"), negated_from=2)
    add("scheduler@sand profile responsive", line("scheduler profile"), negated_from=2)
    add(f"random-detect@ecn ecn {_THRESHOLDS} [max-mark-probability <p:1-100>] [weight <w:0-15>]",
        line("random-detect ecn", check=_ecn), negated_from=2)  # fmt: skip
    add(f"random-detect@ecn ecn count@ecn-count-{place}", line("random-detect ecn count"))
    add(f"{_DROP} drop-probability <p:1-100> [weight <w:0-15>]", line("random-detect drop"),
        negated_from=2)  # fmt: skip


def _add_mmu(grammar: Grammar[Rule]) -> None:
    add = grammar.add
    size = "[bytes|cells] <size:0-33554432>"
    add(f"ingress reserved {size}", line("ingress reserved", text=_with_bytes), negated_from=2)
    add("ingress threshold <t:fraction>", line("ingress threshold"), negated_from=2)
    add(f"ingress headroom {size}", line("ingress headroom", text=_with_bytes), negated_from=2)
    add("ingress resume <size:0-33554432>", line("ingress resume"), negated_from=2)
    group = "ingress priority-group <pg:0-7>"
    add(f"{group} reserved {size}",
        line("ingress priority-group {pg} reserved", text=_with_bytes), negated_from=4)  # fmt: skip
    add(f"{group} threshold <t:fraction>", line("ingress priority-group {pg} threshold"),
        negated_from=4)  # fmt: skip
    for cast in ("unicast", "multicast"):
        queue = f"egress {cast} queue"
        add(f"{queue} <q:0-7> reserved {size}",
            line(f"{queue} {{q}} reserved", text=_with_bytes), negated_from=5)  # fmt: skip
        add(f"{queue} <q:0-7> threshold <t:fraction>", line(f"{queue} {{q}} threshold"),
            negated_from=5)  # fmt: skip
        add(f"{queue} <q:0-7> drop-precedence <dp:1-2> drop-threshold <f:drop-fraction>",
            line(f"{queue} {{q}} drop-precedence {{dp}}"), negated_from=6)  # fmt: skip


def _add_policy(grammar: Grammar[Rule]) -> None:
    grammar.add("class <name>", opens(POLICY_CLASS, "class {name}", "{name}"))


def _add_policy_class(grammar: Grammar[Rule]) -> None:
    for what, values in (("traffic-class", "0-7"), ("dscp", "0-63"), ("cos", "0-7"),
                         ("drop-precedence", "0-2")):  # fmt: skip
        grammar.add(f"set {what} <value:{values}>", line(f"set {what}"), negated_from=2)
    grammar.add("police <rest:line>", line("police"), negated_from=1)


def _add_foreign(grammar: Grammar[Rule]) -> None:
    # Modes that only others configure: any line is kept as it is.
    for word in ("address-family", "vrf", "class", "api"):
        grammar.add(f"{word} <rest:line>", opens(FOREIGN, "", "sub"))
    grammar.add("<text:line>", line(""))


@cache
def grammar_of(kind: str) -> Grammar[Rule]:
    """The commands of one configuration mode."""
    grammar: Grammar[Rule] = Grammar(_TYPES)
    match kind:
        case "root":
            _add_root(grammar)
        case "interface":
            _add_interface(grammar)
        case "qos-profile":
            _add_profile(grammar)
        case "if-queue":
            _add_queue(grammar, "interface")
        case "profile-queue":
            _add_queue(grammar, "profile")
        case "mmu":
            _add_mmu(grammar)
        case "policy-map":
            _add_policy(grammar)
        case "policy-class":
            _add_policy_class(grammar)
        case _:
            _add_foreign(grammar)
    return grammar


# --------------------------------------------------------------------------- applying a line


def apply_line(
    root: Block,
    frames: tuple[Frame, ...],
    tokens: list[str],
    target: Target,
    *,
    fallback: bool,
) -> tuple[tuple[Frame, ...], str]:
    """Change the tree by one line; returns the mode after it and a warning, or raises.

    A line that the current mode does not know is tried in the modes around it when
    `fallback` is on, as EOS does; off, only the current mode counts.
    """
    verb = tokens[0].lower() if tokens[0].lower() in {"no", "default"} else "set"
    rest = tokens[1:] if verb != "set" else tokens
    if not rest:
        raise CliError("% Incomplete command")
    offset = len(tokens) - len(rest)
    refused: CliError | None = None
    for depth in range(len(frames), 0, -1):
        frame = frames[depth - 1]
        if frame.kind == FOREIGN and depth == len(frames) and _leaves_foreign(rest):
            continue
        try:
            found = grammar_of(frame.kind).match(
                rest, negated=verb != "set", offset=offset, gate=target.gate
            )
        except CliError as error:
            refused = refused or error
            if not fallback or error.text != INVALID:
                raise refused from None
            continue
        edit = Edit(root, frame, target, found, verb)
        found.rule.apply(edit)
        kept = frames[:depth]
        return ((*kept, edit.opened) if edit.opened else kept), edit.warning
    raise refused or CliError(INVALID, 0, tokens[0])


def _leaves_foreign(tokens: list[str]) -> bool:
    """A mode that takes any line must still let go of lines that open another mode."""
    return tokens[0].lower() in {"interface", "qos", "router", "vlan", "platform", "hostname"}


@dataclass
class _Typed:
    """A line of a stored configuration with what stands below it."""

    text: str
    below: list[_Typed]


def _outline(text: str) -> list[_Typed]:
    """Nest lines by their indentation; a banner stays one line."""
    top: list[_Typed] = []
    stack: list[tuple[int, list[_Typed]]] = [(0, top)]
    banner: _Typed | None = None
    for raw in text.splitlines():
        stripped = raw.strip()
        if banner is not None:
            banner.text += "\n" + raw.rstrip()
            banner = None if stripped == "EOF" else banner
            continue
        if not stripped or stripped.startswith("!") or stripped == "end":
            continue
        indent = len(raw) - len(raw.lstrip())
        while len(stack) > 1 and indent < stack[-1][0]:
            stack.pop()
        if indent > stack[-1][0] and stack[-1][1]:
            stack.append((indent, stack[-1][1][-1].below))
        entry = _Typed(stripped, [])
        stack[-1][1].append(entry)
        if re.match(r"banner (login|motd)$", stripped):
            banner = entry
    return top


def load(text: str, target: Target) -> Block:
    """Read a configuration as it is stored; lines of others are kept as they stand."""
    root = Block(ROOT)
    for name in sorted(target.interfaces, key=natural):
        slot = f"interface {name}"
        root.blocks[slot] = Block(INTERFACE, slot)
    _load_into(root, (TOP,), _outline(text), target)
    return root


def _load_into(
    root: Block, frames: tuple[Frame, ...], entries: list[_Typed], target: Target
) -> None:
    for entry in entries:
        inner = frames
        if "\n" not in entry.text:
            with contextlib.suppress(CliError):
                inner, _ = apply_line(root, frames, entry.text.split(), target, fallback=False)
                if len(inner) > len(frames) or not entry.below:
                    _load_into(root, inner, entry.below, target)
                    continue
        # Somebody else's line: it must survive, so it is kept verbatim.
        path = frames[-1].targets[0]
        block = root.find(path)
        if block is None:
            continue
        if not entry.below:
            block.lines.setdefault(entry.text, entry.text)
            continue
        block.lines.pop(entry.text, None)
        child = block.blocks.setdefault(entry.text, Block(FOREIGN, entry.text))
        frame = Frame(FOREIGN, "", ((*path, child.header),))
        _load_into(root, (*frames, frame), entry.below, target)
