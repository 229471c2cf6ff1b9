"""`show` commands: what a switch prints, as text and as JSON.

Shapes follow the fabric reference, sections 6 and 7, and ANTA's test data. Where EOS has no
JSON model the answer is its refusal, not an empty object. Tables whose layout no public
source gives (watchdog status, MMU status, ECN thresholds) carry the columns that the
reference names and are marked *layout unverified*.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from railweld.lab.veos.config import diff, render
from railweld.lab.veos.device import (
    MAX_OPEN_SESSIONS,
    MAX_SAVED_SESSIONS,
    TRAFFIC_CLASSES,
    Device,
)
from railweld.lab.veos.grammar import INVALID, UNAVAILABLE, Check, CliError, Grammar, Match
from railweld.lab.veos.platforms import STRATA, Family, natural, short_name

NO_MODEL: Final = "% This is an unconverted command"


@dataclass(frozen=True)
class Looking:
    """A show command being answered."""

    device: Device
    match: Match[View]
    connection: int
    session: str | None

    def ports(self) -> list[str]:
        """The ports asked for."""
        return self.device.ports(self.match.values.get("ports"))


@dataclass(frozen=True)
class View:
    """A show command: its text, and its JSON model where EOS has one."""

    text: Callable[[Looking], Iterable[str]]
    data: Callable[[Looking], object] | None = None


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, rule: bool = True
) -> list[str]:
    """Columns wide enough for their cells, two blanks apart, a rule below most headers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([len(title), *(len(row[index]) for row in cells)]) for index, title in enumerate(header)
    ]

    def fit(row: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()

    dashes = ["  ".join("-" * width for width in widths)] if rule else []
    return [fit(header), *dashes, *map(fit, cells)]


# --------------------------------------------------------------------------- system


def _mac(device: Device) -> str:
    number = sum(ord(letter) * (place + 7) for place, letter in enumerate(device.hostname))
    return f"444c.a8{number % 256:02x}.{number % 65536:04x}"


def _serial(device: Device) -> str:
    return f"LAB{sum(map(ord, device.hostname)) % 100000:08d}"


def _version_text(at: Looking) -> Iterable[str]:
    device = at.device
    minutes = int(device.uptime // 60)
    yield f"Arista {device.platform.model}"
    yield "Hardware version: 11.01"
    yield f"Serial number: {_serial(device)}"
    yield f"Hardware MAC address: {_mac(device)}"
    yield f"System MAC address: {_mac(device)}"
    yield ""
    yield f"Software image version: {device.release.text}"
    yield "Architecture: x86_64"
    yield f"Internal build version: {device.release.text}-33333333.4300F"
    yield "Internal build ID: 00000000-0000-4000-8000-000000000000"
    yield "Image format version: 3.0"
    yield "Image optimization: None"
    yield ""
    yield (f"Uptime: {minutes // 1440} days, {minutes // 60 % 24} hours and {minutes % 60} minutes")
    yield "Total memory: 8098984 kB"
    yield "Free memory: 5423432 kB"


def _version_data(at: Looking) -> object:
    device = at.device
    return {
        "mfgName": "Arista",
        "modelName": device.platform.model,
        "hardwareRevision": "11.01",
        "serialNumber": _serial(device),
        "hwMacAddress": _mac(device),
        "configMacAddress": "00:00:00:00:00:00",
        "systemMacAddress": _mac(device),
        "version": device.release.text,
        "architecture": "x86_64",
        "internalVersion": f"{device.release.text}-33333333.4300F",
        "internalBuildId": "00000000-0000-4000-8000-000000000000",
        "imageFormatVersion": "3.0",
        "imageOptimization": "None",
        "bootupTimestamp": time.time() - device.uptime,
        "uptime": round(device.uptime, 2),
        "memTotal": 8098984,
        "memFree": 5423432,
        "isIntlVersion": False,
    }


def _hostname_text(at: Looking) -> Iterable[str]:
    yield f"Hostname: {at.device.hostname}"
    yield f"FQDN:     {at.device.hostname}"


def _hostname_data(at: Looking) -> object:
    return {"hostname": at.device.hostname, "fqdn": at.device.hostname}


def _clock_text(_: Looking) -> Iterable[str]:
    yield time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime())
    yield "Timezone: UTC"
    yield "Clock source: local"


def _logging(at: Looking) -> Iterable[str]:
    yield "Syslog logging: enabled"
    yield "    Buffer logging: level debugging"
    yield ""
    yield "Log Buffer:"
    yield from at.device.log


def _errdisable(at: Looking) -> Iterable[str]:
    lines = at.device.running.lines
    interval = lines.get("errdisable recovery interval", "300").split()[-1]
    causes = sorted(
        slot.split()[-1] for slot in lines if re.fullmatch(r"errdisable recovery cause \S+", slot)
    )
    yield from table(
        ("Errdisable Reason", "Timer Status", "Timer Interval"),
        [(cause, "Enabled", interval) for cause in causes],
    )


# --------------------------------------------------------------------------- configuration


def _header(device: Device, command: str) -> list[str]:
    return [
        f"! Command: {command}",
        f"! device: {device.hostname} ({device.platform.model}, EOS-{device.release.text})",
    ]


def _sections(lines: list[str], wanted: Callable[[str], bool]) -> list[str]:
    """Whole blocks of which any line fits."""
    blocks: list[list[str]] = []
    for line in lines:
        if line in {"!", "end"}:
            continue
        if not line.startswith(" ") or not blocks:
            blocks.append([])
        blocks[-1].append(line)
    return [line for block in blocks if any(map(wanted, block)) for line in block]


def _running(at: Looking) -> Iterable[str]:
    lines = at.device.running_lines
    if pattern := at.match.values.get("pattern"):
        return _sections(lines, lambda line: re.search(pattern, line, re.IGNORECASE) is not None)
    if "ports" in at.match.values:
        headers = {f"interface {name}" for name in at.ports()}
        return _sections(lines, lambda line: line in headers)
    return [*_header(at.device, "show running-config"), *lines]


def _running_data(at: Looking) -> object:
    return {"header": [], "comments": [], "cmds": command_tree(at.device.running_lines)}


def command_tree(lines: list[str]) -> dict[str, Any]:
    """A configuration the way EOS's JSON nests it: a line holds None or the lines below."""
    top: dict[str, Any] = {}
    levels: list[tuple[int, dict[str, Any]]] = [(0, top)]
    last = ""
    for line in lines:
        text = line.strip()
        if text in {"!", "end", ""}:
            continue
        indent = len(line) - len(line.lstrip())
        while len(levels) > 1 and indent < levels[-1][0]:
            levels.pop()
        if indent > levels[-1][0] and last:
            below: dict[str, Any] = {}
            levels[-1][1][last] = {"comments": [], "cmds": below}
            levels.append((indent, below))
        levels[-1][1][text] = None
        last = text
    return top


def _startup(at: Looking) -> Iterable[str]:
    return [
        "! Command: show startup-config",
        "! Startup-config last modified at  Mon Jan  1 00:00:00 2024 by admin",
        _header(at.device, "")[1],
        *at.device.startup_lines,
    ]


def _running_diffs(at: Looking) -> Iterable[str]:
    lines = diff(at.device.startup_lines, at.device.running_lines, "x")
    if lines:
        lines[:2] = ["--- flash:/startup-config", "+++ system:/running-config"]
    return lines


def _session_name(at: Looking) -> str:
    name = at.match.values.get("name") or at.session
    if name is None:
        raise CliError("% Not in a configuration session")
    if name not in at.device.sessions:
        raise CliError(f"% Session {name} does not exist")
    return name


def _session_diffs(at: Looking) -> Iterable[str]:
    lock = at.device.lock
    if lock is not None and lock[1] != at.connection:
        raise CliError(f"% Configuration is locked by transaction {lock[0]}")
    return at.device.session_diff(_session_name(at))


def _session_config(at: Looking) -> Iterable[str]:
    return render(at.device.sessions[_session_name(at)].config, at.device.echo)


def _shown_state(device: Device, name: str) -> str:
    state = device.sessions[name].state
    timed = device.timer is not None and device.timer.session == name
    if timed and not device.behaviour.timer_at_top_level:
        return "pendingCommitTimer"
    return state


def _ago(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _sessions_text(at: Looking) -> Iterable[str]:
    device = at.device
    left = device.timer_left
    yield f"Maximum number of completed sessions: {MAX_SAVED_SESSIONS}"
    yield f"Maximum number of pending sessions: {MAX_OPEN_SESSIONS}"
    yield "Merge on commit is disabled"
    yield "Autosave to startup-config on commit is disabled"
    if device.behaviour.timer_at_top_level and device.timer is not None and left is not None:
        yield f"Session with pending commit timer: {device.timer.session}"
        yield f"Time left until commit timer expiry: in {_ago(left)}"
    yield ""
    rows = []
    for name, session in device.sessions.items():
        state = _shown_state(device, name)
        mark = "*" if name == at.session else " "
        inside = bool(session.users)
        remains = ""
        if state == "pendingCommitTimer" and left is not None:
            remains = f"{int(left) // 60}m{int(left) % 60}s"
        rows.append(
            (f"{mark} {name}", state, session.user if inside else "",
             session.line if inside else "", remains)
        )  # fmt: skip
    yield from table(("  Name", "State", "User", "Terminal", "Commit Time Left"), rows)


def _sessions_data(at: Looking) -> object:
    device = at.device
    left = device.timer_left
    sessions: dict[str, Any] = {}
    for name, session in device.sessions.items():
        entry: dict[str, Any] = {
            "state": _shown_state(device, name),
            "commitUser": session.user if session.state != "pending" else "",
            "description": "",
            "instances": {
                str(user): {
                    "user": session.user,
                    "terminal": session.line,
                    "currentTerminal": user == at.connection,
                }
                for user in session.users
            },
        }
        if entry["state"] == "pendingCommitTimer" and left is not None:
            entry["commitBy"] = _expiry(device, left)
        sessions[name] = entry
    data: dict[str, Any] = {
        "sessions": sessions,
        "maxSavedSessions": MAX_SAVED_SESSIONS,
        "maxOpenSessions": MAX_OPEN_SESSIONS,
        "mergeOnCommit": False,
        "saveToStartupConfigOnCommit": False,
    }
    if device.behaviour.timer_at_top_level and device.timer is not None and left is not None:
        data["commitTimerSessionName"] = device.timer.session
        data["commitTimerExpireTime"] = _expiry(device, left)
    return data


def _expiry(device: Device, left: float) -> float:
    """Counted from boot for some readers of EOS, from 1970 for others; both were seen."""
    start = time.time() if device.behaviour.commit_by_epoch else device.uptime
    return round(start + left, 2)


def _checkpoints(at: Looking) -> Iterable[str]:
    yield "Maximum number of checkpoints: 20"
    rows = [
        (name, f"{_ago(at.device.clock() - when)} ago", "admin")
        for name, (when, _) in at.device.checkpoints.items()
    ]
    yield from table(("Filename", "Date", "User"), rows)


def _checkpoints_data(at: Looking) -> object:
    return {
        "checkpoints": {
            name: {"fileDate": when, "fileUser": "admin"}
            for name, (when, _) in at.device.checkpoints.items()
        },
        "maxCheckpoints": 20,
    }


# --------------------------------------------------------------------------- flow control


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.1f}"


def _pfc_head(device: Device) -> Iterable[str]:
    timers = device.watchdog_timers()
    yield "The hardware supports PFC on priorities 0 1 2 3 4 5 6 7"
    yield "PFC receive processing is enabled on priorities 0 1 2 3 4 5 6 7"
    for name, value in timers.items():
        yield f"The PFC watchdog {name} is {_seconds(value)} second(s)"
    yield f"The PFC watchdog action is {device.watchdog_action()}"
    off = "priority-flow-control all off" in device.running.lines
    yield f"Global PFC : {'Disabled' if off else 'Enabled'}"
    yield ""


def _refuse_virtual(device: Device) -> None:
    if device.platform.virtual:
        raise CliError(UNAVAILABLE)


def _dcbx(device: Device, port: str) -> str:
    line = device.interface(port).lines.get("dcbx mode", "")
    return line.split()[-1] if line and not line.endswith("none") else ""


def _pfc_text(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    yield from _pfc_head(at.device)
    rows = []
    for port in at.ports():
        state = at.device.pfc(port)
        rows.append(
            (
                short_name(port),
                "Yes" if state.enabled else "No",
                " ".join(map(str, state.priorities)),
                "Yes" if state.active else "No",
                "" if _dcbx(at.device, port) else "DCBX disabled",
            )
        )
    yield from table(("Port", "Enabled", "Priorities", "Active", "Note"), rows)


def _pfc_status(at: Looking) -> Iterable[str]:
    """Layout unverified: flags as EOS's legend names them, then the watchdog per port."""
    _refuse_virtual(at.device)
    yield from _pfc_head(at.device)
    yield "E: PFC Enabled, D: PFC Disabled, A: PFC Active, W: PFC Watchdog Active"
    timers = at.device.watchdog_timers()
    rows = []
    for port in at.ports():
        state = at.device.pfc(port)
        flags = ["E" if state.enabled else "D"]
        flags += ["A"] if state.active else []
        flags += ["W"] if state.watchdog_active else []
        profile = at.device.profile(port)
        own = (profile.lines if profile else {}).get(
            "priority-flow-control pause watchdog port action", ""
        )
        action = own.split()[-1] if own else at.device.watchdog_action()
        rows.append(
            (
                short_name(port),
                " ".join(flags),
                " ".join(map(str, state.priorities)),
                action if state.watchdog else "-",
                *(_seconds(value) if state.watchdog else "-" for value in timers.values()),
                "" if _dcbx(at.device, port) else "DCBX disabled",
            )
        )
    yield from table(
        ("Port", "Status", "Priorities", "Action", "Timeout", "Recovery", "Polling", "Note"), rows
    )


def _pfc_counters(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    rows = [
        (short_name(port), sum(counters.pfc_rx.values()), sum(counters.pfc_tx.values()))
        for port, counters in _counted(at)
    ]
    return table(("Port", "RxPfc", "TxPfc"), rows)


def _pfc_counters_data(at: Looking) -> object:
    _refuse_virtual(at.device)
    return {
        "interfaceCounters": {
            port: {
                "rxFrames": sum(counters.pfc_rx.values()),
                "txFrames": sum(counters.pfc_tx.values()),
            }
            for port, counters in _counted(at)
        }
    }


def _pfc_counters_detail(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    rows = [
        (short_name(port), direction, *(counter[number] for number in TRAFFIC_CLASSES))
        for port, counters in _counted(at)
        for direction, counter in (("Rx", counters.pfc_rx), ("Tx", counters.pfc_tx))
    ]
    return table(("Port", "Dir", *(f"P{number}" for number in TRAFFIC_CLASSES)), rows)


def _watchdog_text(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    rows = [
        (short_name(port), f"UC{queue}", counters.stuck[queue], counters.recovered[queue])
        for port, counters in _counted(at)
        for queue in at.device.pfc(port).priorities
    ]
    return table(("Port", "TxQ", "Total times stuck", "Total times recovered"), rows)


def _watchdog_data(at: Looking) -> object:
    """A port appears only once something happened on it."""
    _refuse_virtual(at.device)
    return {
        "interfaces": {
            port: {
                "txQueues": {
                    str(queue): {
                        "stuckCount": counters.stuck[queue],
                        "recoveryCount": counters.recovered[queue],
                    }
                    for queue in sorted({*counters.stuck, *counters.recovered})
                }
            }
            for port, counters in _counted(at)
            if counters.stuck or counters.recovered
        }
    }


def _counted(at: Looking) -> list[tuple[str, Any]]:
    return [(p, at.device.counters[p]) for p in at.ports() if p in at.device.counters]


# --------------------------------------------------------------------------- QoS


def _trust(device: Device, port: str) -> tuple[str, str]:
    lines: dict[str, str] = {}
    profile = device.profile(port)
    for block in (profile, device.interface(port)):
        if block is not None and "qos trust" in block.lines:
            lines["trust"] = block.lines["qos trust"]
    routed = device.interface(port).lines.get("switchport") == "no switchport"
    line = lines.get("trust")
    if line is None:
        return ("DSCP" if routed else "COS", "DEFAULT")
    trust = "UNTRUSTED" if line.startswith("no ") else line.split()[-1].upper()
    return (trust, trust)


def _trust_text(at: Looking) -> Iterable[str]:
    rows = [(port, *_trust(at.device, port)) for port in at.ports()]
    yield from table(("Port", "Operational", "Configured"), rows)


def _maps(at: Looking) -> Iterable[str]:
    device = at.device
    yield "   Number of Traffic Classes supported: 8"
    yield "   Number of Transmit Queues supported: 8"
    lines = device.running.lines
    for what in ("cos", "dscp"):
        state = "Enabled" if f"qos rewrite {what}" in lines else "Disabled"
        yield f"   {what.capitalize()} Rewrite: {state}"
    yield ""
    yield "   Dscp-tc map:"
    yield "     d1 :  d2 0  1  2  3  4  5  6  7  8  9"
    yield "     --------------------------------------"
    for tens in range(7):
        row = [str(device.traffic_class(d)) for d in range(tens * 10, min(tens * 10 + 10, 64))]
        yield f"      {tens} :     " + "  ".join(row)
    yield ""
    word = "tx-queue" if device.platform.family is Family.SAND else "uc-tx-queue"
    yield f"   Tc - {word} map:"
    yield "     tc:        " + "  ".join(map(str, TRAFFIC_CLASSES))
    yield "     ---------------------------------"
    yield "     tx-queue:  " + "  ".join(str(device.queue_of(tc)) for tc in TRAFFIC_CLASSES)


def _profile_uses(device: Device) -> dict[str, list[str]]:
    uses: dict[str, list[str]] = {
        block.header.split()[-1]: []
        for block in device.running.blocks.values()
        if block.header.startswith("qos profile ")
    }
    for port in device.ports():
        line = device.interface(port).lines.get("service-profile")
        if line:
            uses.setdefault(line.split()[1], []).append(short_name(port))
    return uses


def _profile_text(at: Looking) -> Iterable[str]:
    name = at.match.values.get("name")
    lines = at.device.running_lines
    wanted = [name] if name else sorted(_profile_uses(at.device))
    headers = {f"qos profile {profile}" for profile in wanted}
    yield from _sections(lines, lambda line: line in headers)


def _profile_summary(at: Looking) -> Iterable[str]:
    for name, ports in sorted(_profile_uses(at.device).items()):
        yield f"Qos Profile: {name}"
        yield f"  Configured on: {','.join(ports) or 'None'}"


def _ecn_rows(device: Device, port: str) -> Iterable[tuple[str, ...]]:
    for queue in TRAFFIC_CLASSES:
        words = device.queue_lines(port, queue).get("random-detect ecn", "").split()
        if words:
            chance = words[words.index("max-mark-probability") + 1] if len(words) > 8 else "100"
            yield (str(queue), words[4], words[3], words[6], chance)


def _ecn_text(at: Looking) -> Iterable[str]:
    """Layout unverified beyond the four columns that are named."""
    _refuse_virtual(at.device)
    for port in at.ports():
        rows = list(_ecn_rows(at.device, port))
        if rows or "ports" in at.match.values:
            yield f"{port}:"
            yield from table(
                ("Tx-Queue", "Threshold Unit", "ECN Min", "ECN Max", "Max Mark Prob"), rows
            )
            yield ""


def _ecn_count(device: Device, port: str, queue: int) -> str:
    counts = "random-detect ecn count" in device.queue_lines(port, queue)
    if not counts or device.faults.covers("ecn-not-counting", port):
        return "-"
    return str(device.counters[port].ecn[queue])


def _ecn_counters_text(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    rows = [
        (short_name(port), *(_ecn_count(at.device, port, queue) for queue in TRAFFIC_CLASSES))
        for port, _ in _counted(at)
    ]
    return table(("Port", *(f"TxQ{queue}" for queue in TRAFFIC_CLASSES)), rows)


def _ecn_counters_data(at: Looking) -> object:
    _refuse_virtual(at.device)
    return {
        "intfQueueCounters": {
            port: {
                "queueCounters": {
                    str(queue): _ecn_count(at.device, port, queue) for queue in TRAFFIC_CLASSES
                }
            }
            for port, _ in _counted(at)
        }
    }


# --------------------------------------------------------------------------- interfaces


def _pause(device: Device, port: str) -> dict[str, object]:
    lines = device.interface(port).lines
    result: dict[str, object] = {}
    for direction, word in (("rx", "receive"), ("tx", "send")):
        admin = lines.get(f"flowcontrol {word}", "off").split()[-1]
        # PFC suspends 802.3x on the port, and gives it back when it goes.
        oper = "off" if device.pfc(port).enabled or not device.link_up(port) else admin
        result[f"{direction}AdminState"] = admin
        result[f"{direction}OperState"] = "on" if oper == "desired" else oper
    counters = device.counters.get(port)
    result["rxPause"] = counters.pause_rx if counters else 0
    result["txPause"] = counters.pause_tx if counters else 0
    return result


def _pause_text(at: Looking) -> Iterable[str]:
    rows = []
    for port in at.ports():
        values = _pause(at.device, port)
        rows.append(
            (short_name(port), values["txAdminState"], values["txOperState"],
             values["rxAdminState"], values["rxOperState"], values["rxPause"], values["txPause"])
        )  # fmt: skip
    return table(
        ("Port", "Send admin", "Send oper", "Receive admin", "Receive oper", "RxPause", "TxPause"),
        rows,
    )


def _pause_data(at: Looking) -> object:
    return {"interfaceFlowControls": {port: _pause(at.device, port) for port in at.ports()}}


def _queues_text(at: Looking) -> Iterable[str]:
    rows = [
        (short_name(port), counters.in_drops, sum(counters.drops.values()), 0)
        for port, counters in _counted(at)
    ]
    return table(("Port", "InDropPkts", "OutUcDropPkts", "OutMcDropPkts"), rows)


def _queues_precedence(at: Looking) -> Iterable[str]:
    rows = [(short_name(p), sum(c.drops.values()), 0, 0) for p, c in _counted(at)]
    return table(("Port", "DP0", "DP1", "DP2"), rows)


def _queues_detail(at: Looking) -> Iterable[str]:
    rows = [
        (short_name(port), f"UC{queue}", counters.packets[queue], counters.octets[queue],
         counters.drops[queue], counters.drops[queue] * 4096)
        for port, counters in _counted(at)
        for queue in TRAFFIC_CLASSES
    ]  # fmt: skip
    return table(("Port", "TxQ", "Counter/pkts", "Counter/bytes", "Drop/pkts", "Drop/bytes"), rows)


def _precedence(counters: Any, queue: int) -> dict[str, object]:
    return {
        "enqueuedPackets": counters.packets[queue],
        "enqueuedBytes": counters.octets[queue],
        "droppedPackets": counters.drops[queue],
        "droppedBytes": counters.drops[queue] * 4096,
    }


def _queues_detail_data(at: Looking) -> object:
    return {
        "egressQueueCounters": {
            "interfaces": {
                port: {
                    "ucastQueues": {
                        "trafficClasses": {
                            f"TC{queue}": {"dropPrecedences": {"DP0": _precedence(counters, queue)}}
                            for queue in TRAFFIC_CLASSES
                        }
                    },
                    "mcastQueues": {"trafficClasses": {}},
                }
                for port, counters in _counted(at)
            }
        }
    }


def _voq_rows(at: Looking, counters: Any) -> list[tuple[str, int, int]]:
    if at.device.faults.held("class-ranges"):
        low, high = range(6), range(6, 8)
        return [
            (f"TC{part[0]}-{part[-1]}", sum(counters.ingress_drops[tc] for tc in part),
             sum(counters.drops[tc] for tc in part))
            for part in (low, high)
        ]  # fmt: skip
    return [(f"TC{tc}", counters.ingress_drops[tc], counters.drops[tc]) for tc in TRAFFIC_CLASSES]


def _drops_text(at: Looking) -> Iterable[str]:
    if at.device.platform.family is not Family.SAND:
        raise CliError(UNAVAILABLE)
    rows = [
        (short_name(port), *row) for port, counters in _counted(at)
        for row in _voq_rows(at, counters)
    ]  # fmt: skip
    return table(("Port", "TC", "Ingress VOQ drops", "Egress queue drops"), rows)


def _drops_data(at: Looking) -> object:
    if at.device.platform.family is not Family.SAND:
        raise CliError(UNAVAILABLE)

    def counted(dropped: int) -> dict[str, object]:
        return {"countersSum": {"droppedPackets": dropped, "droppedBytes": dropped * 4096}}

    return {
        "interfaces": {
            port: {
                "trafficClasses": {
                    name: {
                        "ingressVoqCounters": counted(ingress),
                        "egressQueueCounters": counted(egress),
                    }
                    for name, ingress, egress in _voq_rows(at, counters)
                }
            }
            for port, counters in _counted(at)
        }
    }


def _mtu(device: Device, port: str) -> int:
    lines = device.interface(port).lines
    switched = lines.get("switchport") != "no switchport" and "mtu" not in lines
    return int(lines.get("mtu", "mtu 9214" if switched else "mtu 1500").split()[-1])


def _speed(port: str) -> int:
    return 100_000_000_000 if "/" in port else 10_000_000_000


def _link(device: Device, port: str) -> str:
    if device.interface(port).lines.get("shutdown") == "shutdown":
        return "disabled"
    return "connected" if device.link_up(port) else "notconnect"


def _description(device: Device, port: str) -> str:
    return device.interface(port).lines.get("description", "").removeprefix("description ")


def _status_text(at: Looking) -> Iterable[str]:
    rows = []
    for port in at.ports():
        routed = at.device.interface(port).lines.get("switchport") == "no switchport"
        rows.append(
            (short_name(port), _description(at.device, port), _link(at.device, port),
             "routed" if routed else "1", "full", f"{_speed(port) // 10**9}G", "100GBASE-CR4")
        )  # fmt: skip
    header = ("Port", "Name", "Status", "Vlan", "Duplex", "Speed", "Type")
    return table(header, rows, rule=False)


def _status_data(at: Looking) -> object:
    return {
        "interfaceStatuses": {
            port: {
                "description": _description(at.device, port),
                "linkStatus": _link(at.device, port),
                "lineProtocolStatus": "up" if at.device.link_up(port) else "down",
                "duplex": "duplexFull",
                "bandwidth": _speed(port),
                "interfaceType": "100GBASE-CR4",
                "autoNegotiateActive": False,
            }
            for port in at.ports()
        }
    }


def _interfaces_text(at: Looking) -> Iterable[str]:
    for port in at.ports():
        up = at.device.link_up(port)
        state = "up, line protocol is up (connected)" if up else "down, line protocol is down"
        yield f"{port} is {state}"
        yield f"  Hardware is Ethernet, address is {_mac(at.device)} (bia {_mac(at.device)})"
        if text := _description(at.device, port):
            yield f"  Description: {text}"
        yield f"  Ethernet MTU {_mtu(at.device, port)} bytes, BW {_speed(port) // 1000} kbit"


def _interfaces_data(at: Looking) -> object:
    return {
        "interfaces": {
            port: {
                "name": port,
                "description": _description(at.device, port),
                "interfaceStatus": _link(at.device, port),
                "lineProtocolStatus": "up" if at.device.link_up(port) else "down",
                "mtu": _mtu(at.device, port),
                "bandwidth": _speed(port),
            }
            for port in at.ports()
        }
    }


# --------------------------------------------------------------------------- MMU, DCBX, LLDP


def _mmu(at: Looking) -> Iterable[str]:
    """Layout unverified."""
    if at.device.platform.family not in STRATA:
        raise CliError(UNAVAILABLE)
    applied = at.device.mmu_profile()
    yield f"Hardware Profile : {applied or 'default'}"
    pool = at.device.running.lines.get("platform trident mmu headroom-pool")
    if pool:
        yield f"Headroom pool limit : {' '.join(pool.split()[-2:])}"
    for block in at.device.running.blocks.values():
        if block.header == f"platform trident mmu queue profile {applied}":
            yield from block.lines.values()


def _dcbx_text(at: Looking) -> Iterable[str]:
    _refuse_virtual(at.device)
    for port in at.ports():
        if mode := _dcbx(at.device, port):
            yield f"{port}:"
            yield f"  DCBX mode: {mode.upper()}"
            yield "  Priority flow control: local configured, remote not available"


def _lldp_rows(device: Device) -> list[tuple[str, Any]]:
    return [
        (port, device.heard(port))
        for port in sorted(device.neighbours, key=natural)
        if device.link_up(port)
        and "lldp receive" not in device.interface(port).lines
        and device.running.lines.get("lldp run") != "no lldp run"
    ]


def _lldp_text(at: Looking) -> Iterable[str]:
    yield "Last table change time   : 0:10:00 ago"
    yield f"Number of table inserts  : {len(at.device.neighbours)}"
    yield "Number of table deletes  : 0"
    yield "Number of table drops    : 0"
    yield "Number of table age-outs : 0"
    yield ""
    rows = [
        (short_name(port), item.device, item.device_port, at.device.behaviour.lldp_ttl)
        for port, item in _lldp_rows(at.device)
    ]
    yield from table(("Port        ", "Neighbor Device ID", "Neighbor Port ID", "TTL"), rows)


def _lldp_data(at: Looking) -> object:
    return {
        "tablesLastChangeTime": time.time() - 600,
        "tablesAgeOuts": 0,
        "tablesInserts": len(at.device.neighbours),
        "tablesDeletes": 0,
        "tablesDrops": 0,
        "lldpNeighbors": [
            {
                "port": port,
                "neighborDevice": item.device,
                "neighborPort": item.device_port,
                "ttl": at.device.behaviour.lldp_ttl,
            }
            for port, item in _lldp_rows(at.device)
        ],
    }


def _lldp_detail(at: Looking) -> Iterable[str]:
    for port, item in _lldp_rows(at.device):
        yield f"Interface {port} detected 1 LLDP neighbors:"
        yield ""
        yield f"  Neighbor {item.device}/{item.device_port}, age 10 seconds"
        yield "    - Port ID type: Interface name (5)"
        yield f'      Port ID     : "{item.device_port}"'
        yield f'    - System Name: "{item.device}"'
        yield f'    - System Description: "{item.description}"'
        yield ""


def _lldp_detail_data(at: Looking) -> object:
    return {
        "lldpNeighbors": {
            port: {
                "lldpNeighborInfo": [
                    {
                        "systemName": item.device,
                        "systemDescription": item.description,
                        "neighborInterfaceInfo": {
                            "interfaceIdType": "interfaceName",
                            "interfaceId": f'"{item.device_port}"',
                            "interfaceId_v2": item.device_port,
                        },
                        "ttl": at.device.behaviour.lldp_ttl,
                    }
                ]
            }
            for port, item in _lldp_rows(at.device)
        }
    }


# --------------------------------------------------------------------------- the commands


def _ports(word: str) -> str | None:
    return word if re.match(r"(?i)(et|ma|po|lo|vl)[a-z-]*\d", word) else None


_TYPES: Final[dict[str, Check]] = {"ports": _ports}


@cache
def _grammar() -> Grammar[View]:
    grammar: Grammar[View] = Grammar(_TYPES)
    add = grammar.add
    add("version", View(_version_text, _version_data))
    add("hostname", View(_hostname_text, _hostname_data))
    add("clock", View(_clock_text))
    add("logging", View(_logging))
    add("errdisable recovery", View(_errdisable))
    add("running-config [all|sanitized]", View(_running, _running_data))
    add("running-config section <pattern:line>", View(_running))
    add("running-config interfaces <ports:ports>", View(_running))
    add("running-config diffs", View(_running_diffs))
    add("startup-config", View(_startup))
    add("session-config", View(_session_config))
    add("session-config diffs", View(_session_diffs))
    add("session-config named <name>", View(_session_config))
    add("session-config named <name> diffs", View(_session_diffs))
    add("configuration sessions [detail]", View(_sessions_text, _sessions_data))
    add("configuration checkpoints", View(_checkpoints, _checkpoints_data))
    for where in ("priority-flow-control", "priority-flow-control interfaces <ports:ports>"):
        add(where, View(_pfc_text))
        add(f"{where} status", View(_pfc_status))
        add(f"{where} counters", View(_pfc_counters, _pfc_counters_data))
        add(f"{where} counters detail", View(_pfc_counters_detail))
        add(f"{where} counters watchdog", View(_watchdog_text, _watchdog_data))
    add("qos interfaces [<ports:ports>] trust", View(_trust_text))
    add("qos interfaces [<ports:ports>] ecn", View(_ecn_text))
    add("qos interfaces [<ports:ports>] ecn counters queue",
        View(_ecn_counters_text, _ecn_counters_data))  # fmt: skip
    add("qos maps", View(_maps))
    add("qos profile", View(_profile_text))
    add("qos profile summary", View(_profile_summary))
    add("qos profile <name>", View(_profile_text))
    add("interfaces [<ports:ports>]", View(_interfaces_text, _interfaces_data))
    add("interfaces [<ports:ports>] status", View(_status_text, _status_data))
    add("interfaces [<ports:ports>] (flow-control|flowcontrol)", View(_pause_text, _pause_data))
    queue = "interfaces [<ports:ports>] counters queue"
    add(queue, View(_queues_text, _queues_detail_data))
    add(f"{queue} detail", View(_queues_detail, _queues_detail_data))
    add(f"{queue} drop-precedence", View(_queues_precedence))
    add(f"{queue} drops", View(_drops_text, _drops_data))
    add("platform trident mmu queue status", View(_mmu))
    add("dcbx [<ports:ports>]", View(_dcbx_text))
    add("lldp neighbors", View(_lldp_text, _lldp_data))
    add("lldp neighbors detail", View(_lldp_detail, _lldp_detail_data))
    return grammar


def _joined(tokens: list[str]) -> list[str]:
    """`Ethernet 1/1` is one word."""
    out: list[str] = []
    for token in tokens:
        before = out[-1] if out else ""
        if token[:1].isdecimal() and re.fullmatch(r"(?i)(et|ethernet|management|ma)", before):
            out[-1] = before + token
        else:
            out.append(token)
    return out


def show(device: Device, command: str, *, connection: int = 0, session: str | None = None) -> str:
    """Answer `show ...` without its first word, pipes included; raises `CliError`."""
    parts = [part.strip() for part in command.split("|")]
    tokens = _joined(parts[0].split())
    match = _grammar().match(tokens, offset=1)
    device.tick()
    at = Looking(device, match, connection, session)
    filters = parts[1:]
    if filters and filters[0] == "json":
        if match.rule.data is None:
            raise CliError(NO_MODEL)
        return json.dumps(match.rule.data(at), indent=4)
    lines = list(match.rule.text(at))
    for wanted in filters:
        lines = _filter(lines, wanted)
    return "\n".join(lines)


def _filter(lines: list[str], wanted: str) -> list[str]:
    word, _, pattern = wanted.partition(" ")
    pattern = pattern.strip()
    if "no-more".startswith(word) or word == "nz":
        return lines
    keep = re.compile(pattern or ".", re.IGNORECASE)
    if "include".startswith(word) or word == "grep":
        return [line for line in lines if keep.search(line)]
    if "exclude".startswith(word):
        return [line for line in lines if not keep.search(line)]
    if "section".startswith(word):
        return _sections(lines, lambda line: keep.search(line) is not None)
    if "begin".startswith(word):
        start = next((n for n, line in enumerate(lines) if keep.search(line)), len(lines))
        return lines[start:]
    raise CliError(INVALID)
