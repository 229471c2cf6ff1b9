"""`railweld doctor`: names the cause behind logs, a bad node or a failed job."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweld.access import Access, given
from railweld.errors import UsageError
from railweld.options import AsJson, grouped

if TYPE_CHECKING:
    from railweld.doctor.diagnosis import Doctor
    from railweld.verify.stages import Request

_WIDTH = 120  #: columns where the output is no terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


@grouped(access=given)
def doctor(
    *,
    access: Access,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB | NODE | FILE… | -]",
            help="Log files or folders, - for standard input, nodes, ids of Slurm jobs.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", help="How far back journals are read, as in journalctl.")
    ] = "-24h",
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that each look at nodes may take.")
    ] = 120,
    catalogue: Annotated[
        list[Path] | None,
        typer.Option("--catalogue", help="Your own file of known faults. Repeatable."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the known faults.")] = False,
    as_json: AsJson = False,
) -> int:
    """Name the cause behind a failed job or a bad node: what came first, what followed, what to do.

    Exit code 1 when something known was found, 3 when nothing was found but not everything could
    be looked at, 0 when nothing known was found.
    """
    from railweld.doctor import report
    from railweld.doctor.catalogue import load
    from railweld.doctor.diagnosis import Doctor, refuse_untrue

    entries = load(catalogue or ())
    refuse_untrue(entries[len(load()) :])
    if listing:
        typer.echo(report.table(entries))
        return 0
    if not targets:
        raise UsageError(
            "found nothing to look at, expected log files, folders, - for standard input, nodes or "
            "ids of jobs (see: railweld doctor --help)"
        )
    physician = Doctor(entries)
    words = [target for target in dict.fromkeys(targets) if not _is_log(target)]
    if words:
        from railweld.verify.stages import request_for

        request = request_for(access)
        request.timeout_s = timeout
        _look(words, request, physician, since)
    _read([target for target in dict.fromkeys(targets) if _is_log(target)], physician)
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


def _is_log(target: str) -> bool:
    """Files win over nodes and jobs of the same name; what has a slash can be nothing else."""
    return target == "-" or "/" in target or Path(target).exists()


def _look(words: Sequence[str], request: Request, physician: Doctor, since: str) -> None:
    from railweld.doctor.live import Live, is_job

    live = Live(request, physician, since=since)
    hosts = [word for word in words if word in request.site.hosts]
    for word in words:
        if word not in hosts and not is_job(word):
            physician.could_not_read(
                f"{word}: found neither a file nor a node of site {request.site.name}, expected "
                "one, the id of a job, or - (see: railweld check)"
            )
    for word in words:
        if word not in hosts and is_job(word):
            live.job(word)
    live.nodes(hosts)


def _read(targets: Sequence[str], physician: Doctor) -> None:
    from railweld.doctor.sources import STDIN, Source, UnreadableError, expand

    for target in targets:
        try:
            sources = [Source(STDIN, "<stdin>")] if target == STDIN else expand(Path(target))
        except UnreadableError as error:
            physician.could_not_read(str(error))
            continue
        for source in sources:
            physician.read(source)


def _paint(text: str, style: str) -> str:
    return typer.style(text, bold=True) if style == "bold" else typer.style(text, fg=style)


def _plain(text: str, _style: str) -> str:
    return text
