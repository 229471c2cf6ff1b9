"""What a description may not ask of a fabric: every problem at once, each with its variable.

pyavd's schema accepts most of these (ECN minimum above maximum, bandwidth 90 + 90, DSCP 99), so
they are ours to refuse, before a switch is touched.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from railweld.fabric import headroom, platforms
from railweld.fabric.model import Fabric, Port, Switch, Tuning


@dataclass(frozen=True)
class Finding:
    """One problem of the description.

    `ends` are the hosts and switches of whose cable it is: one of them has the variable.
    """

    id: str
    key: str
    target: str
    found: str
    expected: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    ends: tuple[str, ...] = ()

    def sentence(self) -> str:
        """One line for a terminal."""
        return (
            f"{self.target}: {self.key}: found {self.found}, expected {self.expected}. "
            f"Fix: {self.fix}"
        )


def findings(fabric: Fabric) -> tuple[Finding, ...]:
    """Every problem of the fabric's description; empty for an InfiniBand site."""
    if fabric.transport == "infiniband":
        return ()
    return (
        *_classes(fabric.tuning),
        *_ecn(fabric.tuning),
        *_watchdog(fabric.tuning),
        *_sizes(fabric.tuning),
        *(finding for switch in fabric.switches for finding in _switch(switch, fabric)),
    )


def _error(id_: str, key: str, target: str, found: object, *texts: str) -> Finding:
    expected, fix = texts
    return Finding(id_, f"railweld_{key}", target, str(found), expected, fix)


def _warning(id_: str, key: str, target: str, found: object, *texts: str) -> Finding:
    expected, fix = texts
    return Finding(id_, f"railweld_{key}", target, str(found), expected, fix, "warning")


def _classes(tuning: Tuning) -> Iterator[Finding]:
    lossless, cnp, site = tuning.lossless, tuning.cnp, "site"
    for key, value in (
        ("lossless_priority", lossless.priority),
        ("lossless_queue", lossless.queue),
        ("cnp_priority", cnp.priority),
    ):
        if not 0 <= value <= 7:
            yield _error("priority_range", key, site, value, "0 to 7", "use a priority of 802.1p")
        elif value == 7:
            yield _error(
                "control_queue", key, site, value, "not 7",
                "leave priority and queue 7 to the switch's own control traffic",
            )  # fmt: skip
    for key, value in (("lossless_dscp", lossless.dscp), ("cnp_dscp", cnp.dscp)):
        if not 0 <= value <= 63:
            yield _error("dscp_range", key, site, value, "0 to 63", "use a DSCP of six bits")
    if lossless.dscp == cnp.dscp:
        yield _error(
            "dscp_shared", "cnp_dscp", site, cnp.dscp, f"not {lossless.dscp}, which is the "
            "lossless class", "give congestion notifications a DSCP of their own",
        )  # fmt: skip
    if cnp.priority == lossless.priority:
        yield _error(
            "cnp_lossless", "cnp_priority", site, cnp.priority,
            f"not {lossless.priority}, which is lossless",
            "notifications must not wait behind the congestion they report",
        )  # fmt: skip
    queues = {
        "lossless class": lossless.queue,
        "CNP class": cnp.priority,
        "best effort": tuning.best_effort_queue,
    }
    for queue, count in Counter(queues.values()).items():
        if count > 1 and not (queue == cnp.priority == lossless.priority):
            names = " and ".join(name for name, value in queues.items() if value == queue)
            yield _error(
                "queue_shared", "lossless_queue", site, f"{names} on queue {queue}",
                "one class per queue", "move one of them",
            )  # fmt: skip
    if not 1 <= lossless.percent <= 99:
        yield _error(
            "wrr_percent", "wrr_lossless_percent", site, lossless.percent, "1 to 99",
            "leave best effort a share",
        )  # fmt: skip
    elif not 50 <= lossless.percent <= 95:
        yield _warning(
            "wrr_percent", "wrr_lossless_percent", site, lossless.percent, "80 to 95",
            "a share in that range",
        )  # fmt: skip


def _ecn(tuning: Tuning) -> Iterator[Finding]:
    ecn = tuning.ecn
    if ecn.min_kb < 1 or ecn.min_kb >= ecn.max_kb:
        yield _error(
            "ecn_order", "ecn_min_kb", "site", f"{ecn.min_kb} to {ecn.max_kb}",
            "a positive minimum below the maximum", "lower ecn_min_kb or raise ecn_max_kb",
        )  # fmt: skip
    if not 1 <= ecn.probability <= 100:
        yield _error(
            "ecn_probability", "ecn_probability", "site", ecn.probability, "1 to 100",
            "use a percentage",
        )  # fmt: skip
    elif ecn.probability == 100 and ecn.max_kb > 4 * ecn.min_kb:
        yield _warning(
            "ecn_probability", "ecn_probability", "site",
            f"100 % over {ecn.min_kb} to {ecn.max_kb} KB", "100 % only in a narrow band",
            "narrow the band (256 to 512) or lower the probability",
        )  # fmt: skip


def _watchdog(tuning: Tuning) -> Iterator[Finding]:
    watchdog = tuning.watchdog
    for key, value, low, high, digits in (
        ("timeout_s", watchdog.timeout_s, 0.01, 60, 2),
        ("recovery_s", watchdog.recovery_s, 0.01, 60, 2),
        ("polling_s", watchdog.polling_s, 0.005, 30, 3),
    ):
        if not low <= value <= high or round(value, digits) != value:
            yield _error(
                "watchdog_range", f"pfc_watchdog_{key}", "site", value,
                f"{low} to {high} with at most {digits} decimals", "round it into the range",
            )  # fmt: skip
    limit = min(watchdog.timeout_s, watchdog.recovery_s) / 2
    if watchdog.polling_s > limit:
        yield _error(
            "watchdog_polling", "pfc_watchdog_polling_s", "site", watchdog.polling_s,
            f"at most {limit:g}, half of the shorter of timeout and recovery",
            "poll faster; EOS would keep the text and run another value",
        )  # fmt: skip
    if watchdog.action not in {"drop", "errdisable", "notify-only"}:
        yield _error(
            "watchdog_action", "pfc_watchdog_action", "site", watchdog.action,
            "drop, errdisable or notify-only", "EOS has no other action",
        )  # fmt: skip
    if 0.01 <= watchdog.timeout_s < 0.20:
        yield _warning(
            "watchdog_short", "pfc_watchdog_timeout_s", "site", watchdog.timeout_s,
            "0.20 or more", "a slow host looks like a storm below 200 ms",
        )  # fmt: skip


def _sizes(tuning: Tuning) -> Iterator[Finding]:
    if not 1500 <= tuning.switch_mtu <= 9214:
        yield _error(
            "switch_mtu", "switch_mtu", "site", tuning.switch_mtu, "1500 to 9214",
            "EOS refuses more than 9214, which already carries a 9000 byte host MTU",
        )  # fmt: skip
    if tuning.host_mtu > tuning.switch_mtu:
        yield _error(
            "host_mtu", "host_mtu", "site", tuning.host_mtu,
            f"at most the switch's {tuning.switch_mtu}", "lower host_mtu or raise switch_mtu",
        )  # fmt: skip
    storm = tuning.storm_control
    if storm is not None and not 0 < storm <= 100:
        yield _error(
            "storm_control", "switch_storm_control", "site", storm, "a percentage above 0",
            "leave it out to set no limit",
        )  # fmt: skip


def _switch(switch: Switch, fabric: Fabric) -> Iterator[Finding]:
    reason = platforms.refusal(switch.model)
    if reason is not None:
        yield _error(
            "switch_model", "switch_model", switch.name, switch.model or "none",
            "a model of switch_configs/platforms.yml", reason,
        )  # fmt: skip
        return
    if switch.eos_version:
        verdict, why = platforms.release_verdict(switch.eos_version)
        if verdict != "ok":
            make = _error if verdict == "refused" else _warning
            yield make(
                "eos_version", "eos_version", switch.name, switch.eos_version,
                "a release of switch_configs/platforms.yml", why,
            )  # fmt: skip
        for kind, text in platforms.release_findings(switch.model, switch.eos_version):
            yield _error(
                f"eos_{kind}", "eos_version", switch.name, switch.eos_version,
                "another release", text,
            )  # fmt: skip
    yield from _ports(switch)
    yield from _buffers(switch, fabric.tuning)


def _ports(switch: Switch) -> Iterator[Finding]:
    form = platforms.platform_for(switch.model).port_form
    last = platforms.last_port(switch.model)
    uses: defaultdict[str, list[Port]] = defaultdict(list)
    for port in switch.ports:
        uses[port.name].append(port)
        expected = ""
        if not re.match(form, port.name):
            expected = f"a port of {switch.model} ({form})"
            fix = "100G ports are EthernetN/1 on most models"
        elif last is not None and int(re.findall(r"\d+", port.name)[0]) > last:
            expected = f"a port of {switch.model}, which has none beyond Ethernet{last}"
            fix = "correct the number, or the expression that makes it from the host's index"
        if expected:
            found = _error(
                "port_name", "rails" if port.kind == "host" else "uplinks",
                f"{switch.name} {port.name}", port.name, expected, fix,
            )  # fmt: skip
            yield replace(found, ends=(port.peer, switch.name))
    for name, several in uses.items():
        if len(several) > 1:
            what = " and ".join(f"{port.kind} port of {port.peer}" for port in several)
            yield _error(
                "port_twice", "uplinks", f"{switch.name} {name}", what, "one cable per port",
                "correct the cabling of one of them",
            )  # fmt: skip


def _buffers(switch: Switch, tuning: Tuning) -> Iterator[Finding]:
    platform = platforms.platform_for(switch.model)
    if tuning.mmu and platform.mmu and switch.ports:
        sized = headroom.for_ports(
            [(port.rate_gbps, port.cable_m) for port in switch.ports], tuning.switch_mtu
        )
        make = None
        if sized.pool_bytes > headroom.POOL_LIMIT:
            make, limit = _error, headroom.POOL_LIMIT
        elif sized.pool_bytes > headroom.POOL_WARNING:
            make, limit = _warning, headroom.POOL_WARNING
        if make is not None:
            yield make(
                "headroom_pool", "mmu", switch.name, f"{sized.pool_bytes} bytes "
                f"({sized.reason})", f"at most {limit}",
                "shorter cables on this switch, or leave railweld_mmu off",
            )  # fmt: skip
    if platform.buffer_mb:
        # Kmax < alpha*B / (1 + n*alpha) with alpha 1/8: past it PFC pauses before ECN marks.
        ports = min(8, len(switch.ports)) or 1
        most_kb = int(platform.buffer_mb * 1000 / 8 / (1 + ports / 8))
        if tuning.ecn.max_kb >= most_kb:
            yield _warning(
                "ecn_after_pfc", "ecn_max_kb", switch.name, tuning.ecn.max_kb,
                f"below {most_kb} with {ports} congested ports on {platform.chip}",
                "lower ecn_max_kb, so that ECN marks before PFC pauses",
            )  # fmt: skip
