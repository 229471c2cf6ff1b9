"""What differs between a switch and its intent, by meaning.

EOS prints other text than was typed: another order, `uc-tx-queue` for `tx-queue`, several DSCPs on
one line, defaults not at all. So both sides are brought to one spelling, cut down to the lines
that railweld owns, and compared as trees with hier_config. Lines that are not ours are not
looked at, which is how they survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final, Literal

from hier_config import HConfig, HConfigChild
from hier_config.platforms.arista_eos.driver import HConfigDriverAristaEOS

from railweld.fabric.lines import QUEUE, Path, canonical, key, settings
from railweld.fabric.platforms import Platform
from railweld.fabric.render import MMU_PROFILE, PROFILE, Line, Rendered, stage_of

_REMOVE: Final = "railweld-remove "
_OWN_SECTIONS: Final = (
    f"qos profile {PROFILE}",
    f"platform trident mmu queue profile {MMU_PROFILE}",
)


@dataclass(frozen=True)
class Change:
    """One line to set or remove, with what stands there now."""

    action: Literal["set", "remove"]
    path: Path  #: canonical
    old: str | None
    intent: str
    stage: int
    disruptive: str = ""
    spelled: str = ""  #: the line as the template (or the switch) writes it

    @property
    def section(self) -> Path:
        """The headers above the line."""
        return self.path[:-1]

    @property
    def text(self) -> str:
        """The line itself."""
        return self.spelled or self.path[-1]

    def sentence(self) -> str:
        """One line for a plan: `Ethernet1/1: mtu 1500 -> mtu 9214`."""
        where = " / ".join(self.section)
        if self.action == "remove":
            what = f"remove: {self.text}"
        elif self.old is None:
            what = f"add: {self.text}"
        else:
            what = f"change: {self.old} -> {self.text}"
        return f"{where}: {what}" if where else what


@dataclass(frozen=True)
class Scope:
    """Which lines of a switch are ours.

    Attributes:
        ports: interfaces that the description gives to the fabric.
        keys: switch-wide settings that the intent has, or that an earlier push left.
        left_behind: lines of an earlier push on ports that the fabric no longer uses.
    """

    ports: frozenset[str]
    keys: frozenset[str]
    left_behind: frozenset[Path] = frozenset()


@dataclass(frozen=True)
class Observed:
    """What a switch answered, as far as the comparison needs it.

    `maps` are `qos map ...` lines in effect according to `show qos maps`; None when that could
    not be read, and then EOS's documented defaults are assumed.
    """

    running: str
    maps: frozenset[str] | None = None
    previous: tuple[Path, ...] = ()

    @cached_property
    def settings(self) -> tuple[tuple[Path, tuple[Path, ...]], ...]:
        """The running configuration's lines: as they stand, and in their one spelling."""
        return settings(self.running)


@dataclass(frozen=True)
class Plan:
    """Every change of one switch, and the lines that are foreign but in the way."""

    switch: str
    platform: Platform
    changes: tuple[Change, ...] = ()
    conflicts: tuple[str, ...] = ()
    wanted: tuple[Path, ...] = field(default=(), repr=False)

    def part(self, *, stage: int | None = None, ports: Iterable[str] | None = None) -> Plan:
        """The changes of one pass, and of some ports only (switch-wide lines stay in)."""
        chosen = self.changes
        if stage is not None:
            chosen = tuple(change for change in chosen if change.stage == stage)
        if ports is not None:
            names = {f"interface {port}" for port in ports}
            chosen = tuple(
                change
                for change in chosen
                if not change.path[0].startswith("interface ") or change.path[0] in names
            )
        return Plan(self.switch, self.platform, chosen, self.conflicts, self.wanted)

    @property
    def disruptive(self) -> tuple[Change, ...]:
        """Changes that may interrupt traffic."""
        return tuple(change for change in self.changes if change.disruptive)

    def commands(self) -> tuple[str, ...]:
        """Configuration commands in an order that never refers to what is not there yet.

        Ports let go of a profile before the profile changes or goes. Every section is left with
        its own `exit`, since only a forgiving CLI retries a line in the parent mode.
        """
        detach = [c for c in self.changes if c.action == "remove" and len(c.path) > 1
                  and c.path[0].startswith("interface ")]  # fmt: skip
        sets = [c for c in self.changes if c.action == "set"]
        rest = [c for c in self.changes if c.action == "remove" and c not in detach]
        lines: list[str] = []
        here: Path = ()
        for change in (*detach, *sets, *rest):
            common = 0
            while common < min(len(here), len(change.section)) and (
                here[common] == change.section[common]
            ):
                common += 1
            lines += ["exit"] * (len(here) - common)
            lines += [self._words(header) for header in change.section[common:]]
            here = change.section
            lines.append(self._words(_command(change)))
        return (*lines, *["exit"] * len(here))

    def _words(self, text: str) -> str:
        found = QUEUE.match(text.removeprefix("no "))
        if not found:
            return text
        no = "no " if text.startswith("no ") else ""
        return f"{no}{self.platform.queue_word} {found[1]}"


def _command(change: Change) -> str:
    if change.action == "set":
        return change.text
    text = change.path[-1]
    drop = re.match(r"^(priority-flow-control priority \d+) no-drop$", text)
    if drop:
        return f"{drop[1]} drop"
    if text == "priority-flow-control on":
        return "no priority-flow-control"
    if text in _OWN_SECTIONS or QUEUE.match(text):
        return f"no {text}"
    # `default` takes the line away for good; `no` may itself stay as a line.
    return f"default {change.text.removeprefix('no ')}"


#: Settings of an interface that belong to the fabric on ports which the description gives it.
_PORT_KEYS: Final = (
    "mtu",
    "flowcontrol receive",
    "service-profile",
    "qos trust",
)


def owned(path: Path, scope: Scope) -> bool:
    """True when railweld may change or remove this (canonical) line."""
    if path in scope.left_behind or path[0] in _OWN_SECTIONS:
        return True
    if not path[0].startswith("interface "):
        return len(path) == 1 and key(path[0]) in scope.keys
    if path[-1] == f"service-profile {PROFILE}":
        return True
    return path[0].removeprefix("interface ") in scope.ports and _owned_on_port(path, scope)


def _owned_on_port(path: Path, scope: Scope) -> bool:
    """Lines of a fabric port that are ours; what the intent never sets there is not."""
    what = key(path[-1])
    if len(path) > 2:
        return path[-1] == "random-detect ecn count" and what in scope.keys
    if what.startswith("storm-control"):
        return what in scope.keys
    return what.startswith("priority-flow-control") or what in _PORT_KEYS


def scope_of(wanted: Iterable[Path], ports: Iterable[str], previous: Iterable[Path]) -> Scope:
    """Scope from the intent, the description's ports, and what an earlier push left."""
    wanted, previous = list(wanted), list(previous)
    channels = {
        path[0].removeprefix("interface ")
        for path in wanted
        if path[0].startswith("interface Port-Channel")
    }
    mine = frozenset(ports) | channels
    return Scope(
        ports=mine,
        keys=frozenset(
            key(path[-1])
            for path in (*wanted, *previous)
            if len(path) == 1 or path[0].startswith("interface ")
        ),
        left_behind=frozenset(
            path
            for path in previous
            if path[0].startswith("interface ")
            and path[0].removeprefix("interface ") not in mine
            # 802.3x stays off and jumbo frames stay: both are harmless, and turning link-level
            # pause back on is what removing PFC would do by itself.
            and key(path[-1]) not in {"flowcontrol receive", "mtu"}
        ),
    )


_FIXED_DEFAULTS: Final = {
    "flowcontrol receive": "flowcontrol receive off",
    "priority": "priority strict",
    "mtu": "mtu 1500",
    "priority-flow-control pause watchdog action": (
        "priority-flow-control pause watchdog action errdisable"
    ),
}


def _default(path: Path, sections: Mapping[str, set[str]], observed: Observed) -> str | None:
    """What is in force for this line's setting when nothing is printed, as a canonical line."""
    what = key(path[-1])
    if what == "qos trust" and path[0].startswith("interface "):
        routed = "no switchport" in sections.get(path[0], set())
        return "qos trust dscp" if routed else "qos trust cos"
    if re.match(r"^priority-flow-control priority \d+$", what):
        return f"{what} drop"
    if what.startswith("qos map "):
        return _map_in_effect(what, observed)
    return _FIXED_DEFAULTS.get(what)


def _map_in_effect(what: str, observed: Observed) -> str | None:
    """The map that applies without a line: what the switch shows, else EOS's documented table."""
    if observed.maps is not None:
        return next((line for line in observed.maps if key(line) == what), None)
    number = int(re.findall(r"\d+", what)[0])
    if "dscp" in what:
        return f"{what} {(1, 0, *range(2, 8))[number // 8]}"
    return f"{what} {number}"


class _Driver(HConfigDriverAristaEOS):
    """EOS, with our idea of what replaces what; removals are marked and spelled later."""

    def idempotent_for(
        self, config: HConfigChild, other_children: Iterable[HConfigChild]
    ) -> HConfigChild | None:
        wanted = key(config.text)
        return next((c for c in other_children if not c.children and key(c.text) == wanted), None)

    def swap_negation(self, child: HConfigChild) -> HConfigChild:
        child.text = f"{_REMOVE}{child.text}"
        return child


@cache
def _driver() -> _Driver:
    """One for all trees: it only holds rules, and making them costs more than a comparison."""
    return _Driver()


def _tree(paths: Iterable[Path], shared: Iterable[Path] = ()) -> HConfig:
    """A tree of lines; `shared` sections stand in it even when they are empty."""
    root = HConfig(_driver())
    for path in (*paths, *shared):
        root.add_children_deep(path)
    return root


def _shared_sections(paths: Iterable[Path], everything: Iterable[Path]) -> set[Path]:
    """Sections that others write to as well: they are never removed as a whole.

    An interface always is. A queue on it is, unless all of its lines are ours.
    """
    mine = set(paths)
    foreign_queues = {path[:2] for path in everything if len(path) == 3 and path not in mine}
    ports = {path[:1] for path in mine if path[0].startswith("interface ")}
    queues = {path[:2] for path in mine if path[0].startswith("interface ") and len(path) == 3}
    return ports | (queues & foreign_queues)


def _owned_running(observed: Observed, scope: Scope) -> tuple[dict[Path, str], dict[str, set[str]]]:
    """Our lines with the switch's own spelling, and what stands in each section at all."""
    sections: dict[str, set[str]] = {}
    mine: dict[Path, str] = {}
    for raw, paths in observed.settings:
        if QUEUE.match(raw[-1]):
            continue  # a queue without lines sets nothing, and stays behind when they go
        for path in paths:
            if len(path) > 1:
                sections.setdefault(path[0], set()).add(path[1])
            if owned(path, scope):
                mine[path] = raw[-1]
    return mine, sections


def compare(rendered: Rendered, observed: Observed) -> Plan:
    """Changes that take the switch from what it runs to what it should run."""
    intents = {path: line for line in rendered.lines for path in canonical((*line.path, line.text))}
    return compare_paths(
        rendered.switch,
        rendered.platform,
        tuple(intents),
        observed,
        ports=rendered.ports,
        intents=intents,
    )


def compare_paths(
    switch: str,
    platform: Platform,
    wanted: tuple[Path, ...],
    observed: Observed,
    *,
    ports: Iterable[str],
    intents: Mapping[Path, Line] | None = None,
) -> Plan:
    """Like `compare`, for a target that is not a rendering (a backup that is restored)."""
    intents = intents or {}
    scope = scope_of(wanted, ports, observed.previous)
    running, sections = _owned_running(observed, scope)
    have, want = _without_defaults(running, wanted, sections, observed)
    everything = [path for _, paths in observed.settings for path in paths]
    delta = _tree(have).config_to_get_to(_tree(want, _shared_sections(have, everything)))
    places = {(*path[:-1], key(path[-1])): spelled for path, spelled in running.items()}
    changes = [
        _change(
            path,
            places=places,
            sections=sections,
            observed=observed,
            intents=intents,
            platform=platform,
        )
        for path in _walk(delta)
    ]
    order = {path: number for number, path in enumerate(wanted)}
    changes.sort(key=lambda change: order.get(change.path, len(order)))
    return Plan(
        switch,
        platform,
        tuple(changes),
        tuple(_conflicts(observed, wanted, scope)),
        wanted,
    )


def _without_defaults(
    running: Iterable[Path],
    wanted: Iterable[Path],
    sections: Mapping[str, set[str]],
    observed: Observed,
) -> tuple[list[Path], list[Path]]:
    """Drop lines that only repeat what is in force when the other side prints nothing."""
    running, wanted = list(running), list(wanted)
    have_keys = {(*path[:-1], key(path[-1])) for path in running}
    want_keys = {(*path[:-1], key(path[-1])) for path in wanted}

    def silent(path: Path, other: set[Path]) -> bool:
        return (*path[:-1], key(path[-1])) not in other and path[-1] == _default(
            path, sections, observed
        )

    return (
        [path for path in running if not silent(path, want_keys)],
        [path for path in wanted if not silent(path, have_keys)],
    )


def _walk(node: HConfig | HConfigChild, above: Path = ()) -> Iterator[Path]:
    for child in node.children:
        if child.children:
            yield from _walk(child, (*above, child.text))
        else:
            yield (*above, child.text)


def _change(
    path: Path,
    *,
    places: Mapping[Path, str],
    sections: Mapping[str, set[str]],
    observed: Observed,
    intents: Mapping[Path, Line],
    platform: Platform,
) -> Change:
    removing = path[-1].startswith(_REMOVE)
    path = (*path[:-1], path[-1].removeprefix(_REMOVE))
    old = places.get((*path[:-1], key(path[-1])))
    if old is None and not removing:
        old = _default(path, sections, observed)
    line = intents.get(path)
    if removing:
        intent, spelled = "no longer part of the description", old or path[-1]
    else:
        intent, spelled = (line.intent, line.text) if line else ("", path[-1])
    if len(canonical((spelled,))) > 1:
        spelled = path[-1]
    return Change(
        action="remove" if removing else "set",
        path=path,
        old=old,
        intent=intent,
        spelled=spelled,
        stage=stage_of(path),
        disruptive=_disruption(path, platform),
    )


def _disruption(path: Path, platform: Platform) -> str:
    text = " ".join((path[0], path[-1]))
    if platform.mmu and "platform trident mmu" in text:
        return "re-carves the packet buffers; every port may drop for a moment"
    return ""


def _conflicts(observed: Observed, wanted: Iterable[Path], scope: Scope) -> Iterator[str]:
    """Foreign lines that undo the intent but are not ours to touch."""
    maps = {path[-1] for path in wanted if path[-1].startswith("qos map dscp")}
    lossless = {
        re.findall(r"\d+", path[-1])[0]
        for path in wanted
        if re.match(r"^priority-flow-control priority \d+ no-drop$", path[-1])
    }
    for _, paths in observed.settings:
        for path in paths:
            if owned(path, scope):
                continue
            text = path[-1]
            into = re.match(r"^qos map dscp (\d+) to traffic-class (\d+)$", text)
            if into and into[2] in lossless and text not in maps:
                yield f"{text}: another DSCP enters the lossless class"
            port = path[0].removeprefix("interface ")
            if path[0].startswith("interface ") and port in scope.ports and len(path) == 3:
                yield f"{path[0]} / {path[1]} / {text}: overrides the profile on this port"


def foreign(observed: Observed, scope: Scope) -> tuple[Path, ...]:
    """Everything that is not ours, verbatim, to prove that a push left it alone.

    The bare header of an interface says nothing, and comes and goes with our lines.
    """
    found: list[Path] = []
    for raw, pieces in observed.settings:
        if len(raw) == 1 and raw[0].startswith("interface "):
            continue
        rest = [path for path in pieces if not owned(path, scope)]
        # A line that says several things is printed anew when one of them changes.
        found += [raw] if len(rest) == len(pieces) == 1 else rest
    return tuple(found)


def owned_part(running: str, scope: Scope) -> tuple[Path, ...]:
    """Our lines of a configuration, canonical: what a rollback restores."""
    return tuple(_owned_running(Observed(running), scope)[0])


def unexpected(session_diff: str, plan: Plan) -> tuple[str, ...]:
    """Lines of `show session-config diffs` that the plan does not explain.

    A removal that nobody asked for means that the session holds more than our lines, so it is
    not committed. A line that only moves stands on both sides and cancels out.
    """
    added: list[str] = []
    removed: list[str] = []
    for line in session_diff.splitlines():
        if line.startswith(("---", "+++", "@@")) or not line.startswith(("+", "-")):
            continue
        text = line[1:].strip()
        if not text or text.startswith("!"):
            continue
        for path in canonical((text,)):
            (added if line.startswith("+") else removed).append(path[0])
    for text in list(removed):
        if text in added:
            removed.remove(text)
            added.remove(text)
    planned_old = {
        path[0] for change in plan.changes if change.old for path in canonical((change.old,))
    }
    planned_keys = {key(change.path[-1]) for change in plan.changes}
    headers = {header for change in plan.changes for header in change.path}
    gone = {change.path[-1] for change in plan.changes if change.action == "remove"}
    inside_gone = any(text in _OWN_SECTIONS or QUEUE.match(text) for text in gone)
    return tuple(
        f"- {text}"
        for text in removed
        if text not in planned_old
        and text not in headers
        and key(text) not in planned_keys
        and not inside_gone
    )
