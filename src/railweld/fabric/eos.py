"""What a switch says about itself: questions to a `Connection`, answers as plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from railweld.fabric.lines import leaves, parse
from railweld.fabric.transport import (
    LONG,
    Connection,
    RefusedError,
    SwitchError,
)

#: Start of every configuration session of ours; sessions without it belong to somebody else.
SESSION_PREFIX: Final = "railweld-"

_FEW_PORTS: Final = 40


@dataclass(frozen=True)
class Facts:
    """Model and release as the switch prints them."""

    model: str
    release: str


@dataclass(frozen=True)
class Sessions:
    """Configuration sessions: name to state, and the one whose commit timer runs."""

    states: Mapping[str, str]
    armed: str | None = None

    def open(self) -> tuple[str, ...]:
        """Sessions that hold uncommitted changes."""
        return tuple(name for name, state in self.states.items() if state == "pending")

    def foreign(self) -> tuple[str, ...]:
        """Open or armed sessions of somebody else."""
        busy = {*self.open(), *([self.armed] if self.armed else [])}
        return tuple(sorted(name for name in busy if not name.startswith(SESSION_PREFIX)))

    def own(self) -> tuple[str, ...]:
        """Open or armed sessions that an earlier run of ours left."""
        busy = {*self.open(), *([self.armed] if self.armed else [])}
        return tuple(sorted(name for name in busy if name.startswith(SESSION_PREFIX)))


def as_json(text: str) -> dict[str, Any] | None:
    """A JSON object, or None when the command has no JSON model and printed text instead."""
    try:
        loaded = json.loads(text)
    except ValueError:
        return None
    return loaded if isinstance(loaded, dict) else None


def ask_json(connection: Connection, command: str) -> dict[str, Any] | None:
    """`command | json`; None when it is refused, empty or has no JSON model."""
    try:
        return as_json(connection.run(f"{command} | json"))
    except RefusedError:
        return None


def ask(connection: Connection, command: str) -> str | None:
    """The text of a `show`; None when it is refused or empty, which is not the same as zero."""
    try:
        return connection.run(command) or None
    except RefusedError:
        return None


def facts(connection: Connection, switch: str) -> Facts:
    """Model and release; a switch that does not tell them is not touched."""
    answer = ask_json(connection, "show version")
    if not answer or not answer.get("modelName") or not answer.get("version"):
        raise SwitchError(
            switch, "found no model and version in `show version | json`, expected an EOS switch"
        )
    return Facts(str(answer["modelName"]), str(answer["version"]))


def running_config(connection: Connection) -> str:
    """The running configuration."""
    return connection.run("show running-config", patience=LONG)


def startup_config(connection: Connection) -> str | None:
    """The startup configuration, None when there is none."""
    return ask(connection, "show startup-config")


def sessions(connection: Connection) -> Sessions:
    """Sessions, from JSON where the release has it.

    Up to 4.31 a session under a timer reads `pendingCommitTimer`; since 4.32 it already reads
    `committed` and the timer stands at the top level.
    """
    answer = ask_json(connection, "show configuration sessions detail")
    if answer is None:
        return _sessions_from_text(connection.run("show configuration sessions detail"))
    states = {str(n): str(row.get("state", "")) for n, row in answer.get("sessions", {}).items()}
    armed = answer.get("commitTimerSessionName") or next(
        (name for name, state in states.items() if state == "pendingCommitTimer"), None
    )
    return Sessions(states, armed or None)


def _sessions_from_text(text: str) -> Sessions:
    states: dict[str, str] = {}
    armed = None
    for line in text.splitlines():
        timer = re.match(r"^Session with pending commit timer: (\S+)", line)
        if timer:
            armed = timer[1]
        row = re.match(
            r"^\s*\*?\s*(\S+)\s+(pendingCommitTimer|pending|completed|committed|aborted)\b", line
        )
        if row:
            states[row[1]] = row[2]
            armed = row[1] if row[2] == "pendingCommitTimer" else armed
    return Sessions(states, armed)


def abort_session(connection: Connection, name: str) -> None:
    """Drop a pending session, or roll back the one whose timer runs; the exec form always works."""
    connection.run(f"configure session {name} abort", patience=LONG)


def save(connection: Connection, switch: str) -> None:
    """Write the startup configuration; anything but EOS's own success text is a failure."""
    try:
        answer = connection.run("copy running-config startup-config", patience=LONG)
    except RefusedError as error:
        answer = error.answer
    if "Copy completed successfully" not in answer or "%" in answer:
        raise SwitchError(
            switch,
            f"found {answer.strip()[-200:] or 'no answer'} after the save, expected `Copy "
            "completed successfully`; the running configuration is right but a reboot would lose "
            "it: free flash space, then run `copy running-config startup-config`",
        )


def maps_in_effect(connection: Connection) -> frozenset[str] | None:
    """`qos map ...` lines in effect, from the tables of `show qos maps`; None if unreadable."""
    text = ask(connection, "show qos maps")
    return None if text is None else parse_maps(text)


def parse_maps(text: str) -> frozenset[str] | None:
    """Read the DSCP table (tens down, units across) and the traffic-class to queue table."""
    lines: set[str] = set()
    area = ""
    classes: list[int] = []
    for raw in text.splitlines():
        line = raw.strip().lower()
        if "map:" in line or line.endswith("map"):
            area = line
        row = re.match(r"^(\d)\s*:\s*((?:\d+\s*)+)$", line)
        if row and "dscp" in area and "tc" in area.replace("traffic-class", "tc"):
            for unit, value in enumerate(row[2].split()):
                dscp = int(row[1]) * 10 + unit
                if dscp < 64 and not area.startswith("tc"):
                    lines.add(f"qos map dscp {dscp} to traffic-class {int(value)}")
        head = re.match(r"^(?:tc|traffic-class)\s*:\s*((?:\d+\s*)+)$", line)
        if head:
            classes = [int(value) for value in head[1].split()]
        queues = re.match(r"^(?:uc-)?(?:tx-)?queue\s*:\s*((?:\d+\s*)+)$", line)
        if queues and classes:
            for number, value in zip(classes, queues[1].split(), strict=False):
                lines.add(f"qos map traffic-class {number} to tx-queue {int(value)}")
    return frozenset(lines) or None


@dataclass(frozen=True)
class Counters:
    """Counters of the fabric's ports at one moment; None means that they were not collected."""

    drops: Mapping[str, int] | None = None
    pauses: Mapping[str, int] | None = None
    ecn: Mapping[str, int | None] | None = None
    packets: Mapping[str, int] | None = None
    watchdog: Mapping[str, int] | None = None


def counters(connection: Connection, ports: Iterable[str], queue: int) -> Counters:
    """Drop, pause and ECN counters of these ports; drops and ECN of the lossless queue."""
    wanted = tuple(ports)
    drops, packets = _queue_counters(connection, wanted, queue)
    return Counters(
        drops=drops,
        pauses=_pauses(connection, wanted),
        ecn=_ecn_marks(connection, wanted, queue),
        packets=packets,
        watchdog=_watchdog_events(connection, wanted),
    )


def _queue_counters(
    connection: Connection, ports: tuple[str, ...], queue: int
) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    """Dropped and sent packets of one queue; Strata and Jericho print different trees."""
    answer = _of_ports(connection, ports, "counters queue detail")
    tree = (answer or {}).get("egressQueueCounters", {}).get("interfaces")
    if isinstance(tree, dict) and tree:
        drops, packets = {}, {}
        for port in ports:
            classes = tree.get(port, {}).get("ucastQueues", {}).get("trafficClasses", {})
            found = classes.get(f"TC{queue}")
            if found is not None:
                levels = found.get("dropPrecedences", {}).values()
                drops[port] = sum(int(level.get("droppedPackets", 0)) for level in levels)
                packets[port] = sum(int(level.get("enqueuedPackets", 0)) for level in levels)
        return drops or None, packets or None
    answer = _of_ports(connection, ports, "counters queue drops")
    tree = (answer or {}).get("interfaces")
    if isinstance(tree, dict) and tree:
        drops = {
            port: sum(
                int(part.get("countersSum", {}).get("droppedPackets", 0))
                for name, entry in tree[port].get("trafficClasses", {}).items()
                if queue in _classes_of(name)
                for part in (
                    entry.get("ingressVoqCounters", {}),
                    entry.get("egressQueueCounters", {}),
                )
            )
            for port in ports
            if port in tree
        }
        return drops or None, None
    return None, None


def _of_ports(connection: Connection, ports: tuple[str, ...], what: str) -> dict[str, Any] | None:
    """Ask for a few ports, else for all: all queues of a large switch are half a megabyte."""
    if 0 < len(ports) <= _FEW_PORTS and all(port.startswith("Ethernet") for port in ports):
        listed = ",".join(port.removeprefix("Ethernet") for port in ports)
        answer = ask_json(connection, f"show interfaces Ethernet{listed} {what}")
        if answer:
            return answer
    return ask_json(connection, f"show interfaces {what}")


def _classes_of(name: str) -> range:
    """`TC3` is one class, `TC0-5` are six that share a queue."""
    found = re.match(r"^TC(\d)(?:-(\d))?$", name)
    if not found:
        return range(0)
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def _pauses(connection: Connection, ports: tuple[str, ...]) -> dict[str, int] | None:
    answer = ask_json(connection, "show priority-flow-control counters")
    tree = (answer or {}).get("interfaceCounters")
    if not isinstance(tree, dict) or not tree:
        return None
    return {
        port: int(tree[port].get("rxFrames", 0)) + int(tree[port].get("txFrames", 0))
        for port in ports
        if port in tree
    }


def _ecn_marks(
    connection: Connection, ports: tuple[str, ...], queue: int
) -> dict[str, int | None] | None:
    answer = ask_json(connection, "show qos interfaces ecn counters queue")
    tree = (answer or {}).get("intfQueueCounters")
    if not isinstance(tree, dict) or not tree:
        return None
    marks: dict[str, int | None] = {}
    for port in ports:
        value = str(tree.get(port, {}).get("queueCounters", {}).get(str(queue), ""))
        if value:
            # A dash means that the switch does not count, which is not zero.
            marks[port] = int(value) if value.isdecimal() else None
    return marks or None


def _watchdog_events(connection: Connection, ports: tuple[str, ...]) -> dict[str, int] | None:
    """Times that the watchdog found a queue stuck; a port without events may not be listed."""
    command = "show priority-flow-control counters watchdog"
    tree = (ask_json(connection, command) or {}).get("interfaces")
    if isinstance(tree, dict):
        return {
            port: sum(
                int(queue.get("stuckCount", 0))
                for queue in tree.get(port, {}).get("txQueues", {}).values()
            )
            for port in ports
        }
    text = ask(connection, command)
    if text is None:
        return None
    events: dict[str, int] = {}
    for line in text.splitlines():
        # Port, queue, times stuck, times recovered.
        row = re.match(r"^\s*(Et\S+)\s+\S+\s+(\d+)\s+\d+\s*$", line)
        if row and long_name(row[1]) in ports:
            port = long_name(row[1])
            events[port] = events.get(port, 0) + int(row[2])
    return events


def long_name(port: str) -> str:
    """`Et1/1` and `Ethernet1/1` are one port."""
    return re.sub(r"^Et(?=\d)", "Ethernet", port)


def worse(before: Counters, after: Counters, *, pause_allowance: int = 0) -> tuple[str, ...]:
    """Counters that grew between two snapshots around a change, in the operator's words."""
    found: list[str] = []
    for name, old, new, allowance in (
        ("drops in the lossless queue", before.drops, after.drops, 0),
        ("PFC pause frames", before.pauses, after.pauses, pause_allowance),
        ("watchdog events", before.watchdog, after.watchdog, 0),
    ):
        if old is None or new is None:
            continue
        for port, value in sorted(new.items()):
            grown = value - old.get(port, 0)
            if grown > allowance:
                found.append(f"{port}: {name} rose by {grown}")
    return tuple(found)


@dataclass(frozen=True)
class Neighbour:
    """What LLDP hears on a port."""

    device: str
    port: str


@dataclass(frozen=True)
class PfcPort:
    """Operational PFC state of a port."""

    enabled: bool
    priorities: tuple[int, ...]
    active: bool
    note: str = ""


def neighbours(connection: Connection) -> dict[str, Neighbour] | None:
    """LLDP neighbours by port; None when LLDP could not be read."""
    answer = ask_json(connection, "show lldp neighbors")
    rows = (answer or {}).get("lldpNeighbors")
    if not isinstance(rows, list):
        return None
    return {
        str(row["port"]): Neighbour(
            str(row.get("neighborDevice", "")), str(row.get("neighborPort", ""))
        )
        for row in rows
        if "port" in row
    }


def ports_down(connection: Connection) -> frozenset[str] | None:
    """Ports without a link; None when that could not be read."""
    tree = (ask_json(connection, "show interfaces status") or {}).get("interfaceStatuses")
    if not isinstance(tree, dict):
        return None
    return frozenset(
        port for port, row in tree.items() if row.get("linkStatus", "connected") != "connected"
    )


def pfc_ports(connection: Connection) -> dict[str, PfcPort] | None:
    """PFC by port from `show priority-flow-control`; None when it was refused or empty."""
    text = ask(connection, "show priority-flow-control")
    if text is None:
        return None
    ports: dict[str, PfcPort] = {}
    for line in text.splitlines():
        row = re.match(r"^(E\S+\d)\s+(Yes|No)\s+((?:\d[\d,\s-]*)?)(Yes|No)\b\s*(.*)$", line.strip())
        if row:
            ports[long_name(row[1])] = PfcPort(
                row[2] == "Yes",
                _priorities(row[3]),
                row[4] == "Yes",
                row[5].strip(),
            )
    return ports


def _priorities(text: str) -> tuple[int, ...]:
    """Priorities, which have one digit each: `3 4`, `3,4`, `34` and `3-4` all say the same.

    No public output has several, and an additional one must be seen, whatever stands between.
    """
    found: set[int] = set()
    for first, last in re.findall(r"(\d)(?:\s*-\s*(\d))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def enter_session(connection: Connection, switch: str, name: str) -> None:
    """Open a configuration session; the prompt must show it, or lines would hit the exec mode."""
    connection.run(f"configure session {name}")
    if "(config-s-" not in connection.prompt:
        raise SwitchError(
            switch,
            f"found the prompt {connection.prompt!r} after opening session {name}, expected "
            "(config-s-...); nothing was sent",
        )


def watchdog_ports(connection: Connection) -> dict[str, bool] | None:
    """Whether the PFC watchdog works, by port; None when nothing tells.

    Newer releases print letters (`W` is the watchdog) in a status column, older ones have a
    column of their own.
    """
    text = ask(connection, "show priority-flow-control status")
    return None if text is None else parse_watchdog(text)


def parse_watchdog(text: str) -> dict[str, bool] | None:
    """Read either form of `show priority-flow-control status`."""
    found: dict[str, bool] = {}
    column: int | None = None
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0].split()[:1] == ["Port"]:
            column = next((n for n, cell in enumerate(cells) if "Watchdog" in cell), None)
            continue
        row = re.match(r"^(Et(?:hernet)?\d\S*)\s+((?:[EDAW]\s+)*)", line.strip())
        if not row:
            continue
        if column is not None and column < len(cells):
            found[long_name(row[1])] = cells[column].lower() in {"yes", "active", "enabled", "on"}
        elif row[2]:
            found[long_name(row[1])] = "W" in row[2].split()
    return found or None


def ecn_thresholds(text: str) -> dict[int, tuple[float, float]]:
    """Marking thresholds in KB by queue, from `show qos interfaces X ecn`."""
    factors = {"bytes": 0.001, "kbytes": 1, "kb": 1, "mbytes": 1000, "mb": 1000}
    rows: dict[int, tuple[float, float]] = {}
    for line in text.splitlines():
        row = re.match(r"^\s*(?:UC|TC)?(\d)\s+(\w+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)", line)
        if row and row[2].lower() in factors:
            factor = factors[row[2].lower()]
            rows[int(row[1])] = (float(row[3]) * factor, float(row[4]) * factor)
    return rows


def same_config(one: str, other: str) -> bool:
    """Two configurations with the same lines, whatever their comments say."""
    return one == other or leaves(parse(one)) == leaves(parse(other))
