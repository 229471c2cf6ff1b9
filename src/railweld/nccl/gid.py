"""The RoCE GID row for NCCL below 2.21, which cannot choose it: found on the node, in the pod.

The row differs from pod to pod, so no profile can carry it. Newer versions choose themselves and
must be left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path


@dataclass(frozen=True)
class GidRow:
    """One row of a port's GID table, as sysfs shows it."""

    index: int
    gid: str
    kind: str
    netdev: str


def read_gid_table(device: str, port: int = 1, sysfs: Path = Path("/sys")) -> tuple[GidRow, ...]:
    """The rows of a port that are in use. Empty when the device or the port is not there."""
    base = sysfs / "class/infiniband" / device / "ports" / str(port)
    rows = []
    for path in sorted(base.glob("gids/*"), key=lambda entry: int(entry.name)):
        number = path.name
        kind = _read(base / "gid_attrs/types" / number)
        # An unused row has no type: reading it is an error.
        if kind:
            netdev = _read(base / "gid_attrs/ndevs" / number)
            rows.append(GidRow(int(number), _read(path), kind, netdev))
    return tuple(rows)


def choose_gid_index(
    rows: Iterable[GidRow], *, address: str | None = None, netdev: str | None = None
) -> int | None:
    """The row for RoCE v2 over IPv4, bound to an address or a network device if given.

    None when there is no such row: then RoCE v2 cannot work in this place, whatever is set.
    """
    for row in rows:
        mapped = IPv6Address(row.gid).ipv4_mapped
        if row.kind != "RoCE v2" or mapped is None:
            continue
        if address is not None and mapped != IPv4Address(address):
            continue
        if netdev is not None and row.netdev != netdev:
            continue
        return row.index
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
