"""`railweld up`: from bare machines to a verified cluster, stage by stage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweld.access import Access, given
from railweld.errors import ExitCode, UsageError
from railweld.options import JUnit, grouped

if TYPE_CHECKING:
    from railweld.up.chain import Command, Context, Stage


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


@grouped(access=given)
def up(
    *,
    access: Access,
    to: Annotated[str | None, typer.Option("--to", help="Stop after this stage.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Begin with this stage.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show every stage's plan; do nothing.")
    ] = False,
    disruptive: Annotated[
        bool, typer.Option("--disruptive", help="Allow switch lines that interrupt traffic.")
    ] = False,
    report: Annotated[
        Path, typer.Option("--report", help="Where the last stage writes its report.")
    ] = Path("report.html"),
    junit: JUnit = None,
) -> int:
    """Check, base, fabric, cluster, stack, slurm, proof: each stage is a gate for the next.

    A stage that fails stops the chain and names the command to repeat. Running it again continues
    there: every stage observes first and leaves alone what is done. The last one looks at
    everything and writes the report. Exit code of the stage that failed; with --plan of the first
    that could not be planned.
    """
    from railweld.files import require_writable
    from railweld.nodes import repository
    from railweld.up.chain import Context, chosen
    from railweld.verify.output import junit_file

    stages = chosen(start, to)
    if not plan and stages[-1].name == "proof":
        require_writable(report, "--report")
        # Of a chain that stops before its last stage no JUnit file stays from the run before.
        junit_file(junit)
    context = Context(
        access.site(),
        access.absolute(),
        repository(),
        report.absolute(),
        junit=junit and junit.absolute(),
        disruptive=disruptive,
    )
    mine = [stage for stage in stages if not stage.skip(context.site)]
    _require(mine)
    # Every command line exists before the first one runs.
    commands = {stage.name: list((stage.plan if plan else stage.apply)(context)) for stage in mine}
    return _Run(context, plan=plan).run(stages, commands)


def _require(stages: Sequence[Stage]) -> None:
    missing = {
        program: stage.name
        for stage in stages
        for program in stage.programs
        if shutil.which(program, path=_path()) is None
    }
    if missing:
        words = ", ".join(f"{program} (stage {stage})" for program, stage in missing.items())
        raise UsageError(
            f"up: found no {words} on PATH, expected them before the first stage starts. "
            "Fix: make setup; docs/stack.md says where pulumi comes from; or stop earlier with --to"
        )


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


class _Run:
    """One way through the chain."""

    def __init__(self, context: Context, *, plan: bool) -> None:
        self._context = context
        self._plan = plan
        self._id = uuid.uuid4().hex[:12]
        self._rows: list[tuple[str, str, float]] = []

    def run(self, stages: Sequence[Stage], commands: dict[str, list[Command]]) -> int:
        """Run the stages until one fails, plan all; returns the first failure's exit code."""
        result: int = ExitCode.OK
        for number, stage in enumerate(stages, 1):
            reason = stage.skip(self._context.site)
            if not reason and self._plan:
                reason = stage.not_yet(self._context.site)
            if reason:
                self._rows.append((stage.name, f"skipped: {reason}", 0.0))
                continue
            typer.echo(f"\n[{number}/{len(stages)}] {stage.name}: {stage.what}")
            began = time.monotonic()
            failed = self._stage(stage, commands[stage.name])
            took = time.monotonic() - began
            if failed is None:
                self._rows.append((stage.name, "planned" if self._plan else "done", took))
                continue
            command, code = failed
            result = result or code
            if not self._plan:
                self._rows.append((stage.name, f"failed: exit code {code}", took))
                break
            # A plan changes nothing, so that of the next stage is as good as without this one.
            self._rows.append((stage.name, f"no plan: exit code {code}", took))
        self._table()
        if result and not self._plan:
            typer.echo(f"up: stopped at {stage.name}: {command} ended with exit code {code}")
            typer.echo("up: mend it and run railweld up again: it continues here")
        return result

    def _stage(self, stage: Stage, commands: Sequence[Command]) -> tuple[Command, int] | None:
        from railweld.state import journal

        for command in commands:
            typer.echo(f"$ {command}")
            # Ctrl-C reaches the command too; it ends in its own order and says in which state.
            process = subprocess.Popen(
                command.argv,
                cwd=self._context.repository,
                env={**os.environ, "PATH": _path(), **self._context.environment},
            )
            code = _wait(process)
            if not self._plan:
                journal(
                    self._context.site.name,
                    run=self._id,
                    stage=stage.name,
                    target="site",
                    action=str(command),
                    before=None,
                    after=None,
                    result="done" if code in command.fine else f"exit code {code}",
                )
            if code not in command.fine:
                return command, code
        return None

    def _table(self) -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table("stage", "result", "seconds")
        for name, result, took in self._rows:
            table.add_row(name, result, f"{took:.1f}" if took else "")
        Console().print(table)


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The command got the same signal. Leaving it alone now would hide how it ends.
            continue
