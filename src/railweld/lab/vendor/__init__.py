"""Stand-ins of the vendors' packages for the lab: exact names, versions and relations.

`build` writes the debs of version sets for one vendor repository into `cuda/` and `doca/`, each
with newer builds beside the pinned ones (so that a hold can be proved) and with the traps that the
real repositories hold: transitional packages, metapackages that drag a driver, the vendor's own
pinning packages. The lab's mirror indexes and signs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from railweld.lab.debs import Deb, build_deb
from railweld.lab.vendor import ofed, toolkit
from railweld.lab.vendor.driver import (
    DriverBuild,
    debian_driver,
    fabric_manager,
    transitional,
    ubuntu_driver,
    ubuntu_metapackages,
)
from railweld.versions import Resolved, load_rules, load_set, versions_directory

#: Real builds that came after the pinned ones: what an upgrade would move to.
NEWER_DRIVER = {"515": "515.105.01", "580": "580.178.04"}
NEWER_NCCL = ("2.30.7", "13.3")
NEWER_CUDA = {"13.0": ("13.0.3", "13.0.88")}
#: The branch to which Ubuntu's 515-server names lead.
FORWARDED = ("515", "535.183.01")


@dataclass(frozen=True)
class Result:
    """What was built: the files of each repository."""

    cuda: tuple[Path, ...]
    doca: tuple[Path, ...]


def content_key(sets: Sequence[str], *, repository: str = "ubuntu2204", kernel: str = "") -> str:
    """Hash of all that decides what `build` writes: this folder, the version sets, arguments."""
    hashed = hashlib.sha256(f"{sorted(sets)} {repository} {kernel}".encode())
    for folder in (Path(__file__).parent, versions_directory()):
        for path in sorted([*folder.rglob("*.py"), *folder.glob("*.yml")]):
            hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()


def packages(sets: Sequence[str], *, repository: str = "ubuntu2204") -> dict[str, list[Deb]]:
    """All packages by repository (`cuda`, `doca`), without duplicates."""
    resolved = [load_set(name).resolve() for name in sets]
    cuda: list[Deb] = [ofed.dkms()]
    doca: list[Deb] = [ofed.dkms()]
    for versions in resolved:
        cuda += _drivers(versions, repository)
        cuda += _toolkits(versions, repository)
        doca += _doca(versions, repository)
    if repository != "debian12" and any(
        each.versions.driver.branch == FORWARDED[0] for each in resolved
    ):
        target = DriverBuild(
            version=FORWARDED[1],
            revision="0ubuntu1",
            fabric_manager_revision="1",
            cuda=load_rules().driver_cuda,
        )
        cuda += transitional(FORWARDED[0], target)
    return {"cuda": _unique(cuda), "doca": _unique(doca)}


def build(
    out_dir: Path,
    *,
    sets: Sequence[str],
    repository: str = "ubuntu2204",
    kernel: str = "",  # noqa: ARG001 - stand-ins are built for the running kernel by dkms on the node
) -> Result:
    """Write the debs into `out_dir/cuda` and `out_dir/doca`."""
    files: dict[str, tuple[Path, ...]] = {}
    for name, debs in packages(sets, repository=repository).items():
        folder = out_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=2) as pool:
            files[name] = tuple(pool.map(lambda deb, folder=folder: build_deb(deb, folder), debs))
    return Result(**files)


def build_os(folder: Path) -> list[Path]:
    """Write stand-ins of distribution packages that need firmware into the os repository.

    Their version sorts just above the distribution's, so that apt takes them.
    """
    return [build_deb(deb, folder) for deb in (ofed.dkms(), *ofed.inbox_tools())]


def _drivers(versions: Resolved, repository: str) -> list[Deb]:
    if versions.absent("driver", repository):
        return []
    revision = _revision(versions, "driver", repository)
    fabric_revision = _revision(versions, "fabric_manager", repository)
    debs: list[Deb] = []
    driver = versions.versions.driver
    for version in dict.fromkeys((driver.version, NEWER_DRIVER.get(driver.branch, driver.version))):
        each = DriverBuild(
            version=version,
            revision=revision,
            fabric_manager_revision=fabric_revision,
            cuda=load_rules().driver_cuda,
        )
        if repository == "debian12":
            debs += debian_driver(each)
        else:
            debs += [*ubuntu_driver(each), *ubuntu_metapackages(each)]
        debs += fabric_manager(each)
    return debs


def _revision(versions: Resolved, component: str, repository: str) -> str:
    """The revision that the set gives the first package of a component."""
    version = versions.packages(component, repository)[0].version
    return version.rsplit("-", 1)[1]


def _toolkits(versions: Resolved, repository: str) -> list[Deb]:
    cuda, nccl, dcgm = versions.versions.cuda, versions.versions.nccl, versions.versions.dcgm
    debs: list[Deb] = []
    if not versions.absent("cuda", repository):
        exact = {package.name: package.version for package in versions.packages("cuda", repository)}
        debs += toolkit.toolkit(cuda.version, cuda.nvcc, exact, pulls_driver="cuda-drivers")
        compat = versions.packages("cuda", repository, compat=True)
        debs += [
            toolkit.compat(cuda.release, cuda.compat.driver, package.version)
            for package in compat
            if package.name.startswith("cuda-compat-")
        ]
        if cuda.release in NEWER_CUDA:
            version, nvcc = NEWER_CUDA[cuda.release]
            debs += toolkit.toolkit(version, nvcc)
    if not versions.absent("nccl", repository):
        debs += [*toolkit.nccl(nccl.version, nccl.cuda), *toolkit.nccl(*NEWER_NCCL)]
    if not versions.absent("dcgm", repository):
        debs += toolkit.dcgm(dcgm.version, cuda.release.split(".", 1)[0])
    return debs


def _doca(versions: Resolved, repository: str) -> list[Deb]:
    if versions.absent("doca", repository):
        return []
    exact = {package.name: package.version for package in versions.packages("doca", repository)}
    return ofed.doca(
        ofed.DocaBuild(
            version=exact["doca-ofed"],
            ofed=versions.versions.doca.ofed,
            kernel=exact["mlnx-ofed-kernel-dkms"],
            mft=exact["mft"],
        )
    )


def _unique(debs: Iterable[Deb]) -> list[Deb]:
    """One of each name and version; the first one counts."""
    found: dict[tuple[str, str], Deb] = {}
    for deb in debs:
        found.setdefault((deb.name, deb.version), deb)
    return list(found.values())
