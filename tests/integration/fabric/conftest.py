"""Virtual switches on loopback SSH, and the fabric stage that talks to them through netmiko."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from railweld.fabric.model import Fabric, Port, Switch, Tuning
from railweld.fabric.push import Report, Settings
from railweld.fabric.stage import Looked, Stage
from railweld.fabric.transport import Login
from railweld.lab.veos import ManualClock, Neighbour, VirtualSwitch, serving

SITE = "fabrictest"
FOREIGN = """\
hostname {name}
!
vlan 7
   name storage
!
interface Ethernet1/1
   description gpu1 rail 1
   no switchport
   ip address 10.9.1.1/31
!
interface Ethernet5/1
   description somebody else's
   mtu 9000
!
interface Ethernet31/1
   description uplink
   no switchport
!
ip route 0.0.0.0/0 10.0.0.1
!
"""


class TestClock:
    """The controller's clock in tests: waiting moves the switches' time as well."""

    __test__ = False

    def __init__(self, switches: ManualClock) -> None:
        self._switches = switches

    def now(self) -> float:
        return self._switches()

    def sleep(self, seconds: float) -> None:
        self._switches.advance(seconds)


def two_leaves_and_a_spine(tuning: Tuning | None = None) -> Fabric:
    """Two 7050X3 leaves with a host port each, and a 7280R spine with a cable to both."""

    def leaf(number: int) -> Switch:
        return Switch(
            name=f"leaf{number}",
            model="DCS-7050CX3-32S",
            ports=(
                Port(
                    name="Ethernet1/1", kind="host", peer="gpu1", peer_port=f"rail{number}",
                    rail=number,
                ),
                Port(
                    name="Ethernet31/1", kind="uplink", peer="spine1",
                    peer_port=f"Ethernet{number}/1",
                ),
            ),
        )  # fmt: skip

    spine = Switch(
        name="spine1",
        role="spine",
        model="DCS-7280CR3-32P4",
        ports=tuple(
            Port(
                name=f"Ethernet{number}/1", kind="uplink", peer=f"leaf{number}",
                peer_port="Ethernet31/1",
            )
            for number in (1, 2)
        ),
    )  # fmt: skip
    return Fabric(site=SITE, tuning=tuning or Tuning(), switches=(leaf(1), leaf(2), spine))


def one_leaf() -> Fabric:
    """A leaf with two host ports and no cable to another switch."""
    return Fabric(
        site=SITE,
        switches=(
            Switch(
                name="leaf1",
                model="DCS-7050CX3-32S",
                ports=tuple(
                    Port(
                        name=f"Ethernet{number}/1", kind="host", peer=f"gpu{number}",
                        peer_port="rail1", rail=1,
                    )
                    for number in (1, 2)
                ),
            ),
        ),
    )  # fmt: skip


def _approve(seen: Looked) -> bool:
    return bool(seen.changed)


@dataclass
class Lab:
    """Virtual switches of a fabric and the stage on them."""

    fabric: Fabric
    switches: dict[str, VirtualSwitch]
    clock: ManualClock
    logins: dict[str, Login]
    settings: Settings
    progress: list[tuple[str, str]] = field(default_factory=list)
    hook: Callable[[str, str], None] | None = None

    def stage(self, limit: tuple[str, ...] = (), fabric: Fabric | None = None) -> Stage:
        def note(switch: str, what: str) -> None:
            self.progress.append((switch, what))
            if self.hook is not None:
                self.hook(switch, what)

        return Stage(
            fabric or self.fabric,
            self.logins,
            settings=self.settings,
            limit=limit,
            clock=TestClock(self.clock),
            progress=note,
        )

    def push(self, *limit: str, fabric: Fabric | None = None) -> Report:
        _, report = self.stage(limit, fabric).push(_approve)
        assert report is not None
        return report

    def __getitem__(self, name: str) -> VirtualSwitch:
        return self.switches[name]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Build labs; `versions` gives a switch another release, `fabric` another fabric."""
    with ExitStack() as stack:

        def make(
            fabric: Fabric | None = None,
            *,
            versions: dict[str, str] | None = None,
            settings: Settings | None = None,
            startup: str = FOREIGN,
            **options: object,
        ) -> Lab:
            chosen = fabric or two_leaves_and_a_spine()
            clock = ManualClock()
            switches = {
                switch.name: VirtualSwitch(
                    model=switch.model,
                    version=(versions or {}).get(switch.name, "4.31.2F"),
                    hostname=switch.name,
                    clock=clock,
                    startup=startup.format(name=switch.name),
                    neighbours=[
                        Neighbour(port.name, port.peer, port.peer_port) for port in switch.ports
                    ],
                    **options,
                )
                for switch in chosen.switches
            }
            stack.enter_context(serving(*switches.values()))
            known_hosts = tmp_path / "known_hosts"
            known_hosts.write_text("".join(s.known_hosts_line() for s in switches.values()))
            logins = {
                name: Login(
                    switch=name,
                    host="127.0.0.1",
                    port=switch.port,
                    username="admin",
                    password="admin",
                    known_hosts=str(known_hosts),
                    command_timeout_s=6.0,
                )
                for name, switch in switches.items()
            }
            return Lab(
                chosen,
                switches,
                clock,
                logins,
                settings or Settings(observe_s=1.0, retry_s=1.0, reach_s=5.0),
            )

        yield make


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab()
