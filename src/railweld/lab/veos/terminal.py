"""One connection to a switch: modes, prompts and what each line answers.

No I/O here: `receive` takes a line and returns a `Reply`, which the SSH server prints. That
keeps every rule of the command line testable without a socket.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from railweld.lab.veos.device import Device, Session
from railweld.lab.veos.faults import TEXTS, Fault
from railweld.lab.veos.grammar import INVALID, CliError, Grammar, Match
from railweld.lab.veos.rules import NO_PFC, TOP, Frame
from railweld.lab.veos.shows import show

COPIED: Final = "Copy completed successfully."
NOT_PRIVILEGED: Final = f"{INVALID} (privileged mode required)"
#: Faults that answer instead of the switch, with the text each has by default.
_ANSWERS: Final = {
    "refuse": "invalid",
    "abort-refused": "denied",
    "denied": "denied",
    "show-refused": "invalid",
    "show-empty": "",
    "no-json": "% This is an unconverted command",
    "save-fails": "flash-full",
}
_TCAM: Final = (
    "WARNING!\nChanging TCAM profile will cause forwarding agent(s) to exit and restart.\n"
    "Proceed [y/n]"
)
_connections = itertools.count(1)


@dataclass
class Reply:
    """What a line brings about."""

    text: str = ""
    delay: float = 0.0
    close: bool = False
    hang: bool = False
    reload: bool = False
    #: Instead of the prompt, with the next line not echoed when `secret`.
    ask: str | None = None
    secret: bool = False


@dataclass(frozen=True)
class Command:
    """A command of exec mode."""

    run: Callable[[Terminal, Match[Command]], Reply]
    privileged: bool = True


@dataclass
class Terminal:
    """A connection's state."""

    device: Device
    user: str = "admin"
    privileged: bool = False
    enable_secret: str | None = None
    number: int = field(default_factory=lambda: next(_connections))
    length: int = 24
    width: int = 80
    frames: tuple[Frame, ...] | None = None
    session: Session | None = None
    waiting: Callable[[str], Reply] | None = None
    _tries: int = 0
    _ticks: int = 0

    # ------------------------------------------------------------------ prompt

    @property
    def mode(self) -> str:
        """Where a line would go: exec, config or session."""
        if self.frames is None:
            return "exec"
        return "config" if self.session is None else "session"

    def prompt(self) -> str:
        """The prompt as it stands now."""
        faults = self.device.faults
        name = self.device.hostname
        if faults.held("clock-prompt"):
            # Every prompt is another second, so that two of them never match.
            self._ticks += 1
            name += f"__09:28:{self._ticks % 60:02d}"
        if faults.held("supervisor"):
            name += "(s1)"
        if self.frames is None:
            return name + ("#" if self.privileged else ">")
        inner = "config"
        if self.session is not None:
            chars = self.device.behaviour.prompt_session_chars
            inner += f"-s-{self.session.name[:chars]}"
        return f"{name}({inner}{self.frames[-1].prompt})#"

    # ------------------------------------------------------------------ lines

    def receive(self, line: str) -> Reply:
        """Answer a line."""
        self.device.tick()
        self._left_behind()
        if self.waiting is not None:
            answer, self.waiting = self.waiting, None
            return answer(line)
        text = line.strip()
        if not text or text.startswith("!"):
            return Reply()
        return self._with_faults(text, self.device.faults.strike(text, self.mode))

    def _left_behind(self) -> None:
        """A session that ended elsewhere (committed, aborted, rolled back) lets go of us."""
        if self.session is not None and (
            self.device.sessions.get(self.session.name) is not self.session
            or self.session.state != "pending"
        ):
            self.leave()

    def _with_faults(self, text: str, faults: list[Fault]) -> Reply:
        delay = sum(fault.seconds() for fault in faults if fault.name in {"slow", "slow-save"})
        late = [
            fault
            for fault in faults
            if fault.name == "warn" or fault.values.get("when", "before") == "after"
        ]
        for fault in faults:
            if fault not in late and (reply := self._instead(text, fault)) is not None:
                reply.delay += delay
                return reply
        reply = self._run(text)
        reply.delay += delay
        for fault in late:
            if fault.name == "warn":
                reply.text = "\n".join(filter(None, (reply.text, fault.text("warning"))))
            elif fault.name == "disconnect":
                reply.close = True
            elif fault.name == "call":
                fault.values["function"](self.device)
        return reply

    def _instead(self, text: str, fault: Fault) -> Reply | None:
        """What a fault does before the line runs; a reply when the line must not run at all."""
        match fault.name:
            case name if name in _ANSWERS:
                wanted = fault.text(_ANSWERS[name])
                return Reply(TEXTS.get(wanted, wanted))
            case "hang":
                return Reply(hang=True)
            case "disconnect":
                return Reply(close=True)
            case "reload":
                self.device.reload()
                return Reply(close=True, reload=True)
            case "confirm":
                return self._confirm(text, fault)
            case "expire":
                self.device.expire_timer()
                self._left_behind()
            case "running-change":
                lines = fault.values["lines"]
                self.device.change_by_other(
                    lines.split(";") if isinstance(lines, str) else list(lines)
                )
            case "call":
                fault.values["function"](self.device)
        return None

    def _confirm(self, text: str, fault: Fault) -> Reply:
        question = fault.text(_TCAM)

        def answered(line: str) -> Reply:
            if line.strip().lower() in {"y", "yes"}:
                return self._run(text)
            return Reply("% Aborted")

        self.waiting = answered
        body, _, last = question.rpartition("\n")
        return Reply(body, ask=last)

    def _run(self, text: str) -> Reply:
        try:
            if self.frames is None:
                return self._exec(text)
            return self._configure(text)
        except CliError as error:
            return Reply(self._error(error))

    def _error(self, error: CliError) -> str:
        if error.text == NO_PFC and not self.device.behaviour.hardware_text_dot:
            return NO_PFC.rstrip(".")
        return error.render(suffix=self.device.behaviour.error_suffix)

    # ------------------------------------------------------------------ exec mode

    def _exec(self, text: str) -> Reply:
        word, _, rest = text.partition(" ")
        if len(word) >= 2 and "show".startswith(word.lower()):
            return self._show(rest)
        match = exec_grammar().match(text.split())
        if match.rule.privileged and not self.privileged:
            return Reply(NOT_PRIVILEGED)
        return match.rule.run(self, match)

    def _show(self, rest: str) -> Reply:
        if not rest.strip():
            raise CliError("% Incomplete command")
        if not self.privileged and rest.lstrip().startswith(("run", "start", "session-c")):
            return Reply(NOT_PRIVILEGED)
        session = self.session.name if self.session is not None else None
        return Reply(show(self.device, rest, connection=self.number, session=session))

    def leave(self) -> None:
        """Back to exec mode; a session stays as it is."""
        if self.session is not None:
            self.session.users.discard(self.number)
            self.session.held.pop(self.number, None)
        self.session = None
        self.frames = None

    def hang_up(self) -> None:
        """The connection is gone; a session that it edited stays pending."""
        self.leave()
        if self.device.lock is not None and self.device.lock[1] == self.number:
            self.device.lock = None

    # ------------------------------------------------------------------ configuration mode

    def _configure(self, text: str) -> Reply:
        tokens = text.split()
        word = tokens[0].lower()
        if len(word) >= 2 and "show".startswith(word):
            return self._show(text.partition(" ")[2])
        if len(tokens) == 1 and word in {"exit", "quit", "end"}:
            if word == "end":
                self.leave()
            else:
                self._pop()
            return Reply()
        if self.session is not None and (reply := self._session_line(tokens)) is not None:
            return reply
        if banner := re.fullmatch(r"banner (login|motd)", " ".join(tokens)):
            return self._banner(banner[0])
        return self._setting(text, tokens)

    def _setting(self, text: str, tokens: list[str]) -> Reply:
        assert self.frames is not None
        config = self.device.running if self.session is None else self.session.config
        known = set(config.blocks)
        try:
            frames, warning = self.device.configure(config, self.frames, tokens)
        except CliError as error:
            if error.text == INVALID and self.device.behaviour.parent_fallback:
                # Exec commands are known in configuration mode too; the refusal stays the mode's.
                with contextlib.suppress(CliError):
                    return self._exec(text)
            raise
        self.frames = frames
        self._hold(known)
        return Reply(warning)

    def _hold(self, known: set[str]) -> None:
        """Note which block is still open: `show session-config diffs` leaves it out."""
        if self.session is None or self.frames is None:
            return
        if len(self.frames) == 1 or not self.frames[1].targets:
            self.session.held.pop(self.number, None)
            return
        slot = self.frames[1].targets[0][0]
        held = self.session.held.get(self.number)
        if held is None or held[0] != slot:
            block = self.session.config.blocks[slot].copy() if slot in known else None
            self.session.held[self.number] = (slot, block)

    def _pop(self) -> None:
        assert self.frames is not None
        if len(self.frames) == 1:
            self.leave()
            return
        self.frames = self.frames[:-1]
        if len(self.frames) == 1 and self.session is not None:
            self.session.held.pop(self.number, None)

    def _session_line(self, tokens: list[str]) -> Reply | None:
        """`commit`, `abort` and `rollback`; None for any other line."""
        assert self.frames is not None
        assert self.session is not None
        word = tokens[0].lower()
        if len(word) < 3 or not any(w.startswith(word) for w in ("commit", "abort", "rollback")):
            return None
        inside = len(self.frames) > 1
        if "abort".startswith(word) and inside:
            # Only leaves the sub-mode: the session stays pending (ansible #36979).
            self.frames = (TOP,)
            self.session.held.pop(self.number, None)
            return Reply()
        if inside and not self.device.behaviour.parent_fallback:
            raise CliError(INVALID, 0, tokens[0])
        match = _session_grammar().match(tokens)
        return match.rule.run(self, match)

    def _banner(self, header: str) -> Reply:
        lines: list[str] = [header]

        def take(line: str) -> Reply:
            lines.append(line)
            if line.strip() == "EOF":
                config = self.device.running if self.session is None else self.session.config
                config.lines[header] = "\n".join(lines)
                return Reply()
            self.waiting = take
            return Reply(ask="")

        self.waiting = take
        return Reply("Enter TEXT message. Type 'EOF' on its own line to end.", ask="")


# --------------------------------------------------------------------------- exec commands


def _enable(at: Terminal, _: Match[Command]) -> Reply:
    if at.privileged or at.enable_secret is None:
        at.privileged = True
        return Reply()
    tries = 0

    def password(line: str) -> Reply:
        nonlocal tries
        if line == at.enable_secret:
            at.privileged = True
            return Reply()
        tries += 1
        if tries >= 3:
            return Reply("% Bad secret")
        at.waiting = password
        return Reply(ask="Password: ", secret=True)

    at.waiting = password
    return Reply(ask="Password: ", secret=True)


def _disable(at: Terminal, _: Match[Command]) -> Reply:
    at.privileged = False
    return Reply()


def _exit(_: Terminal, __: Match[Command]) -> Reply:
    return Reply(close=True)


def _length(at: Terminal, match: Match[Command]) -> Reply:
    at.length = int(match.values["lines"])
    if at.length == 0:
        return Reply("Pagination disabled.")
    return Reply(f"Pagination set to {at.length} lines.")


def _width(at: Terminal, match: Match[Command]) -> Reply:
    at.width = int(match.values["columns"])
    return Reply(f"Width set to {at.width} columns.")


def _check_lock(at: Terminal) -> None:
    lock = at.device.lock
    if lock is not None and lock[1] != at.number:
        # unverified text
        raise CliError(f"% Configuration is locked by transaction {lock[0]}")


def _configure(at: Terminal, _: Match[Command]) -> Reply:
    _check_lock(at)
    at.frames = (TOP,)
    return Reply()


def _configure_session(at: Terminal, match: Match[Command]) -> Reply:
    _check_lock(at)
    device = at.device
    name = match.values.get("name") or device.new_session_name()
    at.session = device.open_session(name, at.user, at.number, f"vty{at.number % 16}")
    at.frames = (TOP,)
    return Reply()


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,2}):(\d{2}):(\d{2})", text)
    if match is None or int(match[2]) > 59 or int(match[3]) > 59:
        raise CliError(INVALID, None, text)
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    if seconds == 0:
        raise CliError(INVALID, None, text)
    return float(seconds)


def _commit(at: Terminal, match: Match[Command]) -> Reply:
    _check_lock(at)
    name = match.values.get("name") or (at.session.name if at.session is not None else "")
    timer = match.values.get("time")
    at.device.commit(name, None if timer is None else _duration(timer), at.user)
    if at.session is not None:
        at.leave()
    return Reply()


def _abort(at: Terminal, match: Match[Command]) -> Reply:
    name = match.values.get("name") or (at.session.name if at.session is not None else "")
    at.device.abort(name, at.user)
    if at.session is not None:
        at.leave()
    return Reply()


def _clean(at: Terminal, _: Match[Command]) -> Reply:
    assert at.session is not None
    at.device.clean(at.session)
    at.frames = (TOP,)
    return Reply()


def _save(at: Terminal, _: Match[Command]) -> Reply:
    at.device.save()
    return Reply(COPIED)


def _copy_out(at: Terminal, match: Match[Command]) -> Reply:
    at.device.flash[match.values["file"]] = at.device.running_lines
    return Reply(COPIED)


def _replace(at: Terminal, match: Match[Command]) -> Reply:
    _check_lock(at)
    name = match.values["file"]
    lines = at.device.startup_lines if name == "startup-config" else at.device.flash.get(name)
    if lines is None:
        raise CliError(f"% Error opening {name} (No such file or directory)")
    at.device.replace(lines)
    return Reply()


def _checkpoint_save(at: Terminal, match: Match[Command]) -> Reply:
    at.device.checkpoint(match.values["name"])
    return Reply()


def _checkpoint_restore(at: Terminal, match: Match[Command]) -> Reply:
    _check_lock(at)
    at.device.restore(match.values["name"])
    return Reply()


def _lock(at: Terminal, match: Match[Command]) -> Reply:
    _check_lock(at)
    at.device.lock = (match.values.get("name", at.user), at.number)
    return Reply()


def _unlock(at: Terminal, _: Match[Command]) -> Reply:
    _check_lock(at)
    at.device.lock = None
    return Reply()


def _reload(at: Terminal, _: Match[Command]) -> Reply:
    at.device.reload()
    return Reply(close=True, reload=True)


def _clear_counters(at: Terminal, _: Match[Command]) -> Reply:
    for name in at.device.counters:
        at.device.counters[name] = type(at.device.counters[name])()
    return Reply()


@cache
def exec_grammar() -> Grammar[Command]:
    """Commands outside configuration mode, `show` apart."""
    grammar: Grammar[Command] = Grammar()
    add = grammar.add
    add("enable", Command(_enable, privileged=False))
    add("disable", Command(_disable, privileged=False))
    for word in ("exit", "logout", "quit"):
        add(word, Command(_exit, privileged=False))
    add("terminal length <lines:0-32767>", Command(_length, privileged=False))
    add("terminal width <columns:10-32767>", Command(_width, privileged=False))
    add("configure [terminal]", Command(_configure))
    add("configure session [<name>]", Command(_configure_session))
    add("configure session <name> commit", Command(_commit))
    add("configure session <name> commit timer <time>", Command(_commit))
    add("configure session <name> abort", Command(_abort))
    add("configure checkpoint save <name>", Command(_checkpoint_save))
    add("configure checkpoint restore <name>", Command(_checkpoint_restore))
    add("configure replace <file>", Command(_replace))
    add("configure lock [transaction <name>]", Command(_lock))
    add("configure unlock", Command(_unlock))
    add("copy running-config startup-config", Command(_save))
    add("copy running-config <file>", Command(_copy_out))
    add("write [memory]", Command(_save))
    add("clear counters", Command(_clear_counters))
    add("reload now", Command(_reload))
    return grammar


@cache
def _session_grammar() -> Grammar[Command]:
    grammar: Grammar[Command] = Grammar()
    grammar.add("commit", Command(_commit))
    grammar.add("commit timer <time>", Command(_commit))
    grammar.add("abort", Command(_abort))
    grammar.add("rollback clean-config", Command(_clean))
    return grammar
