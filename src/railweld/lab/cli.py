"""`railweld lab`: start, stop, look at and break the lab."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from railweld.errors import ExitCode, UsageError
from railweld.images.catalog import catalog
from railweld.images.make import build, save
from railweld.lab import engine, faults
from railweld.lab.access import lab_state_dir
from railweld.lab.kubernetes import IMAGES_FOLDER, provide
from railweld.lab.lab import Lab
from railweld.lab.process import Report, require_machine
from railweld.site import load_site

DEFAULT_INVENTORY = "inventories/lab"

Inventory = Annotated[
    list[str] | None,
    typer.Option("-i", "--inventory", help=f"Inventory of the lab (default: {DEFAULT_INVENTORY})."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def reporter(*, err: bool = False) -> Report:
    """A line printer that shows how long each step took to come."""
    start = time.monotonic()
    return lambda line: typer.echo(f"[{time.monotonic() - start:5.1f} s] {line}", err=err)


def up(inventory: Inventory = None) -> None:
    """Start the lab of an inventory; a second time changes nothing."""
    _lab(inventory).up()


def down(inventory: Inventory = None) -> None:
    """Remove the lab: nodes, networks, volumes."""
    _lab(inventory).down()


def status(inventory: Inventory = None, as_json: Json = False) -> None:
    """Show every node: running, reachable, which faults are active."""
    lab = Lab.from_inventory(inventory or [DEFAULT_INVENTORY])
    rows = lab.status()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        table = Table(title=f"lab {lab.plan.site}, {lab.plan.subnet}", title_justify="left")
        for heading in ("node", "address", "state", "ssh", "faults"):
            table.add_column(heading)
        for row in rows:
            table.add_row(
                row.node, row.address, row.state, "yes" if row.ssh else "no", ", ".join(row.faults)
            )
        Console().print(table)
    if any(not row.ssh for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def exec_(
    node: Annotated[str, typer.Argument(help="Node of the lab.")],
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after `--`.")],
    inventory: Inventory = None,
) -> None:
    """Run a program in a node beside SSH, with this terminal."""
    lab = Lab.from_inventory(inventory or [DEFAULT_INVENTORY])
    container = lab.node(node).container
    os.execvp("podman", ["podman", "exec", container, *command])


def ssh(
    node: Annotated[str, typer.Argument(help="Node of the lab.")],
    command: Annotated[list[str] | None, typer.Argument(help="Remote command, after `--`.")] = None,
    inventory: Inventory = None,
) -> None:
    """Log in to a node over SSH, or run one command there."""
    lab = Lab.from_inventory(inventory or [DEFAULT_INVENTORY])
    argv = [*lab.node(node).ssh_command(), *(command or [])]
    os.execvp(argv[0], argv)


def fault(  # noqa: PLR0917 - Typer passes by name
    name: Annotated[str | None, typer.Argument(help="Fault; without one, list them.")] = None,
    node: Annotated[str | None, typer.Argument(help="Node of the lab.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Setting as key=value; may be repeated.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take the fault away.")] = False,
    inventory: Inventory = None,
    as_json: Json = False,
) -> None:
    """Make something fail on a node, or take the fault away."""
    if name is None:
        _list_faults(as_json=as_json)
        return
    if node is None:
        raise UsageError(f"{name}: found no node; usage: railweld lab fault {name} NODE")
    lab = Lab.from_inventory(inventory or [DEFAULT_INVENTORY])
    if clear:
        lab.clear(name, node)
        typer.echo(f"{node}: {name} cleared")
    else:
        lab.fault(name, node, **faults.parse_settings(settings or []))
        typer.echo(f"{node}: {name}")


def kubernetes(
    version: Annotated[
        list[str] | None,
        typer.Option("--version", help="Version to provide; default: the site's. May be repeated."),
    ] = None,
    inventory: Inventory = None,
) -> None:
    """Build Kubernetes and what the stack runs: packages on the mirror, images as files."""
    sources = inventory or [DEFAULT_INVENTORY]
    report = reporter()
    require_machine()
    plan = Lab.from_inventory(sources).plan
    site = load_site(sources)
    wanted = version or [site.versions.component("kubernetes").version]
    repositories = {host.vendor_repository for host in site.hosts.values()}
    toolkit = [
        package
        for repository in sorted(filter(None, repositories))
        for package in site.versions.packages("container_toolkit", repository)
    ]
    provide(plan.site, wanted, list(dict.fromkeys(toolkit)), report)
    entries = catalog(site, stand_ins=True)
    save(entries, build(entries, report), lab_state_dir(plan.site) / IMAGES_FOLDER)
    report(f"lab {plan.site}: {len(entries)} images of the stack beside them")


def pulumi(inventory: Inventory = None) -> None:
    """Build the lab's Pulumi and kubectl and print the lines that put them to use, for `eval`."""
    site = load_site(inventory or [DEFAULT_INVENTORY])
    report = reporter(err=True)
    path = os.pathsep.join(map(str, [*engine.folders(report), engine.kubectl(report)]))
    typer.echo(f"export PATH={shlex.quote(path)}:$PATH")
    for name, value in engine.settings(site.name).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _list_faults(*, as_json: bool) -> None:
    if as_json:
        typer.echo(faults.table())
        return
    table = Table()
    for heading in ("fault", "what happens", "settings"):
        table.add_column(heading)
    for name, each in faults.FAULTS.items():
        table.add_row(name, each.text, "\n".join(f"{k}={v}" for k, v in each.settings.items()))
    Console().print(table)
    typer.echo("Switches have faults of their own: python -m railweld.lab.veos catalogue")


def register(app: typer.Typer) -> None:
    """Add `railweld lab` to the command line."""
    group = typer.Typer(help="The embedded lab: SSH nodes on this machine.", no_args_is_help=True)
    group.command()(up)
    group.command()(down)
    group.command()(status)
    group.command()(fault)
    group.command("exec")(exec_)
    group.command()(ssh)
    group.command()(kubernetes)
    group.command()(pulumi)
    app.add_typer(group, name="lab")


def _lab(inventory: list[str] | None) -> Lab:
    return Lab.from_inventory(inventory or [DEFAULT_INVENTORY], reporter())
