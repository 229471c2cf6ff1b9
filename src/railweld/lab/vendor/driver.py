"""Stand-in packages of the driver and the fabric manager, with the vendor's names and relations.

Two layouts: Ubuntu's (a branch in every name, `=` between the members of a family, virtual
packages that exclude other branches) and Debian's (no branch in the names).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from railweld.lab.debs import Deb
from railweld.lab.vendor.bundle import program

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
UNITS = "/usr/lib/systemd/system"
MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")
LICENSES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
SCRIPT = "#!/bin/sh\nset -e\n"
INITRAMFS = "! [ -x /usr/sbin/update-initramfs ] || update-initramfs -u\n"
BLACKLIST = (
    "# This file was installed by the stand-in of NVIDIA's kernel package.\n"
    "blacklist nouveau\nblacklist lbm-nouveau\nalias nouveau off\nalias lbm-nouveau off\n"
)
#: The real node starts the daemon from a udev rule; lab nodes have no udev, so it can be enabled.
PERSISTENCED_UNIT = """[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
PERSISTENCED_USER = (
    "getent passwd nvidia-persistenced >/dev/null || useradd --system --no-create-home"
    " --home-dir /var/run/nvpd/ --shell /usr/sbin/nologin nvidia-persistenced\n"
)
FABRIC_MANAGER_UNIT = """[Unit]
Description=NVIDIA fabric manager service
After=network-online.target
Requires=network-online.target

[Service]
User=root
PrivateTmp=false
Type=forking
TimeoutStartSec=720
PIDFile=/run/nvidia-fabricmanager/nv-fabricmanager.pid
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
"""
RELOAD = "! [ -d /run/systemd/system ] || systemctl daemon-reload\n"


@dataclass(frozen=True, kw_only=True)
class DriverBuild:
    """One build of the driver: upstream version, package revision, CUDA releases per branch."""

    version: str
    revision: str
    fabric_manager_revision: str
    cuda: Mapping[str, str]

    @property
    def branch(self) -> str:
        """`515` of `515.86.01`."""
        return self.version.split(".", 1)[0]

    @property
    def package_version(self) -> str:
        """Version of the driver's packages."""
        return f"{self.version}-{self.revision}"

    @property
    def has_split_daemons(self) -> bool:
        """Since 560 persistenced, firmware and the compiler library are packages of their own."""
        return int(self.branch) >= 560


def _library(name: str, version: str, link: str) -> tuple[dict[str, str], dict[str, str]]:
    """A library file and the link that the loader follows."""
    file = f"{LIBRARIES}/{name}.{version}"
    return {file: f"stand-in for {name} {version}\n"}, {f"{LIBRARIES}/{link}": f"{name}.{version}"}


def _exclusive(name: str, more: Sequence[str] = ()) -> dict[str, str]:
    """Fields of a family member of which only one branch can be installed."""
    names = ", ".join((name, *more))
    return {"Provides": names, "Conflicts": names, "Replaces": names}


def _smi(build: DriverBuild) -> bytes:
    return program("nvidia_smi.main", {"version": build.version, "cuda": dict(build.cuda)})


def _persistenced(build: DriverBuild) -> dict[str, str | bytes]:
    return {
        "/usr/bin/nvidia-persistenced": program("daemons.persistenced", {"version": build.version}),
        f"{UNITS}/nvidia-persistenced.service": PERSISTENCED_UNIT,
    }


def _nvml_and_cuda(build: DriverBuild) -> tuple[dict[str, str | bytes], dict[str, str]]:
    files: dict[str, str | bytes] = {}
    links: dict[str, str] = {}
    for name, link in (
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
        ("libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1"),
    ):
        more, other = _library(name, build.version, link)
        files |= more
        links |= other
    return files, links


def source_files(build: DriverBuild, flavour: str) -> dict[str, str | bytes]:
    """The DKMS source tree: the real dkms.conf, and what the stand-in's build gives."""
    folder = f"/usr/src/nvidia-{build.version}"
    lines = [f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{build.version}"\nAUTOINSTALL="yes"']
    lines.append("MAKE[0]=\"'make' -j`nproc` KERNEL_UNAME=${kernelver} modules\"")
    for number, module in enumerate(MODULES):
        lines.append(f'BUILT_MODULE_NAME[{number}]="{module}"')
        lines.append(f'DEST_MODULE_LOCATION[{number}]="/kernel/drivers/char/drm"')
    modules = {
        module.replace("-", "_"): {
            "version": build.version,
            "flavour": flavour,
            "license": LICENSES[flavour],
            **({"needs_rdma_core": True} if module == "nvidia-peermem" else {}),
        }
        for module in MODULES
    }
    return {
        f"{folder}/dkms.conf": "\n".join(lines) + "\n",
        f"{folder}/railweld-lab.json": json.dumps({"modules": modules}, indent=1) + "\n",
    }


def dkms_scripts(name: str, version: str) -> dict[str, str]:
    """Maintainer scripts of a -dkms package, as dh_dkms writes them."""
    return {
        "postinst": SCRIPT
        + 'if [ "$1" = configure ]; then\n'
        + f"  /usr/lib/dkms/common.postinst {name} {version}\n"
        + "  "
        + INITRAMFS
        + "fi\n",
        "prerm": SCRIPT
        + 'case "$1" in remove|upgrade|deconfigure)\n'
        + f"  dkms remove -m {name} -v {version} --all || true;;\n"
        + "esac\n",
    }


def ubuntu_driver(build: DriverBuild) -> list[Deb]:
    """The driver's family in NVIDIA's Ubuntu repositories."""
    branch, version = build.branch, build.package_version
    same = f"(= {version})"

    def deb(name: str, description: str, **fields: str) -> Deb:
        return Deb(name=name, version=version, description=description, fields=fields)

    files, links = _nvml_and_cuda(build)
    compute_needs = ["libc6 (>= 2.11)"]
    kernel_needs = [f"nvidia-modprobe (>= {version})", "kmod"]
    if build.has_split_daemons:
        compute_needs += [
            f"libnvidia-gpucomp-{branch} {same}",
            f"libnvidia-decode-{branch} (>= {build.version})",
            f"nvidia-persistenced (>= {version})",
            f"nvidia-kernel-common-{branch}-{build.version}",
        ]
        kernel_needs.append(f"nvidia-firmware-{branch} {same}")
    kernel_provides = f"nvidia-kernel-common, nvidia-kernel-common-{branch}-{build.version}"
    debs = [
        Deb(
            name=f"libnvidia-compute-{branch}",
            version=version,
            description="NVIDIA libcompute package",
            fields={
                "Depends": ", ".join(compute_needs),
                **_exclusive("libnvidia-compute"),
                "Provides": "libnvidia-compute, libcuda1, libnvidia-ml1",
            },
            files=files,
            links=links,
        ),
        Deb(
            name=f"libnvidia-cfg1-{branch}",
            version=version,
            description="NVIDIA binary OpenGL/GLX configuration library",
            fields=_exclusive("libnvidia-cfg1"),
            files=_library("libnvidia-cfg.so", build.version, "libnvidia-cfg.so.1")[0],
        ),
        Deb(
            name=f"nvidia-kernel-common-{branch}",
            version=version,
            description="Shared files used with the kernel module",
            fields={
                "Depends": ", ".join(kernel_needs),
                **_exclusive("nvidia-kernel-common"),
                "Provides": kernel_provides,
            },
            files={"/usr/lib/modprobe.d/nvidia-kernel-common.conf": BLACKLIST},
            scripts={"postinst": SCRIPT + INITRAMFS},
        ),
        Deb(
            name=f"nvidia-utils-{branch}",
            version=version,
            description="NVIDIA driver support binaries",
            fields={
                "Depends": f"libnvidia-compute-{branch} {same}",
                **_exclusive("nvidia-utils", ("nvidia-smi",)),
            },
            files={"/usr/bin/nvidia-smi": _smi(build)},
            executable=frozenset({"/usr/bin/nvidia-smi"}),
        ),
        Deb(
            name="nvidia-modprobe",
            version=version,
            description="Load the NVIDIA kernel driver and create device files",
            files={"/usr/bin/nvidia-modprobe": "#!/bin/sh\nexec modprobe nvidia\n"},
            executable=frozenset({"/usr/bin/nvidia-modprobe"}),
        ),
    ]
    compute_utils = {
        "Depends": f"libnvidia-compute-{branch} {same}",
        **_exclusive("nvidia-compute-utils"),
    }
    if build.has_split_daemons:
        debs += [
            deb(f"nvidia-compute-utils-{branch}", "NVIDIA compute utilities", **compute_utils),
            Deb(
                name="nvidia-persistenced",
                version=version,
                description="Persistence daemon",
                fields={
                    # Branches before 560 carried the daemon in their compute-utils.
                    "Conflicts": "nvidia-compute-utils-515, nvidia-compute-utils-535",
                    "Replaces": "nvidia-compute-utils-515, nvidia-compute-utils-535",
                },
                files=_persistenced(build),
                executable=frozenset({"/usr/bin/nvidia-persistenced"}),
                scripts={"postinst": SCRIPT + PERSISTENCED_USER + RELOAD},
            ),
            deb(
                f"libnvidia-gpucomp-{branch}",
                "NVIDIA GPU compiler",
                **_exclusive("libnvidia-gpucomp"),
            ),
            deb(
                f"libnvidia-decode-{branch}",
                "NVIDIA Video Decoding runtime libraries",
                Depends=f"libnvidia-compute-{branch} {same}",
                **_exclusive("libnvidia-decode"),
            ),
            deb(f"nvidia-firmware-{branch}", "Firmware files", **_exclusive("nvidia-firmware")),
            *_pinning(build),
        ]
    else:
        debs.append(
            Deb(
                name=f"nvidia-compute-utils-{branch}",
                version=version,
                description="NVIDIA compute utilities",
                fields=compute_utils,
                files=_persistenced(build),
                executable=frozenset({"/usr/bin/nvidia-persistenced"}),
                scripts={"postinst": SCRIPT + PERSISTENCED_USER + RELOAD},
            )
        )
    for flavour, suffix in (("open", "-open"), ("proprietary", "")):
        debs += _ubuntu_flavour(build, flavour, suffix)
    return debs


def _ubuntu_flavour(build: DriverBuild, flavour: str, suffix: str) -> list[Deb]:
    branch, version = build.branch, build.package_version
    same = f"(= {version})"
    needs = [
        f"nvidia-dkms-{branch}{suffix} {same}",
        f"nvidia-kernel-common-{branch} {same}",
        f"libnvidia-compute-{branch} {same}",
        f"libnvidia-cfg1-{branch} {same}",
        f"nvidia-compute-utils-{branch} {same}",
    ]
    return [
        Deb(
            name=f"nvidia-kernel-source-{branch}{suffix}",
            version=version,
            description="NVIDIA kernel source package",
            fields=_exclusive("nvidia-kernel-source"),
            files=source_files(build, flavour),
        ),
        Deb(
            name=f"nvidia-dkms-{branch}{suffix}",
            version=version,
            description="NVIDIA DKMS package",
            fields={
                "Depends": f"nvidia-kernel-source-{branch}{suffix} {same}, "
                f"nvidia-kernel-common-{branch} {same}, dkms (>= 3.0)",
                **_exclusive("nvidia-dkms-kernel"),
            },
            scripts=dkms_scripts("nvidia", build.version),
        ),
        Deb(
            name=f"nvidia-headless-{branch}{suffix}",
            version=version,
            description="NVIDIA headless metapackage",
            fields={"Depends": ", ".join(needs)},
        ),
        # The real one brings the desktop's libraries as well, which the lab does not have.
        Deb(
            name=f"nvidia-driver-{branch}{suffix}",
            version=version,
            description="NVIDIA driver metapackage",
            fields={"Depends": ", ".join([*needs, f"nvidia-utils-{branch} {same}"])},
        ),
    ]


def _pinning(build: DriverBuild) -> list[Deb]:
    """The vendor's apt preferences, for the branch and for one version."""

    def deb(name: str, pin: str) -> Deb:
        packages = "src:*nvidia*:any src:cuda-drivers:any nvidia-* libnvidia-* cuda-drivers*"
        text = f"Package: {packages}\nPin: version {pin}*\nPin-Priority: 1000\n"
        return Deb(
            name=name,
            version=f"{build.version}-1",
            architecture="all",
            description=f"APT driver pinning file for {pin}",
            fields={
                "Provides": "nvidia-driver-pinning",
                "Conflicts": "nvidia-driver-pinning",
                "Replaces": "nvidia-driver-pinning",
            },
            files={"/etc/apt/preferences.d/nvidia-driver-pinning": text},
        )

    return [
        deb(f"nvidia-driver-pinning-{build.branch}", f"{build.branch}."),
        deb(f"nvidia-driver-pinning-{build.version}", build.version),
    ]


def ubuntu_metapackages(build: DriverBuild) -> list[Deb]:
    """Packages that name a driver without being a pin: what must not be asked for."""
    branch, version = build.branch, build.package_version
    # NVIDIA's own metapackages carry -1 beside a family of -0ubuntu1.
    meta = version if build.has_split_daemons else f"{build.version}-1"
    upward = f"(>= {build.version})"
    return [
        Deb(
            name=f"cuda-drivers-{branch}",
            version=meta,
            description=f"NVIDIA Driver meta-package, Branch {branch}",
            fields={"Depends": f"nvidia-driver-{branch} {upward}, nvidia-dkms-{branch} {upward}"},
        ),
        Deb(
            name="cuda-drivers",
            version=meta,
            description="NVIDIA Driver meta-package",
            fields={"Depends": f"cuda-drivers-{branch} (= {meta})"},
        ),
        Deb(
            name=f"cuda-drivers-fabricmanager-{branch}",
            version=f"{build.version}-{build.fabric_manager_revision}",
            description=f"Meta-package for FM and Driver, Branch {branch}",
            fields={
                "Depends": f"cuda-drivers-{branch} {upward}, "
                + (
                    f"nvidia-fabricmanager {upward}"
                    if build.has_split_daemons
                    else f"nvidia-fabricmanager-{branch} {upward}"
                )
            },
        ),
        *(
            [
                Deb(
                    name=f"nvidia-open-{branch}",
                    version=version,
                    description=f"NVIDIA Driver meta-package, Open, Branch {branch}",
                    fields={"Depends": f"nvidia-driver-{branch}-open {upward}"},
                ),
                Deb(
                    name="nvidia-open",
                    version=version,
                    description="NVIDIA Driver meta-package, Open",
                    fields={"Depends": f"nvidia-open-{branch} (= {version})"},
                ),
            ]
            if build.has_split_daemons
            else []
        ),
    ]


def fabric_manager(build: DriverBuild) -> list[Deb]:
    """The fabric manager and NSCQ of a driver build; no branch in their names since 580."""
    suffix = "" if int(build.branch) >= 580 else f"-{build.branch}"
    version = f"{build.version}-{build.fabric_manager_revision}"
    command = "/usr/bin/nv-fabricmanager"
    return [
        Deb(
            name=f"nvidia-fabricmanager{suffix}",
            version=version,
            description="Fabric Manager for NVSwitch based systems",
            fields=_exclusive("fabricmanager", ("nvidia-fabricmanager",) if suffix else ()),
            files={
                command: program("daemons.fabricmanager", {"version": build.version}),
                f"{UNITS}/nvidia-fabricmanager.service": FABRIC_MANAGER_UNIT,
                "/usr/share/nvidia/nvswitch/fabricmanager.cfg": "LOG_LEVEL=4\nDAEMONIZE=1\n",
            },
            executable=frozenset({command}),
            scripts={
                "postinst": SCRIPT + RELOAD,
                "prerm": SCRIPT
                + 'if [ "$1" = remove ] && [ -d /run/systemd/system ]; then\n'
                + "  systemctl stop nvidia-fabricmanager.service || true\nfi\n",
            },
        ),
        Deb(
            name=f"libnvidia-nscq{suffix}",
            version=version,
            description="NVSwitch Configuration and Query (NSCQ) Library",
            fields=_exclusive("libnscq", ("libnvidia-nscq",) if suffix else ()),
            files=_library("libnvidia-nscq.so", build.version, "libnvidia-nscq.so.2")[0],
        ),
    ]


def debian_driver(build: DriverBuild) -> list[Deb]:
    """The driver's family in NVIDIA's Debian repositories: no branch in the names."""
    version = build.package_version
    same = f"(= {version})"
    files, _ = _nvml_and_cuda(build)

    def part(name: str, library: str, link: str) -> Deb:
        return Deb(
            name=name,
            version=version,
            description=f"NVIDIA {library} library",
            files={path: text for path, text in files.items() if library in path},
            links={f"{LIBRARIES}/{link}": f"{library}.{build.version}"},
        )

    debs = [
        part("libcuda1", "libcuda.so", "libcuda.so.1"),
        part("libnvidia-ml1", "libnvidia-ml.so", "libnvidia-ml.so.1"),
        Deb(
            name="nvidia-driver-cuda",
            version=version,
            description="NVIDIA driver, CUDA part",
            fields={
                "Depends": f"libcuda1 {same}, libnvidia-ml1 {same}, "
                f"nvidia-modprobe (>= {version}), nvidia-persistenced (>= {version})"
            },
            files={"/usr/bin/nvidia-smi": _smi(build)},
            executable=frozenset({"/usr/bin/nvidia-smi"}),
        ),
        Deb(
            name="nvidia-kernel-support",
            version=version,
            description="NVIDIA kernel support files",
            fields={"Depends": f"nvidia-modprobe (>= {version})"},
            files={"/usr/lib/modprobe.d/nvidia-kernel-common.conf": BLACKLIST},
            scripts={"postinst": SCRIPT + INITRAMFS},
        ),
        Deb(name="firmware-nvidia-gsp", version=version, description="NVIDIA GSP firmware"),
        Deb(
            name="nvidia-modprobe",
            version=version,
            description="Load the NVIDIA kernel driver and create device files",
            files={"/usr/bin/nvidia-modprobe": "#!/bin/sh\nexec modprobe nvidia\n"},
            executable=frozenset({"/usr/bin/nvidia-modprobe"}),
        ),
        Deb(
            name="nvidia-persistenced",
            version=version,
            description="Persistence daemon",
            files=_persistenced(build),
            executable=frozenset({"/usr/bin/nvidia-persistenced"}),
            scripts={"postinst": SCRIPT + PERSISTENCED_USER + RELOAD},
        ),
        *_pinning(build),
    ]
    for flavour, name in (
        ("open", "nvidia-kernel-open-dkms"),
        ("proprietary", "nvidia-kernel-dkms"),
    ):
        debs.append(
            Deb(
                name=name,
                version=version,
                description=f"NVIDIA kernel modules ({flavour}), DKMS",
                fields={
                    "Depends": f"dkms (>= 3.0), firmware-nvidia-gsp {same}, "
                    f"nvidia-kernel-support {same}",
                    **_exclusive("nvidia-kernel-dkms-any"),
                },
                files=source_files(build, flavour),
                scripts=dkms_scripts("nvidia", build.version),
            )
        )
    return debs


def transitional(branch: str, target: DriverBuild) -> list[Deb]:
    """Names of an ended branch that lead to another one: asking for them is no pin."""
    version = f"{target.version}-0ubuntu0.22.04.1"
    upward = f"(>= {target.version})"

    def deb(name: str, needs: str) -> Deb:
        return Deb(
            name=name,
            version=version,
            description=f"Transitional package for {needs.split(' ', 1)[0]}",
            fields={"Depends": needs},
        )

    new = target.branch
    return [
        deb(f"nvidia-driver-{branch}-server", f"nvidia-driver-{new}-server {upward}"),
        deb(f"nvidia-headless-{branch}-server", f"nvidia-driver-{new}-server {upward}"),
        deb(f"nvidia-fabricmanager-{branch}", f"nvidia-fabricmanager-{new} {upward}"),
        Deb(
            name=f"nvidia-driver-{new}-server",
            version=version,
            description="NVIDIA Server Driver metapackage",
            fields={"Depends": f"nvidia-utils-{new}-server (= {version})"},
        ),
        Deb(
            name=f"nvidia-utils-{new}-server",
            version=version,
            description="NVIDIA Server Driver support binaries",
            fields=_exclusive("nvidia-utils"),
            files={"/usr/bin/nvidia-smi": _smi(target)},
            executable=frozenset({"/usr/bin/nvidia-smi"}),
        ),
        *fabric_manager(target)[:1],
    ]
