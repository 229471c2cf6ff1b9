"""The few things that the lab asks podman for. Every call is one `podman` process as root."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweld.lab.process import LabError, Result, run

LABEL_LAB = "railweld.lab"
LABEL_NODE = "railweld.node"
LABEL_DIGEST = "railweld.digest"
#: Frames of the rails: 9000 bytes of payload and room for headers.
FABRIC_MTU = 9216


@dataclass(frozen=True)
class Container:
    """A container of a lab as podman knows it."""

    name: str
    lab: str
    node: str
    digest: str
    state: str

    @property
    def is_running(self) -> bool:
        """True while its init process lives."""
        return self.state == "running"


def podman(*arguments: str, check: bool = True, stdin: bytes | None = None) -> Result:
    """Run `podman` with runc: crun refuses the hybrid cgroup layout that many machines have."""
    return run(["podman", "--runtime", "runc", *arguments], check=check, stdin=stdin)


def containers(lab: str | None = None) -> list[Container]:
    """Containers of one lab, or of every lab on the machine, whatever state they are in."""
    label = LABEL_LAB if lab is None else f"{LABEL_LAB}={lab}"
    listing = podman("ps", "--all", "--filter", f"label={label}", "--format", "json").stdout
    rows: list[dict[str, Any]] = json.loads(listing or "[]") or []
    return [
        Container(
            name=row["Names"][0],
            lab=row["Labels"][LABEL_LAB],
            node=row["Labels"].get(LABEL_NODE, ""),
            digest=row["Labels"].get(LABEL_DIGEST, ""),
            state=_state(row),
        )
        for row in rows
    ]


def _state(row: dict[str, Any]) -> str:
    """What podman says of a container; `lost` for one that died together with its watcher.

    When all processes of a machine are ended at once nobody is left to write down that the
    container's are among them: podman has it as running from then on, and neither starts it nor
    stops it.
    """
    state = str(row["State"])
    if state not in ("running", "paused", "stopping"):
        return state
    try:
        groups = Path(f"/proc/{row['Pid']}/cgroup").read_text()
    except OSError:
        groups = ""
    # Its pid may be another process's by now.
    return state if row["Id"] in groups else "lost"


def image_exists(image: str) -> bool:
    """True if podman has the image."""
    return podman("image", "exists", image, check=False).ok


def remove_container(name: str) -> None:
    """Remove a container, also one that was killed while it was being made."""
    if podman("container", "exists", name, check=False).ok:
        podman("rm", "--force", "--time", "0", "--volumes", name)
    else:
        # What is left when podman died between making the storage and writing its database.
        podman("rm", "--force", "--storage", name, check=False)


def volumes(prefix: str) -> list[str]:
    """Names of volumes that begin with `prefix`."""
    names = podman("volume", "ls", "--format", "{{.Name}}").stdout.split()
    return [name for name in names if name.startswith(prefix)]


def remove_volumes(names: Sequence[str]) -> None:
    """Remove volumes; one that is gone already does not matter."""
    if names:
        podman("volume", "rm", "--force", *names, check=False)


def networks() -> dict[str, dict[str, Any]]:
    """Every podman network by name."""
    names = podman("network", "ls", "--format", "{{.Name}}").stdout.split()
    if not names:
        return {}
    rows: list[dict[str, Any]] = json.loads(podman("network", "inspect", *names).stdout)
    return {row["name"]: row for row in rows}


def ensure_network(name: str, lab: str, subnet: ipaddress.IPv4Network | None) -> None:
    """Make the network, or make it anew when one of that name has another subnet.

    Both networks of a lab are internal: no route leads out of the machine. Without `subnet`
    it is the wire behind the rails, which has no addresses of its own.
    """
    known = networks()
    found = known.get(name)
    wanted = None if subnet is None else str(subnet)
    if found is not None:
        if _subnets(found) == ([] if wanted is None else [wanted]):
            return
        podman("network", "rm", "--force", name)
    elif wanted is not None:
        for other, row in known.items():
            for text in _subnets(row):
                if ipaddress.ip_network(text).overlaps(ipaddress.ip_network(wanted)):
                    raise LabError(
                        f"lab {lab}: subnet {wanted} overlaps {text} of podman network {other}; "
                        f"take that lab down, or give this one another lab_subnet"
                    )
    options = ["--label", f"{LABEL_LAB}={lab}", "--internal", "--disable-dns"]
    if subnet is not None:
        # Named, because an internal network otherwise gives the machine no address in it.
        options += ["--subnet", str(subnet), "--gateway", str(next(subnet.hosts()))]
    else:
        options += ["--ipam-driver", "none", "--opt", f"mtu={FABRIC_MTU}"]
    podman("network", "create", *options, name)


def remove_network(name: str) -> None:
    """Remove a network if it is there."""
    if name in podman("network", "ls", "--format", "{{.Name}}").stdout.split():
        podman("network", "rm", "--force", name)


def _subnets(network: dict[str, Any]) -> list[str]:
    return [entry["subnet"] for entry in network.get("subnets") or []]
