"""One lab for the whole suite: a head with the mirror and two GPU nodes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from railweld.lab import Lab, Node

SITE = "labtest"
SUBNET = "10.213.10"
DRIVER = "515.86.01"
DRIVER_PACKAGES = (
    "libnvidia-compute-515",
    "nvidia-compute-utils-515",
    "nvidia-dkms-515",
    "nvidia-kernel-common-515",
    "nvidia-kernel-source-515",
    "nvidia-utils-515",
)


def write_inventory(folder: Path, site: str, subnet: str, gpu_nodes: int) -> str:
    """A description with everything that the lab reads, and nothing else."""
    rails = [
        {
            "rail": rail,
            "hca": f"mlx5_{rail - 1}",
            "netdev": f"rail{rail}",
            "subnet": f"10.10.{rail}.0/24",
            "switch": "leaf1",
            "port": f"Ethernet{{index+{16 * (rail - 1)}}}/1",
        }
        for rail in (1, 2)
    ]
    gpus = {f"gpu{n}": {"ansible_host": f"{subnet}.{10 + n}"} for n in range(1, gpu_nodes + 1)}
    path = folder / f"{site}.yml"
    path.write_text(
        yaml.safe_dump(
            {
                "all": {
                    "vars": {"railweld_site": site},
                    "children": {
                        "gpu_nodes": {"hosts": gpus, "vars": {"railweld_rails": rails}},
                        "time_servers": {"hosts": {"head1": {"ansible_host": f"{subnet}.10"}}},
                    },
                }
            }
        )
    )
    return str(path)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State of the labs of this suite, apart from the user's; the cache is shared."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAILWELD_STATE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def lab(state: Path) -> Iterator[Lab]:
    """The running lab."""
    lab = Lab.from_inventory([write_inventory(state, SITE, SUBNET, 2)], print)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="session")
def vendor_sources(lab: Lab) -> None:
    """The vendors' repositories as apt sources of gpu1."""
    source = "deb [signed-by=/etc/apt/keyrings/railweld-lab.asc] http://{}/{} /\n"
    text = "".join(source.format(lab.plan.mirror.address, name) for name in ("cuda", "doca"))
    node = lab.node("gpu1")
    node.exec(["tee", "/etc/apt/sources.list.d/vendor.list"], stdin=text.encode())
    node.exec(["apt-get", "update", "-q"])


@pytest.fixture(scope="session")
def driver(lab: Lab, request: pytest.FixtureRequest) -> Node:
    """gpu1 with the pinned driver installed and loaded."""
    request.getfixturevalue("vendor_sources")
    node = lab.node("gpu1")
    pins = [f"{name}={DRIVER}-0ubuntu1" for name in DRIVER_PACKAGES]
    install(node, *pins)
    reboot(node)
    return node


@pytest.fixture
def make(lab: Lab) -> Iterator[Callable[..., None]]:
    """Makes a fault and takes it away when the test is over."""
    made: list[tuple[str, str]] = []

    def make_fault(name: str, node: str, **settings: object) -> None:
        made.append((name, node))
        lab.fault(name, node, **settings)

    yield make_fault
    for name, node in reversed(made):
        lab.clear(name, node)


def install(node: Node, *packages: str) -> None:
    """apt-get install, as a role would."""
    node.exec(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q", *packages]
    )


def boot_time(node: Node) -> str:
    """When the node's init started, to the nanosecond."""
    return node.exec(["stat", "-c", "%y", "/proc/1"], check=False).stdout


def reboot(node: Node) -> None:
    """Reboot from inside and wait until the node is another one that is ready."""
    before = boot_time(node)
    node.exec(["systemctl", "reboot"], check=False)
    until(lambda: boot_time(node) not in ("", before), "reboot")
    node.wait_ready()


def until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Wait for something that can be observed."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {timeout} s"
        time.sleep(0.1)


def connects(address: str, port: int) -> bool:
    """True if a TCP connection is accepted."""
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False
