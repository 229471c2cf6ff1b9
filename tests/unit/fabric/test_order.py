"""The order of changes: both ends of a link together, rails never all at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from railweld.fabric.model import Fabric, Port, Switch
from railweld.fabric.order import link_steps, rounds, switch_steps

from .fabrics import SAND, STRATA, host


def leaf(number: int, rails: tuple[int, ...], *, uplink: bool = True) -> Switch:
    ports = [host(index + 1, rail=rail) for index, rail in enumerate(rails)]
    if uplink:
        ports.append(
            Port(name="Ethernet31/1", kind="uplink", peer="spine1", peer_port=f"Ethernet{number}/1")
        )
    return Switch(name=f"leaf{number}", model=STRATA, ports=tuple(ports))


def spine(leaves: int) -> Switch:
    ports = tuple(
        Port(name=f"Ethernet{n}/1", kind="uplink", peer=f"leaf{n}", peer_port="Ethernet31/1")
        for n in range(1, leaves + 1)
    )
    return Switch(name="spine1", role="spine", model=SAND, ports=ports)


def fabric(*rails: tuple[int, ...]) -> Fabric:
    leaves = [leaf(number, rail) for number, rail in enumerate(rails, start=1)]
    return Fabric(site="t", switches=(*leaves, spine(len(leaves))))


def test_leaves_come_before_spines() -> None:
    steps = switch_steps(reversed(fabric((1,), (2,)).switches))
    assert [step.switches[0] for step in steps][-1] == "spine1"


def test_a_link_step_has_both_ends_and_host_ports_come_first() -> None:
    site = fabric((1,), (2,))
    steps = link_steps(site, ["leaf1", "leaf2", "spine1"])
    assert [step.switches for step in steps] == [
        ("leaf1",), ("leaf2",), ("spine1",), ("leaf1", "spine1"), ("leaf2", "spine1"),
    ]  # fmt: skip
    both = steps[3]
    assert both.ports_of("leaf1") == {"Ethernet31/1"}
    assert both.ports_of("spine1") == {"Ethernet1/1"}
    assert steps[0].ports_of("leaf1") == {"Ethernet1/1"}


def test_the_canary_goes_alone() -> None:
    site = fabric((1, 2), (1, 2), (1, 2), (1, 2))
    groups = rounds(switch_steps(site.switches[:4]), site, batch=3, canary=True)
    assert [len(group) for group in groups] == [1, 3]


def test_leaves_that_carry_a_rail_alone_never_go_together() -> None:
    site = fabric((1, 2), (3, 4))
    groups = rounds(switch_steps(site.switches), site, batch=8)
    assert all(
        not {"leaf1", "leaf2"} <= {name for step in group for name in step.switches}
        for group in groups
    )


def test_all_disregards_rails_because_the_operator_said_so() -> None:
    site = fabric((1,), (2,))
    assert len(rounds(switch_steps(site.switches), site, batch=None)) == 1


@given(
    st.lists(st.sets(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_step_runs_once_and_a_rail_keeps_a_leaf(rails: list[set[int]], batch: int) -> None:
    site = fabric(*(tuple(sorted(each)) for each in rails))
    steps = link_steps(site, [switch.name for switch in site.switches])
    groups = rounds(steps, site, batch=batch)
    assert sorted(s.title() for group in groups for s in group) == sorted(s.title() for s in steps)
    for group in groups:
        touched = [name for step in group for name in step.switches]
        assert len(group) <= batch
        assert len(touched) == len(set(touched))
        leaves = {name for name in touched if name.startswith("leaf")}
        for rail in (1, 2, 3, 4):
            carriers = {s.name for s in site.switches if rail in s.rails()}
            assert len(leaves) < 2 or not carriers or not carriers <= leaves
