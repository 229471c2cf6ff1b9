"""all_reduce_perf and mpirun: what nccl-tests prints, with figures from the described fabric.

Nothing is reduced. A run inside the node gives a share of NVLink's rate, one between nodes a share
of the rails' line rates: this node's ports as they are now, the others' as described, and the
planted slow links of the lab (`railweld lab fault slow-link`).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from railweld.lab.vendor.programs.machine import Build, Machine, complain, say

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
FABRIC = "/var/lib/railweld-lab/fabric.json"
SLOW_LINKS = "/var/lib/railweld-lab/slow-links.json"
#: GB/s of a link in one direction, of PCIe where there is no NVLink, and the share that is reached.
NVLINK, PCIE, SHARE_INSIDE, SHARE_BETWEEN = 25.0, 20.0, 0.78, 0.85
#: Microseconds that the smallest message takes, inside a node and between nodes.
LATENCY_INSIDE, LATENCY_BETWEEN = 21.0, 60.0
SIZE = re.compile(r"(\d+)([KMG]?)B?$", re.IGNORECASE)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Above the rows, as release 2.19.6 prints it.
HEAD = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"""  # noqa: E501 - as printed
FROM_MPIRUN, HEADERS = "RAILWELD_LAB_MPI_HOSTS", "RAILWELD_LAB_NCCL_HEADERS"


class UsageError(Exception):
    """A run that cannot start, in nccl-tests' words."""


def all_reduce(argv: list[str], build: Build, machine: Machine) -> int:
    """Run all_reduce_perf."""
    library = _library(machine)
    if library is None:
        complain(
            "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open "
            "shared object file: No such file or directory"
        )
        return 127
    try:
        _run(argv, build["version"], library, machine)
    except UsageError as error:
        complain(str(error))
        return 1
    return 0


def _run(argv: list[str], version: str, library: str, machine: Machine) -> None:
    per_process = int(_options(argv)["-g"])
    here = machine.gpus()
    if machine.loaded("nvidia") is None:
        raise UsageError(
            f"{_name(machine)}: Test CUDA failure common.cu:1033 "
            "'no CUDA-capable device is detected'"
        )
    hosts = _hosts(machine)
    wanted = per_process * (hosts[0][1] if hosts else 1)
    if wanted > len(here):
        raise UsageError(
            f"Invalid number of GPUs: {wanted} requested but only {len(here)} were found."
        )
    buses = [str(gpu["bus_id"]).lower().removeprefix("0000")[:-2] for gpu in here]
    printed(
        argv,
        Run(
            version=version,
            headers=os.environ.get(HEADERS, library),
            library=library,
            nodes=hosts or [(_name(machine), 1)],
            gpus=[(bus, str(gpu["model"])) for bus, gpu in zip(buses, here, strict=True)],
            speed=_speed([node for node, _ in hosts] or [_name(machine)], machine),
        ),
    )


@dataclass(frozen=True)
class Run:
    """What a run prints of itself.

    Attributes:
        version: of nccl-tests.
        headers: NCCL's version code at build time.
        library: the same of the library.
        nodes: names and numbers of processes.
        gpus: bus address and model of each GPU of a node.
        speed: GB/s and latency in microseconds.
    """

    version: str
    headers: str
    library: str
    nodes: list[tuple[str, int]]
    gpus: list[tuple[str, str]]
    speed: tuple[float, float]


def _options(argv: list[str]) -> dict[str, str]:
    options = {"-b": "32M", "-e": "32M", "-f": "2", "-g": "1", "-n": "20", "-w": "1", "-c": "1"}
    options.update(zip(argv[::2], argv[1::2], strict=False))
    return options


def printed(argv: list[str], run: Run) -> None:
    """Print a run of all_reduce_perf with these options."""
    options = _options(argv)
    first, last, factor = _bytes(options["-b"]), _bytes(options["-e"]), int(options["-f"])
    sizes = [first]
    while sizes[-1] * factor <= last and factor > 1:
        sizes.append(sizes[-1] * factor)
    per_process = int(options["-g"])
    ranks = per_process * sum(count for _, count in run.nodes)
    say(f"# nccl-tests version {run.version} nccl-headers={run.headers} nccl-library={run.library}")
    say("# Collective test starting: all_reduce_perf")
    say(
        f"# nThread 1 nGpus {per_process} minBytes {first} maxBytes {last} step: {factor}(factor) "
        f"warmup iters: {options['-w']} iters: {options['-n']} agg iters: 1 "
        f"validation: {options['-c']} graph: 0 unalign: 0"
    )
    say("#")
    say("# Using devices")
    each = ranks // len(run.nodes)
    for rank in range(ranks):
        bus, model = run.gpus[rank % each % len(run.gpus)]
        say(
            f"#  Rank {rank:>2} Group  0 Pid {4000 + rank:>6} on {run.nodes[rank // each][0]:>10} "
            f"device {rank % each:>2} [{bus}] NVIDIA {model}"
        )
    _table(sizes, ranks, run.speed)


def _table(sizes: list[int], ranks: int, speed: tuple[float, float]) -> None:
    say(HEAD)
    rate, latency = speed
    share = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    rates = []
    for size in sizes:
        took = latency + size * share / (rate * 1e3)
        algbw = size / took / 1e3
        timed = f"{_microseconds(took):>9}{algbw:>8.2f}{algbw * share:>8.2f}{0:>8}"
        say(f"{size:>12}{size // 4:>14}{'float':>10}{'sum':>8}{-1:>8}{timed}{timed}")
        rates.append(algbw * share)
    say("# Out of bounds values : 0 OK")
    say(f"# Avg bus bandwidth    : {sum(rates) / len(rates):.6g} ")
    say("#")
    say("# Collective test concluded: all_reduce_perf")
    say("#")


def _microseconds(value: float) -> str:
    """A time in the seven characters that nccl-tests has for it: fewer decimals as it grows."""
    digits = len(str(int(value)))
    return f"{value:.{max(0, min(2, 6 - digits))}f}"


def _speed(nodes: list[str], machine: Machine) -> tuple[float, float]:
    """GB/s and latency of a ring over these nodes: the slowest of its links decides."""
    if len(nodes) < 2:
        links = min(int(gpu.get("nvlinks", 0)) for gpu in machine.gpus())
        return (links * NVLINK * SHARE_INSIDE if links else PCIE), LATENCY_INSIDE
    fabric = machine.load(FABRIC)
    own = sum(_port_rate(hca, machine) for hca in machine.hcas() if machine.hca_is_up(hca["name"]))
    rails = [own if node == _name(machine) else fabric[node]["rails_gbps"] for node in nodes]
    planted = machine.load(SLOW_LINKS)
    # A ring goes through all nodes; NCCL is free to choose their order, the planted link counts.
    slow = [share for pair, share in planted.items() if set(pair.split()) <= set(nodes)]
    if not min(rails):
        raise UsageError(
            f"{_name(machine)}: Test NCCL failure common.cu:1119 'unhandled system error (run with "
            "NCCL_DEBUG=INFO for details) / '"
        )
    return min(rails) / 8 * SHARE_BETWEEN * min([1.0, *slow]), LATENCY_BETWEEN


def _port_rate(hca: dict[str, Any], machine: Machine) -> float:
    rates = machine.fault("link_rate") or {}
    return float(rates.get(hca["name"], hca["rate_gbps"]))


def _hosts(machine: Machine) -> list[tuple[str, int]]:
    """Nodes and processes as mpirun was told; none for a run without it."""
    names = {each["address"]: name for name, each in machine.load(FABRIC).items()}
    found = []
    for word in os.environ.get(FROM_MPIRUN, "").split(","):
        address, _, slots = word.partition(":")
        if address:
            found.append((names.get(address, address), int(slots or 1)))
    return found


def _name(machine: Machine) -> str:
    return (machine.read("/etc/railweld-lab") or "lab node profile").split()[1]


def _library(machine: Machine) -> str | None:
    """NCCL's version code, from the file that the linker takes."""
    link = machine.path(f"{LIBRARIES}/libnccl.so.2")
    numbers = re.search(r"so\.(\d+)\.(\d+)\.(\d+)$", str(link.resolve()))
    if not link.exists() or numbers is None:
        return None
    major, minor, patch = map(int, numbers.groups())
    return str(major * 10000 + minor * 100 + patch)


def _bytes(text: str) -> int:
    match = SIZE.match(text)
    if match is None:
        raise UsageError(f"invalid size specified for 'minbytes' or 'maxbytes': {text}")
    return int(match[1]) * UNITS[match[2].upper()]


# --- mpirun ----------------------------------------------------------------------------------

#: Options with one value; those of `-x` go into the environment.
VALUED = ("-np", "-n", "--host", "-host", "-H", "--map-by", "--bind-to", "-x", "--mca")
_START = (
    "--------------------------------------------------------------------------\n"
    "ORTE was unable to reliably start one or more daemons.\n"
    "--------------------------------------------------------------------------"
)


def mpirun(argv: list[str], _build: Build, machine: Machine) -> int:
    """Run the program once; it speaks for all ranks. Nodes that do not answer are complained of."""
    rest = list(argv)
    hosts, environment = "", dict(os.environ)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        values = [rest.pop(0) for _ in range(2 if option == "--mca" else 1) if option in VALUED]
        if option in ("--host", "-host", "-H"):
            hosts = values[0]
        elif option == "-x":
            name, equals, value = values[0].partition("=")
            environment[name] = value if equals else environment.get(name, "")
    if not rest or shutil.which(rest[0]) is None:
        complain(f"mpirun was unable to find the specified executable file: {rest[:1]}")
        return 134
    known = {each["address"] for each in machine.load(FABRIC).values()}
    for word in hosts.split(","):
        address = word.partition(":")[0]
        if address and (address not in known or not _reaches(address)):
            complain(f"ssh: connect to host {address} port 22: No route to host\n{_START}")
            return 1
    return subprocess.run(rest, env={**environment, FROM_MPIRUN: hosts}, check=False).returncode


def _reaches(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=3):
            return True
    except OSError:
        return False
