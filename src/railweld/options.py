"""Options that every command of the command line spells alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
