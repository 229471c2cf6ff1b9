"""The state of one switch: configurations, sessions, the commit timer, ports and counters.

Nothing here knows of SSH. Time comes from a monotonic function that is passed in, and what is
due is done when somebody looks (`tick`), so a test moves time instead of waiting for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from railweld.lab.veos.config import INTERFACE, Block, Echo, default_class, diff, render
from railweld.lab.veos.faults import Faults
from railweld.lab.veos.grammar import CliError
from railweld.lab.veos.platforms import (
    STRATA,
    Platform,
    Release,
    natural,
    platform,
    short_name,
)
from railweld.lab.veos.rules import TOP, Frame, Target, apply_line, expand_interfaces, load

SESSION_LIMIT: Final = "Maximum number of pending sessions has been reached"
MAX_OPEN_SESSIONS: Final = 5
MAX_SAVED_SESSIONS: Final = 1
SESSION_LIFE_S: Final = 24 * 3600.0
TRAFFIC_CLASSES: Final = range(8)


class ManualClock:
    """Time that only moves when told to."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        """The time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass
class Session:
    """A configuration session: a copy of the configuration, edited aside."""

    name: str
    config: Block
    user: str
    opened: float
    state: str = "pending"
    line: str = "vty2"
    users: set[int] = field(default_factory=set)
    #: What a mode still open holds back: by connection, the block as it was before.
    held: dict[int, tuple[str, Block | None]] = field(default_factory=dict)


@dataclass
class CommitTimer:
    """A commit that undoes itself."""

    session: str
    saved: Block = field(repr=False)
    expires: float


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What LLDP says of the far end of a port."""

    port: str
    device: str
    device_port: str
    description: str = ""


@dataclass
class PortCounters:
    """Counters of one port, per traffic class or queue where EOS counts so."""

    packets: Counter[int] = field(default_factory=Counter)
    octets: Counter[int] = field(default_factory=Counter)
    drops: Counter[int] = field(default_factory=Counter)
    ingress_drops: Counter[int] = field(default_factory=Counter)
    ecn: Counter[int] = field(default_factory=Counter)
    pfc_rx: Counter[int] = field(default_factory=Counter)
    pfc_tx: Counter[int] = field(default_factory=Counter)
    stuck: Counter[int] = field(default_factory=Counter)
    recovered: Counter[int] = field(default_factory=Counter)
    in_drops: int = 0
    pause_rx: int = 0
    pause_tx: int = 0


@dataclass
class Behaviour:
    """Switches between things that EOS does in one release or configuration and not another."""

    parent_fallback: bool = True
    error_suffix: bool = True
    hardware_text_dot: bool = True
    #: Characters of a session's name that the prompt shows: 6 in most captures, 10 in newer.
    prompt_session_chars: int = 6
    #: True prints commit timers the way 4.32 and newer do.
    timer_at_top_level: bool = False
    commit_by_epoch: bool = False
    lldp_ttl: int = 120


@dataclass(frozen=True, slots=True)
class Pfc:
    """The operational state of flow control on one port."""

    enabled: bool
    priorities: tuple[int, ...]
    active: bool
    watchdog: bool
    watchdog_active: bool


class Device:
    """A switch without its terminal lines."""

    def __init__(
        self,
        *,
        model: str = "DCS-7050CX3-32S",
        version: str = "4.30.5M",
        hostname: str = "leaf1",
        clock: Callable[[], float] = time.monotonic,
        startup: str = "",
        neighbours: Iterable[Neighbour] = (),
        echo: Echo | None = None,
        behaviour: Behaviour | None = None,
    ) -> None:
        self.platform: Platform = platform(model)
        self.release = Release.parse(version)
        self.clock = clock
        self.booted = clock() - 86_400.0
        self.agent_ready_at = self.booted
        self.echo = echo or Echo.of(self.platform, self.release)
        newer = self.release.at_least(4, 32)
        self.behaviour = behaviour or Behaviour(
            prompt_session_chars=10 if newer else 6, timer_at_top_level=newer
        )
        self.neighbours = {item.port: item for item in neighbours}
        self.interfaces = frozenset(self.platform.ports) | {"Management1"}
        self.counters = {name: PortCounters() for name in self.platform.ports}
        self.sessions: dict[str, Session] = {}
        self._timer: CommitTimer | None = None
        self.checkpoints: dict[str, tuple[float, Block]] = {}
        self.flash: dict[str, list[str]] = {}
        self.log: list[str] = []
        self.lock: tuple[str, int] | None = None
        self.faults = Faults(self)
        self._running = load(startup, self.target)
        self._running.lines["hostname"] = f"hostname {hostname}"
        self.startup_lines: list[str] = self.running_lines
        self._session_number = 0

    # ------------------------------------------------------------------ looking

    @property
    def target(self) -> Target:
        """What the grammar needs to know now."""
        return Target(
            self.platform, self.release, self.interfaces, self.clock() >= self.agent_ready_at
        )

    @property
    def top(self) -> tuple[Frame, ...]:
        """Configuration mode as it is entered."""
        return (TOP,)

    @property
    def hostname(self) -> str:
        """The configured name."""
        return self.running.lines.get("hostname", "hostname localhost").split()[1]

    @property
    def uptime(self) -> float:
        """Seconds since boot."""
        return self.clock() - self.booted

    @property
    def running(self) -> Block:
        """The running configuration."""
        self.tick()
        return self._running

    @property
    def running_lines(self) -> list[str]:
        """The running configuration as it is printed."""
        self.tick()
        return render(self._running, self.echo)

    @property
    def saved(self) -> bool:
        """Whether a reboot would bring the running configuration back."""
        return self.running_lines == self.startup_lines

    @property
    def pending_sessions(self) -> list[str]:
        """Names of sessions that hold uncommitted lines."""
        self.tick()
        return [name for name, item in self.sessions.items() if item.state == "pending"]

    @property
    def timer(self) -> CommitTimer | None:
        """The commit timer that runs, if one does."""
        self.tick()
        return self._timer

    @property
    def timer_left(self) -> float | None:
        """Seconds until the commit undoes itself; None when no timer runs."""
        self.tick()
        return None if self._timer is None else self._timer.expires - self.clock()

    def interface(self, name: str) -> Block:
        """The settings of a port in the running configuration."""
        return self.running.blocks.get(f"interface {name}") or Block(INTERFACE)

    def profile(self, name: str) -> Block | None:
        """The QoS profile that a port uses."""
        line = self.interface(name).lines.get("service-profile")
        return self.running.blocks.get(f"qos profile {line.split()[1]}") if line else None

    def heard(self, name: str) -> Neighbour:
        """The neighbour at the other end of a cabled port."""
        swapped = self.faults.held("cables-swapped")
        ports = swapped.ports() if swapped else ()
        if len(ports) == 2 and name in ports:
            return self.neighbours[ports[1 - ports.index(name)]]
        return self.neighbours[name]

    def link_up(self, name: str) -> bool:
        """A cabled port that is not shut down, and whose cable carries light."""
        shut = self.interface(name).lines.get("shutdown") == "shutdown"
        return name in self.neighbours and not shut and not self.faults.covers("line-down", name)

    def pfc(self, name: str) -> Pfc:
        """Flow control as the forwarding agent runs it, which is not what is configured."""
        lines: dict[str, str] = {}
        profile = self.profile(name)
        if profile is not None:
            lines.update(profile.lines)
        own = self.interface(name).lines
        lines.update({slot: text for slot, text in own.items() if slot.startswith("priority")})
        off = any(text == "priority-flow-control all off" for text in self.running.lines.values())
        enabled = lines.get("priority-flow-control") == "priority-flow-control on" and not off
        priorities = tuple(
            number
            for number in TRAFFIC_CLASSES
            if lines.get(f"priority-flow-control priority {number}", "").endswith("no-drop")
        )
        working = enabled and self.link_up(name) and self.clock() >= self.agent_ready_at
        watchdog = "priority-flow-control pause watchdog" in lines
        return Pfc(
            enabled=enabled,
            priorities=priorities if enabled else (),
            active=working and not self.faults.covers("pfc-inactive", name),
            watchdog=watchdog and enabled,
            watchdog_active=working
            and watchdog
            and not self.faults.covers("watchdog-inactive", name),
        )

    def watchdog_timers(self) -> dict[str, float]:
        """Timers as run: a polling interval above half of a timer is not obeyed."""
        prefix = "priority-flow-control pause watchdog default "
        lines = self.running.lines
        timers = {
            name: float(lines[prefix + name].split()[-1]) if prefix + name in lines else default
            for name, default in (("timeout", 1.0), ("recovery-time", 2.0))
        }
        wanted = lines.get(prefix + "polling-interval", "x 0.1").split()[-1]
        timers["polling-interval"] = min(float(wanted), min(timers.values()) / 2)
        return timers

    def watchdog_action(self) -> str:
        """What the watchdog does with a stuck queue."""
        line = self.running.lines.get("priority-flow-control pause watchdog action", "errdisable")
        return line.split()[-1]

    def queue_lines(self, port: str, queue: int) -> dict[str, str]:
        """Settings of one transmit queue: the profile's under the port's own."""
        lines: dict[str, str] = {}
        for block in (self.profile(port), self.interface(port)):
            for word in self.platform.queue_words - {"mc-tx-queue"}:
                child = block.blocks.get(f"{word} {queue}") if block is not None else None
                if child is not None:
                    lines.update(child.lines)
        return lines

    def traffic_class(self, dscp: int) -> int:
        """The class that the running map gives a DSCP."""
        line = self.running.lines.get(f"qos map dscp {dscp}")
        return int(line.split()[-1]) if line else default_class(dscp)

    def queue_of(self, traffic_class: int) -> int:
        """The transmit queue that the running map gives a traffic class."""
        line = self.running.lines.get(f"qos map tc {traffic_class} queue")
        return int(line.split()[-1]) if line else traffic_class

    def mmu_profile(self) -> str | None:
        """The MMU profile that is applied."""
        line = self.running.lines.get("platform trident mmu queue profile apply")
        return line.split()[-2] if line and self.platform.family in STRATA else None

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Do what became due: the commit timer, the life of forgotten sessions."""
        now = self.clock()
        if self._timer is not None and now >= self._timer.expires:
            self._roll_back()
            self.syslog(
                "CONFIG_REPLACE_SUCCESS", "User commit-timer replaced running configuration"
            )
        for name, session in list(self.sessions.items()):
            if session.state == "pending" and now - session.opened >= SESSION_LIFE_S:
                self.sessions.pop(name)

    def _roll_back(self) -> None:
        assert self._timer is not None
        self._running = self._timer.saved
        self.sessions.pop(self._timer.session, None)
        self._timer = None

    def expire_timer(self) -> None:
        """Let the commit timer run out now."""
        if self._timer is not None:
            self._timer.expires = self.clock()
        self.tick()

    def syslog(self, event: str, text: str) -> None:
        """Write a line to the log buffer."""
        self.log.append(f"{self.hostname} ConfigAgent: %SYS-5-{event}: {text}")

    # ------------------------------------------------------------------ sessions

    def open_session(self, name: str, user: str, connection: int, line: str) -> Session:
        """Open a session or come back to a pending one."""
        self.tick()
        session = self.sessions.get(name)
        if session is None:
            if len(self.pending_sessions) >= MAX_OPEN_SESSIONS:
                raise CliError(SESSION_LIMIT)
            session = Session(name, self._running.copy(), user, self.clock(), line=line)
            self.sessions[name] = session
        elif session.state != "pending":
            # unverified text
            raise CliError(f"% Cannot enter session {name} (session already {session.state})")
        session.users.add(connection)
        return session

    def new_session_name(self) -> str:
        """A name for a session opened without one."""
        self._session_number += 1
        return f"sess-{4711}--{id(self) % 1000000}-{self._session_number}"

    def commit(self, name: str, timer_s: float | None, user: str) -> None:
        """Commit a session, or confirm the commit that a timer would undo."""
        self.tick()
        session = self._session(name)
        if self._timer is not None:
            if self._timer.session != name:
                # The text is not public; only that it is refused is (napalm PR #1266).
                raise CliError(
                    f"% Cannot commit session {name}: "
                    f"commit timer of session {self._timer.session} is pending"
                )
            if timer_s is None:
                self._timer = None
                self._complete(session)
                self.syslog(
                    "CONFIG_SESSION_COMMIT_TIMER_CANCELED",
                    f"User {user} confirmed commit of configuration session {name}",
                )
            else:
                self._timer.expires = self.clock() + timer_s
            return
        if session.state != "pending":
            raise CliError(f"% Session {name} is already {session.state}")
        before = self._running
        self._checkpoint(before)
        self._running = session.config.copy()
        self.syslog(
            "CONFIG_SESSION_COMMIT_SUCCESS", f"User {user} committed configuration session {name}"
        )
        if timer_s is None:
            self._complete(session)
        else:
            self._timer = CommitTimer(name, before, self.clock() + timer_s)
            session.state = "committed"
            self.syslog(
                "CONFIG_SESSION_COMMIT_TIMER_STARTED",
                f"User {user} started commit timer of configuration session {name}",
            )
        self.faults.after_commit()

    def _complete(self, session: Session) -> None:
        session.state = "completed"
        done = [name for name, item in self.sessions.items() if item.state == "completed"]
        for name in done[: max(0, len(done) - MAX_SAVED_SESSIONS)]:
            if name != session.name:
                self.sessions.pop(name)

    def abort(self, name: str, user: str) -> None:
        """Drop a pending session, or undo a commit that its timer still guards."""
        self.tick()
        session = self._session(name)
        if self._timer is not None and self._timer.session == name:
            self._roll_back()
        elif session.state == "pending":
            self.sessions.pop(name)
        else:
            raise CliError(f"% Session {name} is already {session.state}")
        self.syslog("CONFIG_SESSION_ABORTED", f"User {user} aborted configuration session {name}")

    def _session(self, name: str) -> Session:
        try:
            return self.sessions[name]
        except KeyError:
            raise CliError(f"% Session {name} does not exist") from None

    def session_diff(self, name: str) -> list[str]:
        """What committing would change, without the mode that is still open."""
        session = self._session(name)
        shown = session.config
        if session.held:
            shown = shown.copy()
            for slot, before in session.held.values():
                if before is None:
                    shown.blocks.pop(slot, None)
                else:
                    shown.blocks[slot] = before
        return diff(self.running_lines, render(shown, self.echo), name)

    def clean(self, session: Session) -> None:
        """`rollback clean-config`: as out of the box."""
        session.config = load("", self.target)

    # ------------------------------------------------------------------ configuration

    def configure(
        self, config: Block, frames: tuple[Frame, ...], tokens: list[str]
    ) -> tuple[tuple[Frame, ...], str]:
        """Apply one line to a configuration; raises `CliError` when EOS would refuse it."""
        return apply_line(
            config, frames, tokens, self.target, fallback=self.behaviour.parent_fallback
        )

    def change_by_other(self, lines: Sequence[str]) -> None:
        """Somebody else configures the switch, past every session."""
        frames: tuple[Frame, ...] = (TOP,)
        for line in lines:
            depth = frames if line[:1].isspace() else (TOP,)
            frames, _ = apply_line(self._running, depth, line.split(), self.target, fallback=True)

    def save(self) -> None:
        """Make the running configuration survive a reboot."""
        self.startup_lines = self.running_lines

    def checkpoint(self, name: str) -> None:
        """Keep the running configuration under a name."""
        self.checkpoints[name] = (self.clock(), self._running.copy())

    def _checkpoint(self, config: Block) -> None:
        number = len(self.checkpoints)
        self.checkpoints[f"ckp-20240101-{number}"] = (self.clock(), config.copy())

    def restore(self, name: str) -> None:
        """Go back to a checkpoint at once."""
        if name not in self.checkpoints:
            raise CliError(f"% Checkpoint {name} not found")
        self._running = self.checkpoints[name][1].copy()

    def replace(self, lines: Sequence[str]) -> None:
        """`configure replace`: the whole configuration at once."""
        self._running = load("\n".join(lines), self.target)

    def reload(self) -> None:
        """Reboot: what was not saved is gone, and so are sessions, timer and checkpoints."""
        self._running = load("\n".join(self.startup_lines), self.target)
        self.sessions.clear()
        self.checkpoints.clear()
        self._timer = None
        self.lock = None
        self.booted = self.clock()
        for name in self.counters:
            self.counters[name] = PortCounters()

    def ports(self, text: str | None = None) -> list[str]:
        """Ports in order: all, or those that an operator names."""
        if text is None:
            return sorted(self.platform.ports, key=natural)
        return expand_interfaces(text, self.interfaces)

    def state(self) -> Mapping[str, object]:
        """Everything a test or an operator of the lab wants to see, JSON-safe."""
        return {
            "hostname": self.hostname,
            "model": self.platform.model,
            "version": self.release.text,
            "saved": self.saved,
            "running": self.running_lines,
            "startup": self.startup_lines,
            "sessions": {name: item.state for name, item in self.sessions.items()},
            "timer": None
            if self._timer is None
            else {"session": self._timer.session, "left_s": self.timer_left},
            "faults": self.faults.names(),
            "links": {
                short_name(port): item.device
                for port, item in self.neighbours.items()
                if not self.faults.covers("line-down", port)
            },
            "log": self.log[-20:],
        }
