"""Makes the images as archives, without a container engine, and pushes them with one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from railweld.errors import RailweldError
from railweld.images.catalog import Entry
from railweld.lab import images, tools
from railweld.lab.process import Report
from railweld.lab.vendor import mpi
from railweld.lab.vendor.bundle import program
from railweld.state import cache_dir

#: Part of the cache's key: changes when images are made in another way.
RECIPE: Final = 1
INDEX: Final = "index.json"
_LAB: Final = Path(images.__file__).parent


def build(entries: Iterable[Entry], report: Report | None = None) -> list[Path]:
    """Make the archives that the cache has not got; return them in the order of the entries."""
    tell: Report = report or (lambda _line: None)
    return [_archive(entry, tell) for entry in entries]


def save(entries: Sequence[Entry], archives: Sequence[Path], folder: Path) -> None:
    """Lay archives into a folder, beside the index by which nodes find what they need.

    Archives that others put there, and their entries, stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / INDEX
    known: dict[str, dict[str, Any]] = {}
    if index.is_file():
        known = {each["file"]: each for each in json.loads(index.read_text())}
    for entry, archive in zip(entries, archives, strict=True):
        target = folder / entry.file
        digest = _digest(archive)
        listed = {"file": entry.file, "images": [entry.ref], "nodes": "node", "sha256": digest}
        if known.get(entry.file) != listed or not target.is_file():
            partial = target.with_name(f"{target.name}.partial")
            shutil.copyfile(archive, partial)
            partial.replace(target)
        known[entry.file] = listed
    text = json.dumps([known[name] for name in sorted(known)], indent=1) + "\n"
    if not index.is_file() or index.read_text() != text:
        index.write_text(text)


def push(entries: Sequence[Entry], archives: Sequence[Path], report: Report | None = None) -> None:
    """Push archives to the registry that their names say, with podman or docker.

    Raises:
        RailweldError: neither is there, or the registry refuses.
    """
    engine = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    if engine is None:
        raise RailweldError(
            "images push: found neither podman nor docker, expected one of them. Fix: install "
            "one, or copy the archives of `railweld images save` to where one is"
        )
    for entry, archive in zip(entries, archives, strict=True):
        if entry.ref.startswith("railweld.local/"):
            raise RailweldError(
                f"images push: {entry.ref}: found no registry, expected one to push to. Fix: set "
                "railweld_image_registry"
            )
        if report:
            report(f"pushing {entry.ref}")
        for command in ([engine, "load", "--input", str(archive)], [engine, "push", entry.ref]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RailweldError(
                    f"images push: `{' '.join(command)}` failed: {done.stderr.strip()[-500:]}"
                )


def _archive(entry: Entry, report: Report) -> Path:
    programs = {
        path: tools.ensure(tool, report) / program
        for path, (tool, program) in entry.programs.items()
    }
    scripts = {path: _LAB / name for path, name in entry.scripts.items()}
    vendor = {
        path: program(function, {"version": mpi.VERSION}) for path, function in entry.vendor.items()
    }
    members: Sequence[Any] = ()
    base = ""
    if entry.packages:
        from railweld.lab.image import ensure_base  # noqa: PLC0415 - needs root, as the lab does

        root = ensure_base(report)
        base = root.digest
    recipe = json.dumps(
        [RECIPE, entry.ref, sorted(map(str, programs.values())), base, entry.packages,
         dict(entry.texts), {path: file.read_text() for path, file in scripts.items()},
         {path: hashlib.sha256(content).hexdigest() for path, content in vendor.items()},
         entry.entrypoint]
    )  # fmt: skip
    folder = cache_dir("images") / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    path = folder / entry.file
    if not path.is_file():
        report(f"images: packing {entry.ref}")
        if entry.packages:
            members = images.members_of_packages(root.folder / "root.tar", entry.packages)
        folder.mkdir(parents=True, exist_ok=True)
        made = {inside: folder / Path(inside).name for inside in vendor}
        for inside, content in vendor.items():
            made[inside].write_bytes(content)
        image = images.Image(
            ref=entry.ref,
            programs=programs | scripts | made,
            texts=entry.texts,
            members=members,
            entrypoint=entry.entrypoint,
        )
        images.write_archive(image, path)
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
