"""The daemon's configuration: one JSON file, written by deploy-slurm.yml from the description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from railweld import names
from railweld.errors import RailweldError

Placement = Literal["auto", "admission", "patch", "affinity"]
PLACEMENTS: Final = ("auto", "admission", "patch", "affinity")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the daemon knows about its site. Times are in seconds.

    Attributes:
        cluster: Slurm's ClusterName.
        partitions: bridge partition to the PodTemplate of its jobs.
        kubeconfig: of the bridge's own account; mode 0600.
        context: in it; empty for its current one.
        namespace: of the jobs.
        listen: address and port that agents in pods connect to.
        advertise: the same as pods see it.
        socket: for clients and epilogs.
        monitor: address and port of metrics and health; empty for none.
        nodes: Slurm node to the `kubernetes.io/hostname` of its Kubernetes node, where they differ.
        registries: beginnings of images that jobs may name; empty: any.
        host_network: whether jobs run in the network of their nodes.
        devices: what each node of a partition must offer, by resource.
        placement: who puts pod i on node i: the API server's policy, or patches (before 1.36); or
            nobody, and pods are ranked by the nodes of the job that they come to (before 1.27).
        minimum_uid: users below it get no jobs.
        tick: how often slurmctld is asked.
        start_limit: how long pods may take to start.
        keep: how long objects of a finished job stay.
        streams: how many nodes' output is shown; of larger jobs the first node's only.
        environment: patterns of user variables that are passed into pods.
        sync_nodes: whether the state of Kubernetes nodes is carried to Slurm.
        node_grace: how long a node may be unready before its jobs are given up.
        requeues: how often a job that the cluster failed is put back into the queue.
    """

    cluster: str
    partitions: Mapping[str, str]
    kubeconfig: Path
    context: str = ""
    namespace: str = names.NAMESPACE_JOBS
    listen: str = f"0.0.0.0:{names.BRIDGE_PORT}"
    advertise: str
    socket: Path = Path(names.BRIDGE_SOCKET)
    monitor: str = names.BRIDGE_MONITOR
    nodes: Mapping[str, str] = field(default_factory=dict)
    registries: tuple[str, ...] = ()
    host_network: bool = True
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    placement: Placement = "auto"
    minimum_uid: int = 1000
    tick: float = 5.0
    start_limit: float = 600.0
    keep: float = 300.0
    streams: int = 32
    environment: tuple[str, ...] = ()
    sync_nodes: bool = True
    node_grace: float = 30.0
    requeues: int = 3

    @property
    def listen_at(self) -> tuple[str, int]:
        """Host and port of the agents' listener."""
        return split_address("listen", self.listen)

    @property
    def monitor_at(self) -> tuple[str, int] | None:
        """Host and port of metrics and health."""
        return split_address("monitor", self.monitor) if self.monitor else None

    def hostname(self, node: str) -> str:
        """The Kubernetes hostname of a Slurm node."""
        return self.nodes.get(node, node)


def split_address(name: str, text: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise RailweldError(f"bridge configuration: {name}: found {text!r}, expected HOST:PORT")
    return host.strip("[]"), int(port)


def load(path: Path) -> Config:
    """Read a configuration file.

    Raises:
        RailweldError: unreadable, not JSON, an unknown, missing or wrong entry.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RailweldError(
            f"{path}: {error.strerror}, expected the file that deploy-slurm.yml writes"
        ) from error
    except ValueError as error:
        raise RailweldError(f"{path}: found text that is not JSON: {error}") from error
    return parse(data, str(path))


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "Mapping[str, str]": (dict,),
    "Mapping[str, Mapping[str, int]]": (dict,),
    "tuple[str, ...]": (list,),
    "Path": (str,),
    "Placement": (str,),
    "bool": (bool,),
    "float": (int, float),
    "int": (int,),
    "str": (str,),
}


def parse(data: Any, where: str = "bridge configuration") -> Config:
    """Check entry by entry; every problem in one error."""
    if not isinstance(data, dict):
        raise RailweldError(f"{where}: found no object, expected one")
    known = {each.name: each for each in fields(Config)}
    problems = [f"{name}: found an entry of no meaning" for name in sorted(data.keys() - known)]
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            continue
        kinds = _KINDS[str(known[name].type)]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            problems.append(f"{name}: found {value!r}, expected {known[name].type}")
        else:
            values[name] = _convert(str(known[name].type), value)
    for name in ("cluster", "partitions", "kubeconfig", "advertise"):
        if not data.get(name):
            problems.append(f"{name}: found nothing, expected a value")
    if values.get("placement", "auto") not in PLACEMENTS:
        problems.append(
            f"placement: found {data['placement']!r}, expected one of {', '.join(PLACEMENTS)}"
        )
    if problems:
        raise RailweldError(f"{where}: " + "; ".join(problems))
    config = Config(**values)
    _ = config.listen_at, config.monitor_at, split_address("advertise", config.advertise)
    return config


def _convert(kind: str, value: Any) -> Any:
    if kind == "Path":
        return Path(value)
    return tuple(value) if kind.startswith("tuple") else value
