"""`railweld report`: one file about the state of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from railweld.access import Access, given
from railweld.options import JUnit, grouped


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


@grouped(access=given)
def report(
    *,
    access: Access,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file; replaced if it is there.")
    ] = Path("site.html"),
    bench: Annotated[
        Path | None,
        typer.Option("--bench", help="A measurement to show: the output of railweld bench --json."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Machines at the same time.")] = 32,
    junit: JUnit = None,
) -> int:
    """Look at everything that verify looks at, say it and write it into one HTML file.

    The file opens without a server and without a network. Exit codes are those of verify.
    """
    from railweld.files import require_writable, write_result
    from railweld.report.data import Data, now, read_bench
    from railweld.report.page import render
    from railweld.runs import last
    from railweld.verify import stages
    from railweld.verify.output import exit_code, junit_file, print_checks

    require_writable(output, "--output")
    write_junit = junit_file(junit)
    request = stages.request_for(access, jobs=jobs)
    measured = read_bench(bench, request.site) if bench else None
    found = {name: stages.verify(request, name) for name in stages.STAGES}
    write_junit(request.site.name, found)
    data = Data(
        site=request.site,
        checks=stages.records(found),
        tables=[table for each in found.values() for table in each.tables],
        bench=measured,
        made=now(),
        runs=last(request.site.name),
    )
    write_result(output, render(data))
    print_checks(data.checks)
    typer.echo(f"report: {output}")
    return exit_code(data.checks)
