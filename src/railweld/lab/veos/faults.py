"""Faults of a virtual switch: what may go wrong on a real one, switchable by name.

A fault either happens at once (a foreign session appears), holds while it is set (PFC is
configured but not active) or waits for a line (the third line is refused, the connection
drops at `commit timer`). `match` is a regular expression searched in the typed line, `at` is
the how-manieth matching line it strikes, `times` how often (0: every time).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from railweld.lab.veos.grammar import AMBIGUOUS, INCOMPLETE, INVALID, UNAVAILABLE
from railweld.lab.veos.rules import NO_PFC

if TYPE_CHECKING:
    from railweld.lab.veos.device import Device


class FaultError(ValueError):
    """A fault that does not exist, or lacks what it needs."""


#: Texts that EOS answers, by a short name; `refuse` takes one of these or any text.
TEXTS: Final[dict[str, str]] = {
    "invalid": INVALID,
    "incomplete": INCOMPLETE,
    "ambiguous": AMBIGUOUS,
    "unavailable": UNAVAILABLE,
    "no-pfc": NO_PFC,
    "prefix-length": "% Prefix length must be less than 32",
    "invalid-at-line": "% Invalid input at line 3\nCopy completed successfully.",
    "session-limit": "Maximum number of pending sessions has been reached",
    "error": "% Error",
    "user-not-present": "% User not present",
    "bad-secret": "% Bad secret",
    "overlap": "% Subnet 10.0.0.0/24 overlaps",
    "not-found": "ROCE not found",
    "denied": "% Authorization denied for command",
    "warning": "! this setting is ignored on this platform",
    "flash-full": "% Error copying system:/running-config to flash:/startup-config "
    "(No space left on device)",
}


class Kind(StrEnum):
    """When a fault acts."""

    NOW = "now"
    HELD = "held"
    LINE = "line"
    ECHO = "echo"


@dataclass(frozen=True, slots=True)
class Known:
    """A fault of the catalogue."""

    kind: Kind
    about: str
    match: str = ""
    times: int = 1


CATALOGUE: Final[dict[str, Known]] = {
    # (1) refusals at a given line
    "refuse": Known(Kind.LINE, "answer `text` and do not run the line"),
    "warn": Known(Kind.LINE, "run the line and answer `text`"),
    # (2)
    "agent-initialising": Known(Kind.NOW, "PFC lines are refused for `seconds`"),
    # (3)
    "session-limit": Known(Kind.NOW, "five foreign sessions are pending"),
    "foreign-pending": Known(Kind.NOW, "somebody else's session `name` is pending"),
    "foreign-timer": Known(Kind.NOW, "somebody else's commit timer runs for `seconds`"),
    "own-leftover": Known(Kind.NOW, "a session `name` of an earlier run is pending"),
    "lock": Known(Kind.NOW, "another session holds the configuration lock `name`"),
    # (4)
    "expire": Known(Kind.LINE, "the commit timer runs out when the line arrives", "^show"),
    "disconnect": Known(Kind.LINE, "the connection drops; `when` is before or after"),
    "abort-refused": Known(Kind.LINE, "abort is refused with `text`", r"\babort\b", 0),
    "hang": Known(Kind.LINE, "no answer ever comes"),
    "reload": Known(Kind.LINE, "the switch reboots instead of answering"),
    # (5)
    "prompt-chars": Known(Kind.NOW, "the prompt cuts session names to `chars`"),
    "session-output": Known(Kind.NOW, "commit timers are shown as `release` shows them"),
    # (6)
    "slow": Known(Kind.LINE, "`seconds` pass before the answer", "", 0),
    "slow-save": Known(Kind.LINE, "saving takes `seconds`", r"^(copy run|write)", 0),
    "slow-echo": Known(Kind.ECHO, "the echo of a line takes `seconds`", "", 0),
    "duplicate-echo": Known(Kind.ECHO, "the line is echoed twice, behind a prompt", "", 0),
    "clock-prompt": Known(Kind.HELD, "the prompt carries a clock"),
    "supervisor": Known(Kind.HELD, "the prompt carries `(s1)`"),
    "hostname": Known(Kind.NOW, "the switch is renamed to `name`"),
    "confirm": Known(Kind.LINE, "the line asks `text` and waits for y or n"),
    "banner": Known(Kind.HELD, "logging in shows `text`"),
    # (7)
    "running-change": Known(Kind.LINE, "somebody configures `lines` when the line arrives"),
    # (8)
    "pfc-inactive": Known(Kind.HELD, "PFC is accepted but not active on `ports`"),
    "watchdog-inactive": Known(Kind.HELD, "the watchdog is accepted but not active on `ports`"),
    "ecn-not-counting": Known(Kind.HELD, "ECN counters show `-` on `ports`"),
    # (9)
    "drops-after-commit": Known(Kind.HELD, "a commit is followed by `count` drops on `ports`"),
    "pause-after-commit": Known(Kind.HELD, "a commit is followed by `count` pause frames"),
    # (10)
    "show-refused": Known(Kind.LINE, "a show command is refused", "^show", 0),
    "show-empty": Known(Kind.LINE, "a show command prints nothing", "^show", 0),
    "no-json": Known(Kind.LINE, "`| json` finds no model", r"\|\s*json", 0),
    "class-ranges": Known(Kind.HELD, "Jericho names traffic classes `TC0-5`"),
    # (11)
    "save-fails": Known(Kind.LINE, "saving answers `text`", r"^(copy run|write)", 0),
    # privilege and odds
    "denied": Known(Kind.LINE, "the line is not authorised", "", 0),
    "line-down": Known(Kind.HELD, "the `ports` have no link"),
    "cables-swapped": Known(Kind.HELD, "the cables of the two `ports` are swapped"),
    "call": Known(Kind.LINE, "a Python function runs; `when` is before or after"),
}

_NEEDS: Final[dict[str, frozenset[str]]] = {
    "agent-initialising": frozenset({"seconds"}),
    "hostname": frozenset({"name"}),
    "running-change": frozenset({"lines"}),
    "slow": frozenset({"seconds"}),
    "slow-echo": frozenset({"seconds"}),
    "slow-save": frozenset({"seconds"}),
    "prompt-chars": frozenset({"chars"}),
    "call": frozenset({"function"}),
    "cables-swapped": frozenset({"ports"}),
}


@dataclass
class Fault:
    """A fault that is set on a switch."""

    name: str
    kind: Kind
    match: str = ""
    mode: str = ""
    at: int = 1
    times: int = 1
    values: dict[str, Any] = field(default_factory=dict)
    seen: int = 0
    struck: int = 0

    def text(self, default: str) -> str:
        """The text to answer, by its short name or as it stands."""
        wanted = str(self.values.get("text", default))
        return TEXTS.get(wanted, wanted)

    def seconds(self) -> float:
        """A duration."""
        return float(self.values.get("seconds", 0.0))

    def ports(self) -> tuple[str, ...]:
        """The ports that it covers; none named means all."""
        ports = self.values.get("ports", ())
        return tuple(ports.split(",")) if isinstance(ports, str) else tuple(ports)

    def strikes(self, line: str, mode: str) -> bool:
        """Count a line; say whether this is the one."""
        if self.mode and self.mode != mode:
            return False
        if self.match and re.search(self.match, line) is None:
            return False
        self.seen += 1
        if self.seen < self.at or (self.times and self.struck >= self.times):
            return False
        self.struck += 1
        return True


class Faults:
    """The faults of one switch."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._set: list[Fault] = []
        self._listed: list[tuple[dict[str, Any], Fault]] = []

    def add(
        self,
        name: str,
        /,
        *,
        match: str | None = None,
        mode: str = "",
        at: int = 1,
        times: int | None = None,
        **values: Any,
    ) -> Fault:
        """Set a fault; what happens at once happens here."""
        known = CATALOGUE.get(name)
        if known is None:
            raise FaultError(f"fault: found {name!r}, expected one of {', '.join(CATALOGUE)}")
        if missing := _NEEDS.get(name, frozenset()) - values.keys():
            raise FaultError(f"fault {name}: missing {', '.join(sorted(missing))}; {known.about}")
        if mode not in {"", "exec", "config", "session"}:
            raise FaultError(f"fault {name}: found mode {mode!r}, expected exec, config or session")
        fault = Fault(
            name,
            known.kind,
            known.match if match is None else match,
            mode,
            int(at),
            known.times if times is None else int(times),
            dict(values),
        )
        if fault.kind is Kind.NOW:
            self._happen(fault)
        else:
            self._set.append(fault)
        return fault

    def clear(self, name: str | None = None) -> None:
        """Take faults back, all or those of a name."""
        self._set = [fault for fault in self._set if name is not None and fault.name != name]

    def names(self) -> list[str]:
        """Faults that are set."""
        return [fault.name for fault in self._set]

    def replace(self, wanted: Iterable[Mapping[str, Any]]) -> None:
        """Make the control file's faults these; one that stays keeps its count.

        A fault that happens at once happens when its entry is new, not at every look.
        """
        kept: list[tuple[dict[str, Any], Fault]] = []
        for entry in wanted:
            old = next((pair for pair in self._listed if pair[0] == dict(entry)), None)
            if old is not None:
                self._listed.remove(old)
                kept.append(old)
                continue
            values = dict(entry)
            name = str(values.pop("fault", ""))
            kept.append((dict(entry), self.add(name, **values)))
        gone = [id(fault) for _, fault in self._listed]
        self._set = [fault for fault in self._set if id(fault) not in gone]
        self._listed = kept

    def held(self, name: str) -> Fault | None:
        """A fault that holds while it is set."""
        return next((fault for fault in self._set if fault.name == name), None)

    def covers(self, name: str, port: str) -> bool:
        """Whether a held fault is about this port."""
        fault = self.held(name)
        return fault is not None and (not fault.ports() or port in fault.ports())

    def strike(self, line: str, mode: str) -> list[Fault]:
        """The faults that this line sets off."""
        return [
            fault
            for fault in list(self._set)
            if fault.kind is Kind.LINE and fault.strikes(line, mode)
        ]

    def strike_echo(self, line: str, mode: str) -> list[Fault]:
        """The faults that strike before the line is answered, while it is echoed."""
        return [
            fault
            for fault in self._set
            if fault.kind is Kind.ECHO and line.strip() and fault.strikes(line, mode)
        ]

    def after_commit(self) -> None:
        """What a commit sets off: counters that rise."""
        device = self._device
        for fault in self._set:
            count = int(fault.values.get("count", 1000))
            queue = int(fault.values.get("queue", 3))
            for port in fault.ports() or tuple(device.neighbours):
                counters = device.counters[port]
                if fault.name == "drops-after-commit":
                    counters.drops[queue] += count
                elif fault.name == "pause-after-commit":
                    counters.pfc_rx[queue] += count
                    counters.pause_rx += count

    def _happen(self, fault: Fault) -> None:
        device = self._device
        name = str(fault.values.get("name", "other-session"))
        match fault.name:
            case "agent-initialising":
                device.agent_ready_at = device.clock() + fault.seconds()
            case "session-limit":
                for number in range(5 - len(device.pending_sessions)):
                    device.open_session(f"other-{number}", "ops", -1 - number, "vty7")
            case "foreign-pending" | "own-leftover":
                self._pending(name, fault.values.get("lines", ()))
            case "foreign-timer":
                self._pending(name, fault.values.get("lines", ()))
                device.commit(name, float(fault.values.get("seconds", 300)), "ops")
            case "lock":
                device.lock = (name, -1)
            case "prompt-chars":
                device.behaviour.prompt_session_chars = int(fault.values["chars"])
            case "session-output":
                release = str(fault.values.get("release", "4.32"))
                device.behaviour.timer_at_top_level = release >= "4.32"
            case "hostname":
                device.running.lines["hostname"] = f"hostname {name}"
            case _:
                raise FaultError(f"fault {fault.name}: nothing to do at once")

    def _pending(self, name: str, lines: Iterable[str]) -> None:
        device = self._device
        session = device.open_session(name, "ops", -1, "vty7")
        frames = device.top
        for line in lines:
            frames, _ = device.configure(session.config, frames, line.split())
        session.users.clear()
