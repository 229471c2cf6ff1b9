"""Options that every command of the command line spells alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Inventory = Annotated[
    list[str] | None,
    typer.Option("-i", "--inventory", help="Inventory; default: ansible.cfg's. Repeatable."),
]
ExtraVars = Annotated[
    list[str] | None,
    typer.Option("-e", "--extra-vars", help="key=value, YAML or @file, as in Ansible."),
]
Vault = Annotated[Path | None, typer.Option("--vault-password-file", help="As in Ansible.")]
JUnit = Annotated[
    Path | None, typer.Option("--junit", help="Also write the records as JUnit XML, for CI.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


Result = TypeVar("Result")


def grouped(
    **groups: Callable[..., Any],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command, or what makes a value for several, the options that they share.

    Each keyword is a parameter of the command; its function makes the value, and the function's
    own (keyword-only) parameters become options of the command, before the command's own.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        shared = {
            name: inspect.signature(make, eval_str=True).parameters for name, make in groups.items()
        }
        own = inspect.signature(command, eval_str=True).parameters
        options = [option for several in shared.values() for option in several.values()]
        options += [option for name, option in own.items() if name not in groups]

        def run(**given: Any) -> Result:
            made = {
                name: make(**{option: given.pop(option) for option in shared[name]})
                for name, make in groups.items()
            }
            return command(**made, **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # for Typer
        run.__annotations__ = {option.name: option.annotation for option in options}
        return run

    return decorate
