"""Time: one daemon, synchronised to the site's own sources, within the gate."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context

ROLE: Final = "chrony"

#: What chronyd reports as its reference when it follows nothing but its own clock.
LOCAL_REFERENCES: Final = frozenset({"7F7F0101", "127.127.1.1"})


#: Units of other time daemons, by the names that Debian and Ubuntu give them.
COMPETITORS: Final = (
    "ntp.service",
    "ntpsec.service",
    "openntpd.service",
    "systemd-timesyncd.service",
)


def competitors(ctx: Context) -> list[str]:
    """Other time daemons that run, or that would run after the next boot."""
    units = ctx.seen("units", {})
    return [
        name
        for name in COMPETITORS
        if (units.get(name) or {}).get("active") == "active"
        or str((units.get(name) or {}).get("enabled")).startswith("enabled")
    ]


def serves_own_clock(ctx: Context) -> bool:
    """True for the first time server of a site that names no upstream source."""
    servers = list(ctx.setting("time.servers", []))
    first = bool(servers) and servers[0] == ctx.wanted("address")
    return first and not ctx.setting("time.sources", [])


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse a host that has nothing to take its time from."""
    servers = list(ctx.setting("time.servers", []))
    sources = list(ctx.setting("time.sources", []))
    yield ctx.judge(
        "chrony.source_named",
        ok=bool(servers or sources),
        ran="railweld check",
        found="no time server and no upstream source"
        if not servers and not sources
        else f"time servers {servers}, upstream sources {sources}",
        expected="a host in group time_servers or an entry in railweld_time_sources",
        fix="put at least one host into group time_servers, or name upstream servers in "
        "railweld_time_sources",
    )


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable."""
    yield from gate(ctx)
    others = competitors(ctx)
    yield ctx.judge(
        "chrony.single_daemon",
        ok=not others,
        ran=f"systemctl status {' '.join(COMPETITORS)}",
        found=f"running or enabled: {', '.join(others)}" if others else "chrony alone",
        expected="chrony as the only time daemon",
        fix="rerun the chrony role on this host; it stops and disables the others",
    )


def gate(ctx: Context) -> Iterator[Check]:
    """What later roles ask of the clock before they install or join anything.

    An offset alone proves nothing: a dead or unsynchronised daemon reports an offset of zero.
    So the daemon, its state and its reference are judged first.
    """
    daemon = ctx.seen("time.daemon")
    if daemon is None:
        yield ctx.could_not_look(
            "chrony.daemon",
            ran="systemctl is-active chrony",
            found="no observation of the time daemon",
            expected="chrony active",
            fix="run `systemctl is-active chrony` on this host and repair what it complains about",
        )
        return
    yield ctx.judge(
        "chrony.daemon",
        ok=daemon == "active",
        ran="systemctl is-active chrony",
        found=f"chrony {daemon}",
        expected="chrony active",
        fix="journalctl -u chrony shows why it does not run; rerun the chrony role on this host",
    )
    if daemon != "active":
        return
    follows_itself = str(ctx.seen("time.refid", "")).upper() in LOCAL_REFERENCES
    leap = str(ctx.seen("time.leap", ""))
    synced = bool(ctx.seen("time.synced")) or follows_itself
    yield ctx.judge(
        "chrony.synchronised",
        ok=synced,
        ran="chronyc tracking",
        found="synchronised" if synced else f"not synchronised (leap status {leap or 'unknown'})",
        expected="synchronised",
        fix="chronyc sources -v shows which source does not answer: firewall for UDP 123, wrong "
        "address, or a server that has no time itself",
    )
    if not synced:
        return
    own = serves_own_clock(ctx)
    yield ctx.judge(
        "chrony.reference",
        ok=own or not follows_itself,
        ran="chronyc tracking",
        found="its own clock" if follows_itself else f"reference {ctx.seen('time.refid', '?')}",
        expected="its own clock or a source" if own else "a source outside this host",
        fix="chronyc sources -v: no source is reachable and the host keeps serving its own clock; "
        "restore the path to railweld_time_sources",
    )
    yield from _sources(ctx)
    yield from _offset(ctx)


def missing_sources(ctx: Context) -> list[str]:
    """Time servers of the site that the running daemon does not ask, by address.

    They are missing when chronyd still runs with the configuration that it had before. Names
    cannot be compared: chronyd reports what they resolved to.
    """
    servers = [str(each) for each in ctx.setting("time.servers", [])]
    asked = {str(each.get("address")) for each in ctx.seen("time.sources", [])}
    return [
        each
        for each in servers
        if _is_address(each) and each != ctx.wanted("address") and each not in asked
    ]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _sources(ctx: Context) -> Iterator[Check]:
    """A daemon calls itself synchronised for long after its last source died."""
    sources = ctx.seen("time.sources")
    if not isinstance(sources, list) or serves_own_clock(ctx):
        return
    missing = missing_sources(ctx)
    yield ctx.judge(
        "chrony.sources",
        ok=not missing,
        ran="chronyc -n sources",
        found=f"not asked: {', '.join(missing)}" if missing else "every time server asked",
        expected="every time server of the site as a source",
        fix="rerun the chrony role on this host; it restarts a daemon that runs with another "
        "configuration than the file's",
    )
    # `reach` is an octal bit field of the last eight polls: anything but zero is an answer.
    alive = [str(each.get("address")) for each in sources if int(each.get("reach") or 0) > 0]
    yield ctx.judge(
        "chrony.reachable",
        ok=bool(alive),
        ran="chronyc -n sources",
        found=f"answering: {', '.join(alive)}" if alive else "no source answered lately",
        expected="at least one source that answers",
        fix="check that chrony runs on the time servers and that UDP 123 is open to them",
    )


def _offset(ctx: Context) -> Iterator[Check]:
    limit = float(ctx.setting("time.max_offset_ms"))
    offset = ctx.seen("time.offset_s")
    expected = f"at most {limit:g} ms (railweld_time_max_offset_ms)"
    if offset is None:
        yield ctx.could_not_look(
            "chrony.offset",
            ran="chronyc tracking",
            found="no offset",
            expected=expected,
            fix="run `chronyc tracking` on this host and repair what it complains about",
        )
        return
    milliseconds = abs(float(offset)) * 1000
    yield ctx.judge(
        "chrony.offset",
        ok=milliseconds <= limit,
        ran="chronyc tracking",
        found=f"{milliseconds:.1f} ms off",
        expected=expected,
        fix="chronyc makestep on a node without jobs; if the offset comes back, compare the "
        "sources with chronyc sources -v",
    )
