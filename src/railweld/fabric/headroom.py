"""Headroom: what still arrives after a port has said pause.

Sources: IEEE 802.1Qbb annex O gives the terms (a frame being sent at each end, the pause frame
itself, the cable both ways, the peer's response). The response time is 60 quanta of 512 bit
times in published NIC data and at most 201,728 bit times in the standard's worst case for all
interface delays; both are kept, because below 100 m the response decides. Published profiles lie
in the same range: SONiC 7050CX3 49,408 to 160,000 bytes (sonic-net/sonic-buildimage pull request
7068), 7060CX 165,568 to 177,632 (2455), Habana's Arista guide 64,000 and 165,100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

ETHERNET_OVERHEAD: Final = 18  #: header 14 and checksum 4, which the MTU does not count
PAUSE_FRAME: Final = 64
CABLE_NS_PER_M: Final = 5.0
LEAN_RESPONSE_BITS: Final = 60 * 512
IEEE_RESPONSE_BITS: Final = 201_728
#: What EOS and the chips accept for the whole pool.
POOL_LIMIT: Final = 33_554_432
POOL_WARNING: Final = 4 * 1024 * 1024
_STEP: Final = 16_384
_LEAST: Final = 65_536
_MARGIN: Final = 1.2


def in_flight_bytes(
    *,
    rate_gbps: float,
    cable_m: float,
    mtu: int,
    response: Literal["lean", "ieee"] = "ieee",
) -> int:
    """Bytes that can arrive after the pause was decided, per port and lossless priority.

    Two full frames (one on each end may just have started), the pause frame, the cable both
    ways at 5 ns/m, and the peer's response.
    """
    frames = 2 * (mtu + ETHERNET_OVERHEAD)
    cable = 2 * cable_m * CABLE_NS_PER_M * rate_gbps / 8
    bits = LEAN_RESPONSE_BITS if response == "lean" else IEEE_RESPONSE_BITS
    return math.ceil(frames + PAUSE_FRAME + cable + bits / 8)


def profile_bytes(*, rate_gbps: float, cable_m: float, mtu: int) -> int:
    """Bytes to configure: a fifth above the worst case, in steps of 16 KiB, 64 KiB at least.

    At 100G and MTU 9214 that is 65,536 up to 40 m, 81,920 up to 100 m and 98,304 up to 300 m.
    """
    need = in_flight_bytes(rate_gbps=rate_gbps, cable_m=cable_m, mtu=mtu) * _MARGIN
    return max(_LEAST, math.ceil(need / _STEP) * _STEP)


@dataclass(frozen=True)
class Headroom:
    """The MMU profile of one switch: one figure per port, since EOS applies it switch-wide."""

    headroom_bytes: int
    pool_bytes: int
    reason: str


def for_ports(cables: list[tuple[float, float]], mtu: int) -> Headroom:
    """Headroom for a switch with these (rate in Gb/s, cable in m); the longest cable decides."""
    rate, metres = max(cables, key=lambda c: profile_bytes(rate_gbps=c[0], cable_m=c[1], mtu=mtu))
    each = profile_bytes(rate_gbps=rate, cable_m=metres, mtu=mtu)
    return Headroom(
        headroom_bytes=each,
        pool_bytes=each * len(cables),
        reason=f"{metres:g} m at {rate:g}G, MTU {mtu}, {len(cables)} ports",
    )
