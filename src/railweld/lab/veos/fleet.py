"""The switches of an inventory, in one process.

A fleet may have a control folder, which is how another process reaches it:

    fleet.json        where each switch listens
    known_hosts       the host keys
    faults.json       read before every line: {"leaf1": [{"fault": "save-fails"}]}
    state/NAME.json   what a switch is like now
    startup/NAME.cfg  what it was told to keep
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncssh

from railweld.errors import CouldNotLookError, UsageError
from railweld.lab.veos.device import Neighbour
from railweld.lab.veos.faults import CATALOGUE, FaultError
from railweld.lab.veos.platforms import UnknownModelError, platform
from railweld.lab.veos.server import User, VirtualSwitch, read_key
from railweld.names import SWITCH_GROUPS
from railweld.site import RawHost, RawInventory, Site, build_site, load_inventory
from railweld.state import site_state_dir

DEFAULT_VERSION: Final = "4.31.2F"
#: Documented: the login where a description gives neither password nor key.
LAB_PASSWORD: Final = "admin"  # noqa: S105 - of virtual switches, known to everybody


@dataclass(frozen=True)
class SwitchPlan:
    """One switch of a fleet."""

    name: str
    model: str
    version: str = DEFAULT_VERSION
    address: str = "127.0.0.1"
    port: int = 0
    neighbours: tuple[Neighbour, ...] = ()
    users: Mapping[str, User] = field(
        default_factory=lambda: {"admin": User(password=LAB_PASSWORD)}
    )
    enable_secret: str | None = field(default=None, repr=False)
    startup: str = ""


def neighbours_of(site: Site) -> dict[str, list[Neighbour]]:
    """What LLDP shows on each switch when every cable is where the description says."""
    found: dict[str, dict[str, Neighbour]] = {name: {} for name in site.switches}
    for switch in site.switches.values():
        for port in switch.ports:
            found[switch.name][port.name] = Neighbour(port.name, port.peer, port.peer_port)
            if port.kind == "uplink" and port.peer in found:
                found[port.peer].setdefault(
                    port.peer_port, Neighbour(port.peer_port, switch.name, port.name)
                )
    return {name: list(ports.values()) for name, ports in found.items()}


def plans_from_site(
    site: Site,
    variables: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    listen: str | None = None,
    base_port: int | None = None,
    version: str | None = None,
) -> list[SwitchPlan]:
    """Plan a site's switches.

    They listen where the inventory says, on `listen` when given, from `base_port` upward when
    given (0: any free port). `variables` are the switches' Ansible variables, for logins.
    """
    cabling = neighbours_of(site)
    secret = site.switch_enable_secret
    plans = []
    for number, switch in enumerate(site.switches.values()):
        own = (variables or {}).get(switch.name, {})
        port = int(own.get("ansible_port") or 22)
        if base_port is not None:
            port = base_port + number if base_port else 0
        try:
            platform(switch.model)
        except UnknownModelError as error:
            raise UsageError(f"{switch.name}: {error}") from error
        wanted = version or own.get("lab_eos_version") or switch.eos_version
        plans.append(
            SwitchPlan(
                name=switch.name,
                model=switch.model,
                version=str(wanted or DEFAULT_VERSION),
                address=listen or switch.address,
                port=port,
                neighbours=tuple(cabling[switch.name]),
                users=_users(own),
                enable_secret=secret.get_secret_value() if secret is not None else None,
            )
        )
    return plans


def _users(own: Mapping[str, Any]) -> dict[str, User]:
    name = str(own.get("ansible_user") or "admin")
    password = own.get("ansible_password")
    keys: list[str] = []
    if key_file := own.get("ansible_ssh_private_key_file"):
        path = Path(str(key_file)).expanduser()
        if path.exists():
            public = asyncssh.read_private_key(path).export_public_key()
            keys.append(public.decode().strip())
    if password is None and not keys:
        password = LAB_PASSWORD
    return {name: User(password=None if password is None else str(password), keys=tuple(keys))}


class Fleet:
    """Several virtual switches that start and stop together."""

    def __init__(
        self,
        plans: Sequence[SwitchPlan],
        *,
        control: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        latency_s: float = 0.0,
    ) -> None:
        self.control = control
        self.switches: dict[str, VirtualSwitch] = {}
        self._faults_seen = -1
        for plan in plans:
            kept = self._path("startup", f"{plan.name}.cfg")
            key = self._path("keys", plan.name)
            switch = VirtualSwitch(
                model=plan.model,
                version=plan.version,
                hostname=plan.name,
                clock=clock,
                users=plan.users,
                host_key=read_key(key) if key is not None else None,
                startup=kept.read_text() if kept is not None and kept.exists() else plan.startup,
                neighbours=plan.neighbours,
                address=plan.address,
                port=plan.port,
                enable_secret=plan.enable_secret,
                latency_s=latency_s,
            )
            if control is not None:
                switch.before_line = self.read_faults
                switch.after_line = lambda name=plan.name: self.write_state(name)
            self.switches[plan.name] = switch

    @classmethod
    def from_site(
        cls,
        site: Site,
        variables: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        listen: str | None = None,
        base_port: int | None = None,
        version: str | None = None,
        **options: Any,
    ) -> Fleet:
        """A fleet of a site's leaves and spines; see `plans_from_site`."""
        plans = plans_from_site(
            site, variables, listen=listen, base_port=base_port, version=version
        )
        return cls(plans, **options)

    @classmethod
    def from_inventory(
        cls, sources: Sequence[str], *, state: bool = False, **options: Any
    ) -> Fleet:
        """A fleet of an inventory; with `state`, its control folder is the site's lab folder."""
        raw = load_inventory(sources)
        site, problems = build_site(raw)
        if site is None:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise UsageError(f"lab switches: the inventory is not a site yet:\n{listed}")
        if state and options.get("control") is None:
            options["control"] = default_control(site.name)
        return cls.from_site(site, _switch_variables(raw), **options)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen with every switch; all or none."""
        for name, switch in self.switches.items():
            try:
                await switch.start()
            except OSError as error:
                await self.stop()
                raise CouldNotLookError(
                    f"{name}: cannot listen on {switch.address}: {error.strerror or error}; "
                    f"give the address to an interface of this machine or choose --listen"
                ) from error
        if self.control is not None:
            self.control.mkdir(parents=True, exist_ok=True)
            (self.control / "known_hosts").write_text(self.known_hosts())
            endpoints = {
                name: {"address": switch.address, "port": switch.port, "pid": os.getpid()}
                for name, switch in self.switches.items()
            }
            (self.control / "fleet.json").write_text(json.dumps(endpoints, indent=1) + "\n")
            for name in self.switches:
                self.write_state(name)

    async def stop(self) -> None:
        """Stop every switch."""
        await asyncio.gather(*(switch.stop() for switch in self.switches.values()))
        if self.control is not None:
            (self.control / "fleet.json").unlink(missing_ok=True)

    async def __aenter__(self) -> Fleet:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __getitem__(self, name: str) -> VirtualSwitch:
        return self.switches[name]

    def known_hosts(self) -> str:
        """Every switch's line of a known_hosts file."""
        return "".join(switch.known_hosts_line() for switch in self.switches.values())

    # ------------------------------------------------------------------ control folder

    def _path(self, *parts: str) -> Path | None:
        return None if self.control is None else self.control.joinpath(*parts)

    def read_faults(self) -> None:
        """Take up the control file when it changed."""
        path = self._path("faults.json")
        if path is None:
            return
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            stamp = 0
        if stamp == self._faults_seen:
            return
        self._faults_seen = stamp
        wanted: dict[str, Any] = {}
        if stamp:
            with contextlib.suppress(json.JSONDecodeError):
                wanted = json.loads(path.read_text())
        for name, switch in self.switches.items():
            with contextlib.suppress(FaultError):
                switch.device.faults.replace(wanted.get(name, ()))

    def write_state(self, name: str) -> None:
        """Show what a switch is like now, and keep what it saved."""
        folder = self.control
        if folder is None:
            return
        device = self.switches[name].device
        for kind in ("state", "startup"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        _replace_file(folder / "state" / f"{name}.json", json.dumps(device.state(), indent=1))
        kept = folder / "startup" / f"{name}.cfg"
        text = "\n".join(device.startup_lines) + "\n"
        if not kept.exists() or kept.read_text() != text:
            _replace_file(kept, text)


def _replace_file(path: Path, text: str) -> None:
    """Write so that a reader sees the old file or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _switch_variables(raw: RawInventory) -> dict[str, RawHost]:
    return {name: host for name, host in raw.hosts.items() if set(SWITCH_GROUPS) & set(host.groups)}


def default_control(site: str) -> Path:
    """The control folder of a site's lab."""
    return site_state_dir(site) / "lab" / "switches"


def set_fault(control: Path, switch: str, name: str, values: Mapping[str, Any]) -> None:
    """Set a fault through the control folder; the switch takes it up with its next line."""
    if name not in CATALOGUE:
        raise UsageError(f"fault: found {name!r}, expected one of {', '.join(CATALOGUE)}")
    wanted = read_wanted(control)
    entry = {"fault": name, **values}
    wanted.setdefault(switch, [])
    if entry not in wanted[switch]:
        wanted[switch].append(entry)
    _replace_file(control / "faults.json", json.dumps(wanted, indent=1) + "\n")


def clear_faults(control: Path, switch: str, name: str | None = None) -> None:
    """Take a switch's faults back, all or those of a name."""
    wanted = read_wanted(control)
    kept = [e for e in wanted.get(switch, ()) if name is not None and e["fault"] != name]
    wanted[switch] = kept
    _replace_file(control / "faults.json", json.dumps(wanted, indent=1) + "\n")


def read_wanted(control: Path) -> dict[str, list[dict[str, Any]]]:
    """The faults that the control folder asks for."""
    path = control / "faults.json"
    if not control.is_dir():
        raise CouldNotLookError(
            f"{control}: no such folder; the switches are not running, start them first"
        )
    if not path.exists():
        return {}
    loaded: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    return loaded
