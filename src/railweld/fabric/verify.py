"""What the switches do, read back and judged: one check record per question and port.

Configured is not active, so the operational state decides. What a switch refuses to show or
shows empty is `unknown`, never zero and never good.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from railweld.errors import RailweldError
from railweld.fabric import eos, platforms
from railweld.fabric.diff import Plan
from railweld.fabric.lines import key, settings
from railweld.fabric.model import Fabric, Port, Switch
from railweld.fabric.transport import Connection
from railweld.record import Check, Status, judge

LAYER = "fabric"
_EOS_MTU = "1500"  #: in force on a port without an `mtu` line
_REF = "docs/fabric.md"
#: What LLDP hears on a port that is silent.
NOBODY = "no neighbour"


def _check(id_: str, target: str, ok: bool, *texts: object, warn: bool = False) -> Check:
    """A record from (ran, found, expected, fix)."""
    ran, found, expected, fix = texts
    check = judge(
        id=f"fabric.{id_}", layer=LAYER, target=target, ok=ok, ran=str(ran), found=found,
        expected=expected, fix=str(fix), ref=_REF,
    )  # fmt: skip
    if warn and not ok:
        return Check(**{**check.__dict__, "status": Status.WARN})
    return check


def _unknown(id_: str, target: str, ran: str, expected: object) -> Check:
    return Check(
        id=f"fabric.{id_}",
        layer=LAYER,
        target=target,
        status=Status.UNKNOWN,
        ran=ran,
        found="not collected: the switch refused the command or printed nothing that can be read",
        expected=str(expected),
        fix="run the command by hand on the switch and compare",
        ref=_REF,
    )


def live_checks(
    connection: Connection,
    fabric: Fabric,
    switch: Switch,
    *,
    stage: int = 0,
    ports: Iterable[str] | None = None,
    settled: Plan | None = None,
) -> list[Check]:
    """Checks of one switch during a push: only what this pass and these ports promise.

    What cannot be read does not hold a push up, except for PFC itself: without knowing that it
    is active, a lossless class is a guess. On a port without a link PFC cannot be active yet,
    which is worth a warning and no more: nodes are off while a fabric is built.
    """
    names = None if ports is None else frozenset(ports)
    chosen = [port for port in switch.ports if names is None or port.name in names]
    found: list[Check] = []
    if stage in (0, 1):
        found += map_checks(connection, fabric, switch, settled)
        found += ecn_checks(connection, fabric, switch, chosen[:1])
        found += flow_control_checks(connection, switch, chosen)
    if stage in (0, 2):
        # Where that cannot be read, nothing is excused.
        down = eos.ports_down(connection) or frozenset()
        up = [port for port in chosen if port.name not in down]
        found += pfc_checks(connection, fabric, switch, up)
        found += watchdog_checks(connection, switch, up)
        found += [_down(switch, port) for port in chosen if port.name in down]
    return [
        check for check in found if check.status is not Status.UNKNOWN or check.id == "fabric.pfc"
    ]


def _down(switch: Switch, port: Port) -> Check:
    return Check(
        id="fabric.link",
        layer=LAYER,
        target=f"{switch.name} {port.name}",
        status=Status.WARN,
        ran="show interfaces status",
        found="no link, so PFC could not be seen in operation",
        expected=f"a link to {port.peer}",
        fix="railweld fabric verify when the other end is up",
        ref=_REF,
    )


def miscabled(connection: Connection, switch: Switch, ports: Iterable[Port]) -> list[Check]:
    """Ports whose neighbour is another one than described; a silent port is no proof."""
    return [
        check
        for check in lldp_checks(connection, switch, ports)
        if check.status is Status.FAIL and check.found != NOBODY
    ]


def all_checks(
    connection: Connection, fabric: Fabric, switch: Switch, plan: Plan, running: str
) -> list[Check]:
    """Every check of one switch for `railweld fabric verify`."""
    facts = eos.facts(connection, switch.name)
    ports = list(switch.ports)
    return [
        *release_checks(switch, facts),
        *config_checks(switch, plan),
        *mtu_checks(fabric, switch, running),
        *map_checks(connection, fabric, switch, plan),
        *trust_checks(connection, switch, ports),
        *pfc_checks(connection, fabric, switch, ports),
        *watchdog_checks(connection, switch, ports),
        *ecn_checks(connection, fabric, switch, ports),
        *flow_control_checks(connection, switch, ports),
        *counter_checks(connection, fabric, switch, ports),
        *link_checks(connection, switch, ports),
        *lldp_checks(connection, switch, ports),
    ]


def release_checks(switch: Switch, facts: eos.Facts) -> Iterator[Check]:
    """Model and release against the description and the platform data."""
    ran = "show version"
    try:
        said = platforms.platform_for(switch.model)
        found = platforms.platform_for(facts.model)
        same = (said.family, said.chip) == (found.family, found.chip)
    except RailweldError:
        same = False
    yield _check(
        "model", switch.name, same, ran, facts.model, switch.model,
        "correct railweld_switch_model, or ansible_host if this is another switch",
    )  # fmt: skip
    verdict, why = platforms.release_verdict(facts.release)
    bad = platforms.release_findings(facts.model, facts.release)
    yield _check(
        "release", switch.name, verdict == "ok" and not bad, ran, facts.release,
        f"a tested release of switch_configs/platforms.yml{f' ({why})' if why else ''}",
        "; ".join(text for _, text in bad) or "update EOS, or test this release and list it",
        warn=verdict == "untested" and not bad,
    )  # fmt: skip
    if switch.eos_version:
        yield _check(
            "release_described", switch.name, facts.release.startswith(switch.eos_version), ran,
            facts.release, switch.eos_version, "correct railweld_eos_version or update the switch",
            warn=True,
        )  # fmt: skip


def config_checks(switch: Switch, plan: Plan) -> Iterator[Check]:
    """The running configuration means what the description says: switch-wide, and per port."""
    changes: defaultdict[str, list[str]] = defaultdict(list)
    for change in plan.changes:
        port = change.path[0].removeprefix("interface ")
        target = f"{switch.name} {port}" if switch.port(port) else switch.name
        changes[target].append(change.sentence())
    for target in (switch.name, *(f"{switch.name} {port.name}" for port in switch.ports)):
        yield _check(
            "config", target, target not in changes, "show running-config",
            "; ".join(changes[target]) or "no difference", "no difference",
            f"railweld fabric push --limit {switch.name}",
        )  # fmt: skip


def mtu_checks(fabric: Fabric, switch: Switch, running: str) -> Iterator[Check]:
    """The MTU of each port, or of the port-channel that it is a member of."""
    values = {
        path[0]: path[-1].removeprefix("mtu ")
        for _, paths in settings(running)
        for path in paths
        if len(path) == 2 and path[-1].startswith("mtu ")
    }
    for port in switch.ports:
        places = [f"interface {port.name}"]
        if port.channel is not None:
            places.insert(0, f"interface Port-Channel{port.channel}")
        found = next((values[place] for place in places if place in values), _EOS_MTU)
        yield _check(
            "mtu", f"{switch.name} {port.name}", found == str(fabric.tuning.switch_mtu),
            f"show running-config section {port.name}", found, fabric.tuning.switch_mtu,
            f"railweld fabric push --limit {switch.name}",
        )  # fmt: skip


def map_checks(
    connection: Connection, fabric: Fabric, switch: Switch, plan: Plan | None
) -> Iterator[Check]:
    """DSCP to traffic class to queue, as the switch applies it."""
    tuning = fabric.tuning
    expected = {
        f"qos map dscp {tuning.lossless.dscp} to traffic-class {tuning.lossless.priority}",
        f"qos map dscp {tuning.cnp.dscp} to traffic-class {tuning.cnp.priority}",
        f"qos map traffic-class {tuning.lossless.priority} to tx-queue {tuning.lossless.queue}",
        f"qos map traffic-class {tuning.cnp.priority} to tx-queue {tuning.cnp.priority}",
    }
    if plan is not None:
        expected = {p[-1] for p in plan.wanted if p[-1].startswith("qos map ")} or expected
    effective = eos.maps_in_effect(connection)
    if effective is None:
        yield _unknown("maps", switch.name, "show qos maps", "; ".join(sorted(expected)))
        return
    missing = sorted(expected - effective)
    instead = sorted(line for line in effective if key(line) in {key(m) for m in missing})
    yield _check(
        "maps", switch.name, not missing, "show qos maps", "; ".join(instead) or "all maps",
        "; ".join(missing or sorted(expected)), f"railweld fabric push --limit {switch.name}",
    )  # fmt: skip


def trust_checks(connection: Connection, switch: Switch, ports: Iterable[Port]) -> Iterator[Check]:
    """Every port classifies by DSCP."""
    for port in ports:
        ran = f"show qos interfaces {port.name} trust"
        text = eos.ask(connection, ran)
        mode = re.search(r"(?i)\b(dscp|cos|untrusted)\b", text or "")
        target = f"{switch.name} {port.name}"
        if mode is None:
            yield _unknown("trust", target, ran, "DSCP")
            continue
        yield _check(
            "trust", target, mode[1].lower() == "dscp", ran, mode[1].upper(), "DSCP",
            f"railweld fabric push --limit {switch.name}",
        )  # fmt: skip


def pfc_checks(
    connection: Connection, fabric: Fabric, switch: Switch, ports: Iterable[Port]
) -> Iterator[Check]:
    """PFC is on, for the lossless priority only, and in operation."""
    ran = "show priority-flow-control"
    states = eos.pfc_ports(connection)
    priority = fabric.tuning.lossless.priority
    expected = f"on and active for priority {priority} only"
    for port in ports:
        target = f"{switch.name} {port.name}"
        state = (states or {}).get(port.name)
        if state is None:
            yield _unknown("pfc", target, ran, expected)
            continue
        good = state.enabled and state.active and state.priorities == (priority,)
        words = ["on" if state.enabled else "off"]
        words += [f"priority {number}" for number in state.priorities]
        words.append("active" if state.active else "not active")
        if state.note and not good:
            words.append(state.note)
        fix = f"railweld fabric push --limit {switch.name}"
        if state.enabled and state.priorities == (priority,):
            fix = "check that the link is up and that the forwarding agent runs"
        yield _check("pfc", target, good, ran, ", ".join(words), expected, fix)


def watchdog_checks(
    connection: Connection, switch: Switch, ports: Iterable[Port]
) -> Iterator[Check]:
    """The watchdog is active where PFC is."""
    ran = "show priority-flow-control status"
    states = eos.watchdog_ports(connection)
    for port in ports:
        target = f"{switch.name} {port.name}"
        active = (states or {}).get(port.name)
        if active is None:
            yield _unknown("watchdog", target, ran, "active")
            continue
        yield _check(
            "watchdog", target, active, ran, "active" if active else "not active", "active",
            f"railweld fabric push --limit {switch.name}; if its lines are there, "
            "check that the profile is attached and that EOS accepted the timers",
        )  # fmt: skip


def ecn_checks(
    connection: Connection, fabric: Fabric, switch: Switch, ports: Iterable[Port]
) -> Iterator[Check]:
    """The lossless queue marks between the thresholds of the description."""
    ecn, queue = fabric.tuning.ecn, fabric.tuning.lossless.queue
    expected = f"queue {queue}: {ecn.min_kb} to {ecn.max_kb} KB"
    for port in ports:
        ran = f"show qos interfaces {port.name} ecn"
        target = f"{switch.name} {port.name}"
        row = eos.ecn_thresholds(eos.ask(connection, ran) or "").get(queue)
        if row is None:
            yield _unknown("ecn", target, ran, expected)
            continue
        yield _check(
            "ecn", target, row == (ecn.min_kb, ecn.max_kb), ran,
            f"queue {queue}: {row[0]:g} to {row[1]:g} KB", expected,
            f"railweld fabric push --limit {switch.name}",
        )  # fmt: skip


def flow_control_checks(
    connection: Connection, switch: Switch, ports: Iterable[Port]
) -> Iterator[Check]:
    """Link-level pause is off: it would stop every class of the port."""
    ran = "show interfaces flow-control"
    answer = eos.ask_json(connection, ran)
    tree = (answer or {}).get("interfaceFlowControls")
    for port in ports:
        target = f"{switch.name} {port.name}"
        row = tree.get(port.name) if isinstance(tree, dict) else None
        if row is None:
            yield _unknown("flow_control", target, ran, "receive off")
            continue
        found = str(row.get("rxAdminState", "")).lower()
        yield _check(
            "flow_control", target, found == "off", ran, f"receive {found}", "receive off",
            f"railweld fabric push --limit {switch.name}",
        )  # fmt: skip


def counter_checks(
    connection: Connection, fabric: Fabric, switch: Switch, ports: list[Port]
) -> Iterator[Check]:
    """Drops in the lossless queue, watchdog events, and whether ECN counts at all."""
    names = [port.name for port in ports]
    seen = eos.counters(connection, names, fabric.tuning.lossless.queue)
    for id_, values, ran, expected, fix in (
        (
            "drops", seen.drops, "show interfaces counters queue detail",
            "no drops in the lossless queue",
            "lossless traffic was dropped: compare the host's DSCP and PFC, then headroom",
        ),
        (
            "watchdog_events", seen.watchdog, "show priority-flow-control counters watchdog",
            "no stuck queue", "look for the host that pauses: its link, its driver, its PCIe",
        ),
    ):  # fmt: skip
        if values is None:
            yield _unknown(id_, switch.name, ran, expected)
            continue
        bad = {port: count for port, count in values.items() if count}
        found = ", ".join(f"{port} {count}" for port, count in sorted(bad.items()))
        yield _check(id_, switch.name, not bad, ran, found or "none", expected, fix, warn=True)
    ran = "show qos interfaces ecn counters queue"
    if seen.ecn is None:
        yield _unknown("ecn_counting", switch.name, ran, "every port counts marks")
        return
    silent = sorted(port for port, value in seen.ecn.items() if value is None)
    yield _check(
        "ecn_counting", switch.name, not silent, ran,
        f"not counting: {', '.join(silent)}" if silent else "every port counts",
        "every port counts marks", "check `random-detect ecn count` of the lossless queue",
        warn=True,
    )  # fmt: skip


def link_checks(connection: Connection, switch: Switch, ports: Iterable[Port]) -> Iterator[Check]:
    """Every described port has a link."""
    ran = "show interfaces status"
    down = eos.ports_down(connection)
    for port in ports:
        target, expected = f"{switch.name} {port.name}", f"a link to {port.peer}"
        if down is None:
            yield _unknown("link", target, ran, expected)
            continue
        up = port.name not in down
        yield _check(
            "link", target, up, ran, "link" if up else "no link", expected,
            f"check cable and optic at both ends, and that {port.peer} is on",
        )  # fmt: skip


def lldp_checks(connection: Connection, switch: Switch, ports: Iterable[Port]) -> Iterator[Check]:
    """The cable goes where the description says."""
    ran = "show lldp neighbors"
    seen = eos.neighbours(connection)
    for port in ports:
        target = f"{switch.name} {port.name}"
        expected = f"{port.peer} {port.peer_port}".strip()
        if seen is None:
            yield _unknown("lldp", target, ran, expected)
            continue
        other = seen.get(port.name)
        if other is None:
            yield _check(
                "lldp", target, False, ran, NOBODY, expected,
                "check the cable and that LLDP runs on the other end",
            )  # fmt: skip
            continue
        same = other.device.partition(".")[0] == port.peer.partition(".")[0]
        # A host's LLDP may name the port by interface or by MAC; only a switch's name must match.
        right = port.kind == "host" or not port.peer_port or (
            eos.long_name(other.port) == eos.long_name(port.peer_port)
        )  # fmt: skip
        yield _check(
            "lldp", target, same and right, ran, f"{other.device} {other.port}", expected,
            "swap the cable back, or correct the cabling in the description",
        )  # fmt: skip


def infiniband_checks(fabric: Fabric) -> list[Check]:
    """An InfiniBand site has no stage here; the record says what is checked instead."""
    return [
        Check(
            id="fabric.transport",
            layer=LAYER,
            target=fabric.site,
            status=Status.SKIPPED,
            ran="railweld_transport",
            found="infiniband",
            expected="roce, for PFC and ECN on switches",
            fix="",
            ref="an InfiniBand fabric is lossless by credits. `railweld verify --stage links` "
            "reads every port of the hosts: Active and LinkUp, rate, link layer, its LID and that "
            "of the subnet manager, full membership of a partition. Cables between switches are "
            "not seen from hosts: iblinkinfo lists them",
        )
    ]
