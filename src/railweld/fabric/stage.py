"""The fabric stage as one object: what the command line and the playbook both call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from railweld.errors import RailweldError, UsageError
from railweld.fabric import eos, rules
from railweld.fabric.diff import Plan
from railweld.fabric.journal import Journal, backups_before, owned
from railweld.fabric.logins import login_from_variables
from railweld.fabric.model import Fabric, Switch, from_site
from railweld.fabric.push import (
    Clock,
    Context,
    Interrupt,
    Look,
    Progress,
    Report,
    Settings,
    SystemClock,
    Target,
    look,
    push,
    target_from_backup,
    target_of,
)
from railweld.fabric.transport import Connection, Connections, EosConnection, Login, SwitchError
from railweld.fabric.verify import all_checks, infiniband_checks
from railweld.record import Check, Status
from railweld.state import one_at_a_time

if TYPE_CHECKING:
    from railweld.site import RawInventory, Site

T = TypeVar("T")


@dataclass(frozen=True)
class Looked:
    """What looking at the switches gave: plans of those that answered, reasons of the others."""

    looks: Mapping[str, Look]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> dict[str, Plan]:
        """Plans that have changes."""
        return {name: seen.plan for name, seen in self.looks.items() if seen.plan.changes}


@dataclass(frozen=True)
class Drift:
    """How one switch departs from the description."""

    switch: str
    differences: tuple[str, ...]
    foreign: tuple[str, ...]
    unsaved: bool

    @property
    def clean(self) -> bool:
        """True when there is nothing to report."""
        return not (self.differences or self.foreign or self.unsaved)


class Stage:
    """All commands on the fabric of one site.

    Args:
        fabric: the description.
        logins: how to reach each switch.
        settings: options of a push.
        limit: switch names, patterns or groups; empty for all.
        connect: opens a connection; replaces netmiko in tests.
        clock: replaces the controller's clock in tests.
        progress: told what happens to which switch.
    """

    def __init__(
        self,
        fabric: Fabric,
        logins: Mapping[str, Login],
        *,
        settings: Settings | None = None,
        limit: Iterable[str] = (),
        connect: Callable[[Login], Connection] | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.fabric = fabric
        self.logins = logins
        self.settings = settings or Settings()
        self.switches = fabric.limited(limit)
        self.interrupt = Interrupt()
        self._connect = connect
        self._clock = clock or SystemClock()
        self._progress = progress
        self._journal: Journal | None = None
        if not self.switches and fabric.transport == "roce":
            known = ", ".join(switch.name for switch in fabric.switches) or "none"
            raise UsageError(
                f"--limit: found no switch for {', '.join(limit) or 'the site'}, expected one of "
                f"{known}"
            )

    def refuse_bad_description(self) -> tuple[rules.Finding, ...]:
        """Raise on errors of the description, before any connection; return the warnings."""
        found = rules.findings(self.fabric)
        errors = [finding for finding in found if finding.severity == "error"]
        if errors:
            raise RailweldError(
                "the fabric's description is refused:\n"
                + "\n".join(f"  {finding.sentence()}" for finding in errors)
            )
        return found

    def connect(self, name: str) -> Connection:
        """Open a fresh connection to a switch."""
        login = self.logins[name]
        if self._connect is not None:
            return self._connect(login)

        def transcript(text: str) -> None:
            if self._journal is not None:
                self._journal.said(name, text)

        return EosConnection(login, transcript=transcript)

    def looks(
        self, *, target: Target | None = None, extra: Iterable[str] = (),
        connections: Connections | None = None,
    ) -> Looked:  # fmt: skip
        """Read every switch and compare it with the target; nothing is changed.

        With `connections` they are kept there for what comes next.
        """
        self._refuse_infiniband()
        wanted = target or target_of(self.fabric)
        names = {switch.name for switch in self.switches} | set(extra)
        switches = [switch for switch in self.fabric.switches if switch.name in names]

        def one(switch: Switch) -> Look:
            connection = self.connect(switch.name)
            try:
                seen = look(connection, switch, wanted, owned(self.fabric.site, switch.name))
            except BaseException:
                connection.close()
                raise
            if connections is None:
                connection.close()
            else:
                connections.keep(switch.name, connection)
            return seen

        done, failures = self._each(switches, one)
        return Looked(done, failures)

    def push(
        self, approve: Callable[[Looked], bool], *, target: Target | None = None,
        stages: Sequence[int] = (1, 2), action: str = "push", live: bool = True,
    ) -> tuple[Looked, Report | None]:  # fmt: skip
        """Plan, ask, and change the switches. The report is None when nothing was to be done."""
        with one_at_a_time(self.fabric.site, "fabric push"):
            connections = Connections(self.connect)
            try:
                return self._push(approve, connections, target or target_of(self.fabric), stages,
                                  action=action, live=live)  # fmt: skip
            finally:
                connections.close()

    def _push(
        self, approve: Callable[[Looked], bool], connections: Connections, target: Target,
        stages: Sequence[int], *, action: str, live: bool,
    ) -> tuple[Looked, Report | None]:  # fmt: skip
        targets = [switch.name for switch in self.switches]
        peers = self._peers_outside(targets)
        seen = self.looks(target=target, extra=peers, connections=connections)
        failures = dict(seen.failures)
        mine = Looked({n: s for n, s in seen.looks.items() if n in targets}, failures)
        if failures:
            raise RailweldError(
                "no switch was changed, since not all could be read:\n"
                + "\n".join(f"  {text}" for text in failures.values())
            )
        self._refuse_half_links(seen, targets)
        if not mine.changed or not approve(mine):
            return mine, None
        self._journal = Journal(self.fabric.site, action=action)
        context = Context(
            self.fabric,
            connections,
            target,
            self.settings,
            self._journal,
            clock=self._clock,
            interrupt=self.interrupt,
            live=live,
        )
        if self._progress is not None:
            context.progress = self._progress
        plans = {name: look_.plan for name, look_ in mine.looks.items()}
        return mine, push(context, plans, stages=stages)

    def rollback(
        self, moment: str, approve: Callable[[Looked], bool]
    ) -> tuple[Looked, Report | None]:
        """Bring our lines back to what they were at a moment; foreign lines stay as they are.

        PFC goes first and link by link, then what it stood on.
        """
        backups = {
            name: text for name, (_, text) in backups_before(self.fabric.site, moment).items()
        }
        self.switches = tuple(switch for switch in self.switches if switch.name in backups)
        if not self.switches:
            raise UsageError(
                f"--to {moment}: found no backup from then or later of these switches, expected "
                "one for each; a switch that was not pushed since is in that state already"
            )
        target = target_from_backup(self.fabric, backups)
        return self.push(approve, target=target, stages=(2, 1), action="rollback", live=False)

    def verify(self) -> list[Check]:
        """Every check of every switch."""
        if self.fabric.transport == "infiniband":
            return infiniband_checks(self.fabric)
        target = target_of(self.fabric)

        def one(switch: Switch) -> list[Check]:
            connection = self.connect(switch.name)
            try:
                previous = owned(self.fabric.site, switch.name)
                seen = look(connection, switch, target, previous)
                return all_checks(connection, self.fabric, switch, seen.plan, seen.observed.running)
            finally:
                connection.close()

        done, failures = self._each(self.switches, one)
        checks = [check for several in done.values() for check in several]
        checks += [
            Check(
                id="fabric.reachable",
                layer="fabric",
                target=name,
                status=Status.UNKNOWN,
                ran="ssh",
                found=text,
                expected="an answer",
                fix="see the reason",
            )
            for name, text in failures.items()
        ]
        return checks

    def drift(self) -> tuple[list[Drift], Mapping[str, str]]:
        """Differences of each switch, and the reasons of those that could not be read."""
        self._refuse_infiniband()
        target = target_of(self.fabric)

        def one(switch: Switch) -> Drift:
            connection = self.connect(switch.name)
            try:
                seen = look(connection, switch, target, owned(self.fabric.site, switch.name))
                startup = eos.startup_config(connection)
                unsaved = startup is not None and not eos.same_config(
                    startup, seen.observed.running
                )
                changes = tuple(change.sentence() for change in seen.plan.changes)
                return Drift(switch.name, changes, seen.plan.conflicts, unsaved)
            finally:
                connection.close()

        done, failures = self._each(self.switches, one)
        return list(done.values()), failures

    def _each(
        self, switches: Sequence[Switch], one: Callable[[Switch], T]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Ask switches at the same time; a switch that fails does not stop the others."""
        failures: dict[str, str] = {}

        def guarded(switch: Switch) -> T | None:
            try:
                return one(switch)
            except (RailweldError, OSError) as error:
                failures[switch.name] = (
                    str(error) if isinstance(error, SwitchError) else f"{switch.name}: {error}"
                )
                return None

        with ThreadPoolExecutor(min(self.settings.jobs, len(switches)) or 1) as pool:
            answers = list(pool.map(guarded, switches))
        done = {
            switch.name: answer
            for switch, answer in zip(switches, answers, strict=True)
            if answer is not None
        }
        return done, failures

    def _refuse_infiniband(self) -> None:
        if self.fabric.transport == "infiniband":
            raise UsageError(
                f"{self.fabric.site}: found transport infiniband, expected roce: there is nothing "
                "to configure on the switches; `railweld fabric verify` says what is checked "
                "instead"
            )

    def _peers_outside(self, targets: Sequence[str]) -> set[str]:
        known = {switch.name for switch in self.fabric.switches}
        return {
            port.peer
            for switch in self.fabric.switches
            if switch.name in targets
            for port in switch.ports
            if port.kind == "uplink" and port.peer in known and port.peer not in targets
        }

    def _refuse_half_links(self, seen: Looked, targets: Sequence[str]) -> None:
        """PFC on one end only is worse than none: the other end would ignore the pause."""
        for name in targets:
            for port in self.fabric.switch(name).ports:
                peer = seen.looks.get(port.peer)
                if peer is None or port.peer in targets or not port.peer_port:
                    continue
                here = seen.looks[name].plan.part(stage=2, ports=[port.name]).changes
                there = peer.plan.part(stage=2, ports=[port.peer_port]).changes
                if here and there:
                    raise UsageError(
                        f"{name} {port.name}: found {port.peer} {port.peer_port} outside --limit "
                        "and without its PFC lines, expected both ends of a link to change "
                        f"together; add {port.peer} to --limit"
                    )


def stage_from_inventory(raw: RawInventory, **options: Any) -> Stage:
    """Build the stage from a loaded inventory; raises on a description that check refuses."""
    from railweld.site import SiteError, build_site  # noqa: PLC0415 - loads Ansible

    site, problems = build_site(raw)
    if site is None:
        raise SiteError(problems)
    return stage_of(site, raw, **options)


def stage_of(site: Site, raw: RawInventory, **options: Any) -> Stage:
    """Build the stage of a site; the inventory has the connection variables of its switches."""
    fabric = from_site(site)
    logins = {
        switch.name: login_from_variables(switch.name, raw.hosts[switch.name])
        for switch in fabric.switches
    }
    return Stage(fabric, logins, **options)
