"""What the fabric must be: typed, frozen, and free of EOS words.

`from_site` derives it from the site description. Values are judged in `rules`, not here, so
that one run lists every problem of a description instead of stopping at the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from railweld import names

if TYPE_CHECKING:
    from railweld.site import Site

PortKind = Literal["host", "uplink"]
Role = Literal["leaf", "spine"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LosslessClass(_Frozen):
    """The one class that is never dropped: RoCEv2 data."""

    priority: int = 3
    dscp: int = 26
    queue: int = 3
    percent: int = 80


class CnpClass(_Frozen):
    """Congestion notifications: first out of the port, may be dropped."""

    priority: int = 6
    dscp: int = 48


class Ecn(_Frozen):
    """Marking thresholds of the lossless queue."""

    min_kb: int = 150
    max_kb: int = 1500
    probability: int = 20


class Watchdog(_Frozen):
    """How long a pause may last, and what then happens to the queue."""

    timeout_s: float = 0.20
    recovery_s: float = 0.20
    polling_s: float = 0.10
    action: str = "drop"


class Tuning(_Frozen):
    """Everything that has one value for the whole fabric."""

    lossless: LosslessClass = LosslessClass()
    cnp: CnpClass = CnpClass()
    ecn: Ecn = Ecn()
    watchdog: Watchdog = Watchdog()
    switch_mtu: int = 9214
    host_mtu: int = 9000
    mmu: bool = False
    storm_control: float | None = None

    @property
    def best_effort_queue(self) -> int:
        """Queue of everything else: EOS sends DSCP 0-7 to traffic class 1."""
        return 1


class Port(_Frozen):
    """One physical port that carries the lossless class."""

    name: str
    kind: PortKind
    peer: str
    peer_port: str = ""
    rate_gbps: float = 100
    cable_m: float = 5
    rail: int | None = None
    channel: int | None = None


class Switch(_Frozen):
    """One switch with the ports that the fabric uses."""

    name: str
    role: Role = "leaf"
    model: str
    eos_version: str | None = None
    ports: tuple[Port, ...] = ()

    def rails(self) -> frozenset[int]:
        """Rails whose host ports are on this switch."""
        return frozenset(port.rail for port in self.ports if port.rail is not None)

    def port(self, name: str) -> Port | None:
        """The port of that name, or None."""
        return next((port for port in self.ports if port.name == name), None)


class Fabric(_Frozen):
    """The whole fabric of one site."""

    site: str
    transport: Literal["roce", "infiniband"] = "roce"
    tuning: Tuning = Tuning()
    switches: tuple[Switch, ...] = ()

    def switch(self, name: str) -> Switch:
        """The switch of that name."""
        return next(switch for switch in self.switches if switch.name == name)

    def limited(self, patterns: Iterable[str]) -> tuple[Switch, ...]:
        """Switches whose name or role matches one of the patterns; all when there are none."""
        wanted = [part for pattern in patterns for part in pattern.split(",") if part]
        if not wanted:
            return self.switches
        groups = {"leaf": "leaves", "spine": "spines"}
        return tuple(
            switch
            for switch in self.switches
            if any(fnmatch(switch.name, p) or groups[switch.role] == p for p in wanted)
        )


def from_site(site: Site) -> Fabric:
    """Derive the fabric from the site description.

    Ports come from the hosts' HCAs and the switches' uplinks; an uplink that only one end
    declares is mirrored to the other end, since a cable has two.
    """
    ports = {
        name: {
            port.name: Port(
                name=port.name,
                kind=port.kind,
                peer=port.peer,
                peer_port=port.peer_port or "",
                rate_gbps=port.rate_gbps,
                cable_m=port.cable_m,
                rail=port.rail,
                channel=port.channel,
            )
            for port in switch.ports
        }
        for name, switch in site.switches.items()
    }
    for name in site.switches:
        for port in list(ports[name].values()):
            other = ports.get(port.peer)
            if port.kind == "uplink" and other is not None and port.peer_port not in other:
                other[port.peer_port] = port.model_copy(
                    update={"name": port.peer_port, "peer": name, "peer_port": port.name}
                )
    spines = set(site.groups.get(names.GROUP_SPINES, ()))
    return Fabric(
        site=site.name,
        transport=site.transport,
        tuning=_tuning(site),
        switches=tuple(
            Switch(
                name=name,
                role="spine" if name in spines else "leaf",
                model=switch.model,
                eos_version=switch.eos_version,
                ports=tuple(sorted(ports[name].values(), key=lambda port: natural(port.name))),
            )
            for name, switch in sorted(site.switches.items(), key=lambda item: natural(item[0]))
        ),
    )


def _tuning(site: Site) -> Tuning:
    queue = site.lossless_queue
    return Tuning(
        lossless=LosslessClass(
            priority=site.lossless_priority,
            dscp=site.lossless_dscp,
            queue=site.lossless_priority if queue is None else queue,
            percent=site.wrr_lossless_percent,
        ),
        cnp=CnpClass(priority=site.cnp_priority, dscp=site.cnp_dscp),
        ecn=Ecn(min_kb=site.ecn_min_kb, max_kb=site.ecn_max_kb, probability=site.ecn_probability),
        watchdog=Watchdog(
            timeout_s=site.pfc_watchdog_timeout_s,
            recovery_s=site.pfc_watchdog_recovery_s,
            polling_s=site.pfc_watchdog_polling_s,
            action=site.pfc_watchdog_action,
        ),
        switch_mtu=site.switch_mtu,
        host_mtu=site.host_mtu,
        mmu=site.mmu,
        storm_control=site.switch_storm_control,
    )


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that counts: Ethernet2/1 before Ethernet10/1."""
    return tuple(
        (0, int(part)) if part.isdecimal() else (1, part)
        for part in re.split(r"(\d+)", text)
        if part
    )
