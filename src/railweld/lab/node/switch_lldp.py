"""Sends the LLDP frames of the switch ports that the rails are plugged into.

Each frame leaves by the switch's end of a rail, so a cut link hears nothing.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from typing import Any

from railweld.lab.node import rails, state

LLDP_ADDRESS = bytes.fromhex("0180c200000e")
LLDP_TYPE = 0x88CC
INTERVAL_S = 5.0
TTL_S = 120


def tlv(kind: int, value: bytes) -> bytes:
    """One type-length-value of a frame."""
    return struct.pack("!H", kind << 9 | len(value)) + value


def mac_of(switch: str) -> bytes:
    """Base address of a switch, from its name, in Arista's range."""
    return bytes.fromhex("001c73") + hashlib.sha256(switch.encode()).digest()[:3]


def frame(switch: str, port: str) -> bytes:
    """What an EOS switch says on a port."""
    address = mac_of(switch)
    parts = [
        tlv(1, b"\x04" + address),
        tlv(2, b"\x05" + port.encode()),
        tlv(3, struct.pack("!H", TTL_S)),
        tlv(5, switch.encode()),
        tlv(6, b"Arista Networks EOS"),
        tlv(7, struct.pack("!HH", 0x0014, 0x0014)),
        tlv(0, b""),
    ]
    return LLDP_ADDRESS + address + struct.pack("!H", LLDP_TYPE) + b"".join(parts)


def send_all(hcas: list[dict[str, Any]]) -> None:
    """One frame on every port that has a cable and a switch."""
    for hca in hcas:
        port = rails.port_of(hca)
        if not (hca["switch"] and hca["port"] and hca["is_up"] and rails.exists(port)):
            continue
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            try:
                raw.bind((port, LLDP_TYPE))
                raw.send(frame(hca["switch"], hca["port"]))
            except OSError:
                continue  # the port went down between the question and the frame


def main() -> int:
    """Send until stopped."""
    while True:
        send_all(state.hcas())
        time.sleep(INTERVAL_S)
