"""The image of a node: Debian from debootstrap, and the stand-ins as a thin layer over it.

The first layer takes a minute and is kept in the cache under the hash of its recipe. The second is
the content of `node/`, built anew in a moment whenever a stand-in changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from railweld.lab import kernel, os_packages
from railweld.lab.podman import image_exists, podman
from railweld.lab.process import LabError, Report, remove_tree, run
from railweld.state import cache_dir, held

DEFAULT_DEBIAN = "http://deb.debian.org/debian"
RECIPE_VERSION = 1
NODE_SOURCE = Path(__file__).parent / "node"
NODE_LIBRARY = "/usr/lib/railweld-lab"

#: Programs that need the machine's kernel, its boot loader or its firmware. The package's own
#: program is diverted to NAME.distrib; the stand-in takes its place.
DIVERTED = (
    "/bin/lsmod",
    "/sbin/lsmod",
    "/sbin/dcb",
    "/sbin/depmod",
    "/sbin/insmod",
    "/sbin/modinfo",
    "/sbin/modprobe",
    "/sbin/rmmod",
    "/usr/bin/ibv_devices",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/lsinitramfs",
    "/usr/bin/mokutil",
    "/usr/bin/rdma",
    "/usr/sbin/update-grub",
    "/usr/sbin/update-initramfs",
)


@dataclass(frozen=True)
class Base:
    """The first layer: its podman image and the package database that is in it."""

    image: str
    digest: str
    folder: Path

    @property
    def status(self) -> Path:
        """/var/lib/dpkg/status of the image: what apt on the machine resolves against."""
        return self.folder / "status"


def debian_mirror() -> str:
    """Where debootstrap and the os mirror download from: $RAILWELD_LAB_DEBIAN or Debian's own."""
    return os.environ.get("RAILWELD_LAB_DEBIAN", DEFAULT_DEBIAN).rstrip("/")


def base_recipe() -> str:
    """Everything that decides what is in the first layer."""
    return json.dumps(
        [RECIPE_VERSION, os_packages.SUITE, os_packages.IMAGE, DIVERTED, kernel.running_kernel()]
    )


def digest(text: str | bytes) -> str:
    """Short hash for names of images and cache folders."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:12]


@contextmanager
def cache_lock(name: str, report: Report) -> Iterator[None]:
    """One builder at a time; another lab that starts meanwhile waits and then finds the result."""
    waiting = f"another lab is building the {name}, waiting for it"
    with held(cache_dir("lab") / f"{name}.lock", lambda: report(waiting)):
        yield


def ensure_base(report: Report) -> Base:
    """Return the first layer; build or load it when podman does not have it."""
    key = digest(base_recipe())
    base = Base(f"localhost/railweld-lab-base:{key}", key, cache_dir("lab", "base") / key)
    with cache_lock("image", report):
        if not base.status.exists():
            report(
                f"image: building Debian {os_packages.SUITE} (about a minute, kept for next time)"
            )
            _build_base(base.folder, report)
        if not image_exists(base.image):
            report("image: loading into podman")
            podman("import", "--quiet", str(base.folder / "root.tar"), base.image)
    return base


def _build_base(folder: Path, report: Report) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    remove_tree(partial)
    root = partial / "root"
    debs = cache_dir("lab", "debs")
    partial.mkdir(parents=True)
    run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(os_packages.IMAGE)}",
            f"--cache-dir={debs}",
            os_packages.SUITE,
            str(root),
            debian_mirror(),
        ]
    )
    report("image: taking out what every node must have of its own")
    staging = root / "tmp/kernel"
    staging.mkdir()
    packages = [f"/tmp/kernel/{path.name}" for path in kernel.build_installed(staging)]  # noqa: S108 - inside the image
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["chroot", str(root), "dpkg", "--install", *packages], environment=environment)
    shutil.rmtree(staging)
    for path in DIVERTED:
        run(
            [
                *("chroot", str(root), "dpkg-divert", "--local", "--rename"),
                *("--divert", f"{path}.distrib", "--add", path),
            ]
        )
    _clean(root)
    shutil.copy2(root / "var/lib/dpkg/status", partial / "status")
    run(["tar", "--create", "--file", str(partial / "root.tar"), "--directory", str(root), "."])
    shutil.rmtree(root)
    remove_tree(folder)
    partial.rename(folder)


def _clean(root: Path) -> None:
    for pattern in ("etc/ssh/ssh_host_*", "var/lib/apt/lists/*", "var/log/*.log", "var/log/apt/*"):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for archive in (root / "var/cache/apt").rglob("*"):
        if archive.is_file():
            archive.unlink()
    # Empty, not absent: systemd makes an identity at boot and asks no first-boot questions.
    (root / "etc/machine-id").write_text("")
    (root / "etc/resolv.conf").write_text("")
    (root / "etc/hostname").write_text("")
    (root / "etc/apt/sources.list").write_text("")


def ensure_node_image(base: Base, report: Report) -> str:
    """Return the image that nodes run: the first layer plus the stand-ins."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        lay_out(tree)
        image = f"localhost/railweld-lab-node:{digest(base.digest + tree_digest(tree))}"
        with cache_lock("image", report):
            if not image_exists(image):
                report("image: laying the stand-ins over it")
                recipe = tree.with_name(f"{tree.name}.containerfile")
                recipe.write_text(f"FROM {base.image}\nCOPY . /\n")
                try:
                    podman("build", "--quiet", "--tag", image, "--file", str(recipe), str(tree))
                finally:
                    recipe.unlink()
    return image


def lay_out(tree: Path) -> None:
    """Write the second layer into a folder: `node/rootfs`, the node library, links to programs."""
    rootfs = NODE_SOURCE / "rootfs"
    if not rootfs.is_dir():
        raise LabError(
            f"{rootfs}: found no such folder; the installation of railweld is incomplete"
        )
    shutil.copytree(rootfs, tree, symlinks=True, dirs_exist_ok=True)
    package = tree / NODE_LIBRARY.lstrip("/") / "railweld/lab/node"
    package.mkdir(parents=True)
    for source in sorted(NODE_SOURCE.glob("*.py")):
        shutil.copy2(source, package / source.name)
    programs = tree / NODE_LIBRARY.lstrip("/")
    for path in programs.iterdir():
        if path.is_file():
            path.chmod(0o755)
    for program in DIVERTED:
        # /bin and /sbin are links in a merged-usr system; a layer must not replace them.
        link = tree / (program if program.startswith("/usr") else f"/usr{program}").lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"{NODE_LIBRARY}/standin")


def tree_digest(tree: Path) -> str:
    """Hash of names, modes, link targets and contents below a folder."""
    total = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        total.update(f"{path.relative_to(tree)}\0{path.lstat().st_mode:o}\0".encode())
        if path.is_symlink():
            total.update(str(path.readlink()).encode())
        elif path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()
