"""In which order a fabric changes: never half a link, never a whole rail at once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from railweld.fabric.model import Fabric, Switch


@dataclass(frozen=True)
class Step:
    """Ports that change together, on one switch or on both ends of a bundle of links.

    `ports` is None for everything that a switch has in this pass.
    """

    switches: tuple[str, ...]
    ports: Mapping[str, frozenset[str]] | None = None

    def ports_of(self, switch: str) -> frozenset[str] | None:
        """The ports of one end; None when the step is not about ports."""
        return None if self.ports is None else self.ports.get(switch, frozenset())

    def title(self) -> str:
        """For progress and error texts."""
        return " - ".join(self.switches)


def switch_steps(switches: Iterable[Switch]) -> list[Step]:
    """First pass: each switch by itself, leaves before spines."""
    ordered = sorted(switches, key=lambda switch: switch.role != "leaf")
    return [Step((switch.name,)) for switch in ordered]


def link_steps(fabric: Fabric, names: Iterable[str]) -> list[Step]:
    """Second pass: a switch's host ports, then every pair of connected switches.

    The other end of a host port is the host, which the base stage has set up; the other end of
    an uplink is a switch, and both change in one step.
    """
    wanted = set(names)
    steps: list[Step] = []
    pairs: defaultdict[tuple[str, str], defaultdict[str, set[str]]] = defaultdict(
        lambda: defaultdict(set)
    )
    known = {switch.name for switch in fabric.switches}
    for switch in sorted(fabric.switches, key=lambda switch: switch.role != "leaf"):
        if switch.name not in wanted:
            continue
        alone = {
            port.name for port in switch.ports if port.kind == "host" or port.peer not in known
        }
        # Also without host ports: the switch-wide watchdog must be there before any PFC.
        steps.append(Step((switch.name,), {switch.name: frozenset(alone)}))
        for port in switch.ports:
            if port.kind == "uplink" and port.peer in known:
                ends = pairs[min(switch.name, port.peer), max(switch.name, port.peer)]
                ends[switch.name].add(port.name)
                if port.peer_port:
                    ends[port.peer].add(port.peer_port)
    for both, ends in pairs.items():
        steps.append(Step(both, {name: frozenset(ports) for name, ports in ends.items()}))
    return steps


def rounds(
    steps: Sequence[Step], fabric: Fabric, *, batch: int | None, canary: bool = False
) -> list[list[Step]]:
    """Group steps that may run at the same time.

    Args:
        steps: in the order in which they should happen.
        fabric: for which leaf carries which rail.
        batch: how many steps at once; None for as many as possible, without regard to rails.
        canary: run the very first step alone.

    A switch is in one step of a round at most. With a batch size, all the leaves that carry a
    rail are never in one round with another leaf.
    """
    by_name = {switch.name: switch for switch in fabric.switches}
    groups: list[list[Step]] = []
    for number, step in enumerate(steps):
        if canary and number == 0 and batch is not None:
            groups.append([step])
            continue
        for index, group in enumerate(groups):
            if canary and index == 0 and batch is not None:
                continue
            if batch is not None and len(group) >= batch:
                continue
            busy = {name for other in group for name in other.switches}
            if busy & set(step.switches):
                continue
            if batch is None or _rails_survive(busy | set(step.switches), by_name):
                group.append(step)
                break
        else:
            groups.append([step])
    return groups


def _rails_survive(touched: set[str], switches: Mapping[str, Switch]) -> bool:
    leaves = [switches[name] for name in touched if switches[name].role == "leaf"]
    if len(leaves) < 2:
        return True
    carriers: defaultdict[int, set[str]] = defaultdict(set)
    for switch in switches.values():
        for rail in switch.rails():
            carriers[rail].add(switch.name)
    names = {leaf.name for leaf in leaves}
    return not any(carrying <= names for carrying in carriers.values())
