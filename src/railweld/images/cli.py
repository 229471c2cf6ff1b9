"""`railweld images`: build what no registry has, save it as files, push it to the site's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from railweld.errors import ExitCode
from railweld.images.catalog import Entry, catalog
from railweld.images.make import build, push, save
from railweld.site.build import load_site
from railweld.site.inventory import default_sources

Inventory = Annotated[
    list[str] | None,
    typer.Option("-i", "--inventory", help="Inventory; default: ansible.cfg's. Repeatable."),
]
StandIns = Annotated[
    bool, typer.Option("--stand-ins", help="Also the lab's stand-ins of the vendors' images.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this stage."""
    images = typer.Typer(no_args_is_help=True, help="Container images: build, save, push.")
    images.command("build")(build_images)
    images.command("save")(save_images)
    images.command("push")(push_images)
    app.add_typer(images, name="images")


def build_images(*, inventory: Inventory = None, stand_ins: StandIns = False) -> int:
    """Make the images as archives in the cache and print where they are; needs Go."""
    entries, archives = _built(inventory, stand_ins)
    for entry, archive in zip(entries, archives, strict=True):
        typer.echo(f"{entry.ref} {archive}")
    return ExitCode.OK


def save_images(
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the archives.")],
    inventory: Inventory = None,
    stand_ins: StandIns = False,
) -> int:
    """Lay the archives and their index into a folder, as railweld_image_archives names it."""
    entries, archives = _built(inventory, stand_ins)
    save(entries, archives, output)
    for entry in entries:
        typer.echo(f"{entry.ref} {output / entry.file}")
    return ExitCode.OK


def push_images(*, inventory: Inventory = None, stand_ins: StandIns = False) -> int:
    """Push the images to railweld_image_registry."""
    entries, archives = _built(inventory, stand_ins)
    push(entries, archives, _report)
    return ExitCode.OK


def _built(inventory: list[str] | None, stand_ins: bool) -> tuple[tuple[Entry, ...], list[Path]]:
    entries = catalog(load_site(inventory or default_sources()), stand_ins=stand_ins)
    return entries, build(entries, _report)


def _report(line: str) -> None:
    typer.secho(line, err=True, dim=True)
