"""A terminal without a socket, and switches over SSH for clients that block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from netmiko import ConnectHandler

from railweld.lab.veos import (
    Device,
    ManualClock,
    Neighbour,
    Reply,
    Terminal,
    VirtualSwitch,
    serving,
)

CABLED = (
    Neighbour("Ethernet1/1", "gpu1", "rail1"),
    Neighbour("Ethernet2/1", "gpu2", "rail1"),
)


class Cli:
    """Types lines at a switch and remembers what came back."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        options.setdefault("neighbours", CABLED)
        self.device = Device(clock=self.clock, **options)
        self.terminal = Terminal(self.device, privileged=True)

    def reply(self, line: str) -> Reply:
        return self.terminal.receive(line)

    def send(self, *lines: str) -> str:
        """The answer to the last line."""
        text = ""
        for line in lines:
            text = self.terminal.receive(line).text
        return text

    def accept(self, *lines: str) -> None:
        """Type lines that the switch must take."""
        for line in lines:
            text = self.terminal.receive(line).text
            assert not text.startswith("%"), f"{line}: {text}"

    def another(self, *, privileged: bool = True) -> Terminal:
        """A second connection."""
        return Terminal(self.device, user="ops", privileged=privileged)

    @property
    def prompt(self) -> str:
        return self.terminal.prompt()

    def section(self, start: str) -> list[str]:
        """The running lines of one block."""
        return self.send(f"show running-config section {start}").splitlines()


@pytest.fixture
def cli() -> Callable[..., Cli]:
    return Cli


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def serve() -> Iterator[Callable[[VirtualSwitch], VirtualSwitch]]:
    """Serve a switch until the test ends."""
    with ExitStack() as stack:

        def start(switch: VirtualSwitch) -> VirtualSwitch:
            stack.enter_context(serving(switch))
            return switch

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """Connect with netmiko, in enable mode."""
    opened: list[Any] = []

    def start(switch: VirtualSwitch, **options: Any) -> Any:
        options.setdefault("username", "admin")
        options.setdefault("password", "admin")
        connection = ConnectHandler(
            device_type="arista_eos", host=switch.address, port=switch.port, **options
        )
        opened.append(connection)
        connection.enable()
        return connection

    yield start
    for connection in opened:
        connection.disconnect()
