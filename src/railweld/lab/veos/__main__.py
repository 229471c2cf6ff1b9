"""`python -m railweld.lab.veos`: serve an inventory's switches, and break them.

python -m railweld.lab.veos --inventory inventories/lab
python -m railweld.lab.veos fault leaf1 save-fails -i inventories/lab
python -m railweld.lab.veos fault leaf1 --clear -i inventories/lab
python -m railweld.lab.veos status -i inventories/lab
python -m railweld.lab.veos catalogue
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from railweld.errors import RailweldError, UsageError
from railweld.lab.veos.faults import CATALOGUE
from railweld.lab.veos.fleet import Fleet, clear_faults, default_control, set_fault
from railweld.site import load_inventory

app = typer.Typer(add_completion=False, invoke_without_command=True, help=__doc__)

Inventory = Annotated[list[str] | None, typer.Option("-i", "--inventory", help="Inventory.")]
Control = Annotated[Path | None, typer.Option(help="Control folder (default: the site's).")]


def _folder(inventory: list[str] | None, control: Path | None) -> Path:
    if control is not None:
        return control
    if not inventory:
        raise UsageError("switches: found neither --inventory nor --control, expected one of them")
    hosts = load_inventory(inventory).hosts.values()
    site = next((str(h["railweld_site"]) for h in hosts if "railweld_site" in h), "lab")
    return default_control(site)


@app.callback()
def serve(
    context: typer.Context,
    *,
    inventory: Inventory = None,
    control: Control = None,
    listen: Annotated[str | None, typer.Option(help="Address instead of the inventory's.")] = None,
    base_port: Annotated[
        int | None, typer.Option(help="First port instead of the inventory's; 0: any free ones.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="EOS release of every switch.")] = None,
    latency_ms: Annotated[float, typer.Option(help="Answer time of every line.")] = 0.0,
) -> None:
    """Serve the switches of an inventory until a signal comes."""
    if context.invoked_subcommand is not None:
        return
    if not inventory:
        raise UsageError("switches: found no --inventory, expected at least one")
    fleet = Fleet.from_inventory(
        inventory,
        state=True,
        control=control,
        listen=listen,
        base_port=base_port,
        version=version,
        latency_s=latency_ms / 1000,
    )
    asyncio.run(_serve(fleet))


async def _serve(fleet: Fleet) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with fleet:
        for name, switch in fleet.switches.items():
            device = switch.device
            typer.echo(
                f"{name}: {device.platform.model} EOS {device.release.text} "
                f"on {switch.address}:{switch.port}"
            )
        await stopped.wait()


def _value(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set: found {text!r}, expected key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


@app.command()
def fault(
    switch: Annotated[str, typer.Argument(help="Switch, by inventory name.")],
    name: Annotated[str | None, typer.Argument(help="Fault; see `catalogue`.")] = None,
    *,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take it back; no name: all.")] = False,
    inventory: Inventory = None,
    control: Control = None,
) -> None:
    """Set or clear a fault on a running switch."""
    folder = _folder(inventory, control)
    if clear:
        clear_faults(folder, switch, name)
    elif name is None:
        raise UsageError("fault: found no name, expected one of `catalogue`, or --clear")
    else:
        set_fault(folder, switch, name, dict(map(_value, setting or ())))


@app.command()
def status(inventory: Inventory = None, control: Control = None) -> None:
    """Print every switch's state as JSON."""
    folder = _folder(inventory, control)
    states = {
        path.stem: json.loads(path.read_text())
        for path in sorted((folder / "state").glob("*.json"))
    }
    typer.echo(json.dumps(states, indent=1))


@app.command()
def catalogue() -> None:
    """List the faults."""
    for name, known in CATALOGUE.items():
        typer.echo(f"{name:20} {known.about}")


def main() -> int:
    """Run; errors are one line and an exit code."""
    try:
        app(standalone_mode=False)
    except RailweldError as error:
        typer.echo(str(error), err=True)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
