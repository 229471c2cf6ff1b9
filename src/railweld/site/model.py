"""The site as the stages use it: typed, frozen, with everything derived that must agree.

A `Site` only comes out of `railweld.site.build`: whoever holds one may rely on what the check
refuses.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from railweld import names
from railweld.errors import RailweldError
from railweld.site.variables import HostVariables, SiteVariables, SwitchVariables
from railweld.versions import Resolved, VersionsError

#: Components whose packages the base stage installs on GPU nodes.
NODE_COMPONENTS: Final = ("driver", "fabric_manager", "cuda", "nccl", "rdma", "doca")

_PORT_INDEX = re.compile(r"\{index(?:\*(?P<times>\d+))?(?P<plus>[+-]\d+)?\}")


def expand_port(port: str, index: int) -> str:
    """`Ethernet{index+16}/1` with index 3 is `Ethernet19/1`."""

    def number(match: re.Match[str]) -> str:
        return str(index * int(match["times"] or 1) + int(match["plus"] or 0))

    return _PORT_INDEX.sub(number, port)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class Gpu(_Frozen):
    """The GPUs of a node; all are of one model."""

    count: int
    model: str
    persistence: bool
    ecc: bool
    mig: bool

    @property
    def gres_type(self) -> str:
        """Type in Slurm's gres: `a100` for `A100-SXM4-80GB`."""
        return re.split(r"[^A-Za-z0-9]", self.model.removeprefix("Tesla "))[0].lower()


class Hca(_Frozen):
    """One RDMA port of a node and its cable."""

    name: str
    rail: int
    netdev: str | None = None
    address: str | None = None
    subnet: str | None = None
    gateway: str | None = None
    rate_gbps: int = 100
    switch: str | None = None
    port: str | None = None


class Host(HostVariables):
    """A node: its variables, and what follows from them."""

    name: str
    groups: tuple[str, ...]
    address: str
    index: int | None = None
    gpu: Gpu | None = None
    hcas: tuple[Hca, ...] = ()

    @property
    def is_gpu_node(self) -> bool:
        """True if jobs run here."""
        return names.GROUP_GPU_NODES in self.groups

    @property
    def is_time_server(self) -> bool:
        """True if the other nodes take their time from here."""
        return names.GROUP_TIME_SERVERS in self.groups


class SwitchPort(_Frozen):
    """A port that the description uses: a host's HCA or another switch at the other end."""

    name: str
    kind: Literal["host", "uplink"]
    peer: str
    peer_port: str
    rate_gbps: int
    cable_m: float
    rail: int | None = None
    channel: int | None = None


class Switch(SwitchVariables):
    """A switch and the ports that follow from hosts and uplinks."""

    name: str
    groups: tuple[str, ...]
    address: str
    ports: tuple[SwitchPort, ...] = ()

    @property
    def model(self) -> str:
        """Model as `show version` prints it."""
        return self.switch_model or ""


class Site(SiteVariables):
    """The whole description. Site variables are attributes without their prefix.

    `partitions` have their hosts filled in; `lossless_queue` is never None.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    versions: Resolved
    hosts: dict[str, Host]
    switches: dict[str, Switch]
    groups: dict[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """Name of the site."""
        return self.site

    @property
    def nccl_ib_tc(self) -> int:
        """NCCL_IB_TC: the traffic-class byte, whose upper six bits are the DSCP."""
        return self.lossless_dscp * 4

    def host(self, name: str) -> Host:
        """One host by name; raises RailweldError naming what there is."""
        try:
            return self.hosts[name]
        except KeyError:
            known = ", ".join(list(self.hosts)[:5])
            msg = f"site {self.name}: found no host {name!r}, expected one of {known}, ..."
            raise RailweldError(msg) from None

    def ib_hca_list(self, host: str) -> str:
        """NCCL_IB_HCA of a host: exact names with ports, since mlx5_1 also means mlx5_10."""
        ports = [f"{hca.name}:1" for hca in self.host(host).hcas]
        return "=" + ",".join(ports) if ports else ""

    def gres(self, host: str) -> str:
        """Slurm's Gres of a host: `gpu:a100:8`."""
        gpu = self.host(host).gpu
        return f"gpu:{gpu.gres_type}:{gpu.count}" if gpu else ""

    def fact(self) -> dict[str, Any]:
        """The Ansible fact `railweld`: JSON-safe, without secrets, computed once per play."""
        shared: dict[tuple[Any, ...], dict[str, Any]] = {}
        return {
            "site": self._site_fact(),
            "hosts": {name: self._host_fact(host, shared) for name, host in self.hosts.items()},
        }

    def _site_fact(self) -> dict[str, Any]:
        servers = [
            self.hosts[name].address
            for name in self.groups.get(names.GROUP_TIME_SERVERS, ())
            if name in self.hosts
        ]
        return {
            "name": self.name,
            "transport": self.transport,
            "version_set": self.version_set,
            "lossless": {
                "priority": self.lossless_priority,
                "dscp": self.lossless_dscp,
                "queue": self.lossless_queue,
                "traffic_class_byte": self.nccl_ib_tc,
            },
            "cnp": {"dscp": self.cnp_dscp, "priority": self.cnp_priority},
            "host_mtu": self.host_mtu,
            "switch_mtu": self.switch_mtu,
            "time": {
                "servers": servers,
                "sources": list(self.time_sources),
                "max_offset_ms": self.time_max_offset_ms,
            },
            "rdma_stack": self.rdma_stack,
            "gpudirect": self.gpudirect,
            "reboot": {"policy": self.reboot, "timeout_s": self.reboot_timeout_s},
            "apt_lock_timeout_s": self.apt_lock_timeout_s,
            "serial": self.serial,
            "memlock_kib": self.memlock_kib,
            "nofile": self.nofile,
            "patching": self.patching,
        }

    def _host_fact(
        self, host: Host, shared: dict[tuple[Any, ...], dict[str, Any]]
    ) -> dict[str, Any]:
        # Packages and repositories follow from a few options, so hosts of one kind share them.
        kind = (
            host.vendor_repository,
            host.driver_modules,
            host.cuda_compat,
            host.is_gpu_node,
            tuple(host.mirrors.items()),
        )
        if kind not in shared:
            shared[kind] = {
                "repositories": self._repositories(host),
                "packages": self._packages(host),
            }
        versions = self.versions.versions
        return {
            "name": host.name,
            "groups": list(host.groups),
            "index": host.index,
            "address": host.address,
            "is_gpu_node": host.is_gpu_node,
            "is_time_server": host.is_time_server,
            "vendor_repository": host.vendor_repository,
            **shared[kind],
            "driver": {"version": versions.driver.version, "modules": host.driver_modules},
            "fabric_manager": {"version": versions.fabric_manager.version},
            "cuda": {
                "version": versions.cuda.version,
                "release": versions.cuda.release,
                "nvcc": versions.cuda.nvcc,
                "compat": host.cuda_compat,
            },
            "nccl": {"version": versions.nccl.version, "cuda": versions.nccl.cuda},
            "doca": {
                "version": versions.doca.version if self.rdma_stack == "doca" else None,
                "ofed": versions.doca.ofed if self.rdma_stack == "doca" else None,
            },
            "gpu": host.gpu.model_dump() if host.gpu else None,
            "hcas": [hca.model_dump() for hca in host.hcas],
            "cache": {
                "device": host.cache_device,
                "cache_path": host.cache_path,
                "scratch_path": host.scratch_path,
                "job_scratch_path": names.job_scratch(host.scratch_path),
            },
            "kernel": {
                "parameters": list(host.kernel_parameters),
                "iommu": host.iommu,
                "acs": host.acs,
                "modules": list(host.kernel_modules),
            },
            "secure_boot_signer": host.secure_boot_signer,
        }

    def _packages(self, host: Host) -> dict[str, list[dict[str, str]]]:
        packages: dict[str, list[dict[str, str]]] = {name: [] for name in NODE_COMPONENTS}
        if not host.is_gpu_node or host.vendor_repository is None:
            return packages
        for component in NODE_COMPONENTS:
            try:
                listed = self.versions.packages(
                    component,
                    host.vendor_repository,
                    modules=host.driver_modules,
                    gpudirect=self.gpudirect,
                    compat=host.cuda_compat,
                )
            except VersionsError:
                continue  # the check has refused what this site needs; the rest is not used
            packages[component] = [{"name": p.name, "version": p.version} for p in listed]
        return packages

    def _repositories(self, host: Host) -> list[dict[str, Any]]:
        """What the node's apt must know: mirrors first, the vendors' own for what has none."""
        wanted = ["os"]
        if host.is_gpu_node:
            wanted.append("cuda")
            if self.rdma_stack == "doca":
                wanted.append("doca")
        repositories = []
        for kind in wanted:
            vendor = (
                self.versions.repository(host.vendor_repository, kind)
                if host.vendor_repository
                else None
            )
            entry: dict[str, Any] = {"id": kind}
            if mirror := host.mirrors.get(kind):  # type: ignore[call-overload] # any text may be asked
                entry |= mirror.source()
                if vendor and not mirror.key_url and not mirror.key_file:
                    # A mirror that copies signed packages keeps the vendor's signature.
                    entry["key_url"] = vendor.key_url
                    entry["key_fingerprint"] = vendor.key_fingerprint
            elif vendor:
                entry |= {
                    "url": vendor.url,
                    "suite": vendor.suite,
                    "components": list(vendor.components),
                    "key_url": vendor.key_url,
                    "key_file": None,
                    "key_fingerprint": vendor.key_fingerprint,
                }
            else:
                continue
            repositories.append(entry)
        return repositories
