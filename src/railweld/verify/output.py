"""Check records and tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from railweld.errors import ExitCode
from railweld.files import require_writable, write_result
from railweld.record import Check, Status, worst

if TYPE_CHECKING:
    from railweld.verify.stages import Table, Verified

#: Up to so many rows a table lists all, beyond it only those that need a look.
_ROWS = 40
_WIDTH = 160  #: columns where the output is no terminal


def print_checks(checks: Iterable[Check]) -> None:
    """What needs a look, one sentence each, and how many records there are of each status."""
    listed = list(checks)
    for check in listed:
        if check.status is Status.SKIPPED:
            typer.echo(f"skipped {check.target}: {check.reason}")
        elif check.status is not Status.PASS:
            color = "yellow" if check.status is Status.WARN else "red"
            typer.secho(f"{check.status} {check.sentence()}", fg=color)
    counts = {status: sum(check.status is status for check in listed) for status in Status}
    typer.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))


def print_table(table: Table) -> None:
    """A table; of a large one only the rows with a fault."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn

    chosen = [
        (row, bad)
        for row, bad in zip(table.rows, table.bad, strict=True)
        if bad or len(table.rows) <= _ROWS
    ]
    drawn = Drawn(*table.columns, title=table.title, box=box.SIMPLE_HEAD, pad_edge=False)
    for row, bad in chosen:
        drawn.add_row(*(row[name] for name in table.columns), style="red" if bad else "")
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(drawn)
    if len(chosen) < len(table.rows):
        typer.echo(f"{len(table.rows) - len(chosen)} more rows without a fault")


def exit_code(checks: Iterable[Check]) -> ExitCode:
    """The exit code that the worst record asks for."""
    return {Status.FAIL: ExitCode.FAILED, Status.UNKNOWN: ExitCode.UNKNOWN}.get(
        worst(checks), ExitCode.OK
    )


def junit_file(path: Path | None) -> Callable[[str, Mapping[str, Verified]], None]:
    """Make a place for the JUnit file now, and give what writes it when the stages were looked at.

    Raises:
        UsageError: it cannot be written there.
    """
    if path is None:
        return lambda _site, _found: None
    require_writable(path, "--junit")
    # A run that ends early leaves no file: CI must not read the one of the run before.
    path.unlink(missing_ok=True)

    def write(site: str, found: Mapping[str, Verified]) -> None:
        from railweld.verify import junit

        checks = {stage: each.checks for stage, each in found.items()}
        write_result(path, junit.render(site, checks, datetime.now(UTC)))

    return write
