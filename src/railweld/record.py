"""The check record: what every stage's verification emits and `railweld verify` collects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What a check concluded. `unknown` means that it could not look."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One observation judged against the site description.

    Attributes:
        id: stable, dotted: `<role or area>.<what>`, e.g. `nvidia_driver.loaded_version`.
        layer: `description`, `host`, `link`, `fabric`, `cluster`, `slurm` or `job`.
        target: the host, port or object that was looked at.
        status: see `Status`.
        ran: the command or file that an operator can read to see the same thing.
        found: what was there, in the operator's words.
        expected: what the description asks for.
        fix: what to do; empty for `pass`.
        ref: requirement, document or vendor page behind the expectation.
    """

    id: str
    layer: str
    target: str
    status: Status
    ran: str
    found: str
    expected: str
    fix: str = ""
    ref: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The machine that it is about and the port or other part of it, "" for the whole.

        Hosts are written `gpu1/rail1`, switches as their own screens do, `leaf1 Ethernet1/1`.
        """
        machine, _, part = re.sub(r"[ /]", "\0", self.target, count=1).partition("\0")
        return machine, part

    @property
    def is_bad(self) -> bool:
        """True for `fail` and `unknown`: the state cannot be counted as reached."""
        return self.status in (Status.FAIL, Status.UNKNOWN)

    @property
    def reason(self) -> str:
        """Why a skipped check did not look."""
        return f"{self.found}: {self.ref}" if self.ref else self.found

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form, keys in the order of the class."""
        return {key: str(value) for key, value in asdict(self).items()}

    def sentence(self) -> str:
        """One line for a terminal or an Ansible failure message."""
        text = f"{self.target}: {self.id}: found {self.found}, expected {self.expected}"
        if self.ran:
            text += f" (see: {self.ran})"
        if self.fix:
            text += f". Fix: {self.fix}"
        return text


def judge(
    *,
    id: str,  # noqa: A002 - the field's own name
    target: str,
    ok: bool,
    ran: str,
    found: object,
    expected: object,
    fix: str,
    layer: str = "host",
    ref: str = "",
) -> Check:
    """Build a pass or fail record from one comparison."""
    return Check(
        id=id,
        layer=layer,
        target=target,
        status=Status.PASS if ok else Status.FAIL,
        ran=ran,
        found=str(found),
        expected=str(expected),
        fix="" if ok else fix,
        ref=ref,
    )


def worst(checks: Iterable[Check]) -> Status:
    """The status that decides: fail, then unknown, warn, pass; skipped when there is nothing."""
    seen = {check.status for check in checks}
    for status in (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS):
        if status in seen:
            return status
    return Status.SKIPPED
