"""Both ends of every link beside each other: what hosts, switches and NCCL say about one class.

The records come from where the rules are: `fabric.verify` for switch ports, the checks of the
roles `rdma` and `lldp` for hosts. Here they are put together per cable, and the end that is wrong
gets its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from railweld.fabric.model import Fabric
from railweld.fabric.push import Settings
from railweld.fabric.stage import stage_of
from railweld.fabric.verify import NOBODY
from railweld.nccl import Profile, profiles_for, uses_hca
from railweld.record import Check, Status, judge
from railweld.site import Site
from railweld.verify import registry
from railweld.verify.context import Context
from railweld.verify.hosts import REACHED, not_reached
from railweld.verify.stages import Request, Seen, Table, Verified

#: Roles whose checks are about the ports of the rails.
_HOST_ROLES: Final = ("rdma", "lldp")
#: Records about a whole switch or host that decide about each of its links.
_WHOLE: Final = frozenset(
    {"fabric.config", "fabric.maps", "fabric.reachable", "lldp.daemon", REACHED}
    | {f"{role}.observation" for role in _HOST_ROLES}
)
#: Column of the table → the records that fill it, a switch's and a host's.
_COLUMNS: Final = {
    "trust": ("fabric.trust", "rdma.trust"),
    "PFC": ("fabric.pfc", "rdma.pfc"),
    "CNP DSCP": ("rdma.cnp_dscp",),
    "MTU": ("fabric.mtu", "rdma.mtu"),
    "neighbour": ("fabric.lldp", "lldp.cabling"),
    "NCCL": ("nccl.traffic_class",),
}
_CABLING: Final = frozenset({"fabric.lldp", "lldp.cabling"})
_CABLE: Final = "cable"
TITLE: Final = "links"


@dataclass(frozen=True)
class End:
    """One end of a cable and the records about it."""

    name: str
    port: str
    checks: tuple[Check, ...] = ()

    @property
    def faults(self) -> tuple[Check, ...]:
        """Records that cannot count as good."""
        return tuple(check for check in self.checks if check.is_bad)


@dataclass(frozen=True)
class Link:
    """A cable: its two ends, the switch first, and what the jobs on it are told."""

    ends: tuple[End, End]
    nccl: tuple[Check, ...] = field(default=())

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every record of the link."""
        return (*self.ends[0].checks, *self.ends[1].checks, *self.nccl)

    def wrong(self) -> tuple[str, ...]:
        """The ends that are wrong, each with what is wrong there; empty when all agree.

        An end that hears another neighbour than described is no fault of that end: the cable is
        somewhere else, unless the other end hears the right one. An end that hears nobody is not
        the one that is silent.
        """
        moved = _moved(self.ends)
        found = [(_CABLE, "; ".join(moved))] if moved else []
        for end, other in zip(self.ends, reversed(self.ends), strict=True):
            words = [_what(c) for c in end.faults if c.id not in _CABLING or not _aside(c, moved)]
            if any(c.found == NOBODY for c in other.faults):
                words.append("not heard by LLDP")
            if words:
                found.append((end.name, ", ".join(dict.fromkeys(words))))
        bad = [check for check in self.nccl if check.is_bad]
        if bad:
            found.append(("NCCL profile", ", ".join(dict.fromkeys(map(_what, bad)))))
        return tuple(f"{name}: {what}" for name, what in found)


def _moved(ends: tuple[End, End]) -> list[str]:
    """What the ends hear when the cable is not where it should be."""
    heard = [
        next((c for c in end.checks if c.id in _CABLING and c.found != NOBODY), None)
        for end in ends
    ]
    if any(check is not None and check.status is Status.PASS for check in heard):
        return []
    return [
        f"{end.name} {end.port} leads to {check.found}"
        for end, check in zip(ends, heard, strict=True)
        if check is not None and check.status is Status.FAIL
    ]


def _aside(cabling: Check, moved: Sequence[str]) -> bool:
    """Whether a cabling fault is told as the cable's or as the other end's."""
    return bool(moved) or cabling.found == NOBODY


def _what(check: Check) -> str:
    return check.id.partition(".")[2]


def verify_site(request: Request) -> Verified:
    """Look at switches and hosts at the same time and compare them link by link."""
    if not request.site.switches:
        return Verified((_no_switches(request.site.name),))
    stage = stage_of(request.site, request.raw, settings=Settings(jobs=request.jobs))
    if request.site.transport == "infiniband":
        return Verified(stage.verify())
    cables = [
        cable for cable in _cables(stage.fabric)
        if any(request.selects(name) for name, _ in cable)
    ]  # fmt: skip
    switches = {name for cable in cables for name, _ in cable if name in request.site.switches}
    switches |= {name for name in request.site.switches if request.selects(name)}
    stage.switches = tuple(each for each in stage.switches if each.name in switches)
    hosts = {name for cable in cables for name, _ in cable if name in request.site.hosts}
    with ThreadPoolExecutor(1) as pool:
        nodes = pool.submit(request.nodes, hosts)
        of_switches = stage.verify()
        of_hosts = host_checks(request.site, nodes.result())
    links = join(cables, [*of_switches, *of_hosts], nccl_checks(request.site, hosts))
    # A switch-wide record stands at every link of its switch and once in the list.
    seen = dict.fromkeys([*of_switches, *(check for link in links for check in link.checks)])
    return Verified(tuple(seen), (table(links),))


def _no_switches(site: str) -> Check:
    return Check(
        id="fabric.switches",
        layer="fabric",
        target=site,
        status=Status.SKIPPED,
        ran="railweld check",
        found="no switch in the description",
        expected="leaves and spines with their models",
        ref="what switches carry is not judged; `railweld verify --stage links` looks at the hosts",
    )


def _cables(fabric: Fabric) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Every cable once, as two (name, port); between switches the lower name comes first."""
    return [
        ((switch.name, port.name), (port.peer, port.peer_port))
        for switch in fabric.switches
        for port in switch.ports
        if port.kind == "host" or (switch.name, port.name) < (port.peer, port.peer_port)
    ]


def host_checks(site: Site, nodes: Mapping[str, Seen]) -> list[Check]:
    """Records about the rails' ports of hosts, from the checks of their roles.

    The target is `HOST/NETDEV`, also for what a role reports about the RDMA device of that port.
    """
    fact = site.fact()
    found: list[Check] = []
    for name, seen in nodes.items():
        ports = {hca.name: f"{name}/{hca.netdev}" for hca in site.hosts[name].hcas}
        if seen.node is None:
            found.append(not_reached(name, seen.reason))
            continue
        context = Context(site=fact["site"], host=fact["hosts"][name], node=seen.node)
        for check in registry.evaluate(context, _HOST_ROLES):
            port = check.target.removeprefix(f"{name}/")
            target = ports.get(port, check.target)
            if target in ports.values() or check.id in _WHOLE:
                found.append(Check(**{**check.__dict__, "target": target}))
    return found


def nccl_checks(site: Site, hosts: Iterable[str]) -> list[Check]:
    """Whether the jobs that can run on these hosts use the class that the fabric carries.

    The target is the host, or `HOST/NETDEV` for what is about one rail.
    """
    profiles = profiles_for(site)
    return [
        check
        for partition in site.partitions
        for host in sorted({*hosts} & {*partition.hosts})
        for check in _judge_profile(site, host, partition.name, profiles[partition.name])
    ]


def _judge_profile(site: Site, host: str, partition: str, profile: Profile) -> Iterator[Check]:
    environment = profile.environment
    told = environment.get("NCCL_IB_TC")

    def check(what: str, target: str, ok: bool, *texts: str) -> Check:
        found, expected, fix = texts
        return judge(
            id=f"nccl.{what}", layer="job", target=target, ok=ok, found=found, expected=expected,
            fix=fix, ran=f"the NCCL profile of partition {partition}",
        )  # fmt: skip

    yield check(
        "traffic_class", host, told == str(site.nccl_ib_tc), f"TC {told or 'unset'}",
        f"TC {site.nccl_ib_tc}, which is DSCP {site.lossless_dscp}",
        "take NCCL_IB_TC out of railweld_nccl_environment: the lossless class decides it",
    )  # fmt: skip
    for finding in profile.findings:
        advice = finding.advice
        if advice.variable == "NCCL_IB_GID_INDEX":
            yield check(
                "gid_index", host, False, f"{advice.variable} {finding.value}",
                f"unset: {advice.reason}", advice.instead,
            )  # fmt: skip
    chosen = environment.get("NCCL_IB_HCA", "")
    for hca in site.hosts[host].hcas:
        yield check(
            "hca", f"{host}/{hca.netdev}", uses_hca(chosen, hca.name),
            f"NCCL_IB_HCA {chosen or 'unset'}", f"one that takes {hca.name}",
            "take NCCL_IB_HCA out of railweld_nccl_environment: the rails decide it",
        )  # fmt: skip


def join(
    cables: Sequence[tuple[tuple[str, str], tuple[str, str]]],
    checks: Iterable[Check],
    nccl: Iterable[Check],
) -> list[Link]:
    """Give every cable the records about its two ends."""
    about, told = _by_target(checks), _by_target(nccl)

    def end(name: str, port: str) -> End:
        whole = [check for check in about[name] if check.id in _WHOLE]
        return End(name, port, (*about[f"{name} {port}"], *about[f"{name}/{port}"], *whole))

    return [
        Link((end(*one), end(*other)), (*told[other[0]], *told["/".join(other)]))
        for one, other in cables
    ]


def _by_target(checks: Iterable[Check]) -> defaultdict[str, list[Check]]:
    about: defaultdict[str, list[Check]] = defaultdict(list)
    for check in checks:
        about[check.target].append(check)
    return about


def table(links: Sequence[Link]) -> Table:
    """One row per link; a cell has the switch's (upper) and the other end's value below it."""
    wrong = [link.wrong() for link in links]
    return Table(
        TITLE,
        ("link", *_COLUMNS, "wrong"),
        [_row(link, faults) for link, faults in zip(links, wrong, strict=True)],
        [bool(faults) for faults in wrong],
    )


def _row(link: Link, wrong: Sequence[str]) -> dict[str, str]:
    cells = {"link": "\n  ".join(f"{end.name} {end.port}" for end in link.ends)}
    for column, ids in _COLUMNS.items():
        values = [_cell(end.checks, ids) for end in link.ends]
        if column == "NCCL":
            values = ["", _cell(link.nccl, ids)]
        cells[column] = "\n".join(values)
    return {**cells, "wrong": "\n".join(wrong) or "none"}


def _cell(checks: Iterable[Check], ids: Sequence[str]) -> str:
    """What was found; `!` before what is wrong, `?` for what could not be read."""
    check = next((check for check in checks if check.id in ids), None)
    if check is None:
        return "-"
    if check.status is Status.UNKNOWN:
        return "?"
    return f"!{check.found}" if check.is_bad else check.found
