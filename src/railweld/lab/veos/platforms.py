"""What differs between switch families and EOS releases, as data.

Each fact carries the certainty that the fabric reference gives it. A family that nothing
public is known about is refused: a double that guesses would approve what a switch refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import total_ordering
from typing import Final


class Family(StrEnum):
    """ASIC family: the syntax follows it, not the product name."""

    TRIDENT = "trident"
    TOMAHAWK = "tomahawk"
    HELIX = "helix"
    SAND = "sand"
    VEOS = "veos"
    CEOS = "ceos"


VIRTUAL: Final = frozenset({Family.VEOS, Family.CEOS})
#: Families whose buffer is a shared MMU that `platform trident mmu` carves.
STRATA: Final = frozenset({Family.TRIDENT, Family.TOMAHAWK})


class UnknownModelError(ValueError):
    """The model or the release is not one that the virtual switch can imitate."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Release:
    """An EOS release: `4.31.2F` is major 31 of the only train there is."""

    text: str
    key: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read `4.31`, `4.31.2F` or `EOS-4.31.2F`."""
        match = re.fullmatch(r"(?:EOS-)?(4)\.(\d{2})(?:\.(\d+))?(?:\.\d+)*([FM]?)", text)
        if match is None or not 20 <= int(match[2]) <= 40:
            raise UnknownModelError(
                f"EOS release: found {text!r}, expected 4.x or 4.x.y[F|M], such as 4.31.2F"
            )
        full = text.removeprefix("EOS-")
        if match[3] is None:
            full = f"{full}.0F"
        return cls(full, (int(match[1]), int(match[2]), int(match[3] or 0)))

    def __lt__(self, other: Release) -> bool:
        return self.key < other.key

    def at_least(self, major: int, minor: int) -> bool:
        """Say whether this release is 4.`minor` or newer."""
        return self.key[:2] >= (major, minor)


@dataclass(frozen=True, slots=True)
class Platform:
    """One switch model."""

    model: str
    family: Family
    ports: tuple[str, ...]
    cell_bytes: int

    @property
    def virtual(self) -> bool:
        """vEOS and cEOS have no forwarding hardware to configure."""
        return self.family in VIRTUAL

    @property
    def queue_words(self) -> frozenset[str]:
        """The keywords that open a transmit queue on this family."""
        if self.virtual:
            return frozenset()
        if self.family in STRATA:
            return frozenset({"uc-tx-queue", "mc-tx-queue"})
        return frozenset({"tx-queue"})

    @property
    def ecn_units(self) -> tuple[str, ...]:
        """Units of ECN thresholds; Jericho counts time but no segments (avd #4900)."""
        if self.family is Family.SAND:
            return ("bytes", "kbytes", "mbytes", "microseconds", "milliseconds")
        return ("segments", "bytes", "kbytes", "mbytes")


def _lanes(first: int, last: int, lanes: int) -> tuple[str, ...]:
    return tuple(
        f"Ethernet{port}/{lane}" for port in range(first, last + 1) for lane in range(1, lanes + 1)
    )


def _plain(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"Ethernet{port}" for port in range(first, last + 1))


_MODELS: Final[dict[str, tuple[Family, tuple[str, ...], int]]] = {
    "DCS-7050CX3-32S": (Family.TRIDENT, _lanes(1, 32, 4) + _plain(33, 34), 256),
    "DCS-7050CX3M-32S": (Family.TRIDENT, _lanes(1, 32, 4) + _plain(33, 34), 256),
    "DCS-7050SX3-48YC8": (Family.TRIDENT, _plain(1, 48) + _lanes(49, 56, 4), 256),
    "DCS-7050SX3-48YC12": (Family.TRIDENT, _plain(1, 48) + _lanes(49, 60, 4), 256),
    "DCS-7060CX-32S": (Family.TOMAHAWK, _lanes(1, 32, 4) + _plain(33, 34), 208),
    "DCS-7060CX2-32S": (Family.TOMAHAWK, _lanes(1, 32, 4) + _plain(33, 34), 208),
    "DCS-7060DX4-32": (Family.TOMAHAWK, _lanes(1, 32, 8), 254),
    "DCS-7060DX5-64S": (Family.TOMAHAWK, _lanes(1, 64, 8), 254),
    "DCS-7280CR3-32P4": (Family.SAND, _lanes(1, 32, 4) + _lanes(33, 36, 8), 0),
    "DCS-7280CR3-96": (Family.SAND, _lanes(1, 96, 4), 0),
    "DCS-7280QR-C36": (Family.SAND, _lanes(1, 36, 4), 0),
    "DCS-7280SR-48C6": (Family.SAND, _plain(1, 48) + _lanes(49, 54, 4), 0),
    "DCS-7010T-48": (Family.HELIX, _plain(1, 52), 208),
    "vEOS-lab": (Family.VEOS, _plain(1, 32), 0),
    "cEOSLab": (Family.CEOS, _plain(1, 32), 0),
}

#: Family names that people write, and the model that then stands for them.
_ALIASES: Final = {
    "7050x3": "DCS-7050CX3-32S",
    "7060x": "DCS-7060CX2-32S",
    "7280r": "DCS-7280QR-C36",
    "7280r3": "DCS-7280CR3-32P4",
    "7010t": "DCS-7010T-48",
    "veos": "vEOS-lab",
    "ceos": "cEOSLab",
}

#: Models of a known family that the table does not list: the family's own port layout.
_FAMILY_PATTERNS: Final = (
    (re.compile(r"(?:DCS-)?7050[A-Z]+3M?-", re.I), "DCS-7050CX3-32S"),
    (re.compile(r"(?:DCS-)?7060[CPDS]X\d?-", re.I), "DCS-7060CX2-32S"),
    (re.compile(r"(?:DCS-)?7280[A-Z]*R3?K?", re.I), "DCS-7280CR3-32P4"),
    (re.compile(r"(?:DCS-)?7010TX?-48", re.I), "DCS-7010T-48"),
)


def platform(model: str) -> Platform:
    """Find a model by its full name, or by a family name such as `7050X3`."""
    bare = re.sub(r"-[FR]$", "", model)
    lowered = bare.lower()
    for name, (family, ports, cell) in _MODELS.items():
        if lowered in {name.lower(), name.lower().removeprefix("dcs-")}:
            return Platform(name + model[len(bare) :], family, ports, cell)
    if lowered in _ALIASES:
        name = _ALIASES[lowered]
        return Platform(name, *_MODELS[name])
    for pattern, stand_in in _FAMILY_PATTERNS:
        if pattern.match(bare):
            return Platform(model, *_MODELS[stand_in])
    raise UnknownModelError(
        f"switch model: found {model!r}, expected one of {', '.join(sorted(_MODELS))} "
        f"or a family of {', '.join(sorted(_ALIASES))}"
    )


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts Ethernet2/1 before Ethernet10/1."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    )


def short_name(interface: str) -> str:
    """`Ethernet1/1` as prompts and tables print it: `Et1/1`."""
    for long, short in (
        ("Ethernet", "Et"),
        ("Management", "Ma"),
        ("Port-Channel", "Po"),
        ("Loopback", "Lo"),
        ("Vlan", "Vl"),
    ):
        if interface.startswith(long):
            return short + interface[len(long) :]
    return interface
