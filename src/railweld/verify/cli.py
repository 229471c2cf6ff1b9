"""`railweld verify`: what is there against what is described, stage by stage."""

from __future__ import annotations

import json
import time
from typing import Annotated, Final

import typer

from railweld.access import Access, given
from railweld.errors import CouldNotLookError, ExitCode, UsageError
from railweld.options import AsJson, JUnit, grouped

#: Seconds between two looks of `--wait`.
_PAUSE_S: Final = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


@grouped(access=given)
def verify(
    *,
    access: Access,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", help="Stages to look at, or all. Repeatable.", show_default="all"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("-l", "--limit", help="Hosts or switches by name, pattern or group."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Switches at the same time.")] = 32,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Look again until all is well, for so many seconds."),
    ] = 0.0,
    junit: JUnit = None,
    pods: Annotated[
        bool,
        typer.Option(
            "--pods/--no-pods",
            help="Stage cluster: start a short pod without GPUs on each GPU node.",
        ),
    ] = True,
    as_json: AsJson = False,
) -> int:
    """Look at switches and nodes and judge them against the description; changes nothing.

    Pods that stage cluster starts to see what jobs find are gone when it ends. Exit code 1 when
    something is wrong, 3 when something could not be looked at.
    """
    from railweld.verify import stages
    from railweld.verify.output import exit_code, junit_file, print_checks, print_table

    write_junit = junit_file(junit)
    wanted = _stages(stage or ["all"], list(stages.STAGES))
    deadline = time.monotonic() + wait
    while True:
        # Another one for each look: it remembers what nodes said.
        request = stages.request_for(access, looks=wanted, limit=limit, jobs=jobs, pods=pods)
        try:
            found = {name: stages.verify(request, name) for name in wanted}
        except CouldNotLookError:
            # Not one node answers: they may be on their way up.
            if time.monotonic() >= deadline:
                raise
        else:
            checks = stages.records(found)
            code = exit_code(checks)
            if code is ExitCode.OK or time.monotonic() >= deadline:
                break
        time.sleep(_PAUSE_S)
    write_junit(request.site.name, found)
    tables = [table for each in found.values() for table in each.tables]
    if as_json:
        data = {
            "checks": [check.to_dict() for check in checks],
            "tables": {table.title: [dict(row) for row in table.rows] for table in tables},
        }
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        for table in tables:
            print_table(table)
        print_checks(checks)
    return code


def _stages(asked: list[str], known: list[str]) -> list[str]:
    names = [name for text in asked for name in text.split(",")]
    unknown = sorted({*names} - {*known, "all"})
    if unknown:
        raise UsageError(f"--stage: found {', '.join(unknown)}, expected {', '.join(known)} or all")
    return known if "all" in names else [name for name in known if name in names]
