"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.testing import CliRunner

from railweld.options import grouped

Size = Annotated[int, typer.Option("--size", min=1)]


def _box(*, size: Size = 3, name: Annotated[str, typer.Option("--name")] = "box") -> str:
    return f"{name} of {size}"


@grouped(box=_box)
def show(*, box: str, loud: Annotated[bool, typer.Option("--loud")] = False) -> int:
    """Say what the box is."""
    typer.echo(box.upper() if loud else box)
    return 0


def run(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(show)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_a_command_gets_what_its_groups_make_of_their_options() -> None:
    assert run() == (0, "box of 3\n")
    assert run("--size", "7", "--loud") == (0, "BOX OF 7\n")


def test_options_of_a_group_are_judged_and_documented_like_the_command_s_own() -> None:
    assert run("--size", "0")[0] != 0
    code, text = run("--help")
    assert code == 0
    assert "Say what the box is." in text
    assert [word for word in ("--size", "--name", "--loud") if word not in text] == []
    assert "--box" not in text
