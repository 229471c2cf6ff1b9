"""What the probe reads on a node that is as described: the description, seen from the other side.

For tests and measurements that need answers of any number of nodes without having them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railweld import names
from railweld.gpus import nvlink
from railweld.verify.roles import nvme_cache

_MASKED = {"load": "masked", "active": "inactive", "sub": "dead", "enabled": "masked"}
_KERNEL = "5.15.0-91-generic"


def healthy(fact: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The observation of a node that has completed the base stage.

    Args:
        fact: `Site.fact()`.
        name: the node.
    """
    site, host = fact["site"], fact["hosts"][name]
    node = {
        "os": {"id": "ubuntu", "version_id": "22.04", "arch": "x86_64", "hostname": name},
        "kernel": {
            "running": _KERNEL, "installed": [_KERNEL], "newest_installed": _KERNEL,
            "headers_installed": True, "headers_package": f"linux-headers-{_KERNEL}",
            "secure_boot": "off", "secure_boot_keys": None, "p2pdma": True, "cgroup": "cgroup2fs",
            "cmdline": ["quiet", "iommu=pt"],
            "huge_pages": {"reserved": {"2048": 0, "1048576": 0}, "transparent": "madvise"},
        },
        "packages": {
            # What the set leaves to the distribution has no version in it; 50 is new enough.
            pin["name"]: {"version": pin["version"] or "50", "status": "ii", "hold": True}
            for pins in host["packages"].values() for pin in pins
        } | {"lldpd": {"version": "1", "status": "ii", "hold": False}},
        "apt": {
            "candidates": {},
            "units": {"apt-daily.timer": _MASKED, "unattended-upgrades.service": None},
            "periodic": {"Update-Package-Lists": "0", "Unattended-Upgrade": "0"},
        },
        "dpkg": {"audit": [], "interrupted": False, "lock_held_by": None},
        "limits": {"memlock": site["memlock_kib"], "nofile": site["nofile"]},
        "reboot": {"reasons": []},
        "records": {},
        "units": {names.SCRATCH_TIMER: {"active": "active", "enabled": "enabled"}},
        "time": _time(site, host),
        "net": _net(site, host),
        "lldp": _lldp(host),
        "disks": _disks(site, host),
        "folders": {
            path: {"mode": mode}
            for path, mode in nvme_cache.folders(host["cache"]).values()
        },
    }  # fmt: skip
    if host.get("gpu"):
        node |= _gpus(host)
    if host.get("hcas"):
        node |= _rdma(site, host)
    return node


def _time(site: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    server = (site["time"]["sources"] or ["127.127.1.1"])[0]
    if not host.get("is_time_server") and site["time"]["servers"]:
        server = site["time"]["servers"][0]
    return {
        "daemon": "active", "synced": True, "offset_s": 2.1e-05, "stratum": 3, "refid": "0A00000A",
        "leap": "Normal", "running": ["chrony.service"],
        "sources": [{"mode": "^", "state": "*", "address": server, "reach": "377"}],
        "skew_to_controller_s": 0.0,
    }  # fmt: skip


def _gpus(host: Mapping[str, Any]) -> dict[str, Any]:
    gpu, driver = host["gpu"], host["driver"]
    release = host["cuda"]["release"]
    version = driver["version"]
    link = nvlink(gpu["model"])
    links, speed = (link.links, link.gb_per_s) if link else (0, 0.0)
    return {
        "driver": {
            "loaded": version, "on_disk": version, "kernel_flavour": driver["modules"],
            "disk_flavour": driver["modules"], "signer": None, "container": False,
            "dkms": [f"nvidia/{version}, {_KERNEL}, x86_64: installed"], "persistence_unit": True,
            "smi": {"ok": True, "installed": True, "error": ""},
        },
        "gpus": [
            {
                "index": index, "name": gpu["model"], "persistence": True, "ecc": True,
                "ecc_pending": True, "mig": False, "mig_pending": False,
            }
            for index in range(gpu["count"])
        ],
        "nouveau": {
            "loaded": False, "rivals_loaded": [], "blacklisted": True, "in_initramfs": True,
            "rivals_blacklisted": ["nouveau", "nova", "nova_core", "nova_drm"],
        },
        "pci": {"gpus": gpu["count"], "nvswitches": 6, "hcas": len(host.get("hcas") or ())},
        "fabric_manager": {
            "version": version, "active": True, "enabled": True, "fabric_state": None,
        },
        "cuda": {
            "nvcc": f"{release}.105", "release": release, "path": f"/usr/local/cuda-{release}",
            "compat": "530.30.02" if host["cuda"]["compat"] else None,
        },
        "nccl": {"version": host["nccl"]["version"], "header": host["nccl"]["version"]},
        "health": {
            "gpus": {
                f"0000:{index:02x}:00.0": {
                    "name": gpu["model"], "vbios": "92.00.36.00.01", "recovery_action": "None",
                    "memory_mib": 81920, "bar1_mib": 131072,
                    "uncorrected": 0, "remap_failure": False, "remap_pending": False,
                    "pages_pending": False, "pcie_width": 16, "pcie_width_max": 16,
                    "pcie_gen": 4, "pcie_gen_max": 4,
                }
                for index in range(gpu["count"])
            },
            "nvlink": {
                str(index): {str(link): speed for link in range(links)}
                for index in range(gpu["count"])
            },
            "topology": {
                str(index): {
                    hca["name"]: "PXB" if number == index // 2 else "SYS"
                    for number, hca in enumerate(host.get("hcas") or ())
                }
                for index in range(gpu["count"])
            },
            "kernel_log": True,
            "xids": [],
        },
    }  # fmt: skip


def _rdma(site: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    lossless, cnp = site["lossless"], site["cnp"]
    return {
        "modules": [
            *("nvidia", "nvidia_uvm", "ib_uverbs", "mlx5_ib", "rdma_cm", "rdma_ucm", "ib_umad"),
        ],
        "hcas": [
            {
                "name": hca["name"], "netdev": hca["netdev"], "state": "ACTIVE",
                "phys_state": "LinkUp", "rate_gbps": hca["rate_gbps"], "link_layer": "Ethernet",
                "fw_version": "20.35.1012", "board_id": "MT_0000000223",
                "tos": str(lossless["traffic_class_byte"]),
            }
            for hca in host["hcas"]
        ],
        "rdma": {
            "ofed": None, "configfs": True, "stale_modules": [], "acs_enabled": [],
            "memory_peers": [],
            "roce": {
                hca["netdev"]: {
                    "trust": "dscp",
                    "dscp_prio": {
                        str(lossless["dscp"]): lossless["priority"],
                        str(cnp["dscp"]): cnp["priority"],
                    },
                    "pfc": [priority == lossless["priority"] for priority in range(8)],
                    "cnp_dscp": str(cnp["dscp"]),
                }
                for hca in host["hcas"]
            },
        },
    }  # fmt: skip


def _net(site: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "eth0": {
            "mtu": 1500, "addresses": [f"{host['address']}/24"], "master": None, "sysctls": {},
        },
        "default_route_dev": "eth0",
        "default_route_devs": ["eth0"],
        "tools": {"networkd_enabled": True, "networkd_files": []},
        "rules": [],
        "routes": [{"dst": "default", "gateway": "10.0.0.1", "dev": "eth0"}],
    }  # fmt: skip
    for number, hca in enumerate(host.get("hcas") or (), 1):
        address = hca["address"]
        found[hca["netdev"]] = {
            "mtu": site["host_mtu"], "addresses": [address], "master": None,
            "sysctls": {"arp_announce": 2, "arp_ignore": 1, "rp_filter": 2},
        }  # fmt: skip
        if not address:
            continue
        plain, _, prefix = address.partition("/")
        network = f"{plain.rpartition('.')[0]}.0/{prefix}"
        table = str(200 + number)
        found["rules"].append({"priority": 1000 + number, "src": plain, "table": table})
        found["routes"].append({"dst": network, "dev": hca["netdev"], "table": table})
        if hca.get("gateway"):
            found["routes"].append(
                {
                    "dst": "default", "gateway": hca["gateway"], "dev": hca["netdev"],
                    "table": table,
                }
            )  # fmt: skip
    return found


def _lldp(host: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "active": True,
        "firmware_agents": {},
        "neighbours": {
            hca["netdev"]: [{"chassis": hca["switch"], "port": hca["port"]}]
            for hca in host.get("hcas") or ()
            if hca.get("switch")
        },
    }


def _disks(site: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    cache = host.get("cache") or {}
    mounts = {"/": {"source": "/dev/sda1"}}
    devices: list[dict[str, Any]] = [{"path": "/dev/sda", "uuid": None}]
    if cache.get("device"):
        uuid = nvme_cache.filesystem_uuid(site["name"], host["name"])
        devices.append({"path": cache["device"], "uuid": uuid})
        mounts[str(cache["cache_path"]).rpartition("/")[0]] = {"source": cache["device"]}
    free = dict.fromkeys(("/", "/var", "/usr", "/boot"), 100 << 30)
    return {"blockdevices": devices, "mounts": mounts, "free": free}
