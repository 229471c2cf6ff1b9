"""From the model to EOS lines: pure, no device.

Templates (switch_configs/) hold the words; every line in them stands under a comment that says
why it is there. Rendering keeps that comment with the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from railweld.errors import RailweldError
from railweld.fabric import headroom
from railweld.fabric.model import Fabric, Switch
from railweld.fabric.platforms import Platform, platform_for, switch_configs_dir

#: Names of the objects that belong to railweld on a switch. What has them is ours to remove.
PROFILE: Final = "RAILWELD"
MMU_PROFILE: Final = "RAILWELD-MMU"

Part = Literal["switch", "port"]


@dataclass(frozen=True)
class Line:
    """One intended line: where it stands, why, and in which pass it is pushed."""

    path: tuple[str, ...]
    text: str
    intent: str
    part: Part

    @property
    def stage(self) -> int:
        """1 for maps, queues, ECN and MTU; 2 for PFC and its watchdog (both link ends together)."""
        return stage_of((*self.path, self.text))


@dataclass(frozen=True)
class Rendered:
    """What one switch must have."""

    switch: str
    platform: Platform
    lines: tuple[Line, ...]
    ports: tuple[str, ...]

    def text(self, *, intents: bool = False) -> str:
        """The lines as a configuration, with their intents as comments when asked for."""
        return "\n".join(_as_config(self.lines, intents=intents)) + "\n"


def stage_of(path: tuple[str, ...]) -> int:
    """Pass of a line: everything that starts or guards pauses is in the second."""
    return 2 if path[-1].removeprefix("no ").startswith("priority-flow-control") else 1


def render(fabric: Fabric, switch: Switch, *, release: str | None = None) -> Rendered:
    """Render one switch at a release (default: the description's, else the newest tested)."""
    if fabric.transport == "infiniband":
        raise RailweldError(
            f"{fabric.site}: found transport infiniband, expected roce: an InfiniBand fabric has "
            "no PFC or ECN to configure; `railweld fabric verify` says what is checked instead"
        )
    platform = platform_for(switch.model, release or switch.eos_version)
    tuning = fabric.tuning
    mmu = None
    if tuning.mmu and platform.mmu and switch.ports:
        mmu = headroom.for_ports(
            [(port.rate_gbps, port.cable_m) for port in switch.ports], tuning.switch_mtu
        )
    watchdog = tuning.watchdog
    values = {
        "names": {"profile": PROFILE, "mmu": MMU_PROFILE},
        "queue_word": platform.queue_word,
        "ecn_count_in_profile": platform.ecn_count_in_profile,
        "ecn_count_per_port": not platform.ecn_count_in_profile,
        "lossless": tuning.lossless,
        "cnp": tuning.cnp,
        "best_effort": {
            "queue": tuning.best_effort_queue,
            "percent": 100 - tuning.lossless.percent,
        },
        "ecn": tuning.ecn,
        "watchdog": {
            "timeout": f"{watchdog.timeout_s:.2f}",
            "recovery": f"{watchdog.recovery_s:.2f}",
            "polling": _seconds(watchdog.polling_s),
            "action": watchdog.action,
        },
        "mtu": tuning.switch_mtu,
        "mmu": mmu,
        "storm_control": None if tuning.storm_control is None else f"{tuning.storm_control:g}",
    }
    environment = _environment(switch_configs_dir())
    lines = list(
        _lines(environment.get_template(f"{platform.family}/switch.j2").render(values), "switch")
    )
    for port in switch.ports:
        text = environment.get_template(f"{platform.family}/port.j2").render(values, port=port)
        lines += _lines(text, "port")
    for channel in sorted({port.channel for port in switch.ports if port.channel is not None}):
        text = environment.get_template("common/channel.j2").render(values, channel=channel)
        lines += _lines(text, "port")
    ports = [port.name for port in switch.ports]
    return Rendered(switch.name, platform, tuple(lines), tuple(ports))


def _seconds(value: float) -> str:
    """Seconds with two decimals, three only where the third counts (EOS prints both)."""
    text = f"{value:.3f}"
    return text[:-1] if text.endswith("0") else text


@cache
def _environment(folder: Path) -> Environment:
    return Environment(  # noqa: S701 - EOS configuration, not HTML
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _lines(text: str, part: Part) -> Iterator[Line]:
    intent = ""
    stack: list[tuple[int, str]] = []
    entries = [entry for entry in text.splitlines() if entry.strip()]
    for number, entry in enumerate(entries):
        if entry.startswith("! "):
            intent = entry[2:].strip()
            continue
        depth = len(entry) - len(entry.lstrip())
        while stack and stack[-1][0] >= depth:
            stack.pop()
        path = tuple(word for _, word in stack)
        following = next((e for e in entries[number + 1 :] if not e.startswith("! ")), "")
        if len(following) - len(following.lstrip()) > depth:
            stack.append((depth, entry.strip()))
        else:
            yield Line(path, entry.strip(), intent, part)


def _as_config(lines: Iterable[Line], *, intents: bool) -> Iterator[str]:
    here: tuple[str, ...] = ()
    intent = ""
    for line in lines:
        common = 0
        while common < min(len(here), len(line.path)) and here[common] == line.path[common]:
            common += 1
        for depth in range(common, len(line.path)):
            if depth == 0:
                yield "!"
            yield "   " * depth + line.path[depth]
        if not line.path and here:
            yield "!"
        here = line.path
        if intents and line.intent != intent:
            yield "   " * len(line.path) + f"! {line.intent}"
        intent = line.intent
        yield "   " * len(line.path) + line.text
