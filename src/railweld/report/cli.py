"""`railweld report`: one file about the state of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from railweld.errors import ExitCode
from railweld.options import ExtraVars, Inventory, Vault


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file; replaced if it is there.")
    ] = Path("site.html"),
    bench: Annotated[
        Path | None,
        typer.Option("--bench", help="A measurement to show: the output of railweld bench --json."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Machines at the same time.")] = 32,
) -> int:
    """Look at everything that verify looks at and write it into one HTML file.

    The file opens without a server and without a network. Exit codes are those of verify.
    """
    from railweld.report.data import Data, now, read_bench
    from railweld.report.page import render, require_writable, write
    from railweld.verify import stages
    from railweld.verify.output import exit_code

    require_writable(output)
    request = stages.request_for(inventory, extra_vars, vault_password_file, jobs=jobs)
    measured = read_bench(bench, request.site) if bench else None
    found = [stages.verify(request, name) for name in stages.STAGES]
    data = Data(
        site=request.site,
        checks=[check for each in found for check in each.checks],
        tables=[table for each in found for table in each.tables],
        bench=measured,
        made=now(),
    )
    write(output, render(data))
    counts = ", ".join(f"{count} {status}" for status, count in data.counts.items() if count)
    typer.echo(f"{output}: {counts}")
    return exit_code(data.checks) if data.checks else ExitCode.OK
