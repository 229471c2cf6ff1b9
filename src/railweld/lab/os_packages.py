"""Debian packages of the lab: what is in a node from the start, and what its mirror serves.

The mirror brings every package with what it depends on, against the image's package set, so that
a node needs no other network. A role that installs a package not named here finds no candidate in
the lab: add the name.
"""

from __future__ import annotations

SUITE = "bookworm"

#: In the image: what a server has after its operating system was installed.
IMAGE: tuple[str, ...] = (
    "ca-certificates",
    "dbus",
    "ethtool",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
    "unattended-upgrades",
)

#: On the mirror, by the part of the product that installs it.
MIRROR: dict[str, tuple[str, ...]] = {
    "time": ("chrony",),
    "rdma": (
        "ibverbs-providers",
        "ibverbs-utils",
        "infiniband-diags",
        "libibumad3",
        "libibverbs1",
        "librdmacm1",
        "mstflint",
        "perftest",
        "rdma-core",
        "rdmacm-utils",
    ),
    "lldp": ("lldpd",),
    "network": ("ifupdown", "iproute2", "nftables", "netplan.io"),
    "cache": ("mdadm", "nvme-cli", "parted", "xfsprogs", "e2fsprogs", "gdisk"),
    "driver": ("initramfs-tools", "mokutil", "pciutils", "kmod"),
    "boot": ("grub2-common",),
    "build": ("make",),
    "cluster": ("conntrack", "containerd", "ethtool", "iptables", "runc", "socat"),
    "slurm": (
        "mariadb-server",
        "munge",
        "slurm-client",
        "slurmctld",
        "slurmd",
        "slurmdbd",
    ),
    "bridge": ("python3-aiohttp", "python3-yaml"),
    # For the fault munge-skew: nodes share one clock, so that munged is shown another one.
    "faults": ("libfaketime",),
    "tools": (
        "ca-certificates",
        "curl",
        "gnupg",
        "jq",
        "lsb-release",
        "numactl",
        "python3-apt",
        "python3-yaml",
        "rsync",
        "unattended-upgrades",
        "util-linux",
        "udev",
    ),
}

#: Also on the mirror, but not beside what is above: another time daemon, for instance.
ALTERNATIVES: tuple[str, ...] = ("systemd-timesyncd",)
