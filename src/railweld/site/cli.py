"""`railweld check`: everything that is wrong with a description, before any machine is touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from railweld.access import Access, given
from railweld.errors import ExitCode
from railweld.options import AsJson, grouped
from railweld.site.problem import Problem, condense


def register(app: typer.Typer) -> None:
    """Add the commands of this stage."""
    app.command("check")(check)


@grouped(access=given)
def check(
    *,
    access: Access,
    as_json: AsJson = False,
) -> int:
    """Refuse a site description whose layers disagree; touches no machine.

    Prints every problem at once. Exit code 1 if there is an error, 0 with warnings only.
    """
    # Ansible takes most of a second to load; `railweld --help` should not wait for it.
    from railweld.site.build import build_site
    from railweld.site.problem import SiteError

    site = None
    problems: list[Problem] = []
    try:
        site, problems = build_site(access.load())
    except SiteError as error:
        problems = list(error.problems)
    if as_json:
        typer.echo(json.dumps(_report(site, problems), indent=2))
    else:
        for problem in condense(problems):
            _print(problem)
        for line in _summary(site, problems):
            typer.echo(line)
    return ExitCode.FAILED if any(problem.is_error for problem in problems) else ExitCode.OK


def _print(problem: Problem) -> None:
    color = typer.colors.RED if problem.is_error else typer.colors.YELLOW
    typer.secho(f"{problem.severity}: {problem.where}  [{problem.id}]", fg=color)
    for word, text in (
        ("found", problem.found),
        ("expected", problem.expected),
        ("fix", problem.fix),
    ):
        if text:
            typer.echo(f"  {word:<9} {text}")


def _counts(problems: Sequence[Problem]) -> tuple[int, int]:
    errors = sum(problem.is_error for problem in problems)
    return errors, len(problems) - errors


def _summary(site: Any, problems: Sequence[Problem]) -> list[str]:
    errors, warnings = _counts(problems)
    count = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    if site is None:
        return [f"refused: {count}"]
    gpus = [host.gpu.count for host in site.hosts.values() if host.gpu]
    hcas = sum(len(host.hcas) for host in site.hosts.values())
    changes = "".join(f"; {c.component} {c.before} -> {c.after}" for c in site.versions.changed)
    size = f"{len(site.hosts)} nodes, {len(gpus)} of them with {sum(gpus)} GPUs and {hcas} HCAs"
    lines = [
        f"{site.name}: {size}, {len(site.switches)} switches",
        f"versions: {site.version_set}{changes}",
    ]
    if site.transport == "roce":
        lines.append(
            f"lossless: DSCP {site.lossless_dscp} = priority {site.lossless_priority} = queue "
            f"{site.lossless_queue}, NCCL_IB_TC {site.nccl_ib_tc}, MTU {site.host_mtu} on hosts "
            f"and {site.switch_mtu} on switches"
        )
    return [*lines, f"ok: {count}"]


def _report(site: Any, problems: Sequence[Problem]) -> dict[str, Any]:
    errors, warnings = _counts(problems)
    return {
        "site": site.name if site else None,
        "ok": errors == 0,
        "errors": errors,
        "warnings": warnings,
        "version_changes": [change._asdict() for change in site.versions.changed] if site else [],
        "problems": [problem.to_dict() for problem in problems],
    }
