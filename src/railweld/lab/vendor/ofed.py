"""Stand-in packages of DOCA-OFED, and of dkms, which that repository carries too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from railweld.lab.debs import Deb
from railweld.lab.vendor.bundle import program
from railweld.lab.vendor.driver import RELOAD, SCRIPT, UNITS, dkms_scripts
from railweld.lab.vendor.programs.machine import Build

#: In load order.
MODULES = (
    "mlx_compat",
    "mlx5_core",
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "ib_cm",
    "iw_cm",
    "rdma_cm",
    "rdma_ucm",
    "mlx5_ib",
    "ib_ipoib",
)
OPENIBD = """#!/bin/sh
### BEGIN INIT INFO
# Provides:          openibd
# Required-Start:    $local_fs
# Required-Stop:
# Default-Start:     S
# Default-Stop:
# Short-Description: Mellanox OFED drivers
### END INIT INFO
# railweld lab: stands in for OFED's init script.
MODULES="{modules}"
case "$1" in
start)
    for module in $MODULES; do modprobe "$module" || exit 1; done
    echo "Loading HCA driver and Access Layer:                       [  OK  ]" ;;
stop)
    for module in {reverse}; do rmmod "$module" 2>/dev/null; done
    echo "Unloading HCA driver:                                      [  OK  ]" ;;
restart)
    "$0" stop && "$0" start ;;
status)
    lsmod | grep -q '^mlx5_core' && echo "  HCA driver loaded" ;;
*)
    echo "Usage: $0 {{start|stop|restart|status}}"
    exit 1 ;;
esac
"""
OPENIBD_UNIT = """[Unit]
Description=openibd - configure Mellanox devices
DefaultDependencies=no
After=local-fs.target sysinit.target
Before=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/init.d/openibd start
ExecStop=/etc/init.d/openibd stop

[Install]
WantedBy=sysinit.target
"""
#: Debian 12's version, so that a node which has the real one keeps what its packages ask for.
DKMS_VERSION = "3.0.10-8+deb12u1+railweld1"


@dataclass(frozen=True, kw_only=True)
class DocaBuild:
    """One DOCA release: package version, OFED's name, kernel package version, MFT version."""

    version: str
    ofed: str
    kernel: str
    mft: str

    @property
    def number(self) -> str:
        """`25.10-1.7.1` of `OFED-internal-25.10-1.7.1`."""
        return re.sub(r"^\D+", "", self.ofed)

    @property
    def compact(self) -> str:
        """`2510171`, as the userspace packages carry it."""
        return re.sub(r"\D", "", self.number)


def _programs(names: dict[str, str], ofed: str = "", version: str = "") -> dict[str, bytes]:
    build: Build = {"ofed": ofed, "version": version}
    return {path: program(function, build) for path, function in names.items()}


def doca(build: DocaBuild) -> list[Deb]:
    """The packages of DOCA-OFED."""
    year_month = build.compact[:4]
    userspace = f"{year_month}mlnx54-1.{build.compact}"
    tools = f"{build.number.split('-', 1)[0]}-0.{build.compact}"
    utils = build.kernel
    upstream = utils.rsplit("-", 1)[0]
    needs = [
        f"mlnx-ofed-kernel-dkms (= {build.kernel})",
        f"mlnx-ofed-kernel-utils (= {utils})",
        f"mlnx-tools (= {tools})",
        f"ofed-scripts (= {build.kernel})",
        f"mft (= {build.mft})",
        f"rdma-core (= {userspace})",
        f"ibverbs-providers (= {userspace})",
        f"ibverbs-utils (= {userspace})",
        f"infiniband-diags (= {userspace})",
        "perftest",
    ]

    def tool(name: str, version: str, names: dict[str, str], **fields: str) -> Deb:
        files = _programs(names, build.ofed, version)
        return Deb(
            name=name,
            version=version,
            description=f"{name} of DOCA-OFED",
            fields=fields,
            files=files,
            executable=frozenset(files),
        )

    return [
        Deb(
            name="doca-ofed",
            version=build.version,
            architecture="all",
            description="DOCA-OFED meta-package",
            fields={"Depends": ", ".join(needs)},
        ),
        Deb(
            name="mlnx-ofed-kernel-dkms",
            version=build.kernel,
            architecture="all",
            description="DKMS support for mlnx-ofed kernel modules",
            fields={"Depends": "dkms (>= 3.0)"},
            files=_kernel_source(build, upstream),
            scripts=dkms_scripts("mlnx-ofed-kernel", upstream),
        ),
        Deb(
            name="mlnx-ofed-kernel-utils",
            version=utils,
            description="Userspace tools to restart and tune mlnx-ofed kernel modules",
            files={
                "/etc/init.d/openibd": OPENIBD.format(
                    modules=" ".join(MODULES), reverse=" ".join(reversed(MODULES))
                ),
                "/etc/infiniband/openib.conf": "ONBOOT=yes\nUCM_LOAD=yes\nUMAD_LOAD=yes\n",
                f"{UNITS}/openibd.service": OPENIBD_UNIT,
            },
            executable=frozenset({"/etc/init.d/openibd"}),
            scripts={
                "postinst": SCRIPT
                + RELOAD
                + "! command -v systemctl >/dev/null || systemctl enable openibd.service\n"
            },
        ),
        tool(
            "mlnx-tools",
            tools,
            {
                "/usr/bin/mlnx_qos": "mellanox.mlnx_qos",
                "/usr/bin/ibdev2netdev": "mellanox.ibdev2netdev",
                "/usr/sbin/show_gids": "mellanox.show_gids",
                "/usr/sbin/cma_roce_tos": "mellanox.cma_roce_tos",
            },
        ),
        tool("ofed-scripts", build.kernel, {"/usr/bin/ofed_info": "mellanox.ofed_info"}),
        tool(
            "mft",
            build.mft,
            {
                "/usr/bin/mst": "mellanox.mst",
                "/usr/bin/mlxconfig": "mellanox.mlxconfig",
                "/usr/bin/mlxfwmanager": "mellanox.mlxfwmanager",
                "/usr/bin/flint": "mellanox.flint",
            },
        ),
        *_userspace(userspace),
    ]


def _kernel_source(build: DocaBuild, upstream: str) -> dict[str, str | bytes]:
    folder = f"/usr/src/mlnx-ofed-kernel-{upstream}"
    names = "".join(
        f'BUILT_MODULE_NAME[{number}]="{module}"\n' for number, module in enumerate(MODULES)
    )
    modules = {
        module: {"version": build.number, "flavour": "open", "license": "Dual BSD/GPL"}
        for module in MODULES
    }
    return {
        f"{folder}/dkms.conf": (
            f"PACKAGE_NAME=mlnx-ofed-kernel\nPACKAGE_VERSION={upstream}\n{names}AUTOINSTALL=yes\n"
        ),
        f"{folder}/railweld-lab.json": json.dumps({"modules": modules}, indent=1) + "\n",
    }


def _userspace(version: str) -> list[Deb]:
    """RDMA userspace under the distribution's names, which OFED's higher version replaces."""
    diagnostics = _programs({"/usr/sbin/ibstat": "mellanox.ibstat"})
    same = f"(= {version})"
    plain = {
        "rdma-core": "",
        "libibverbs1": "",
        "ibverbs-providers": f"libibverbs1 {same}",
        "ibverbs-utils": f"libibverbs1 {same}",
        "libibumad3": "",
        "librdmacm1": f"libibverbs1 {same}",
        "rdmacm-utils": f"librdmacm1 {same}",
    }
    return [
        *(
            Deb(
                name=name,
                version=version,
                description=f"{name} of DOCA-OFED",
                fields={"Depends": needs} if needs else {},
            )
            for name, needs in plain.items()
        ),
        Deb(
            name="infiniband-diags",
            version=version,
            description="InfiniBand diagnostic programs of DOCA-OFED",
            fields={"Depends": f"libibumad3 {same}"},
            files=diagnostics,
            executable=frozenset(diagnostics),
        ),
        Deb(
            name="perftest",
            version=f"{version.split('mlnx', 1)[0]}.0.0-0.1",
            description="Infiniband verbs performance tests of DOCA-OFED",
        ),
    ]


def dkms() -> Deb:
    """Stand-in of dkms: no compiler, and a build registers a stand-in module."""
    files = {
        "/usr/sbin/dkms": program("dkms.main", {"version": "3.0.10"}),
        "/usr/lib/dkms/common.postinst": program("dkms.postinst", {}),
    }
    return Deb(
        name="dkms",
        version=DKMS_VERSION,
        architecture="all",
        description="Dynamic Kernel Module System (DKMS)",
        files=files,
        executable=frozenset(files),
        scripts={"postinst": SCRIPT + "mkdir -p /var/lib/dkms\n"},
    )


def inbox_tools() -> list[Deb]:
    """The distribution's mstflint, which cannot reach firmware from a lab node otherwise."""
    files = _programs(
        {
            "/usr/bin/mstflint": "mellanox.flint",
            "/usr/bin/mstconfig": "mellanox.mlxconfig",
            "/usr/bin/mstfwmanager": "mellanox.mlxfwmanager",
        }
    )
    return [
        Deb(
            name="mstflint",
            version="4.21.0+1-1+railweld1",
            description="Mellanox firmware burning application",
            files=files,
            executable=frozenset(files),
        )
    ]
