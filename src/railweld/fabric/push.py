"""The push: a change reaches a switch completely or not at all, and the command says which.

One transaction covers the switches of a step (one, or both ends of a link). Each member goes
through the same states:

    looked -> loaded (a session holds the lines) -> armed (committed under a timer)
           -> verified (read back through a second connection) -> confirmed and saved

Up to `loaded` nothing has changed. From `armed` on the switch itself goes back when the timer
ends, so a dead controller, a lost link or a killed process need nobody. Every failure ends in
`settle`, which reads the switch until it can say old or new.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from railweld.errors import RailweldError
from railweld.fabric import eos, platforms
from railweld.fabric.diff import (
    Observed,
    Plan,
    compare,
    compare_paths,
    foreign,
    owned_part,
    scope_of,
    unexpected,
)
from railweld.fabric.journal import Journal, owned, record_owned
from railweld.fabric.lines import Path
from railweld.fabric.model import Fabric, Switch
from railweld.fabric.order import Step, link_steps, rounds, switch_steps
from railweld.fabric.render import Rendered, render
from railweld.fabric.transport import (
    LONG,
    Connection,
    Connections,
    RefusedError,
    SwitchError,
    UnreachableError,
)
from railweld.fabric.verify import live_checks, miscabled
from railweld.record import Status

T = TypeVar("T")


def _made(value: T | None) -> T:
    """What `Member.prepare` makes before any other step of a push may run."""
    if value is None:
        raise RuntimeError("a step of a push ran before its prepare")
    return value


class Clock(Protocol):
    """Time that a test can move."""

    def now(self) -> float:
        """Seconds that only grow."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The controller's own clock; a switch's clock is never compared with it."""

    def now(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Settings:
    """Options of a push."""

    commit_timer_s: int = 300
    batch: int | None = 1
    jobs: int = 32
    disruptive: bool = False
    observe_s: float = 5.0
    grace_s: float = 15.0
    retry_s: float = 2.0
    pause_allowance: int = 0
    reach_s: float = 60.0


class State(StrEnum):
    """What a switch runs after the command."""

    OLD = "old"
    NEW = "new"
    FIRST_PASS = "first pass only"  # noqa: S105 - a pass over the fabric, not a password
    PART = "part of the new"
    CHANGED_BY_OTHERS = "changed by others"
    UNKNOWN = "unknown"


class Result(StrEnum):
    """What happened to a switch."""

    UNCHANGED = "unchanged"
    PUSHED = "pushed"
    NOT_SAVED = "pushed, not saved"
    NOT_VERIFIED = "pushed, not verified"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    SKIPPED = "not tried"
    LOST = "lost"


#: Results after which the switch runs what the step asked for.
_CHANGED: Final = frozenset({Result.PUSHED, Result.NOT_SAVED, Result.NOT_VERIFIED})


@dataclass(frozen=True)
class Outcome:
    """One switch at the end: the state it is in, and why."""

    switch: str
    result: Result
    state: State
    text: str = ""
    changes: int = 0
    warnings: tuple[str, ...] = ()
    stage: int = 0

    @property
    def ok(self) -> bool:
        """True when the switch is where it should be, and stays there after a reboot."""
        return self.result in (Result.UNCHANGED, Result.PUSHED)

    def sentence(self) -> str:
        """One line that says which state the switch is in."""
        words = {
            State.OLD: "runs the old configuration",
            State.NEW: "runs the new configuration",
            State.FIRST_PASS: "runs maps, queues, ECN and MTU of the new configuration; PFC and "
            "its watchdog are as before",
            State.PART: "runs the new configuration in part: steps that had finished stay, the "
            "rest is as before",
            State.CHANGED_BY_OTHERS: "runs neither: somebody else changed it as well",
            State.UNKNOWN: "could not be read",
        }[self.state]
        text = f"{self.switch}: {self.result}; {words}"
        return f"{text}: {self.text}" if self.text else text


class StopRequestedError(RailweldError):
    """The operator interrupted; raised between two commands."""


class VerificationError(SwitchError):
    """The new configuration is there but the switch does not do what it says."""


Target = Callable[[Switch, eos.Facts, Observed], Plan]
"""Computes the whole plan of a switch from what it said."""

Progress = Callable[[str, str], None]
"""Called with a switch and what happens to it now."""


def target_of(fabric: Fabric) -> Target:
    """The description as the target of a push.

    Each switch is read several times in a push, and mostly says the same: its rendering and its
    last plan are kept with what they were made from.
    """
    rendered: dict[tuple[str, str], Rendered] = {}
    last: dict[str, tuple[eos.Facts, Observed, Plan]] = {}

    def plan(switch: Switch, facts: eos.Facts, observed: Observed) -> Plan:
        known = last.get(switch.name)
        if known is not None and known[:2] == (facts, observed):
            return known[2]
        which = (switch.name, facts.release)
        if which not in rendered:
            rendered[which] = render(fabric, switch, release=facts.release)
        made = compare(rendered[which], observed)
        last[switch.name] = (facts, observed, made)
        return made

    return plan


def target_from_backup(fabric: Fabric, backups: Mapping[str, str]) -> Target:
    """Our part of a backup as the target: foreign lines stay as they are today.

    A switch without a backup has no changes.
    """

    def plan(switch: Switch, facts: eos.Facts, observed: Observed) -> Plan:
        rendered = render(fabric, switch, release=facts.release)
        if switch.name not in backups:
            # Not pushed since that moment, so it is in that state already.
            return Plan(switch.name, rendered.platform)
        mine = compare(rendered, observed).wanted
        scope = scope_of(mine, rendered.ports, observed.previous)
        then = owned_part(backups[switch.name], scope)
        everything = Observed(observed.running, observed.maps, (*observed.previous, *mine))
        return compare_paths(switch.name, rendered.platform, then, everything, ports=rendered.ports)

    return plan


@dataclass(frozen=True)
class Look:
    """One switch as read before anything happens."""

    switch: Switch
    facts: eos.Facts
    observed: Observed
    plan: Plan
    warnings: tuple[str, ...] = ()


def look(
    connection: Connection, switch: Switch, target: Target, previous: tuple[Path, ...] = ()
) -> Look:
    """Read a switch and compare it with the target. Refuses what it should not touch."""
    facts = eos.facts(connection, switch.name)
    warnings = list(_gate(switch, facts))
    running = eos.running_config(connection)
    observed = Observed(running, eos.maps_in_effect(connection), previous)
    plan = target(switch, facts, observed)
    warnings += [f"foreign line in the way: {text}" for text in plan.conflicts]
    return Look(switch, facts, observed, plan, tuple(warnings))


def _gate(switch: Switch, facts: eos.Facts) -> Iterable[str]:
    """The switch must be the model that the description was checked for."""
    reason = platforms.refusal(facts.model)
    if reason is not None:
        raise SwitchError(
            switch.name, f"found model {facts.model}, expected {switch.model}: {reason}"
        )
    said, found = platforms.platform_for(switch.model), platforms.platform_for(facts.model)
    if (said.family, said.chip) != (found.family, found.chip):
        raise SwitchError(
            switch.name,
            f"found model {facts.model}, expected {switch.model}; correct railweld_switch_model "
            "or ansible_host: this may be another switch",
        )
    verdict, why = platforms.release_verdict(facts.release)
    if verdict == "refused":
        raise SwitchError(
            switch.name, f"found EOS {facts.release}, expected a covered release: {why}"
        )
    for kind, text in platforms.release_findings(facts.model, facts.release):
        raise SwitchError(switch.name, f"found EOS {facts.release}, which is {kind}: {text}")
    if verdict == "untested":
        yield f"EOS {facts.release} is untested: {why}"
    if switch.eos_version and not facts.release.startswith(switch.eos_version):
        yield f"found EOS {facts.release}, the description says {switch.eos_version}"


class Interrupt:
    """A flag that the operator raises; workers look at it between two commands."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask every worker to stop and settle."""
        self._event.set()

    def is_set(self) -> bool:
        """True once somebody asked."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise when somebody asked."""
        if self._event.is_set():
            raise StopRequestedError("interrupted by the operator")


def _silent(switch: str, what: str) -> None:
    """Progress that nobody watches."""


@dataclass
class Context:
    """What every member of every transaction shares."""

    fabric: Fabric
    connections: Connections
    target: Target
    settings: Settings
    journal: Journal
    clock: Clock = field(default_factory=SystemClock)
    interrupt: Interrupt = field(default_factory=Interrupt)
    progress: Progress = _silent
    live: bool = True  #: judge the operational state too; a rollback's target promises none
    counted: bool = True  #: refuse to confirm when counters got worse


class Member:
    """One switch within a transaction."""

    def __init__(
        self, context: Context, switch: Switch, *, stage: int, ports: frozenset[str] | None
    ) -> None:
        self.context = context
        self.switch = switch
        self.stage = stage
        self.ports = ports
        self.session = f"{eos.SESSION_PREFIX}{secrets.token_hex(4)}"
        self.warnings: list[str] = []
        self.plan: Plan | None = None
        self.before = ""
        self._connection: Connection | None = None
        self._look: Look | None = None
        self._opened = False
        self._armed = False
        self._confirming = False
        self._deadline: float | None = None
        self._counters = eos.Counters()

    # -- steps -----------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Look, load a session, read its diff. False when there is nothing to change."""
        name, context = self.switch.name, self.context
        self._say("reading")
        connection = self._connection = context.connections.take(name)
        self._guard_sessions(connection)
        seen = look(connection, self.switch, context.target, owned(context.fabric.site, name))
        self._look = seen
        self.before = seen.observed.running
        self.warnings += seen.warnings
        self.plan = self._part(seen.plan)
        if not self.plan.changes:
            return False
        self._refuse_disruptive()
        self._refuse_miscabled(connection)
        self._warn_unsaved(connection)
        context.journal.backup(name, "before", self.before)
        context.journal.event(
            name,
            "planned",
            stage=self.stage,
            session=self.session,
            release=seen.facts.release,
            changes=[change.sentence() for change in self.plan.changes],
        )
        self._counters = self._count(connection)
        return self._load(connection)

    def _load(self, connection: Connection) -> bool:
        name = self.switch.name
        self._say(f"loading {len(self._planned.changes)} changes")
        self._opened = True
        eos.enter_session(connection, name, self.session)
        for line in self._planned.commands():
            self.context.interrupt.check()
            answer = connection.run(line)
            self.warnings += [f"`{line}`: {text}" for text in answer.splitlines() if text.strip()]
        connection.run("end")
        if "(config" in connection.prompt:
            raise SwitchError(name, f"still in {connection.prompt!r} after `end`")
        text = connection.run(f"show session-config named {self.session} diffs")
        self.context.journal.event(name, "loaded", diff=text)
        strange = unexpected(text, self._planned)
        if strange:
            raise SwitchError(
                name,
                f"found lines in the session's diff that the plan does not have: "
                f"{'; '.join(strange)}; nothing was committed",
            )
        if not any(re.match(r"^[+-](?![+-]{2} )", line) for line in text.splitlines()):
            # The switch itself sees no difference: what we wanted is in force, only spelled so
            # that we did not recognise it.
            eos.abort_session(connection, self.session)
            self._opened = False
            self.warnings.append("the switch sees no difference in: " + "; ".join(
                change.sentence() for change in self._planned.changes))  # fmt: skip
            return False
        return True

    def arm(self) -> None:
        """Commit under the timer, provided that nobody changed the switch meanwhile."""
        connection = self._require_connection()
        self.context.interrupt.check()
        self._guard_sessions(connection, but=self.session)
        if not eos.same_config(eos.running_config(connection), self.before):
            raise SwitchError(
                self.switch.name,
                "found the running configuration changed by somebody else since it was read, "
                "expected it unchanged: a commit would undo that change; run the push again",
            )
        earlier, self._counters = self._counters, self._count(connection)
        self._refuse_loaded(earlier)
        seconds = self.context.settings.commit_timer_s
        timer = f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
        self._say(f"committing with timer {timer}")
        # Written down before it is sent: an interrupted run knows what it may have started.
        self.context.journal.event(
            self.switch.name, "arming", session=self.session, timer_s=seconds
        )
        previous = owned(self.context.fabric.site, self.switch.name)
        self._remember((*previous, *self._set_paths()))
        self._armed = True
        self._deadline = self.context.clock.now() + seconds
        connection.run(f"configure session {self.session} commit timer {timer}", patience=LONG)
        armed = eos.sessions(connection).armed
        if armed != self.session:
            raise SwitchError(
                self.switch.name,
                f"found {armed or 'no session'} under the commit timer, expected {self.session}",
            )
        self.context.journal.event(self.switch.name, "armed", session=self.session)

    def verify(self) -> None:
        """Read the live state back through a second connection; raise when it is not good."""
        name = self.switch.name
        self._say("verifying")
        self._close()
        connection = self._connection = self.context.connections.fresh(name)
        seen = look(
            connection, self.switch, self.context.target, owned(self.context.fabric.site, name)
        )
        left = self._part(seen.plan).changes
        if left:
            raise VerificationError(
                name,
                "found "
                + "; ".join(change.sentence() for change in left)
                + " still to be done after the commit, expected nothing",
            )
        self._compare_foreign(seen.observed)
        self.context.interrupt.check()
        self.context.clock.sleep(self.context.settings.observe_s)
        checks = (
            live_checks(
                connection,
                self.context.fabric,
                self.switch,
                stage=self.stage,
                ports=self.ports,
                settled=seen.plan,
            )
            if self.context.live
            else []
        )
        bad = [check for check in checks if check.is_bad]
        self.warnings += [c.sentence() for c in checks if c.status is Status.WARN]
        if bad:
            raise VerificationError(name, "; ".join(check.sentence() for check in bad))
        after = self._count(connection)
        allowance = self.context.settings.pause_allowance
        grown = (
            eos.worse(self._counters, after, pause_allowance=allowance)
            if self.context.counted
            else ()
        )
        self.context.journal.event(name, "verified", counters_worse=list(grown))
        if grown:
            raise VerificationError(
                name,
                "counters got worse within the observation: " + "; ".join(grown) + "; find the "
                "reason, or push in a quiet window",
            )
        self.context.interrupt.check()

    def confirm(self) -> Outcome:
        """Cancel the timer, read that it is gone, and save."""
        connection = self._require_connection()
        name = self.switch.name
        self._say("confirming")
        self.context.journal.event(name, "confirming", session=self.session)
        self._confirming = True
        connection.run(f"configure session {self.session} commit", patience=LONG)
        return self._confirmed(connection)

    def _confirmed(self, connection: Connection) -> Outcome:
        name = self.switch.name
        armed = eos.sessions(connection).armed
        if armed is not None:
            raise SwitchError(
                name, f"found the commit timer of {armed} still running after the confirmation"
            )
        after = eos.running_config(connection)
        if self._state_of(connection, after) is not State.NEW:
            raise SwitchError(
                name,
                "found the old configuration after the confirmation, expected the new one; the "
                "commit timer was faster",
            )
        self._armed = self._opened = False
        self.context.journal.event(name, "confirmed", session=self.session)
        self.context.journal.backup(name, "after", after)
        self._settle_owned(after)
        try:
            eos.save(connection, name)
        except (SwitchError, RefusedError) as error:
            self.context.journal.event(name, "not saved", error=str(error))
            return self._outcome(Result.NOT_SAVED, State.NEW, error.text)
        self.context.journal.event(name, "saved")
        self._keep()
        return self._outcome(Result.PUSHED, State.NEW)

    # -- failure ---------------------------------------------------------------------------

    def settle(self, error: BaseException, *, result: Result = Result.ROLLED_BACK) -> Outcome:
        """After a failure: leave nothing pending or armed, and find out which state it is in.

        Keeps trying while a commit timer may still run, because the answer changes when it ends.
        """
        name, clock, settings = self.switch.name, self.context.clock, self.context.settings
        text = error.text if isinstance(error, SwitchError) else str(error)
        if not isinstance(error, (RailweldError, OSError)):
            text = f"internal error {type(error).__name__}: {text}"
        self._say("going back")
        self.context.journal.event(name, "failed", error=text)
        self._close()
        if not self._opened:
            # Nothing was sent, so nothing changed.
            return self._outcome(
                Result.LOST if isinstance(error, UnreachableError) else Result.REFUSED,
                State.OLD, text,
            )  # fmt: skip
        reach = clock.now() + settings.reach_s
        until = max(reach, (self._deadline or 0.0) + settings.grace_s) if self._armed else reach
        reason = ""
        while True:
            try:
                state = self._try_settle()
            except (SwitchError, OSError) as failure:
                state, reason = (
                    None,
                    failure.text if isinstance(failure, SwitchError) else str(failure),
                )
            if state is not None:
                break
            if clock.now() >= until:
                return self._unreachable(text, reason)
            clock.sleep(settings.retry_s)
        if state is State.OLD:
            self._forget()
            how = result if self._armed else Result.REFUSED
            return self._outcome(how, state, text)
        if state is State.NEW and not self._confirming:
            text += (
                "; the switch keeps the new configuration without our confirmation, so it was "
                f"neither verified nor saved: run `railweld fabric verify --limit {name}`, then "
                "save it, or roll it back"
            )
            return self._outcome(Result.NOT_VERIFIED, state, text)
        if state is State.NEW:
            return self._late(text)
        return self._outcome(Result.LOST, state, text)

    def _try_settle(self) -> State | None:
        """One attempt; None when the switch has to be asked again."""
        self._close()
        connection = self._connection = self.context.connections.fresh(self.switch.name)
        now = eos.sessions(connection)
        if self.session in now.own():
            try:
                eos.abort_session(connection, self.session)
            except RefusedError as refused:
                self.context.journal.event(self.switch.name, "abort refused", answer=refused.answer)
                if now.armed != self.session:
                    self.warnings.append(
                        f"session {self.session} is left pending, since its abort was refused "
                        f"({refused.answer}); it changes nothing and expires after a day"
                    )
                else:
                    return None  # the timer does what the login may not
            now = eos.sessions(connection)
            if now.armed == self.session:
                return None
        return self._state_of(connection, eos.running_config(connection))

    def _late(self, text: str) -> Outcome:
        """The failure came after the switch had confirmed: keep it, and finish the job."""
        try:
            outcome = self._confirmed(self._require_connection())
        except SwitchError as error:
            return self._outcome(Result.NOT_SAVED, State.NEW, f"{text}; then {error.text}")
        self.warnings.append(f"the confirmation had arrived although: {text}")
        return replace(outcome, warnings=tuple(self.warnings))

    def _unreachable(self, text: str, reason: str) -> Outcome:
        if self._armed:
            text += (
                f"; the switch did not answer until after its commit timer ({reason}): it has "
                "gone back by itself unless the confirmation had arrived; run `railweld fabric "
                f"plan --limit {self.switch.name}` when it answers"
            )
            return self._outcome(Result.LOST, State.UNKNOWN, text)
        text += f"; session {self.session} may be left pending, which changes nothing ({reason})"
        return self._outcome(Result.LOST, State.OLD, text)

    def abandon(self, why: str) -> Outcome:
        """Go back because the other end of the link failed."""
        if not self._opened:
            return self._outcome(Result.SKIPPED, State.OLD, why)
        return self.settle(SwitchError(self.switch.name, why))

    def unchanged(self) -> Outcome:
        """Nothing to do on this switch."""
        self._keep()
        return self._outcome(Result.UNCHANGED, State.NEW)

    # -- details ---------------------------------------------------------------------------

    def _part(self, plan: Plan) -> Plan:
        return plan.part(stage=self.stage or None, ports=self.ports)

    def _set_paths(self) -> tuple[Path, ...]:
        return tuple(change.path for change in self._planned.changes if change.action == "set")

    def _remember(self, paths: Iterable[Path]) -> None:
        record_owned(self.context.fabric.site, self.switch.name, dict.fromkeys(paths))

    def _forget(self) -> None:
        """The push did not happen, so what was ours before is what is ours."""
        self._remember(self._seen.observed.previous)

    def _settle_owned(self, running: str) -> None:
        previous = (*self._seen.observed.previous, *self._set_paths())
        observed = Observed(running, self._seen.observed.maps, previous)
        whole = self.context.target(self.switch, self._seen.facts, observed)
        self._remember(previous if whole.changes else whole.wanted)

    def _state_of(self, connection: Connection, running: str) -> State:
        if eos.same_config(running, self.before):
            return State.OLD
        maps = eos.maps_in_effect(connection)
        observed = Observed(running, maps, owned(self.context.fabric.site, self.switch.name))
        whole = self.context.target(self.switch, self._seen.facts, observed)
        if not self._part(whole).changes:
            return State.NEW
        before = Observed(self.before, maps, observed.previous)
        then = self._part(self.context.target(self.switch, self._seen.facts, before))
        if then.changes == self._part(whole).changes:
            return State.OLD
        return State.CHANGED_BY_OTHERS

    def _guard_sessions(self, connection: Connection, *, but: str = "") -> None:
        """Refuse to work beside somebody else; clear what an earlier run of ours left."""
        now = eos.sessions(connection)
        if now.foreign():
            armed = f" ({now.armed} under a commit timer)" if now.armed in now.foreign() else ""
            raise SwitchError(
                self.switch.name,
                f"found open configuration sessions {', '.join(now.foreign())}{armed}, expected "
                "none but ours; let their owner commit or abort them (show configuration "
                "sessions detail)",
            )
        for name in now.own():
            if name != but:
                self.context.journal.event(self.switch.name, "reaping", session=name)
                eos.abort_session(connection, name)
                self.warnings.append(f"aborted session {name} of an earlier run")

    def _refuse_disruptive(self) -> None:
        if self._planned.disruptive and not self.context.settings.disruptive:
            texts = "; ".join(
                f"{change.sentence()} ({change.disruptive})" for change in self._planned.disruptive
            )
            raise SwitchError(
                self.switch.name,
                f"found changes that interrupt traffic: {texts}; run with --disruptive in a "
                "maintenance window",
            )

    def _refuse_miscabled(self, connection: Connection) -> None:
        """Both ends of a link change together, so the links must be the described ones."""
        if not self.context.live:
            return
        names = self.ports
        ports = [port for port in self.switch.ports if names is None or port.name in names]
        wrong = miscabled(connection, self.switch, ports)
        if wrong:
            raise SwitchError(self.switch.name, "; ".join(check.sentence() for check in wrong))

    def _refuse_loaded(self, earlier: eos.Counters) -> None:
        """PFC that starts on a port with lossless traffic may drop what is in flight."""
        if self.stage != 2 or self.context.settings.disruptive:
            return
        then, now = earlier.packets or {}, self._counters.packets or {}
        busy = [
            port for port in self._changed_ports() if now.get(port, 0) > then.get(port, 1 << 63)
        ]
        if busy:
            raise SwitchError(
                self.switch.name,
                f"found lossless traffic on {', '.join(busy)}, where PFC would change; run with "
                "--disruptive, or when the port is quiet",
            )

    def _changed_ports(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                change.path[0].removeprefix("interface ")
                for change in self._planned.changes
                if change.path[0].startswith("interface Ethernet")
            )
        )

    def _warn_unsaved(self, connection: Connection) -> None:
        startup = eos.startup_config(connection)
        if startup is not None and not eos.same_config(startup, self.before):
            self.warnings.append(
                "the running configuration had unsaved changes of somebody else; the save at the "
                "end includes them"
            )

    def _compare_foreign(self, now_observed: Observed) -> None:
        rendered = self._seen.plan
        ports = [port.name for port in self.switch.ports]
        scope = scope_of(rendered.wanted, ports, (*self._seen.observed.previous,
                         *(change.path for change in self._planned.changes)))  # fmt: skip
        then = set(foreign(self._seen.observed, scope))
        now = set(foreign(now_observed, scope))
        if then != now:
            lost = [" / ".join(path) for path in sorted(then - now)]
            gained = [" / ".join(path) for path in sorted(now - then)]
            raise VerificationError(
                self.switch.name,
                f"foreign lines changed with the commit (gone: {lost}, new: {gained}), expected "
                "them untouched",
            )

    def _count(self, connection: Connection) -> eos.Counters:
        ports = [port.name for port in self.switch.ports]
        return eos.counters(connection, ports, self.context.fabric.tuning.lossless.queue)

    @property
    def _planned(self) -> Plan:
        return _made(self.plan)

    @property
    def _seen(self) -> Look:
        return _made(self._look)

    def _require_connection(self) -> Connection:
        return _made(self._connection)

    def _say(self, what: str) -> None:
        self.context.progress(self.switch.name, what)

    def _keep(self) -> None:
        """Leave the connection, which is in order, to the next step on this switch."""
        if self._connection is not None:
            self.context.connections.keep(self.switch.name, self._connection)
            self._connection = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _outcome(self, result: Result, state: State, text: str = "") -> Outcome:
        self._close()
        outcome = Outcome(
            self.switch.name,
            result,
            state,
            text,
            changes=len(self.plan.changes) if self.plan else 0,
            warnings=tuple(dict.fromkeys(self.warnings)),
            stage=self.stage,
        )
        self.context.journal.event(
            self.switch.name, "ended", stage=self.stage, result=str(result), state=str(state),
            text=text, warnings=list(outcome.warnings),
        )  # fmt: skip
        self._say(str(result))
        return outcome


def transact(context: Context, step: Step, *, stage: int) -> list[Outcome]:
    """Run one step: all of its switches reach the new state, or all go back."""
    members = [
        Member(context, context.fabric.switch(name), stage=stage, ports=step.ports_of(name))
        for name in step.switches
    ]
    outcomes: dict[str, Outcome] = {}
    active: list[Member] = []
    current: Member | None = None
    try:
        for current in members:
            context.interrupt.check()
            if current.prepare():
                active.append(current)
            else:
                outcomes[current.switch.name] = current.unchanged()
        for phase in (Member.arm, Member.verify):
            for current in active:
                phase(current)
        for current in list(active):
            outcomes[current.switch.name] = current.confirm()
            active.remove(current)
    except Exception as error:  # noqa: BLE001 - whatever failed, the switches are settled first
        failed = current if current is not None else members[0]
        stopped = isinstance(error, StopRequestedError)
        outcomes[failed.switch.name] = failed.settle(error)
        for member in members:
            if member.switch.name not in outcomes:
                why = str(error) if stopped else f"the other end of the link failed: {error}"
                outcomes[member.switch.name] = member.abandon(why)
        _never_half_a_link(context, members, outcomes, stage)
    return [outcomes[name] for name in step.switches]


def _never_half_a_link(
    context: Context, members: Sequence[Member], outcomes: dict[str, Outcome], stage: int
) -> None:
    """Take an end back that was confirmed before the other one failed.

    PFC on one end only is worse than on none. Only when the other end is known to be old: of one
    that does not answer nobody knows whether the confirmation had arrived.
    """
    behind = [name for name, outcome in outcomes.items() if outcome.state is not State.NEW]
    known = all(outcomes[name].state is State.OLD for name in behind)
    for member in members:
        name = member.switch.name
        if not behind or outcomes[name].result not in _CHANGED:
            continue
        others = ", ".join(behind)
        failure = "" if known else "its state is not known"
        if known:
            back = _take_back(context, member, stage)
            if back.state is State.NEW:
                outcomes[name] = replace(
                    outcomes[name], result=Result.ROLLED_BACK, state=State.OLD,
                    text=f"the other end of the link ({others}) failed after this one was "
                    f"confirmed, so it was taken back{f'; {back.text}' if back.text else ''}",
                )  # fmt: skip
                continue
            failure = f"taking this end back failed: {back.text}"
        warning = (
            f"{others} did not follow, so this link may have PFC on one end only ({failure}); "
            "run the push again as soon as the reason is gone"
        )
        outcomes[name] = replace(outcomes[name], warnings=(*outcomes[name].warnings, warning))


def _take_back(context: Context, member: Member, stage: int) -> Outcome:
    """Give one switch what it had before the step, with all the safety of a push.

    Neither an interrupt nor traffic nor counters hold this up: half a link is what harms them.
    """
    name = member.switch.name
    context.journal.event(name, "taking back", stage=stage)
    before = target_from_backup(context.fabric, {name: member.before})
    settings = replace(context.settings, disruptive=True, observe_s=0.0)
    again = replace(
        context, target=before, settings=settings, interrupt=Interrupt(), live=False, counted=False
    )
    ports = None if member.ports is None else {name: member.ports}
    return transact(again, Step((name,), ports), stage=stage)[0]


@dataclass(frozen=True)
class Report:
    """All switches at the end of a push."""

    run: str
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """True when every switch is in the new state and saved."""
        return all(outcome.ok for outcome in self.outcomes)


def push(context: Context, plans: Mapping[str, Plan], *, stages: Sequence[int] = (1, 2)) -> Report:
    """Bring every planned switch to its target, pass by pass, batch by batch.

    Stops after the first round with a failure: what is done stays done and verified, what is not
    tried stays old, and running the same push again continues there.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in plans}
    waiting: list[tuple[int, Step]] = []  # not tried yet
    for stage in stages:
        waiting += [(stage, step) for step in _steps(context.fabric, plans, stage)]
    failed = False
    for stage in stages:
        steps = [step for of, step in waiting if of == stage]
        for group in rounds(
            steps, context.fabric, batch=context.settings.batch, canary=stage == stages[0]
        ):
            if failed or context.interrupt.is_set():
                break
            waiting = [(of, step) for of, step in waiting if not any(step is one for one in group)]
            for several in _together(context, group, stage):
                for outcome in several:
                    outcomes.setdefault(outcome.switch, []).append(outcome)
                    failed = failed or not outcome.ok
    final = tuple(
        _final(context, name, results, waits=_waits(name, plans.get(name), results, waiting))
        for name, results in outcomes.items()
    )
    for outcome in final:
        context.journal.finish(
            outcome.switch,
            before=str(State.OLD),
            after=str(outcome.state),
            result=str(outcome.result),
        )
    return Report(context.journal.run, final, context.interrupt.is_set())


def _steps(fabric: Fabric, plans: Mapping[str, Plan], stage: int) -> list[Step]:
    """The steps of a pass in which at least one end has something to change."""
    todo = [fabric.switch(name) for name, plan in plans.items() if plan.part(stage=stage).changes]
    if stage == 1:
        return switch_steps(todo)
    return [
        step
        for step in link_steps(fabric, [switch.name for switch in todo])
        if any(
            name in plans and plans[name].part(stage=2, ports=step.ports_of(name)).changes
            for name in step.switches
        )
    ]


def _waits(
    name: str,
    plan: Plan | None,
    results: Sequence[Outcome],
    waiting: Iterable[tuple[int, Step]],
) -> bool:
    """True when a step that has changes for this switch never got its turn."""
    for stage, step in waiting:
        if plan is None or name not in step.switches:
            continue
        changes = plan.part(stage=stage, ports=step.ports_of(name)).changes
        # Switch-wide lines stand in every step of a pass and are done with the first.
        begun = any(outcome.stage == stage for outcome in results)
        if any(not begun or change.path[0].startswith("interface ") for change in changes):
            return True
    return False


def _together(context: Context, group: Sequence[Step], stage: int) -> Iterable[list[Outcome]]:
    if len(group) == 1:
        return [transact(context, group[0], stage=stage)]
    with ThreadPoolExecutor(min(context.settings.jobs, len(group))) as pool:
        return list(pool.map(lambda step: transact(context, step, stage=stage), group))


def _final(context: Context, name: str, results: Sequence[Outcome], *, waits: bool) -> Outcome:
    """One outcome per switch from those of its steps: the first failure, else the last success."""
    warnings = tuple(dict.fromkeys(w for outcome in results for w in outcome.warnings))
    done = [outcome for outcome in results if outcome.result in _CHANGED]
    changes = sum(outcome.changes for outcome in done)
    reached = State.OLD
    if done:
        reached = State.FIRST_PASS if {o.stage for o in done} == {1} else State.PART
    bad = next((outcome for outcome in results if not outcome.ok), None)
    if bad is not None:
        state = bad.state
        if state is State.OLD or (state is State.NEW and waits):
            state = reached
        return replace(bad, state=state, changes=changes, warnings=warnings)
    if waits:
        return Outcome(name, Result.SKIPPED, reached, _why_skipped(context), changes, warnings)
    result = Result.PUSHED if done else Result.UNCHANGED
    return Outcome(name, result, State.NEW, "", changes, warnings)


def _why_skipped(context: Context) -> str:
    if context.interrupt.is_set():
        return "interrupted; run the push again to continue"
    return "stopped after an earlier failure; run the push again to continue"
