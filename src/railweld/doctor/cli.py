"""`railweld doctor`: names the cause behind logs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from railweld.errors import UsageError
from railweld.options import AsJson

_WIDTH = 120  #: columns where the output is no terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE… | -]", help="Log files or folders; - is standard input."),
    ] = None,
    catalogue: Annotated[
        list[Path] | None,
        typer.Option("--catalogue", help="Your own file of known faults. Repeatable."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the known faults.")] = False,
    as_json: AsJson = False,
) -> int:
    """Name the cause behind logs: the first cause, what followed from it, and what to do.

    Exit code 1 when something known was found, 3 when nothing was found but not everything could
    be read, 0 when nothing known was found.
    """
    from railweld.doctor import report  # noqa: PLC0415 - loads the search library
    from railweld.doctor.catalogue import load  # noqa: PLC0415
    from railweld.doctor.diagnosis import Doctor, refuse_untrue  # noqa: PLC0415
    from railweld.doctor.sources import STDIN, Source, UnreadableError, expand  # noqa: PLC0415

    entries = load(catalogue or ())
    refuse_untrue(entries[len(load()) :])
    if listing:
        typer.echo(report.table(entries))
        return 0
    if not targets:
        raise UsageError(
            "found nothing to look at, expected log files, folders or - for standard input "
            "(see: railweld doctor --help)"
        )
    physician = Doctor(entries)
    for target in targets:
        try:
            sources = [Source(STDIN, "<stdin>")] if target == STDIN else expand(Path(target))
        except UnreadableError as error:
            physician.could_not_read(str(error))
            continue
        for source in sources:
            physician.read(source)
    diagnosis = physician.diagnose()
    if as_json:
        typer.echo(json.dumps(report.as_json(diagnosis), indent=2, ensure_ascii=False))
    else:
        is_terminal = sys.stdout.isatty()
        typer.echo(
            report.as_text(
                diagnosis,
                width=shutil.get_terminal_size().columns if is_terminal else _WIDTH,
                entries=len(entries),
                paint=_paint if is_terminal else _plain,
            )
        )
    return report.exit_code(diagnosis)


def _paint(text: str, style: str) -> str:
    return typer.style(text, bold=True) if style == "bold" else typer.style(text, fg=style)


def _plain(text: str, _style: str) -> str:
    return text
