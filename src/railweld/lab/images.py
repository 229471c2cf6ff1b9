"""Container images made of files, written as archives that `ctr images import` reads.

An image is one layer with a program and what it needs, in the layout of `docker save`. No engine
takes part, and the same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from railweld.lab.process import LabError

#: Build date of everything in the lab.
EPOCH = 1_700_000_000
CREATED = "2023-11-14T22:13:20Z"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """What is in an image.

    Attributes:
        ref: name with tag, as a pod asks for it.
        programs: path in the image to the file on this machine; executable.
        texts: path in the image to its text.
        links: path in the image to what it leads to.
        members: entries copied from another archive, with their content where they have one.
        entrypoint: what runs when a pod names no command.
    """

    ref: str
    programs: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    members: Sequence[tuple[tarfile.TarInfo, bytes | None]] = ()
    entrypoint: tuple[str, ...] = ()


def write_archive(image: Image, path: Path) -> None:
    """Write an image to a file in the layout of `docker save`."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": CREATED,
        "config": {"Env": [f"PATH={PATH}"], "Entrypoint": list(image.entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": CREATED, "created_by": "railweld lab"}],
    }
    config_text = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [image.ref], "Layers": [f"{digest}/layer.tar"]}]
    partial = path.with_name(f"{path.name}.partial")
    with tarfile.open(partial, "w") as archive:
        for name, content in (
            (config_name, config_text),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(archive, _entry(name, 0o644), content)
    partial.replace(path)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry, content in image.members:
            _add(archive, entry, content)
        made = {entry.name.strip("./") for entry, _ in image.members if entry.isdir()}
        paths = sorted({*image.programs, *image.texts, *image.links})
        for folder in _parents(paths):
            if folder not in made:
                entry = _entry(folder, 0o755)
                entry.type = tarfile.DIRTYPE
                _add(archive, entry, None)
        for name in paths:
            if name in image.programs:
                _add(archive, _entry(name, 0o755), image.programs[name].read_bytes())
            elif name in image.links:
                entry = _entry(name, 0o777)
                entry.type, entry.linkname = tarfile.SYMTYPE, image.links[name]
                _add(archive, entry, None)
            else:
                _add(archive, _entry(name, 0o644), image.texts[name].encode())
    return buffer.getvalue()


def _parents(paths: Iterable[str]) -> list[str]:
    folders = set()
    for path in paths:
        parts = path.strip("/").split("/")[:-1]
        folders |= {"/".join(parts[: n + 1]) for n in range(len(parts))}
    return sorted(folders)


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.mode, entry.mtime = mode, EPOCH
    return entry


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes | None) -> None:
    if content is None:
        archive.addfile(entry)
        return
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def archive_refs(path: Path) -> list[str]:
    """Names of the images in an archive of `docker save`, `podman save` or an OCI layout."""
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
        if "manifest.json" in names:
            manifest = json.load(_content(archive, "manifest.json"))
            return sorted({ref for each in manifest for ref in each.get("RepoTags") or ()})
        index = json.load(_content(archive, "index.json"))
        key = "io.containerd.image.name"
        other = "org.opencontainers.image.ref.name"
        notes = [each.get("annotations") or {} for each in index.get("manifests", ())]
        return sorted({note.get(key) or note.get(other, "") for note in notes} - {""})


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.extractfile(name)
    if member is None:
        raise LabError(f"{archive.name!r}: found no file {name}, expected an image archive")
    return member


def members_of_packages(
    root_tar: Path, packages: Sequence[str]
) -> list[tuple[tarfile.TarInfo, bytes | None]]:
    """Entries of a root file system that belong to Debian packages, without documentation.

    Args:
        root_tar: archive of the whole file system, with dpkg's database in it.
        packages: names. What they depend on has to be named too.
    """
    with tarfile.open(root_tar) as archive:
        entries = {entry.name.removeprefix("./"): entry for entry in archive.getmembers()}
        wanted = {"bin", "sbin", "lib", "lib64", "etc", "usr", "run", "var", "tmp"}
        for package in packages:
            names = [f"var/lib/dpkg/info/{package}{suffix}.list" for suffix in ("", ":amd64")]
            listing = next(entries[name] for name in names if name in entries)
            content = archive.extractfile(listing)
            assert content is not None
            for line in content.read().decode().splitlines():
                path = line.strip("/.")
                if path and not path.startswith(_LEFT_OUT):
                    wanted.add(_merged(path))
        for name in list(wanted):
            wanted |= _targets(name, entries)
        found = []
        for name in sorted(name for name in wanted if name in entries):
            entry = entries[name]
            data = archive.extractfile(entry) if entry.isfile() else None
            copied = tarfile.TarInfo(name)
            copied.type, copied.mode, copied.linkname = entry.type, entry.mode, entry.linkname
            copied.mtime = EPOCH
            found.append((copied, data.read() if data else None))
        return found


_LEFT_OUT = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/lib/x86_64-linux-gnu/gconv",
)


def _merged(path: str) -> str:
    """The path below usr/ of a package that still says lib/ or sbin/."""
    top = path.partition("/")[0]
    return f"usr/{path}" if "/" in path and top in ("bin", "sbin", "lib", "lib64") else path


def _targets(name: str, entries: Mapping[str, tarfile.TarInfo]) -> set[str]:
    """What a link leads to, over /etc/alternatives."""
    found: set[str] = set()
    here = name
    while here in entries and entries[here].issym():
        target = entries[here].linkname
        if not target.startswith("/"):
            folder = here.rpartition("/")[0]
            target = f"{folder}/{target}" if folder else target
        here = target.strip("/")
        if here in found:
            break
        found.add(here)
    return found
