"""`railweld bridge` away from the head: what is asked there, and what has to be asked there."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld import cli
from railweld.errors import RailweldError, UsageError

LAB = Path(__file__).parents[3] / "inventories/lab"


def run(*words: str) -> None:
    cli.app(["bridge", *words], standalone_mode=False)


def test_what_needs_a_terminal_is_said_where_to_run() -> None:
    with pytest.raises(UsageError, match=r"ssh -t 10\.213\.0\.10 railweld-bridge shell 12 gpu1"):
        run("shell", "12", "gpu1", "-i", str(LAB))
    with pytest.raises(UsageError, match="railweld-bridge logs 12 --follow"):
        run("logs", "12", "-f", "-i", str(LAB))


def test_a_head_that_is_away_is_no_answer(tmp_path: Path) -> None:
    text = (LAB / "hosts.yml").read_text().replace("10.213.0.10", "127.0.0.1")
    (tmp_path / "hosts.yml").write_text(text)
    (tmp_path / "group_vars").symlink_to(LAB / "group_vars")
    with pytest.raises(RailweldError, match="head1") as refused:
        run("explain", "12", "-i", str(tmp_path / "hosts.yml"), "-e", "ansible_port=9")
    assert refused.value.exit_code == 3
