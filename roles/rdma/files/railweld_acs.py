#!/usr/bin/env python3
# Managed by railweld: role rdma.
"""Switch PCIe Access Control Services off, or show where they are on.

usage: railweld-acs {apply,status}

ACS on a bridge sends traffic between two devices below it up to the root complex and back, so
GPUDirect runs at a fraction of its speed. The firmware switches it on again at every boot;
the unit railweld-acs.service runs `apply` then. Not for virtual machines or for nodes that pass
devices through to guests: ACS is what isolates them.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ACS_CAPABILITY = 0x000D
#: Source validation, translation blocking, request and completion redirect, upstream forwarding,
#: egress control, direct translated peer-to-peer.
CONTROL_BITS = 0x7F


def control_offset(config):
    """Offset of the ACS control word in a device's configuration space, None without ACS."""
    offset, seen = 0x100, set()
    while offset >= 0x100 and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == ACS_CAPABILITY:
            return offset + 6
        offset = (header >> 20) & 0xFFC
    return None


def devices(root):
    """Yield (configuration file, offset of the control word) of every device that has ACS."""
    for path in sorted(Path(root).glob("sys/bus/pci/devices/*/config")):
        try:
            config = path.read_bytes()
        except OSError:
            continue  # the device went away, or its bus is asleep
        offset = control_offset(config)
        if offset is not None:
            yield path, offset


def control(path, offset):
    """Return the control word as it is now."""
    with path.open("rb") as handle:
        handle.seek(offset)
        return struct.unpack("<H", handle.read(2))[0]


def clear(path, offset):
    """Clear the control bits of one device."""
    word = control(path, offset) & ~CONTROL_BITS
    with path.open("r+b", buffering=0) as handle:
        handle.seek(offset)
        handle.write(struct.pack("<H", word))


def main(argv, root="/"):
    """Run one command."""
    if argv not in (["apply"], ["status"]):
        sys.stderr.write("usage: railweld-acs {apply,status}\n")
        return 64
    left = []
    for path, offset in devices(root):
        before = control(path, offset)
        if argv == ["apply"] and before & CONTROL_BITS:
            clear(path, offset)
        after = control(path, offset)
        if before & CONTROL_BITS:
            sys.stdout.write(f"{path.parent.name}: ACS control {before:#06x} -> {after:#06x}\n")
        if after & CONTROL_BITS:
            left.append(path.parent.name)
    if left and argv == ["apply"]:
        sys.stderr.write(f"railweld-acs: still on at {', '.join(left)}\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
