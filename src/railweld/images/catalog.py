"""Which images railweld makes, under the names by which the version sets know them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from railweld.lab.profiles import GPU_BUSES
from railweld.lab.vendor.programs.pod_mpi import FABRIC
from railweld.stack.images import images_for

if TYPE_CHECKING:
    from railweld.site import Site


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One image.

    Attributes:
        name: in the version set.
        ref: as this site pulls it.
        programs: path in the image to the tool (`tools/NAME`) and its program.
        packages: Debian packages of the lab's node image whose files belong in it.
        texts: path in the image to its text.
        scripts: path in the image to a program of the lab (`src/railweld/lab`).
        vendor: path in the image to a function of the lab's stand-ins (`lab/vendor/programs`).
        entrypoint: what runs when a pod names no command.
        stand_in: takes a vendor's place in the lab; never for a real site.
    """

    name: str
    ref: str
    programs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    vendor: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    stand_in: bool = False

    @property
    def file(self) -> str:
        """Name of its archive."""
        return f"{self.name.replace('_', '-')}.tar"


#: A shell, its tools and Python: what a job's image has at the least.
_USERLAND: Final = (
    *("libc6", "libc-bin", "base-files", "dash", "bash", "coreutils", "libtinfo6", "libacl1"),
    *("libattr1", "libgmp10", "libselinux1", "libpcre2-8-0", "libgcc-s1", "grep", "procps"),
    *("libproc2-0", "libncursesw6", "libsystemd0", "iproute2", "libmnl0", "libelf1", "libbpf1"),
    *("libbsd0", "libmd0", "libgcrypt20", "libgpg-error0", "liblz4-1", "libzstd1"),
    *("libcap2", "libdb5.3", "libxtables12", "libtirpc3", "python3-minimal", "python3.11-minimal"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "libexpat1", "zlib1g", "libssl3", "libffi8"),
    *("libbz2-1.0", "liblzma5", "libuuid1", "libsqlite3-0", "media-types", "netbase"),
)

_ENTRIES: Final = (
    Entry(
        name="clock_guard",
        ref="",
        programs={"/clock-guard": ("clock-guard", "clock-guard")},
        entrypoint=("/clock-guard",),
    ),
    Entry(
        name="device_plugin",
        ref="",
        programs={"/device-plugin": ("device-plugin", "device-plugin")},
        entrypoint=("/device-plugin", "--resource=gpu"),
        stand_in=True,
    ),
    Entry(
        name="rdma_device_plugin",
        ref="",
        programs={"/device-plugin": ("device-plugin", "device-plugin")},
        entrypoint=("/device-plugin", "--resource=rdma"),
        stand_in=True,
    ),
    Entry(
        name="dcgm_exporter",
        ref="",
        programs={"/dcgm-exporter": ("dcgm-exporter", "dcgm-exporter")},
        entrypoint=("/dcgm-exporter",),
        stand_in=True,
    ),
    Entry(
        name="cuda_test",
        ref="",
        packages=_USERLAND,
        texts={
            "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
            "/etc/group": "root:x:0:\n",
        },
        scripts={"/usr/local/bin/torchrun": "torchrun.py"},
        vendor={
            "/usr/local/bin/mpirun": "pod_mpi.mpirun",
            "/usr/local/bin/orted": "pod_mpi.orted",
            "/usr/local/bin/all_reduce_perf_mpi": "pod_mpi.all_reduce",
        },
        entrypoint=("/bin/sh",),
        stand_in=True,
    ),
)


def catalog(site: Site, *, stand_ins: bool = False) -> tuple[Entry, ...]:
    """The images for a site: railweld's own, and with `stand_ins` those of the lab."""
    refs = images_for(site)
    return tuple(
        replace(
            each,
            # A digest is of the vendor's image, not of what is built here.
            ref=refs[each.name].partition("@")[0],
            # What runs in a pod of the lab sees nothing of its node.
            texts={**each.texts, **({FABRIC: _fabric(site)} if each.vendor else {})},
        )
        for each in _ENTRIES
        if stand_ins or not each.stand_in
    )


def _fabric(site: Site) -> str:
    """What the stand-in of nccl-tests prints of a site: `pod_mpi.FABRIC` in the image."""
    numbers = site.versions.versions.nccl.version.split("-")[0].split(".")
    major, minor, patch = (int(number) for number in (*numbers, "0", "0")[:3])
    return json.dumps(
        {
            host.name: {
                "rails": {hca.name: hca.rate_gbps for hca in host.hcas},
                "model": host.gpu.model,
                "buses": [f"0000:{bus}:00.0"[:10] for bus in GPU_BUSES[: host.gpu.count]],
                "nccl": major * 10000 + minor * 100 + patch,
            }
            for host in site.hosts.values()
            if host.gpu
        },
        sort_keys=True,
    )
