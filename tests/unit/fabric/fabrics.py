"""Fabrics that the unit tests share."""

from __future__ import annotations

from railweld.fabric.model import Fabric, Port, Switch, Tuning

STRATA = "DCS-7050CX3-32S"
TOMAHAWK = "DCS-7060CX2-32S"
SAND = "DCS-7280CR3-32P4"


def host(number: int, *, rail: int = 1, **more: object) -> Port:
    return Port(
        name=f"Ethernet{number}/1", kind="host", peer=f"gpu{number}", peer_port=f"rail{rail}",
        rail=rail, **more,
    )  # fmt: skip


def one(model: str = STRATA, *, tuning: Tuning | None = None, **more: object) -> Fabric:
    """A fabric of one switch with two host ports."""
    switch = Switch(**{"name": "leaf1", "model": model, "ports": (host(1), host(2)), **more})
    return Fabric(site="test", tuning=tuning or Tuning(), switches=(switch,))
