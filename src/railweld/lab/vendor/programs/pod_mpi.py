"""mpirun, orted and all_reduce_perf_mpi in the image of the lab's jobs.

They start as Open MPI does in a job of Slurm: mpirun has its nodes from Slurm's variables, starts
a daemon on each with `srun`, in the words of Open MPI 4.1, and the daemons connect to it and start
the ranks. What the ranks print is that of nccl-tests. A pod sees nothing of the lab, so its fabric
is a file of the image; planted slow links are known on nodes only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from railweld.lab.vendor.programs.machine import Build, Machine, complain
from railweld.lab.vendor.programs.nccl_tests import (
    LATENCY_BETWEEN,
    LATENCY_INSIDE,
    NVLINK,
    SHARE_BETWEEN,
    SHARE_INSIDE,
    VALUED,
    Run,
    printed,
)

#: Of each node: rails by adapter, the model and the addresses of its GPUs.
FABRIC = "/usr/share/railweld-lab/fabric.json"
RDMA = "/dev/infiniband"
#: Gb/s of the management network, which NCCL takes when it is given no adapters.
TCP_GBPS = 10.0
NVLINKS = 12
JOIN_SECONDS = 60.0
NODES = "RAILWELD_LAB_MPI_NODES"
_FAILED = (
    "--------------------------------------------------------------------------\n"
    "ORTE was unable to reliably start one or more daemons.\n"
    "--------------------------------------------------------------------------"
)
_SLOTS = (
    "--------------------------------------------------------------------------\n"
    "There are not enough slots available in the system to satisfy the {np}\n"
    "slots that were requested by the application:\n\n  {program}\n"
    "--------------------------------------------------------------------------"
)


# --- mpirun ----------------------------------------------------------------------------------


def mpirun(argv: list[str], _build: Build, _machine: Machine) -> int:
    """Start a program's ranks on the nodes of this job."""
    rest, wanted, per_node, environment = list(argv), 0, 0, {}
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        values = [rest.pop(0) for _ in range(2 if option == "--mca" else 1) if option in VALUED]
        if option in ("-np", "-n"):
            wanted = int(values[0])
        elif option == "--map-by" and values[0].startswith("ppr:"):
            per_node = int(values[0].split(":")[1])
        elif option == "-x":
            name, equals, value = values[0].partition("=")
            environment[name] = value if equals else os.environ.get(name, "")
    if "SLURM_JOBID" not in os.environ:
        complain(_SLOTS.format(np=wanted, program=rest[0] if rest else ""))
        return 1
    nodes = hosts(os.environ["SLURM_NODELIST"])
    slots = dict(zip(nodes, counts(os.environ["SLURM_TASKS_PER_NODE"]), strict=True))
    if wanted > sum(slots.values()):
        complain(_SLOTS.format(np=wanted, program=rest[0]))
        return 1
    each = {node: min(per_node or slots[node], slots[node]) for node in nodes}
    return _Leader(rest, each, environment).run()


class _Leader:
    """mpirun: it waits for the daemons, gives them their ranks, and prints what these print."""

    def __init__(self, argv: list[str], each: dict[str, int], environment: dict[str, str]) -> None:
        self._argv = argv
        self._each = each
        self._environment = environment
        self._lock = threading.Lock()
        self._status: dict[int, int] = {}
        self._links: list[socket.socket] = []
        self._failed = threading.Event()

    def run(self) -> int:
        with socket.socket() as server:
            server.bind(("", 0))
            server.listen(len(self._each))
            server.settimeout(0.5)
            uri = f"tcp://{','.join(addresses())}:{server.getsockname()[1]}"
            daemons = self._start(uri)
            joined = self._gather(server, daemons)
        if joined is None:
            complain(_FAILED)
            for each in daemons:
                each.kill()
            return 1
        readers = [threading.Thread(target=self._follow, args=(link,)) for link in joined.values()]
        self._assign(joined)
        for reader in readers:
            reader.start()
        world = sum(self._each.values())
        # All have ended, one has failed, or a daemon has gone.
        while len(self._status) < world and all(reader.is_alive() for reader in readers):
            if self._failed.wait(0.1):
                break
        for link in joined.values():
            # The daemon ends its ranks, and itself.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for reader in readers:
            reader.join()
        for each in daemons:
            each.wait()
        return self._judge()

    def _start(self, uri: str) -> list[subprocess.Popen[bytes]]:
        """The daemons: by srun, and of mpirun's own node, where that is a node of the job, itself.

        In the network of the nodes a pod has its node's name; in the pods' own network it has not,
        and then srun starts a daemon beside mpirun too.
        """
        orted = ["orted", "-mca", "ess", '"slurm"', "-mca", "orte_hnp_uri", f'"{uri}"']
        here = socket.gethostname()
        others = [node for node in self._each if node != here]
        found = []
        if others:
            chosen = [f"--nodes={len(others)}", f"--nodelist={','.join(others)}"]
            found.append(
                subprocess.Popen(
                    [
                        *("srun", "--ntasks-per-node=1", "--kill-on-bad-exit", "--mpi=none"),
                        *(chosen if len(others) < len(self._each) else ()),
                        *(f"--ntasks={len(others)}", *orted),
                    ],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            )
        if here in self._each:
            environment = {**os.environ, "SLURMD_NODENAME": here}
            found.append(subprocess.Popen(orted, stdin=subprocess.DEVNULL, env=environment))
        return found

    def _gather(
        self, server: socket.socket, daemons: list[subprocess.Popen[bytes]]
    ) -> dict[str, socket.socket] | None:
        joined: dict[str, socket.socket] = {}
        deadline = time.monotonic() + JOIN_SECONDS
        while len(joined) < len(self._each):
            if any(each.poll() is not None for each in daemons) or time.monotonic() > deadline:
                return None
            with contextlib.suppress(TimeoutError):
                link = server.accept()[0]
                link.settimeout(None)
                joined[next(lines(link))["node"]] = link
        return joined if set(joined) == set(self._each) else None

    def _assign(self, joined: dict[str, socket.socket]) -> None:
        first, world = 0, sum(self._each.values())
        for node, count in self._each.items():
            ranks = list(range(first, first + count))
            first += count
            environment = {**self._environment, NODES: json.dumps(list(self._each.items()))}
            send(joined[node], ranks=ranks, world=world, argv=self._argv, environment=environment)

    def _follow(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            for words in lines(link):
                if "status" in words:
                    self._status[words["rank"]] = words["status"]
                    if words["status"]:
                        self._failed.set()
                    continue
                with self._lock:
                    stream = sys.stdout if words["stream"] == 1 else sys.stderr
                    stream.write(words["text"])
                    stream.flush()

    def _judge(self) -> int:
        bad = {rank: status for rank, status in sorted(self._status.items()) if status}
        for rank, status in bad.items():
            complain(
                "mpirun detected that one or more processes exited with non-zero status, thus "
                f"causing\nthe job to be terminated. The first process to do so was:\n\n"
                f"  Process name: [[1,1],{rank}]\n  Exit code:    {status}"
            )
            return status
        return 0 if len(self._status) == sum(self._each.values()) else 1


# --- orted -----------------------------------------------------------------------------------


def orted(argv: list[str], _build: Build, _machine: Machine) -> int:
    """The daemon of one node: it connects to mpirun and starts this node's ranks."""
    uri = argv[argv.index("orte_hnp_uri") + 1].strip('"').removeprefix("tcp://")
    hosts_of, _, port = uri.rpartition(":")
    link = _connect(hosts_of.split(","), int(port))
    if link is None:
        complain(f"orted: no way to {uri}")
        return 1
    send(link, node=os.environ["SLURMD_NODENAME"])
    words = lines(link)
    told = next(words)
    running = []
    for place, rank in enumerate(told["ranks"]):
        environment = {
            **os.environ,
            **told["environment"],
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(told["world"]),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(place),
        }
        try:
            process = subprocess.Popen(
                told["argv"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            send(link, rank=rank, stream=2, text=f"{told['argv'][0]}: {error.strerror}\n")
            send(link, rank=rank, status=127)
            continue
        running.append(process)
        threading.Thread(target=_report, args=(link, rank, process), daemon=True).start()
    # mpirun hangs up when all ranks have ended, or one has failed.
    with contextlib.suppress(OSError, ValueError):
        for _ in words:
            pass
    for process in running:
        process.kill()
    return 0


_SENDING = threading.Lock()


def _report(link: socket.socket, rank: int, process: subprocess.Popen[str]) -> None:
    out, err = process.communicate()
    with _SENDING, contextlib.suppress(OSError):
        for stream, text in ((1, out), (2, err)):
            if text:
                send(link, rank=rank, stream=stream, text=text)
        send(link, rank=rank, status=process.returncode)


def _connect(names: list[str], port: int) -> socket.socket | None:
    for name in names:
        with contextlib.suppress(OSError):
            link = socket.create_connection((name, port), timeout=5)
            link.settimeout(None)
            return link
    return None


# --- all_reduce_perf_mpi ---------------------------------------------------------------------


def all_reduce(argv: list[str], build: Build, machine: Machine) -> int:
    """One rank of all_reduce_perf; the first prints what nccl-tests gathers from all."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    place = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    devices = [each for each in os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if each]
    if place >= len(devices):
        complain(
            f"Invalid number of GPUs: {place + 1} requested but only {len(devices)} were found."
        )
        return 1
    if rank > 0:
        return 0
    fabric = machine.load(FABRIC)
    if node not in fabric:
        complain(f"{node}: Test CUDA failure common.cu:1033 'no CUDA-capable device is detected'")
        return 1
    each = json.loads(os.environ.get(NODES) or json.dumps([[node, 1]]))
    library = str(fabric[node]["nccl"])
    run = Run(
        version=build["version"],
        headers=library,
        library=library,
        nodes=[(name, int(count)) for name, count in each],
        gpus=[(bus, str(fabric[node]["model"])) for bus in fabric[node]["buses"]],
        speed=speed([fabric[name]["rails"] for name, _ in each], machine),
    )
    printed(argv, run)
    return 0


def speed(rails: list[dict[str, float]], machine: Machine) -> tuple[float, float]:
    """GB/s and latency of a ring over nodes with these adapters."""
    if len(rails) < 2:
        return NVLINKS * NVLINK * SHARE_INSIDE, LATENCY_INSIDE
    return min(rate_of(each, machine) for each in rails) / 8 * SHARE_BETWEEN, LATENCY_BETWEEN


def rate_of(rails: dict[str, float], machine: Machine) -> float:
    """Gb/s that NCCL has by its variables: the adapters that they name, else the other network."""
    names = os.environ.get("NCCL_IB_HCA", "").lstrip("=").split(",")
    named = {each.partition(":")[0] for each in names}
    found = sum(rate for name, rate in rails.items() if name in named)
    closed = os.environ.get("NCCL_IB_DISABLE") == "1" or not machine.path(RDMA).is_dir()
    return TCP_GBPS if closed or not found else found


# --- shared ----------------------------------------------------------------------------------


def hosts(text: str) -> list[str]:
    """Names of Slurm's list: `gpu[1-2,04],head1`."""
    found = []
    for prefix, spans, plain in re.findall(r"([^,\[]+)\[([^\]]*)\]|([^,\[\]]+)", text):
        if plain:
            found.append(plain)
        for span in spans.split(",") if spans else ():
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.append(f"{prefix}{number:0{len(first)}d}")
    return found


def counts(text: str) -> list[int]:
    """Slurm's tasks per node: `8(x2),4`."""
    found: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(times or 1)
    return found


def addresses() -> list[str]:
    """IPv4 addresses of this pod; those of loopback last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked.fileno(), 0x8915, request)  # SIOCGIFADDR
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(found, key=lambda each: each.startswith("127."))


def send(link: socket.socket, **words: Any) -> None:
    """One line of JSON."""
    link.sendall(json.dumps(words).encode() + b"\n")


def lines(link: socket.socket) -> Iterator[dict[str, Any]]:
    """Lines of JSON until the other end hangs up."""
    with link.makefile("rb") as file:
        for line in file:
            yield json.loads(line)
