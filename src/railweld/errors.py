"""One family of errors and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `railweld` command (docs/reference/exit-codes.md)."""

    OK = 0
    FAILED = 1
    CHANGES = 2
    UNKNOWN = 3
    USAGE = 64
    INTERRUPTED = 130


class RailweldError(Exception):
    """An error that the operator can act on.

    The text names the object, what was found, what was expected and the fix.
    """

    exit_code: ExitCode = ExitCode.FAILED


class UsageError(RailweldError):
    """The command line or a path on it is wrong; nothing was looked at."""

    exit_code = ExitCode.USAGE


class CouldNotLookError(RailweldError):
    """The thing to be judged could not be observed: unknown, not bad."""

    exit_code = ExitCode.UNKNOWN
