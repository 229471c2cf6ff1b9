"""Stand-in kernel packages: nodes share the machine's kernel, which no package of theirs brought.

A node must answer what packages answer about a kernel (which is installed, are its headers there),
so the running kernel and one newer kernel exist as packages with the names that Ubuntu and Debian
use, without a kernel in them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from railweld.lab.debs import Deb, build_deb

#: Options that checks of this product read in /boot/config-*.
CONFIG = (
    "CONFIG_DMA_SHARED_BUFFER=y",
    "CONFIG_INFINIBAND=m",
    "CONFIG_MODULES=y",
    "CONFIG_MODULE_SIG=y",
    "CONFIG_PCI_P2PDMA=y",
)


def running_kernel() -> str:
    """`uname -r` of this machine and so of every node."""
    return os.uname().release


def newer_kernel(release: str) -> str:
    """A kernel release that sorts after `release`."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    if match is None:
        return f"{release}.1"
    major, minor, patch = (int(part) for part in match.groups())
    return f"{major}.{minor}.{patch + 1}-railweld"


def package_version(release: str) -> str:
    """The Debian version of a kernel release's packages."""
    match = re.match(r"\d+(\.\d+)*", release)
    return f"{match.group() if match else '0'}-1"


def image_deb(release: str) -> Deb:
    """`linux-image-RELEASE`."""
    modules = f"/usr/lib/modules/{release}"
    return Deb(
        name=f"linux-image-{release}",
        version=package_version(release),
        description="railweld lab: stands in for a kernel image",
        fields={"Provides": "linux-image"},
        files={
            f"/boot/vmlinuz-{release}": f"stand-in for kernel {release}\n",
            f"/boot/config-{release}": "".join(f"{line}\n" for line in CONFIG),
            f"/boot/System.map-{release}": "",
            f"{modules}/modules.builtin": "",
            f"{modules}/modules.order": "",
        },
        scripts={
            "postinst": "#!/bin/sh\nset -e\n"
            f"! [ -x /usr/sbin/update-initramfs ] || update-initramfs -c -k {release}\n"
            "! [ -x /usr/sbin/update-grub ] || update-grub\n",
            "postrm": f"#!/bin/sh\nset -e\nrm -f /boot/initrd.img-{release}\n",
        },
    )


def headers_deb(release: str) -> Deb:
    """`linux-headers-RELEASE`."""
    source = f"/usr/src/linux-headers-{release}"
    return Deb(
        name=f"linux-headers-{release}",
        version=package_version(release),
        description="railweld lab: stands in for kernel headers",
        files={
            f"{source}/Makefile": f"# stand-in for the headers of {release}\n",
            f"{source}/include/generated/utsrelease.h": f'#define UTS_RELEASE "{release}"\n',
        },
        links={f"/usr/lib/modules/{release}/build": source},
    )


def latest_image_deb(release: str) -> Deb:
    """`linux-image-generic`: what drags a kernel in."""
    return Deb(
        name="linux-image-generic",
        version=package_version(release),
        description="railweld lab: stands in for the kernel metapackage",
        fields={"Depends": f"linux-image-{release}"},
    )


def slow_deb() -> Deb:
    """A package whose upgrade takes as long as the node's fault says."""
    return Deb(
        name="railweld-lab-slow",
        version="2",
        architecture="all",
        description="railweld lab: an upgrade that takes its time",
        scripts={
            "postinst": "#!/bin/sh\n"
            "# Looks every tenth of a second whether the fault was taken away meanwhile.\n"
            "mkdir -p /run/railweld-lab; touch /run/railweld-lab/slow-running\n"
            "tenths=0\n"
            "file=/var/lib/railweld-lab/slow-seconds\n"
            'while [ "$tenths" -lt "$(cat $file 2>/dev/null || echo 0)0" ]; do\n'
            "  sleep 0.1; tenths=$((tenths + 1))\n"
            "done\n"
            "rm -f /run/railweld-lab/slow-running\n"
        },
    )


def build_installed(folder: Path) -> list[Path]:
    """Packages that a node has from the start."""
    release = running_kernel()
    return [build_deb(image_deb(release), folder), build_deb(headers_deb(release), folder)]


def build_for_mirror(folder: Path) -> list[Path]:
    """Packages that the mirror offers: headers of the running kernel, and a newer kernel."""
    newer = newer_kernel(running_kernel())
    return [
        build_deb(headers_deb(running_kernel()), folder),
        build_deb(image_deb(newer), folder),
        build_deb(headers_deb(newer), folder),
        build_deb(latest_image_deb(newer), folder),
        build_deb(slow_deb(), folder),
    ]
