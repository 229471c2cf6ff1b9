"""The `railweld` command: one sub-command per stage, each in its own package's `cli` module."""

from __future__ import annotations

import importlib
import sys

import typer
from typer.exceptions import TyperException

from railweld.errors import ExitCode, RailweldError

app = typer.Typer(
    name="railweld",
    help="One description of a GPU site, from bare nodes to a running training job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Modules whose `register(app)` adds their commands. Order is the order of `--help`.
STAGES = (
    "railweld.up.cli",
    "railweld.site.cli",
    "railweld.fabric.cli",
    "railweld.stack.cli",
    "railweld.bench.cli",
    "railweld.report.cli",
    "railweld.doctor.cli",
    "railweld.verify.cli",
    "railweld.bridge.cli",
    "railweld.images.cli",
    "railweld.lab.cli",
)

for _module in STAGES:
    importlib.import_module(_module).register(app)


def main() -> None:
    """Run the command line and map every outcome to the documented exit codes."""
    try:
        code = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    except TyperException as error:
        # A wrong option or argument. Typer's own exit code for it, 2, means "changes" here.
        typer.echo(f"railweld: {error.format_message()} (see: railweld --help)", err=True)
        code = ExitCode.USAGE
    except RailweldError as error:
        typer.echo(f"railweld: {error}", err=True)
        code = error.exit_code
    sys.exit(int(code or 0))
