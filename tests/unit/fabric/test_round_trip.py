"""Random valid fabrics: render, configure a virtual switch, read back, and the diff is empty."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from railweld.fabric.diff import Observed, compare, compare_paths, foreign, owned_part, scope_of
from railweld.fabric.lines import canonical
from railweld.fabric.model import (
    CnpClass,
    Ecn,
    Fabric,
    LosslessClass,
    Switch,
    Tuning,
    Watchdog,
)
from railweld.fabric.render import render
from railweld.fabric.rules import findings
from railweld.lab.veos import Device

from .fabrics import SAND, STRATA, TOMAHAWK, host

FOREIGN = """\
hostname leaf1
!
qos profile OTHER
   qos trust cos
!
interface Ethernet1/1
   description gpu1
   no switchport
   ip address 10.0.0.1/31
!
interface Ethernet20/1
   mtu 1600
   service-profile OTHER
!
qos map dscp 10 to traffic-class 2
!
ip route 0.0.0.0/0 10.0.0.9
"""


@st.composite
def tunings(draw: st.DrawFn) -> Tuning:
    priorities = draw(st.lists(st.integers(2, 6), min_size=2, max_size=2, unique=True))
    dscps = draw(st.lists(st.integers(0, 63), min_size=2, max_size=2, unique=True))
    low = draw(st.integers(1, 3000))
    timeout = draw(st.integers(20, 300)) / 100
    return Tuning(
        lossless=LosslessClass(
            priority=priorities[0], queue=priorities[0], dscp=dscps[0],
            percent=draw(st.integers(50, 95)),
        ),
        cnp=CnpClass(priority=priorities[1], dscp=dscps[1]),
        ecn=Ecn(
            min_kb=low, max_kb=low + draw(st.integers(1, 3000)),
            probability=draw(st.integers(1, 100)),
        ),
        watchdog=Watchdog(
            timeout_s=timeout,
            recovery_s=draw(st.integers(20, 300)) / 100,
            polling_s=draw(st.integers(5, 100)) / 1000,
            action=draw(st.sampled_from(["drop", "errdisable", "notify-only"])),
        ),
        switch_mtu=draw(st.integers(9000, 9214)),
        mmu=draw(st.booleans()),
        storm_control=draw(st.sampled_from([None, 1.0, 2.5])),
    )  # fmt: skip


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    numbers = draw(st.lists(st.integers(1, 16), min_size=1, max_size=4, unique=True))
    switch = Switch(
        name="leaf1",
        model=draw(st.sampled_from([STRATA, TOMAHAWK, SAND])),
        eos_version=draw(st.sampled_from(["4.30.5M", "4.31.2F", "4.32.1F", "4.35.0F"])),
        ports=tuple(
            host(number, cable_m=draw(st.sampled_from([3, 40, 300]))) for number in numbers
        ),
    )
    return Fabric(site="test", tuning=draw(tunings()), switches=(switch,))


def configure(device: Device, commands: tuple[str, ...]) -> None:
    """Type commands into a session as the push does; a refused line raises."""
    session = device.open_session("test", "admin", 1, "vty1")
    frames = device.top
    for command in commands:
        if command == "exit":
            frames = frames[:-1]
        else:
            frames, _ = device.configure(session.config, frames, command.split())
    session.held.clear()
    device.commit("test", None, "admin")
    device.sessions.pop("test")


def running(device: Device) -> str:
    return "\n".join(device.running_lines)


def settings_of(config: str) -> set[str]:
    return {line for line in config.splitlines() if line.strip() != "!"}


@given(fabrics())
@settings(max_examples=40, deadline=None)
def test_a_pushed_fabric_reads_back_without_difference(fabric: Fabric) -> None:
    assert [f for f in findings(fabric) if f.severity == "error"] == []
    switch = fabric.switches[0]
    device = Device(model=switch.model, version=switch.eos_version or "", startup=FOREIGN)
    before = running(device)
    rendered = render(fabric, switch)
    plan = compare(rendered, Observed(before))
    configure(device, plan.commands())
    after = running(device)
    assert [c.sentence() for c in compare(rendered, Observed(after)).changes] == []
    scope = scope_of(plan.wanted, rendered.ports, ())
    assert foreign(Observed(after), scope) == foreign(Observed(before), scope)


WORDS = st.text("abcXYZ089-_ /.%!#:", min_size=1, max_size=20).map(str.strip).filter(
    lambda text: bool(text) and not text.startswith(("!", "%"))
)  # fmt: skip


@st.composite
def foreign_configs(draw: st.DrawFn) -> str:
    """What other people have on a switch, also on the ports of the fabric.

    Their DSCPs are in classes of their own: 4.35 prints those of one class on one line.
    """
    numbers = st.integers(1, 16)
    lines = [f"hostname {draw(st.sampled_from(['leaf1', 'LEAF-1', 'leaf1.example.com']))}"]
    for number in draw(st.lists(st.integers(2, 4000), max_size=3, unique=True)):
        lines += [f"vlan {number}", f"   name v{number}"]
    if draw(st.booleans()):
        lines += ["qos profile OTHER", f"   qos trust {draw(st.sampled_from(['cos', 'dscp']))}"]
        lines += ["   tx-queue 5", f"      bandwidth percent {draw(st.integers(1, 20))}"]
    for number in draw(st.lists(numbers, max_size=4, unique=True)):
        lines += [f"interface Ethernet{number}/1", f"   description {draw(WORDS)}"]
        if draw(st.booleans()):
            lines += ["   no switchport", f"   ip address 10.0.{number}.1/31"]
        if draw(st.booleans()):
            lines.append(f"   mtu {draw(st.integers(1500, 9000))}")
    for number in draw(st.lists(st.integers(20, 30), max_size=2, unique=True)):
        lines += [f"interface Ethernet{number}/1", "   service-profile OTHER"]
    for number in draw(st.lists(st.integers(8, 15), max_size=2, unique=True)):
        lines.append(f"qos map dscp {number} to traffic-class {draw(st.integers(0, 1))}")
    for number in draw(st.lists(numbers, max_size=2, unique=True)):
        lines.append(f"ip route 10.9.{number}.0/24 10.0.0.{number}")
    return "\n".join(lines) + "\n"


def is_within(lines: list[str], whole: list[str]) -> bool:
    """Whether the lines stand in the other text, byte by byte and in their order."""
    rest = iter(whole)
    return all(line in rest for line in lines)


@given(fabrics(), foreign_configs())
@settings(max_examples=60, deadline=None)
def test_foreign_configuration_survives_byte_by_byte(fabric: Fabric, config: str) -> None:
    switch = fabric.switches[0]
    device = Device(model=switch.model, version=switch.eos_version or "", startup=config)
    before = device.running_lines
    plan = compare(render(fabric, switch), Observed("\n".join(before)))
    configure(device, plan.commands())
    after = device.running_lines
    # What the plan names as its old value is ours: such a line on a port of the fabric.
    ours = {port.name for port in switch.ports}
    replaced = {c.old for c in plan.changes if c.old}
    section, kept = "", []
    for line in before:
        section = line if not line.startswith(" ") else section
        is_ours = section.removeprefix("interface ") in ours or section == line
        if line != "!" and not (is_ours and line.strip() in replaced):
            kept.append(line)
    assert is_within(kept, after)


@given(fabrics(), tunings())
@settings(max_examples=25, deadline=None)
def test_a_change_of_values_reads_back_and_going_back_restores_every_line(
    fabric: Fabric, tuning: Tuning
) -> None:
    switch = fabric.switches[0]
    device = Device(model=switch.model, version=switch.eos_version or "", startup=FOREIGN)
    first = render(fabric, switch)
    start = running(device)
    configure(device, compare(first, Observed(start)).commands())
    then = running(device)
    previous = tuple(p for line in first.lines for p in canonical((*line.path, line.text)))

    second = render(fabric.model_copy(update={"tuning": tuning}), switch)
    configure(device, compare(second, Observed(then, previous=previous)).commands())
    now = running(device)
    assert compare(second, Observed(now, previous=previous)).changes == ()

    everything = (*previous, *(p for ln in second.lines for p in canonical((*ln.path, ln.text))))
    for text, target in ((then, then), (start, start)):
        scope = scope_of(everything, first.ports, everything)
        observed = Observed(running(device), previous=everything)
        back = compare_paths(
            "leaf1", first.platform, owned_part(text, scope), observed, ports=first.ports
        )
        configure(device, back.commands())
        assert settings_of(running(device)) == settings_of(target)
