"""Passes NTP requests on to the real server and shifts the times in its answers."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence

from railweld.lab.node.faults import NTP_SHIFT_MARK

#: Offsets of the times that the server wrote: reference, receive, transmit. Origin is the client's.
SERVER_TIMES = (16, 32, 40)
SO_MARK = 36


def shift(packet: bytes, seconds: float) -> bytes:
    """Add seconds to the times of a server's answer."""
    if len(packet) < 48:
        return packet
    out = bytearray(packet)
    for offset in SERVER_TIMES:
        (value,) = struct.unpack_from("!Q", out, offset)
        if value:
            struct.pack_into("!Q", out, offset, (value + int(seconds * 2**32)) % 2**64)
    return bytes(out)


def serve(milliseconds: float, server: str, port: int) -> None:
    """Answer until stopped. One request at a time: an NTP client waits for its answer."""
    front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    front.bind(("", port))
    while True:
        request, client = front.recvfrom(1024)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as back:
            # Marked, so that the rule that led the request here lets this one through.
            back.setsockopt(socket.SOL_SOCKET, SO_MARK, NTP_SHIFT_MARK)
            back.settimeout(1)
            back.sendto(request, (server, 123))
            try:
                answer = back.recv(1024)
            except OSError:
                continue  # no answer from the server is none to the client
        front.sendto(shift(answer, milliseconds / 1000), client)


def main(arguments: Sequence[str]) -> int:
    """`ntp-shift MILLISECONDS SERVER PORT`."""
    if len(arguments) != 3:
        sys.stderr.write("usage: ntp-shift MILLISECONDS SERVER PORT\n")
        return 64
    serve(float(arguments[0]), arguments[1], int(arguments[2]))
    return 0
