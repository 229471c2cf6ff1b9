"""Stand-in packages of the CUDA toolkit, cuda-compat, NCCL and DCGM."""

from __future__ import annotations

import json

from railweld.lab.debs import Deb
from railweld.lab.vendor.bundle import program
from railweld.lab.vendor.driver import LIBRARIES, RELOAD, SCRIPT, UNITS

HOSTENGINE_UNIT = """[Unit]
Description=NVIDIA DCGM service
After=network-online.target

[Service]
Type=forking
PIDFile=/run/nvhostengine.pid
ExecStart=/usr/bin/nv-hostengine --service-account nvidia-dcgm

[Install]
WantedBy=multi-user.target
"""


def toolkit(
    version: str, nvcc: str, revisions: dict[str, str] | None = None, *, pulls_driver: str = ""
) -> list[Deb]:
    """The toolkit of one CUDA release.

    Args:
        version: `12.1.1`; metapackages carry it.
        nvcc: `12.1.105`; the compiler's packages carry it.
        revisions: versions of single packages that are neither.
        pulls_driver: package that the trap `cuda` drags in.
    """
    release = ".".join(version.split(".")[:2])
    dash = release.replace(".", "-")
    major = release.split(".", 1)[0]
    home = f"/usr/local/cuda-{release}"
    exact = revisions or {}
    meta, build = f"{version}-1", f"{nvcc}-1"

    def deb(name: str, default: str, needs: str = "", **more: object) -> Deb:
        full = f"{name}-{dash}"
        fields = {"Depends": needs} if needs else {}
        return Deb(
            name=full,
            version=exact.get(full, default),
            description=f"CUDA {name.removeprefix('cuda-')} {release}",
            fields=fields,
            **more,  # type: ignore[arg-type] # mypy cannot see which fields `more` has
        )

    upward = f"(>= {version})"
    config = f"cuda-toolkit-{dash}-config-common"
    cudart = exact.get(f"cuda-cudart-{dash}", build)
    number = release.replace(".", "")
    debs = [
        deb(
            "cuda-toolkit",
            meta,
            ", ".join(
                f"{name}-{dash} {upward}"
                for name in (
                    "cuda-compiler",
                    "cuda-libraries",
                    "cuda-libraries-dev",
                    "cuda-tools",
                    "cuda-documentation",
                )
            ),
        ),
        deb("cuda-compiler", meta, f"cuda-nvcc-{dash} (>= {release})"),
        deb("cuda-libraries", meta, f"cuda-cudart-{dash} (>= {release})"),
        deb("cuda-libraries-dev", meta, f"cuda-cudart-dev-{dash} (>= {release})"),
        deb("cuda-tools", meta),
        deb(
            "cuda-documentation",
            meta,
            files={
                f"{home}/version.json": json.dumps(
                    {"cuda": {"name": "CUDA SDK", "version": version}}, indent=1
                )
                + "\n"
            },
        ),
        deb(
            "cuda-nvcc",
            build,
            files={f"{home}/bin/nvcc": program("nvcc.main", {"release": release, "nvcc": nvcc})},
            executable=frozenset({f"{home}/bin/nvcc"}),
        ),
        deb(
            "cuda-cudart",
            build,
            config,
            files={
                f"{home}/targets/x86_64-linux/lib/libcudart.so.{cudart.split('-', 1)[0]}": (
                    f"stand-in for libcudart {cudart}\n"
                )
            },
        ),
        deb("cuda-cudart-dev", build, f"cuda-cudart-{dash} (= {cudart})"),
        Deb(
            name=config,
            version=cudart,
            architecture="all",
            description=f"Common config package for CUDA Toolkit {release}",
            fields={"Depends": f"cuda-toolkit-{major}-config-common, cuda-toolkit-config-common"},
            files={f"/etc/ld.so.conf.d/988_cuda-{major}-{number}.conf": f"{home}/lib64\n"},
            links={f"{home}/lib64": "targets/x86_64-linux/lib"},
            scripts={
                "postinst": SCRIPT
                + "".join(
                    f"update-alternatives --install /usr/local/{name} {name} {home} {number}\n"
                    for name in ("cuda", f"cuda-{major}")
                ),
                "prerm": SCRIPT
                + 'if [ "$1" = remove ]; then\n'
                + f"  update-alternatives --remove cuda {home}\n"
                + f"  update-alternatives --remove cuda-{major} {home}\nfi\n",
            },
        ),
        Deb(
            name=f"cuda-toolkit-{major}-config-common",
            version=cudart,
            architecture="all",
            description=f"Common config package for CUDA Toolkit {major}",
        ),
        Deb(
            name="cuda-toolkit-config-common",
            version=cudart,
            architecture="all",
            description="Common config package for CUDA Toolkit",
        ),
    ]
    if pulls_driver:
        debs += [
            deb("cuda", meta, f"cuda-toolkit-{dash} {upward}, {pulls_driver}"),
            Deb(
                name="cuda",
                version=meta,
                description="CUDA meta-package, which brings a driver of its own",
                fields={"Depends": f"cuda-{dash} {upward}"},
            ),
        ]
    return debs


def compat(release: str, driver: str, version: str) -> Deb:
    """cuda-compat: the user-mode driver of a newer release."""
    folder = f"/usr/local/cuda-{release}/compat"
    names = ("libcuda.so", "libnvidia-nvvm.so", "libnvidia-ptxjitcompiler.so")
    links = {f"{folder}/{name}.1": f"{name}.{driver}" for name in names}
    return Deb(
        name=f"cuda-compat-{release.replace('.', '-')}",
        version=version,
        description="CUDA Compatibility Platform",
        files={f"{folder}/{name}.{driver}": f"stand-in for {name} {driver}\n" for name in names},
        links=links | {f"{folder}/libcuda.so": "libcuda.so.1"},
    )


def nccl(version: str, cuda: str) -> list[Deb]:
    """NCCL: the library by its full name, and the header that says the version too."""
    package = f"{version}-1+cuda{cuda}"
    major, minor, patch = version.split(".")
    code = int(major) * 10000 + int(minor) * 100 + int(patch)
    header = (
        "/* railweld lab: stands in for NVIDIA's header. */\n"
        f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
        f'#define NCCL_SUFFIX ""\n\n#define NCCL_VERSION_CODE {code}\n'
    )
    return [
        Deb(
            name="libnccl2",
            version=package,
            description="NVIDIA Collective Communication Library (NCCL) Runtime",
            files={
                f"{LIBRARIES}/libnccl.so.{version}": f"stand-in for NCCL {version}+cuda{cuda}\n"
            },
            links={f"{LIBRARIES}/libnccl.so.2": f"libnccl.so.{version}"},
        ),
        Deb(
            name="libnccl-dev",
            version=package,
            description="NVIDIA Collective Communication Library (NCCL) Development Files",
            fields={"Depends": f"libnccl2 (= {package})"},
            files={
                "/usr/include/nccl.h": header,
                f"{LIBRARIES}/libnccl_static.a": f"stand-in for NCCL {version}\n",
            },
            links={f"{LIBRARIES}/libnccl.so": "libnccl.so.2"},
        ),
    ]


def dcgm(version: str, cuda_major: str) -> list[Deb]:
    """DCGM: one package up to 3.x, a core and a part per CUDA major since 4."""
    files: dict[str, str | bytes] = {
        "/usr/bin/dcgmi": program("daemons.dcgmi", {"version": version}),
        "/usr/bin/nv-hostengine": program("daemons.hostengine", {"version": version}),
        f"{UNITS}/nvidia-dcgm.service": HOSTENGINE_UNIT,
    }
    executable = frozenset({"/usr/bin/dcgmi", "/usr/bin/nv-hostengine"})
    scripts = {"postinst": SCRIPT + RELOAD}
    if int(version.split(".", 1)[0]) < 4:
        return [
            Deb(
                name="datacenter-gpu-manager",
                version=f"1:{version}",
                description="NVIDIA Datacenter GPU Management Tools",
                files=files,
                executable=executable,
                scripts=scripts,
            )
        ]
    package = f"1:{version}-1"
    old = "datacenter-gpu-manager (<< 1:4)"
    return [
        Deb(
            name="datacenter-gpu-manager-4-core",
            version=package,
            description="NVIDIA Datacenter GPU Management Tools, core",
            fields={"Conflicts": old, "Replaces": old},
            files=files,
            executable=executable,
            scripts=scripts,
        ),
        Deb(
            name=f"datacenter-gpu-manager-4-cuda{cuda_major}",
            version=package,
            description=f"NVIDIA Datacenter GPU Management Tools for CUDA {cuda_major}",
            fields={"Depends": f"datacenter-gpu-manager-4-core (= {package})"},
        ),
    ]
