"""The exit codes that every command shares, seen from outside the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from railweld import cli
from railweld.errors import CouldNotLookError, ExitCode, RailweldError, UsageError

RAILWELD = Path(sys.executable).parent / "railweld"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RAILWELD, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments", [("check", "--bogus"), ("nothing-of-that-name",), ("check", "-e")]
)
def test_wrong_usage_is_64_and_one_line(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == ExitCode.USAGE
    assert result.stderr.startswith("railweld: ")
    assert "Traceback" not in result.stderr


def test_inventory_that_does_not_exist_is_wrong_usage_or_a_problem_but_no_traceback() -> None:
    result = run("check", "-i", "/nonexistent/inventory")
    assert result.returncode in (ExitCode.FAILED, ExitCode.USAGE)
    assert "/nonexistent/inventory" in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RailweldError("x"), ExitCode.FAILED),
        (UsageError("x"), ExitCode.USAGE),
        (CouldNotLookError("x"), ExitCode.UNKNOWN),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_every_outcome_has_its_exit_code(
    error: BaseException, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == code
