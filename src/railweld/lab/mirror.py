"""The signed apt mirror of the lab: real Debian packages for the roles, stand-ins for the vendors.

Repositories are built once into the cache, under the hash of what they are made from. A lab's own
folder says which build each of its repositories serves, so a repository can change under a
running lab (a new build, or a fault) without touching the node that serves it.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from railweld.files import write_atomically
from railweld.lab import kernel, os_packages
from railweld.lab.access import FINGERPRINT_FILE, lab_state_dir
from railweld.lab.debs import (
    SigningKey,
    build_deb,
    hide_packages,
    index_repository,
    signing_key,
    write_index,
)
from railweld.lab.image import Base, cache_lock, debian_mirror, digest
from railweld.lab.process import LabError, Report, remove_tree, run
from railweld.lab.vendor import mpi
from railweld.state import cache_dir

KEY_FILE = "railweld-lab.asc"
SERVED_FILE = "served.json"
VENDOR_REPOSITORIES = ("cuda", "doca")
VERSION_SETS = ("a100-2023", "current")
ARCHIVE_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def mirror_root() -> Path:
    """Folder of all builds; the mirror node sees it read-only."""
    return cache_dir("lab", "mirror")


def lab_mirror_dir(site: str) -> Path:
    """Folder of one lab: which build it serves, and what faults put in its place."""
    path = lab_state_dir(site) / "mirror"
    path.mkdir(mode=0o755, exist_ok=True)
    return path


def ensure_mirror(site: str, base: Base, report: Report) -> dict[str, str]:
    """Build what is missing and point the lab at it.

    Returns:
        Repository name to the path of its build below `mirror_root()`.
    """
    key = signing_key()
    with cache_lock("mirror", report):
        served = {"os": _os_repository(base, key, report), **_vendor_repositories(key, report)}
    # The same packages under a second address: nodes start with `debian` as their source, and a
    # role that writes a source for `os` with another keyring does not collide with it.
    served["debian"] = served["os"]
    # Likewise what a site with its own builds of Slurm has; here Debian's own.
    served["slurm"] = served["os"]
    # What later stages put on the mirror stays there.
    folder = lab_mirror_dir(site)
    served = {**_served(folder), **served}
    write_atomically(folder / KEY_FILE, key.export(), 0o644)
    write_atomically(folder / SERVED_FILE, json.dumps(served, indent=1), 0o644)
    write_atomically(lab_state_dir(site) / FINGERPRINT_FILE, f"{key.fingerprint}\n")
    return served


def serve(site: str, repositories: Mapping[str, str]) -> None:
    """Serve more repositories on a lab's mirror, beside those of `ensure_mirror`.

    Args:
        site: the lab.
        repositories: name to the path of its build below `mirror_root()`.
    """
    folder = lab_mirror_dir(site)
    served = {**_served(folder), **repositories}
    write_atomically(folder / SERVED_FILE, json.dumps(served, indent=1), 0o644)


def _served(folder: Path) -> dict[str, str]:
    """What a lab's mirror serves now, as far as the builds still exist."""
    try:
        known: dict[str, str] = json.loads((folder / SERVED_FILE).read_text())
    except FileNotFoundError:
        return {}
    return {name: build for name, build in known.items() if (mirror_root() / build).is_dir()}


def built(kind: str, key: SigningKey, recipe: str, build: Callable[[Path], None]) -> str:
    """Build a folder of repositories once; return its path below the mirror's root."""
    name = f"{kind}/{digest(recipe + key.fingerprint)}"
    folder = mirror_root() / name
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        remove_tree(partial)
        partial.mkdir(parents=True)
        build(partial)
        partial.rename(folder)
    return name


def _os_repository(base: Base, key: SigningKey, report: Report) -> str:
    together = sorted({name for names in os_packages.MIRROR.values() for name in names})
    transactions = [together, *([name] for name in os_packages.ALTERNATIVES)]

    def build(folder: Path) -> None:
        report(f"mirror: downloading {len(together)} Debian packages and what they depend on")
        download_debian(transactions, base, folder)
        kernel.build_for_mirror(folder)
        for deb in mpi.packages():
            build_deb(deb, folder)
        index_repository(folder, key, label="os")

    return built("os", key, json.dumps([2, base.digest, transactions, mpi.recipe()]), build)


def download_debian(transactions: Sequence[Sequence[str]], base: Base, folder: Path) -> None:
    """Download packages with what they depend on, as apt would fetch them on a node.

    Args:
        transactions: names that can be installed together; one apt run for each.
        base: has the package database that dependencies are resolved against.
        folder: where the packages go. The downloads stay in the cache too.

    Raises:
        LabError: apt cannot resolve or download.
    """
    if not ARCHIVE_KEYRING.exists():
        raise LabError(
            f"mirror: found no {ARCHIVE_KEYRING}; "
            "install with: apt-get install -y debian-archive-keyring"
        )
    work = cache_dir("lab", "apt", base.digest)
    options = _apt_options(work, base.status)
    run(["apt-get", *options, "update", "-q"])
    for names in transactions:
        done = run(
            [
                *("apt-get", *options, "-y", "-q", "--download-only"),
                *("--no-install-recommends", "--reinstall", "install", *names),
            ],
            check=False,
        )
        if not done.ok:
            tail = "\n".join(done.text.splitlines()[-12:])
            raise LabError(f"mirror: apt cannot download {' '.join(names)}:\n{tail}")
    for archive in (work / "archives").glob("*.deb"):
        shutil.copy2(archive, folder / archive.name)


def _apt_options(work: Path, status: Path) -> list[str]:
    """Options that make apt work beside the machine's own configuration and state."""
    for part in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/conf.d"):
        (work / part).mkdir(parents=True, exist_ok=True)
    sources = work / "etc/sources.list"
    signed = f"[signed-by={ARCHIVE_KEYRING}]"
    suite, site = os_packages.SUITE, debian_mirror()
    security = site.removesuffix("/debian") + "/debian-security"
    sources.write_text(
        f"deb {signed} {site} {suite} main\n"
        f"deb {signed} {site} {suite}-updates main\n"
        f"deb {signed} {security} {suite}-security main\n"
    )
    values = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": work / "etc/preferences.d",
        "Dir::Etc::Parts": work / "etc/conf.d",
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": status,
        "Dir::Cache::Archives": work / "archives",
        "Dir::Cache::PkgCache": "",
        "Dir::Cache::SrcPkgCache": "",
        "Debug::NoLocking": "true",
        "APT::Get::List-Cleanup": "false",
        "APT::Sandbox::User": "root",
        "APT::Keep-Downloaded-Packages": "true",
        "Acquire::Languages": "none",
        "APT::Update::Post-Invoke": "",
    }
    return [part for name, value in values.items() for part in ("-o", f"{name}={value}")]


def _vendor_repositories(key: SigningKey, report: Report) -> dict[str, str]:
    """Stand-ins of the vendors' packages; none while that part is not installed."""
    try:
        vendor = importlib.import_module("railweld.lab.vendor")
    except ModuleNotFoundError:
        report("mirror: no vendor stand-ins in this installation, only the os repository")
        return {}
    recipe = str(vendor.content_key(VERSION_SETS, kernel=kernel.running_kernel()))

    def build(folder: Path) -> None:
        report(f"mirror: building vendor stand-ins for {', '.join(VERSION_SETS)}")
        vendor.build(folder, sets=list(VERSION_SETS), kernel=kernel.running_kernel())
        for name in VENDOR_REPOSITORIES:
            (folder / name).mkdir(exist_ok=True)
            index_repository(folder / name, key, label=name)

    name = built("vendor", key, recipe, build)
    return {repository: f"{name}/{repository}" for repository in VENDOR_REPOSITORIES}


def override(site: str, repository: str, hide: Sequence[str]) -> None:
    """Serve a repository without some packages, signed as ever, to one lab.

    Args:
        site: the lab.
        repository: `os`, `cuda` or `doca`.
        hide: `NAME` or `NAME=VERSION`; `*` stands for anything.

    Raises:
        LabError: no such repository, or nothing in it matches.
    """
    folder = lab_mirror_dir(site)
    served = json.loads((folder / SERVED_FILE).read_text())
    if repository not in served:
        raise LabError(f"{repository}: no such repository, expected one of {', '.join(served)}")
    original = mirror_root() / served[repository]
    packages = (original / "Packages").read_text()
    # Of the same date, so that apt takes the change now and the original again afterwards.
    date = re.search(r"^Date: (.*)$", (original / "Release").read_text(), re.MULTILINE)
    fewer = hide_packages(packages, hide)
    if fewer == packages:
        raise LabError(f"{repository}: found no package that matches {', '.join(hide)}")
    places = [repository, "debian"] if repository == "os" else [repository]
    for place in places:
        target = folder / "override" / place
        remove_tree(target)
        target.mkdir(parents=True)
        write_index(
            target,
            signing_key(),
            packages=fewer,
            label=repository,
            date=date[1] if date else None,
        )


def is_overridden(site: str) -> bool:
    """True while a repository of the lab is not served as it was built."""
    return (lab_mirror_dir(site) / "override").is_dir()


def clear_overrides(site: str) -> None:
    """Serve every repository as it was built."""
    remove_tree(lab_mirror_dir(site) / "override")
