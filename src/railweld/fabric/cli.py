"""`railweld fabric`: make the switches lossless for exactly the class that the hosts use."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from railweld.access import Access, given
from railweld.errors import ExitCode, UsageError
from railweld.options import AsJson, grouped
from railweld.verify.output import exit_code, print_checks

if TYPE_CHECKING:
    from railweld.fabric.push import Report, Settings
    from railweld.fabric.stage import Looked, Stage
else:
    # `grouped` reads the annotations of commands, and importing these loads netmiko.
    Settings = Stage = Any

T = TypeVar("T")

Limit = Annotated[
    list[str] | None,
    typer.Option("-l", "--limit", help="Switches by name, pattern, leaves or spines."),
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Switches at the same time.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Timer = Annotated[
    int,
    typer.Option(
        "--commit-timer", min=30, max=86_400,
        help="Seconds after which a switch goes back by itself.",
    ),
]  # fmt: skip
Batch = Annotated[
    str,
    typer.Option(
        "--batch",
        help="Steps at the same time: 1, N, or all, which disregards that rails stay up.",
    ),
]
Disruptive = Annotated[
    bool, typer.Option("--disruptive", help="Also push lines that interrupt traffic.")
]
Observe = Annotated[
    float,
    typer.Option("--observe", min=0, help="Seconds to watch counters before confirming."),
]
AllowPause = Annotated[
    int,
    typer.Option("--allow-pause", min=0, help="Pause frames per port that are no reason to stop."),
]


@grouped(access=given)
def _stage(*, access: Access, limit: Limit = None) -> Stage:
    from railweld.fabric.stage import stage_from_inventory

    return stage_from_inventory(access.load(), limit=limit or (), progress=_progress())


def _looking(*, jobs: Jobs = 32) -> Settings:
    from railweld.fabric.push import Settings

    return Settings(jobs=jobs)


def _changing(
    *,
    commit_timer: Timer = 300,
    batch: Batch = "1",
    disruptive: Disruptive = False,
    observe: Observe = 5.0,
    allow_pause: AllowPause = 0,
    jobs: Jobs = 32,
) -> Settings:
    if batch != "all" and (not batch.isdecimal() or int(batch) < 1):
        raise UsageError(f"--batch: found {batch!r}, expected 1, a larger number, or all")
    return replace(
        _looking(jobs=jobs),
        commit_timer_s=commit_timer,
        batch=None if batch == "all" else int(batch),
        disruptive=disruptive,
        observe_s=observe,
        pause_allowance=allow_pause,
    )


@grouped(stage=_stage, settings=_looking)
def _stage_to_read(*, stage: Stage, settings: Settings) -> Stage:
    stage.settings = settings
    return stage


@grouped(stage=_stage, settings=_changing)
def _stage_to_change(*, stage: Stage, settings: Settings) -> Stage:
    stage.settings = settings
    return stage


@grouped(stage=_stage)
def render(
    *,
    stage: Stage,
    as_json: AsJson = False,
) -> int:
    """Print the intended lines of each switch with the intent behind each; touches no switch."""
    from railweld.fabric.render import render as rendered_for

    if _not_roce(stage):
        return ExitCode.OK
    _warn(stage)
    rendered = [rendered_for(stage.fabric, switch) for switch in stage.switches]
    if as_json:
        _print_json(
            {
                each.switch: [
                    {
                        "section": list(line.path),
                        "line": line.text,
                        "intent": line.intent,
                        "part": line.part,
                        "pass": line.stage,
                    }
                    for line in each.lines
                ]
                for each in rendered
            }
        )
        return ExitCode.OK
    for each in rendered:
        typer.echo(f"! {each.switch} ({each.platform.model}, {each.platform.family})")
        typer.echo(each.text(intents=True))
    return ExitCode.OK


@grouped(stage=_stage_to_read)
def plan(
    *,
    stage: Stage,
    as_json: AsJson = False,
) -> int:
    """Compare the switches with the description by meaning. Exit code 2 when there are changes."""
    if _not_roce(stage):
        return ExitCode.OK
    _warn(stage)
    seen = stage.looks()
    if as_json:
        _print_json(_plan_data(seen))
    else:
        _print_plan(seen)
    if seen.failures:
        return ExitCode.UNKNOWN
    return ExitCode.CHANGES if seen.changed else ExitCode.OK


@grouped(stage=_stage_to_change)
def push(
    *,
    stage: Stage,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Bring the switches to the description; each ends in its old or its new state.

    Running it again after a failure continues where it stopped.
    """
    if _not_roce(stage):
        return ExitCode.OK
    _warn(stage)
    seen, report = _interruptible(stage, lambda: stage.push(_approval(yes, as_json)))
    return _finish(seen, report, as_json=as_json)


@grouped(stage=_stage_to_change)
def rollback(
    *,
    to: Annotated[str, typer.Option("--to", help="Run or time (YYYYMMDDTHHMMSSZ) to go back to.")],
    stage: Stage,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Give the lines that railweld owns the values they had at a time; other lines stay."""
    if _not_roce(stage):
        return ExitCode.OK
    seen, report = _interruptible(stage, lambda: stage.rollback(to, _approval(yes, as_json)))
    return _finish(seen, report, as_json=as_json)


@grouped(stage=_stage_to_read)
def verify(
    *,
    stage: Stage,
    as_json: AsJson = False,
) -> int:
    """Read the operational state back: PFC, watchdog, ECN, maps, counters, cabling, release."""
    checks = stage.verify()
    if as_json:
        _print_json([check.to_dict() for check in checks])
    else:
        print_checks(checks)
    return exit_code(checks)


@grouped(stage=_stage_to_read)
def drift(
    *,
    stage: Stage,
    as_json: AsJson = False,
) -> int:
    """Report what departs from the description, for cron. Exit code 2 when something does."""
    if _not_roce(stage):
        return ExitCode.OK
    found, failures = stage.drift()
    if as_json:
        _print_json(
            {
                "drift": {
                    each.switch: {
                        "differences": list(each.differences),
                        "foreign": list(each.foreign),
                        "unsaved": each.unsaved,
                    }
                    for each in found
                    if not each.clean
                },
                "clean": [each.switch for each in found if each.clean],
                "not_read": dict(failures),
            }
        )
    else:
        for each in found:
            for text in each.differences:
                typer.echo(f"{each.switch}: differs: {text}")
            for text in each.foreign:
                typer.echo(f"{each.switch}: foreign line in the way: {text}")
            if each.unsaved:
                typer.echo(f"{each.switch}: running configuration is not saved")
            if each.clean:
                typer.echo(f"{each.switch}: as described")
        for text in failures.values():
            typer.secho(text, fg="red", err=True)
    if failures:
        return ExitCode.UNKNOWN
    return ExitCode.OK if all(each.clean for each in found) else ExitCode.CHANGES


def register(app: typer.Typer) -> None:
    """Add the commands of this stage."""
    fabric = typer.Typer(
        no_args_is_help=True, help="Switches: plan, push, verify, drift, rollback."
    )
    for command in (render, plan, push, verify, drift, rollback):
        fabric.command(command.__name__)(command)
    app.add_typer(fabric, name="fabric")


# -- plumbing --------------------------------------------------------------------------------


def _not_roce(stage: Stage) -> bool:
    """Say that an InfiniBand site has no switch to configure; True when it is one."""
    if stage.fabric.transport != "infiniband":
        return False
    typer.echo(
        f"{stage.fabric.site}: InfiniBand: no PFC or ECN to configure on switches; "
        "`railweld fabric verify` says what is checked instead",
        err=True,
    )
    return True


def _progress() -> Callable[[str, str], None] | None:
    if not sys.stderr.isatty():
        return None
    return lambda switch, what: typer.secho(f"  {switch}: {what}", err=True, dim=True)


def _warn(stage: Stage) -> None:
    for finding in stage.refuse_bad_description():
        typer.secho(f"warning: {finding.sentence()}", fg="yellow", err=True)


def _approval(yes: bool, as_json: bool) -> Callable[[Looked], bool]:
    def approve(seen: Looked) -> bool:
        if not as_json:
            _print_plan(seen)
        if yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError("push: found no terminal to ask on, expected --yes")
        return typer.confirm(f"Push to {len(seen.changed)} switches?")

    return approve


def _interruptible(stage: Stage, work: Callable[[], T]) -> T:
    """Run in a thread, so that Ctrl-C becomes a request to settle instead of a half state."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(1)
    try:
        future = pool.submit(work)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if stage.interrupt.is_set():
                    typer.echo(
                        "stopped at once: a switch under a commit timer goes back by itself; run "
                        "`railweld fabric plan` afterwards", err=True,
                    )  # fmt: skip
                    os._exit(int(ExitCode.INTERRUPTED))
                stage.interrupt.set()
                typer.echo(
                    "interrupted: switches in work go back to their old state (again to stop at "
                    "once)", err=True,
                )  # fmt: skip
    finally:
        pool.shutdown(wait=False)
        signal.signal(signal.SIGTERM, previous)


def _finish(seen: Looked, report: Report | None, *, as_json: bool) -> int:
    if report is None:
        if as_json:
            _print_json({"run": None, "switches": {}})
        elif not seen.changed:
            typer.echo("nothing to change: every switch is as described")
        return ExitCode.CHANGES if seen.changed else ExitCode.OK
    if as_json:
        _print_json(
            {
                "run": report.run,
                "interrupted": report.interrupted,
                "switches": {
                    each.switch: {
                        "result": str(each.result),
                        "state": str(each.state),
                        "changes": each.changes,
                        "text": each.text,
                        "warnings": list(each.warnings),
                    }
                    for each in report.outcomes
                },
            }
        )
    else:
        _print_report(report)
    if report.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report.ok else ExitCode.FAILED


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _plan_data(seen: Looked) -> Mapping[str, Any]:
    return {
        "switches": {
            name: {
                "model": look.facts.model,
                "release": look.facts.release,
                "warnings": list(look.warnings),
                "changes": [
                    {
                        "action": change.action,
                        "section": list(change.section),
                        "line": change.text,
                        "now": change.old,
                        "intent": change.intent,
                        "pass": change.stage,
                        "disruptive": change.disruptive,
                    }
                    for change in look.plan.changes
                ],
            }
            for name, look in seen.looks.items()
        },
        "not_read": dict(seen.failures),
    }


def _print_plan(seen: Looked) -> None:
    for name, look in seen.looks.items():
        changes = look.plan.changes
        typer.secho(
            f"{name} ({look.facts.model}, EOS {look.facts.release}): "
            f"{len(changes) or 'no'} change{'' if len(changes) == 1 else 's'}",
            bold=True,
        )
        for text in look.warnings:
            typer.secho(f"  warning: {text}", fg="yellow")
        intent = ""
        for change in changes:
            if change.intent != intent:
                typer.secho(f"  # {change.intent}", dim=True)
                intent = change.intent
            sign = {"set": "+" if change.old is None else "~", "remove": "-"}[change.action]
            typer.echo(f"  {sign} {change.sentence()}")
            if change.disruptive:
                typer.secho(f"      interrupts traffic: {change.disruptive}", fg="red")
    for text in seen.failures.values():
        typer.secho(text, fg="red", err=True)


def _print_report(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("switch", "result", "runs", "changes", title=f"run {report.run}")
    for each in report.outcomes:
        table.add_row(each.switch, str(each.result), str(each.state), str(each.changes))
    Console().print(table)
    for each in report.outcomes:
        if not each.ok:
            typer.secho(each.sentence(), fg="red", err=True)
        for text in each.warnings:
            typer.secho(f"{each.switch}: warning: {text}", fg="yellow", err=True)
