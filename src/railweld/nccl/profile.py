"""Derives the NCCL environment of a site's jobs: short, and with a reason for every variable.

What NCCL finds by itself is not set. What is set follows from the description: the exact HCAs, the
traffic class that the fabric carries without loss, the interface for the bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from railweld.nccl.advice import Finding, judge
from railweld.versions.rules import version_key

if TYPE_CHECKING:
    from railweld.site import Hca, Host, Site

#: Beginnings of the names of devices that lead nowhere beyond the node or into an overlay.
VIRTUAL_DEVICES: Final = (
    "lo", "docker", "podman", "virbr", "veth", "cni", "cali", "cilium", "lxc", "flannel", "kube",
    "nodelocaldns", "tunl", "vxlan",
)  # fmt: skip

#: The first NCCL that chooses the RoCE GID row itself.
GID_AUTO: Final = "2.21"


@dataclass(frozen=True)
class Variable:
    """One environment variable and why it is set."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NcclArgs:
    """What the profile follows from.

    Attributes:
        nccl: NCCL version.
        transport: what the HCAs speak.
        network_mode: how a job's pods reach the rails.
        rdma: whether the nodes have HCAs at all.
        hcas: RDMA devices that every node of the job has; empty when nodes differ.
        nodes: how many nodes a job can have.
        traffic_class: the lossless class as the byte in the IP header, RoCE only.
        rail_netdevs: network devices of the rails, which the bootstrap keeps away from.
        rails_connected: whether a NIC of one rail reaches those of the others.
        roce_range: IPv4 network that bounds the choice of the GID, if ports have several addresses.
        bootstrap_interface: device for the bootstrap in host network mode, if the site names one.
        size: `large` for fabrics of three levels.
        bench: with the log that a measurement needs.
        extra: what the site sets itself; wins.
    """

    nccl: str
    transport: Literal["roce", "infiniband"]
    network_mode: Literal["host", "macvlan", "sriov", "dra"] = "host"
    rdma: bool = True
    hcas: tuple[str, ...] = ()
    nodes: int = 2
    traffic_class: int | None = None
    rail_netdevs: tuple[str, ...] = ()
    rails_connected: bool = True
    roce_range: str | None = None
    bootstrap_interface: str | None = None
    size: Literal["standard", "large"] = "standard"
    bench: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if version_key(self.nccl) is None:
            raise ValueError(f"nccl: found {self.nccl!r}, expected a version such as 2.28.9")
        if self.transport == "roce" and self.traffic_class is None:
            raise ValueError("traffic_class: found none, expected DSCP x 4 on RoCE")
        if self.nodes < 1:
            raise ValueError(f"nodes: found {self.nodes}, expected 1 or more")

    def at_least(self, version: str) -> bool:
        """Whether the site's NCCL is that new."""
        return (version_key(self.nccl) or ()) >= (version_key(version) or ())


@dataclass(frozen=True)
class Profile:
    """A derived environment.

    Attributes:
        variables: sorted by name.
        needs_gid_index: whether a launcher has to find the GID row (`railweld.nccl.gid`).
        findings: what the site set itself against advice.
    """

    variables: tuple[Variable, ...]
    needs_gid_index: bool
    findings: tuple[Finding, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Names and values."""
        return {each.name: each.value for each in self.variables}

    @property
    def reasons(self) -> dict[str, str]:
        """Names and reasons."""
        return {each.name: each.reason for each in self.variables}

    def conf(self) -> str:
        """The profile as /etc/nccl.conf, NCCL's own file; only what NCCL itself reads."""
        lines = []
        for each in self.variables:
            if each.name.startswith("NCCL_"):
                lines += [f"# {each.reason}", f"{each.name}={each.value}"]
        return "\n".join(lines) + "\n"


def profile(args: NcclArgs) -> Profile:
    """Derive the environment of a job."""
    chosen = {each.name: each for each in _derive(args)}
    for name, value in args.extra.items():
        chosen[name] = Variable(name, value, "set by the site (railweld_nccl_environment)")
    return Profile(
        variables=tuple(chosen[name] for name in sorted(chosen)),
        needs_gid_index=args.transport == "roce"
        and bool(args.hcas)
        and not args.at_least(GID_AUTO),
        findings=tuple(judge(args.extra, nccl=args.nccl, transport=args.transport)),
    )


def _derive(args: NcclArgs) -> Iterable[Variable]:
    yield _bootstrap(args)
    if args.network_mode != "host":
        yield Variable(
            "GLOO_SOCKET_IFNAME",
            "eth0",
            "Gloo takes one plain name; eth0 is the pod's own network",
        )
    if args.hcas:
        yield Variable(
            "NCCL_IB_HCA",
            "=" + ",".join(f"{name}:1" for name in args.hcas),
            "the HCAs of the description, by exact name and port (without = mlx5_1 takes mlx5_10)",
        )
    if args.nodes > 1 and args.rdma:
        yield Variable(
            "NCCL_NET",
            "IB",
            "a job that cannot use RDMA ends with an error instead of running on TCP",
        )
    if args.transport == "roce" and args.rdma:
        yield Variable(
            "NCCL_IB_TC",
            str(args.traffic_class),
            f"DSCP {(args.traffic_class or 0) // 4} x 4: the class that hosts and switches carry "
            "without loss",
        )
        if args.roce_range and args.at_least(GID_AUTO):
            yield Variable(
                "NCCL_IB_ADDR_RANGE", args.roce_range, "ports have addresses outside the rails too"
            )
    if len(args.hcas) > 1 and not args.rails_connected:
        yield Variable(
            "NCCL_CROSS_NIC", "0", "the rails are separate networks: no ring may cross them"
        )
    if args.size == "large":
        yield Variable(
            "NCCL_IB_TIMEOUT",
            "22",
            "large fabric: 4.096 us x 2^22 (17 s) per retry, seven retries; hides loss elsewhere",
        )
    if args.at_least("2.24") and not args.at_least("2.26.5"):
        yield Variable(
            "NCCL_CUMEM_HOST_ENABLE",
            "0",
            "NCCL 2.24 to 2.26.4 cannot exchange inside a node without access to NUMA in the pod",
        )
    yield Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a hang leaves PyTorch's flight recording")
    yield Variable(
        "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "length of that recording; 0 would switch it off"
    )
    yield Variable(
        "TORCH_FR_BUFFER_SIZE", "2000", "the same under the name of newer PyTorch releases"
    )
    if args.bench:
        yield Variable("NCCL_DEBUG", "INFO", "a measurement shows which network was used")
        yield Variable("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV", "no more than that")
    else:
        yield Variable("NCCL_DEBUG", "WARN", "errors are logged, nothing else")


def _bootstrap(args: NcclArgs) -> Variable:
    if args.network_mode != "host":
        return Variable(
            "NCCL_SOCKET_IFNAME", "=eth0", "ranks find each other over the pod's own network"
        )
    if args.bootstrap_interface:
        return Variable(
            "NCCL_SOCKET_IFNAME",
            f"={args.bootstrap_interface}",
            "ranks find each other over the device that the site names",
        )
    avoided = ",".join((*VIRTUAL_DEVICES, *sorted(set(args.rail_netdevs))))
    return Variable(
        "NCCL_SOCKET_IFNAME",
        f"^{avoided}",
        "ranks find each other over the host's own network: neither a virtual device nor a rail",
    )


def args_for(site: Site, hosts: Iterable[str], *, bench: bool = False) -> NcclArgs:
    """What the profile of jobs on these hosts follows from."""
    nodes: list[Host] = [site.host(name) for name in hosts]
    names = {tuple(hca.name for hca in node.hcas) for node in nodes}
    hcas = [hca for node in nodes for hca in node.hcas]
    return NcclArgs(
        nccl=site.versions.component("nccl").version,
        transport=site.transport,
        network_mode=site.network_mode,
        rdma=bool(hcas),
        hcas=names.pop() if len(names) == 1 else (),
        nodes=max(1, len(nodes)),
        traffic_class=site.nccl_ib_tc if site.transport == "roce" else None,
        rail_netdevs=tuple(sorted({hca.netdev for hca in hcas if hca.netdev})),
        rails_connected=_connected(site, hcas),
        bootstrap_interface=site.bootstrap_interface,
        size=site.nccl_profile,
        bench=bench,
        extra=dict(site.nccl_environment),
    )


def profiles_for(site: Site, *, bench: bool = False) -> dict[str, Profile]:
    """The profile of each partition, by the partition's name."""
    return {
        partition.name: profile(args_for(site, partition.hosts, bench=bench))
        for partition in site.partitions
    }


def uses_hca(chosen: str, hca: str) -> bool:
    """Whether NCCL uses an RDMA device with this NCCL_IB_HCA.

    Names are beginnings, with a leading `=` whole names; a leading `^` turns the choice around.
    Unset takes every device.
    """
    listed = chosen.removeprefix("^")
    exact = listed.startswith("=")
    names = [part.partition(":")[0] for part in listed.removeprefix("=").split(",") if part]
    if not names:
        return True
    found = any(hca == name if exact else hca.startswith(name) for name in names)
    return found is not chosen.startswith("^")


def _connected(site: Site, hcas: Iterable[Hca]) -> bool:
    """Ports of InfiniBand or of one IP network reach each other; others need routers."""
    ports = list(hcas)
    if site.transport == "infiniband" or len({hca.subnet for hca in ports}) <= 1:
        return True
    return all(hca.gateway for hca in ports)
