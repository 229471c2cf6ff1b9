"""The SSH side of a virtual switch: characters in, echo, pages and prompts out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncssh

from railweld.lab.veos.config import Echo
from railweld.lab.veos.device import Behaviour, Device, Neighbour
from railweld.lab.veos.faults import Fault
from railweld.lab.veos.terminal import Reply, Terminal

_MORE: Final = " --More-- "


@dataclass(frozen=True)
class User:
    """Who may log in, with what, and into which mode."""

    password: str | None = None
    keys: tuple[str, ...] = ()
    privileged: bool = False


class _Login(asyncssh.SSHServer):
    """Authenticates one connection."""

    def __init__(self, switch: VirtualSwitch) -> None:
        self._switch = switch
        self._user = ""
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._switch.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._connection is not None:
            self._switch.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        self._user = username
        if self._switch.login_banner and self._connection is not None:
            self._connection.send_auth_banner(self._switch.login_banner)
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        user = self._switch.users.get(username)
        return user is not None and user.password is not None and user.password == password

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        user = self._switch.users.get(username)
        offered = key.export_public_key().split()[:2]
        known = [line.encode().split()[:2] for line in (user.keys if user else ())]
        return offered in known


class VirtualSwitch:
    """A switch that listens on a socket.

    >>> async with VirtualSwitch(model="7050X3", hostname="leaf1") as switch:
    ...     switch.port
    """

    def __init__(
        self,
        *,
        model: str = "7050X3",
        version: str = "4.30.5M",
        hostname: str = "leaf1",
        clock: Callable[[], float] = time.monotonic,
        users: Mapping[str, User | str] | None = None,
        host_key: asyncssh.SSHKey | None = None,
        startup: str = "",
        neighbours: Iterable[Neighbour] = (),
        echo: Echo | None = None,
        behaviour: Behaviour | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        enable_secret: str | None = None,
        login_banner: str = "",
        motd: str = "",
        latency_s: float = 0.0,
    ) -> None:
        self.device = Device(
            model=model,
            version=version,
            hostname=hostname,
            clock=clock,
            startup=startup,
            neighbours=neighbours,
            echo=echo,
            behaviour=behaviour,
        )
        chosen = users if users is not None else {"admin": "admin"}
        self.users: dict[str, User] = {
            name: user if isinstance(user, User) else User(password=user)
            for name, user in chosen.items()
        }
        self.host_key = host_key or asyncssh.generate_private_key("ssh-ed25519")
        self.address = address
        self.enable_secret = enable_secret
        self.login_banner = login_banner
        self.motd = motd
        self.latency_s = latency_s
        self.connections: set[asyncssh.SSHServerConnection] = set()
        #: Every line received, with the connection that sent it; tests read the order.
        self.received: list[tuple[int, str]] = []
        #: Called before a line is answered; the fleet looks into its control file here.
        self.before_line: Callable[[], None] | None = None
        self.after_line: Callable[[], None] | None = None
        self._wanted_port = port
        self._listener: asyncssh.SSHAcceptor | None = None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen."""
        self._listener = await asyncssh.create_server(
            lambda: _Login(self),
            self.address,
            self._wanted_port,
            server_host_keys=[self.host_key],
            process_factory=self._serve,
            encoding=None,
            line_editor=False,
            allow_scp=False,
            reuse_address=True,
            login_timeout=60,
        )

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._listener is not None:
            self._listener.close()
            for connection in list(self.connections):
                connection.abort()
            await self._listener.wait_closed()
            self._listener = None

    async def __aenter__(self) -> VirtualSwitch:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._listener is None:
            raise RuntimeError("virtual switch: not started; use `async with` or start()")
        return int(self._listener.get_port())

    def known_hosts_line(self) -> str:
        """The line that a client's known_hosts file needs."""
        host = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{host} {self.host_key.export_public_key().decode().strip()}\n"

    # ------------------------------------------------------------------ for tests

    def fault(self, name: str, /, **values: Any) -> Fault:
        """Set a fault; see `faults.CATALOGUE`."""
        return self.device.faults.add(name, **values)

    def clear_faults(self, name: str | None = None) -> None:
        """Take faults back."""
        self.device.faults.clear(name)

    def disconnect_all(self) -> None:
        """Cut every connection, as a lost link does."""
        for connection in list(self.connections):
            connection.abort()

    @property
    def running_lines(self) -> list[str]:
        """The running configuration as it is printed."""
        return self.device.running_lines

    @property
    def saved(self) -> bool:
        """Whether a reboot would bring the running configuration back."""
        return self.device.saved

    # ------------------------------------------------------------------ a connection

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        name = process.get_extra_info("username")
        user = self.users.get(name, User())
        terminal = Terminal(
            self.device,
            user=name,
            privileged=user.privileged,
            enable_secret=self.enable_secret,
        )
        try:
            if process.command is not None:
                await self._serve_command(process, terminal)
            else:
                await _Shell(self, process, terminal).run()
        except (asyncssh.Error, ConnectionError, BrokenPipeError, EOFError):
            pass
        finally:
            terminal.hang_up()
            if self.after_line is not None:
                self.after_line()
            with contextlib.suppress(OSError, asyncssh.Error):
                process.exit(0)

    async def _serve_command(
        self, process: asyncssh.SSHServerProcess[bytes], terminal: Terminal
    ) -> None:
        """`ssh switch 'show version'`: one command without a terminal."""
        terminal.privileged |= self.enable_secret is None
        reply = await self.answer(terminal, process.command or "")
        if reply.text:
            process.stdout.write(reply.text.encode() + b"\n")

    async def answer(self, terminal: Terminal, line: str) -> Reply:
        """Let the terminal answer a line, taking the time that it takes."""
        if self.before_line is not None:
            self.before_line()
        self.received.append((terminal.number, line))
        reply = terminal.receive(line)
        delay = reply.delay + (self.latency_s if line.strip() else 0.0)
        if delay:
            await asyncio.sleep(delay)
        if self.after_line is not None:
            self.after_line()
        if reply.hang:
            await asyncio.Event().wait()
        return reply


@dataclass
class _Shell:
    """An interactive connection: a terminal behind a pty."""

    switch: VirtualSwitch
    process: asyncssh.SSHServerProcess[bytes]
    terminal: Terminal
    _typed: bytearray = field(default_factory=bytearray)
    _ready: bytearray = field(default_factory=bytearray)
    _after_return: bool = False
    _secret: bool = False

    async def run(self) -> None:
        """Serve until the client leaves."""
        motd = self.switch.motd
        held = self.switch.device.faults.held("banner")
        if held is not None:
            motd = held.text("")
        if motd:
            self._print(motd)
        self._write(self.terminal.prompt())
        while True:
            line = await self._line()
            if line is None:
                return
            reply = await self.switch.answer(self.terminal, line)
            if reply.text and not await self._page(reply.text.split("\n")):
                return
            if reply.close:
                if reply.reload:
                    self.switch.disconnect_all()
                return
            self._secret = reply.secret
            self._write(reply.ask if reply.ask is not None else self.terminal.prompt())

    def _write(self, text: str) -> None:
        self.process.stdout.write(text.encode())

    def _print(self, text: str) -> None:
        self._write(text.replace("\n", "\r\n") + "\r\n")

    async def _more(self) -> bool:
        """Read what the client sent next; False when it left."""
        while True:
            try:
                data = await self.process.stdin.read(4096)
            except (asyncssh.TerminalSizeChanged, asyncssh.BreakReceived):
                continue
            if not data:
                return False
            self._ready += data
            return True

    async def _line(self) -> str | None:
        """Read up to Return, echoing as a terminal does."""
        echoed = 0
        while True:
            while self._ready:
                byte = self._ready.pop(0)
                if byte == 0x0A and self._after_return:
                    self._after_return = False
                    continue
                self._after_return = byte == 0x0D
                if byte in (0x0D, 0x0A):
                    return await self._finish(echoed)
                if byte == 0x03:
                    self._typed.clear()
                    self._write("^C\r\n" + self.terminal.prompt())
                    echoed = 0
                elif byte == 0x04 and not self._typed:
                    return None
                elif byte in (0x08, 0x7F):
                    if self._typed:
                        self._typed.pop()
                        if echoed > len(self._typed):
                            echoed = len(self._typed)
                            self._write("\b \b")
                elif byte >= 0x20 or byte == 0x09:
                    self._typed.append(byte)
            if not self._secret and len(self._typed) > echoed:
                self.process.stdout.write(bytes(self._typed[echoed:]))
                echoed = len(self._typed)
            if not await self._more():
                return None

    async def _finish(self, echoed: int) -> str:
        typed = bytes(self._typed)
        self._typed.clear()
        line = typed.decode(errors="replace")
        if self._secret:
            self._write("\r\n")
            return line
        for fault in self.switch.device.faults.strike_echo(line, self.terminal.mode):
            if fault.name == "slow-echo":
                await asyncio.sleep(fault.seconds())
            else:
                # The switch fell behind: the line stands there once more, behind a prompt.
                self.process.stdout.write(typed[echoed:] + b"\r\n")
                self._write(self.terminal.prompt())
                echoed = 0
        self.process.stdout.write(typed[echoed:] + b"\r\n")
        return line

    async def _page(self, lines: Sequence[str]) -> bool:
        """Print, stopping at each page when the terminal pages; False when the client left."""
        height = self.terminal.length
        if height <= 1 or len(lines) < height:
            self._print("\n".join(lines))
            return True
        start = 0
        step = height - 1
        while start < len(lines):
            self._print("\n".join(lines[start : start + step]))
            start += step
            if start >= len(lines):
                break
            self._write(_MORE)
            while not self._ready:
                if not await self._more():
                    return False
            key = self._ready.pop(0)
            self._write("\r" + " " * len(_MORE) + "\r")
            if key in b"qQ\x03":
                break
            step = 1 if key in b"\r\n" else height - 1
        return True


def read_key(path: Path) -> asyncssh.SSHKey:
    """A host key that survives restarts: made when it is not there yet."""
    if path.exists():
        return asyncssh.read_private_key(path)
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    key.write_private_key(path)
    return key
