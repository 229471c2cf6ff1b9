"""Headroom values, against the figures of the fabric reference (docs/fabric.md)."""

from __future__ import annotations

import pytest

from railweld.fabric import headroom


@pytest.mark.parametrize(
    ("cable_m", "lean_kb", "ieee_kb"), [(5, 23, 44), (40, 27, 49), (100, 35, 56), (300, 60, 81)]
)
def test_bytes_in_flight_at_100g(cable_m: float, lean_kb: int, ieee_kb: int) -> None:
    def kb(response: str) -> int:
        flying = headroom.in_flight_bytes(
            rate_gbps=100,
            cable_m=cable_m,
            mtu=9214,
            response=response,
        )
        return round(flying / 1000)

    assert (kb("lean"), kb("ieee")) == (lean_kb, ieee_kb)


@pytest.mark.parametrize(
    ("cable_m", "emitted"), [(1, 65_536), (40, 65_536), (100, 81_920), (300, 98_304)]
)
def test_the_configured_size_has_a_step_for_each_cable_class(cable_m: float, emitted: int) -> None:
    assert headroom.profile_bytes(rate_gbps=100, cable_m=cable_m, mtu=9214) == emitted


def test_the_configured_size_covers_what_flies_and_grows_with_rate_and_cable() -> None:
    sizes = [
        headroom.profile_bytes(rate_gbps=rate, cable_m=metres, mtu=9214)
        for rate, metres in ((25, 5), (100, 5), (400, 5), (400, 100), (400, 300))
    ]
    assert sizes == sorted(sizes)
    for rate, metres in ((25, 5), (400, 300)):
        flying = headroom.in_flight_bytes(rate_gbps=rate, cable_m=metres, mtu=9214)
        assert headroom.profile_bytes(rate_gbps=rate, cable_m=metres, mtu=9214) > flying


def test_the_longest_cable_decides_for_the_switch_and_the_pool_covers_every_port() -> None:
    found = headroom.for_ports([(100, 5), (100, 300)], 9214)
    assert found.headroom_bytes == 98_304
    assert found.pool_bytes == 2 * 98_304
    assert "300 m" in found.reason
