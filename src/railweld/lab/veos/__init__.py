"""A virtual Arista EOS over SSH: the lab's switches, and the double that tests push against.

It behaves like EOS for what a lossless fabric needs (modes, sessions, commit timers, `show`
commands, the refusals of each platform) and refuses what a real switch would refuse.

Known to be thinner than the real thing: no eAPI, no `?` help, no line wrapping at the terminal's
width; texts and table layouts for which no public source exists are marked "unverified" where
they stand; lines inside modes that this product never writes (`router bgp`, `vlan`, ACLs) are
kept without being judged.

    async with VirtualSwitch(model="7050X3", version="4.31.2F", hostname="leaf1") as switch:
        ConnectHandler(device_type="arista_eos", host="127.0.0.1", port=switch.port, ...)
"""

from __future__ import annotations

from railweld.lab.veos.config import Echo
from railweld.lab.veos.device import Behaviour, Device, ManualClock, Neighbour, PortCounters
from railweld.lab.veos.faults import CATALOGUE, TEXTS, Fault, FaultError
from railweld.lab.veos.fleet import Fleet, SwitchPlan, plans_from_site
from railweld.lab.veos.platforms import Family, UnknownModelError, platform
from railweld.lab.veos.server import User, VirtualSwitch
from railweld.lab.veos.terminal import Reply, Terminal
from railweld.lab.veos.threaded import serving

__all__ = [
    "CATALOGUE",
    "TEXTS",
    "Behaviour",
    "Device",
    "Echo",
    "Family",
    "Fault",
    "FaultError",
    "Fleet",
    "ManualClock",
    "Neighbour",
    "PortCounters",
    "Reply",
    "SwitchPlan",
    "Terminal",
    "UnknownModelError",
    "User",
    "VirtualSwitch",
    "plans_from_site",
    "platform",
    "serving",
]
