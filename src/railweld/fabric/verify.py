"""What the switches do, read back and judged: one check record per question and port.

Configured is not active, so the operational state decides. What a switch refuses to show or
shows empty is `unknown`, never zero and never good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from railweld.errors import RailweldError
from railweld.fabric import eos, platforms
from railweld.fabric.diff import Plan
from railweld.fabric.lines import key
from railweld.fabric.model import Fabric, Port, Switch
from railweld.fabric.transport import Connection
from railweld.record import Check, Status, judge

LAYER = "fabric"
_REF = "docs/fabric.md"
_NOBODY = "no neighbour"


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
        down = eos.ports_down(connection)
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
        if check.status is Status.FAIL and check.found != _NOBODY
    ]


def all_checks(connection: Connection, fabric: Fabric, switch: Switch, plan: Plan) -> list[Check]:
    """Every check of one switch for `railweld fabric verify`."""
    facts = eos.facts(connection, switch.name)
    ports = list(switch.ports)
    return [
        *release_checks(switch, facts),
        config_check(switch, plan),
        *map_checks(connection, fabric, switch, plan),
        *trust_checks(connection, switch, ports),
        *pfc_checks(connection, fabric, switch, ports),
        *watchdog_checks(connection, switch, ports),
        *ecn_checks(connection, fabric, switch, ports),
        *flow_control_checks(connection, switch, ports),
        *counter_checks(connection, fabric, switch, ports),
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


def config_check(switch: Switch, plan: Plan) -> Check:
    """The running configuration means what the description says."""
    changes = [change.sentence() for change in plan.changes]
    return _check(
        "config", switch.name, not changes, "show running-config",
        "; ".join(changes) or "no difference", "no difference",
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
    expected = f"enabled and active for priority {priority} only"
    for port in ports:
        target = f"{switch.name} {port.name}"
        state = (states or {}).get(port.name)
        if state is None:
            yield _unknown("pfc", target, ran, expected)
            continue
        good = state.enabled and state.active and state.priorities == (priority,)
        words = [
            "enabled" if state.enabled else "off",
            "active" if state.active else "not active",
            f"priorities {', '.join(map(str, state.priorities)) or 'none'}",
        ]
        if state.note:
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
                "lldp", target, False, ran, _NOBODY, expected,
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
            "reads every port with ibstat (Active, LinkUp, rate, InfiniBand link layer), the "
            "links between switches with iblinkinfo, the subnet manager with sminfo, and the "
            "partition keys of every port",
        )
    ]


def link_table(
    fabric: Fabric,
    checks: Iterable[Check],
    hosts: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, Mapping[str, Any]],
    nccl: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """Both ends of every host link in one row, with the end that is wrong.

    Args:
        fabric: the description.
        checks: records of `railweld fabric verify`.
        hosts: `railweld_node` facts of the hosts by name (the probe's `rdma`, `net`, `lldp`).
        described: the fact `railweld.hosts`.
        nccl: variables of the NCCL profile in use; None leaves that column out.
    """
    bad: dict[str, list[str]] = {}
    for check in checks:
        if check.is_bad:
            bad.setdefault(check.target, []).append(f"{check.id.removeprefix('fabric.')}: "
                                                    f"{check.found}")  # fmt: skip
    tuning = fabric.tuning
    nccl_text = _nccl_fault(nccl, tuning.lossless.dscp)
    rows = []
    for switch in fabric.switches:
        for port in switch.ports:
            if port.kind != "host":
                continue
            hca: Mapping[str, Any] = next(
                (
                    entry
                    for entry in described.get(port.peer, {}).get("hcas", ())
                    if entry.get("switch") == switch.name and entry.get("port") == port.name
                ),
                {},
            )
            host_faults = list(_host_faults(fabric, hosts.get(port.peer), hca, switch, port))
            switch_faults = bad.get(f"{switch.name} {port.name}", []) + bad.get(switch.name, [])
            wrong = [
                name
                for name, faults in (
                    (port.peer, host_faults), (switch.name, switch_faults),
                    ("NCCL profile", nccl_text),
                )
                if faults
            ]  # fmt: skip
            rows.append(
                {
                    "switch": switch.name,
                    "port": port.name,
                    "host": port.peer,
                    "netdev": str(hca.get("netdev") or port.peer_port),
                    "switch_state": "; ".join(switch_faults) or "ok",
                    "host_state": "; ".join(host_faults) or "ok",
                    "nccl": "; ".join(nccl_text) or ("ok" if nccl is not None else "not read"),
                    "wrong_end": ", ".join(wrong) or "none",
                }
            )
    return rows


def _host_faults(
    fabric: Fabric,
    node: Mapping[str, Any] | None,
    hca: Mapping[str, Any],
    switch: Switch,
    port: Port,
) -> Iterator[str]:
    if node is None:
        yield "host not read"
        return
    netdev = str(hca.get("netdev") or "")
    roce = node.get("rdma", {}).get("roce", {}).get(netdev)
    lossless, cnp = fabric.tuning.lossless, fabric.tuning.cnp
    if roce is None:
        yield f"no RoCE state of {netdev or 'the port'}"
    else:
        if roce.get("trust") != "dscp":
            yield f"trust {roce.get('trust')}, expected dscp"
        mask = [bool(value) for value in roce.get("pfc") or ()]
        wanted = [number == lossless.priority for number in range(8)]
        if mask != wanted:
            on = ",".join(str(n) for n, value in enumerate(mask) if value) or "none"
            yield f"PFC on {on}, expected {lossless.priority}"
        if roce.get("cnp_dscp") is not None and int(roce["cnp_dscp"]) != cnp.dscp:
            yield f"cnp_dscp {roce['cnp_dscp']}, expected {cnp.dscp}"
    mtu = node.get("net", {}).get(netdev, {}).get("mtu")
    if mtu is not None and int(mtu) != fabric.tuning.host_mtu:
        yield f"mtu {mtu}, expected {fabric.tuning.host_mtu}"
    neighbour = (node.get("lldp", {}).get("neighbours") or {}).get(netdev)
    if isinstance(neighbour, Mapping):
        device = str(neighbour.get("system") or neighbour.get("device") or "")
        if device and device.partition(".")[0] != switch.name:
            yield f"cabled to {device}, expected {switch.name} {port.name}"


def _nccl_fault(nccl: Mapping[str, str] | None, dscp: int) -> list[str]:
    if nccl is None:
        return []
    found = nccl.get("NCCL_IB_TC")
    if found is None:
        return [f"NCCL_IB_TC unset, expected {dscp * 4}"]
    return [] if str(found) == str(dscp * 4) else [f"NCCL_IB_TC {found}, expected {dscp * 4}"]
