"""What `railweld check` reports: one thing about the description that is wrong or doubtful."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from railweld.errors import RailweldError

Severity = Literal["error", "warning"]

#: How many host names an error text lists before it only counts the rest.
_HOSTS_SHOWN = 3
#: More findings of one kind about one line than this are only counted.
_ALIKE_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One finding of the check.

    Attributes:
        severity: `error` refuses the description, `warning` explains a doubt.
        id: stable and dotted, for scripts: `address.duplicate`.
        file: `path:line` of the value that decides, or what stands in for it (`-e`).
        key: variable, with the path inside it: `railweld_rails[1].port`.
        host: the first host it concerns; empty for the site as a whole.
        found: the value or fact found.
        expected: what would be right.
        fix: what to change.
        hosts: every host it concerns.
    """

    severity: Severity
    id: str
    file: str
    key: str
    host: str
    found: str
    expected: str
    fix: str
    hosts: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        """True if the description must not be used as it is."""
        return self.severity == "error"

    @property
    def where(self) -> str:
        """File, key and hosts in one phrase, without what is not known."""
        parts = [part for part in (self.file, self.key) if part]
        hosts = self.hosts or ((self.host,) if self.host else ())
        if hosts:
            named = ", ".join(hosts[:_HOSTS_SHOWN])
            more = len(hosts) - _HOSTS_SHOWN
            parts.append(f"({named} and {more} more)" if more > 0 else f"({named})")
        return " ".join(parts)

    def sentence(self) -> str:
        """One line for a terminal or an Ansible failure message."""
        text = f"{self.where}: found {self.found}, expected {self.expected}"
        return f"{text}. Fix: {self.fix}" if self.fix else text

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "severity": self.severity,
            "id": self.id,
            "file": self.file,
            "key": self.key,
            "host": self.host,
            "hosts": list(self.hosts),
            "found": self.found,
            "expected": self.expected,
            "fix": self.fix,
        }


def merge(problems: Iterable[Problem]) -> list[Problem]:
    """Join findings that differ only in the host, so that one wrong line is reported once.

    A value of group_vars reaches every host of the group; a thousand copies of one mistake would
    hide the second mistake. Errors come first, then file order, which is how people fix them.
    """
    joined: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        same = (problem.severity, problem.id, problem.file, problem.key, problem.found, problem.fix)
        joined.setdefault(same, []).append(problem)
    merged = []
    for group in joined.values():
        hosts: dict[str, None] = {}
        for problem in group:
            hosts.update(dict.fromkeys(problem.hosts or ((problem.host,) if problem.host else ())))
        names = tuple(hosts)
        merged.append(replace(group[0], host=names[0] if names else "", hosts=names))
    return sorted(merged, key=lambda problem: (not problem.is_error, _file_order(problem.file)))


def condense(problems: Iterable[Problem]) -> list[Problem]:
    """For people: findings of one kind about one line become one, which counts the others.

    A subnet that two groups share makes an address clash for each of their nodes; one clash and a
    number say as much as all of them. Machines get every finding.
    """
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        same = (problem.severity, problem.id, problem.file, problem.key)
        alike.setdefault(same, []).append(problem)
    condensed = []
    for group in alike.values():
        first = group[0]
        if len(group) <= _ALIKE_SHOWN:
            condensed += group
            continue
        hosts = dict.fromkeys(name for problem in group for name in problem.hosts)
        found = f"{first.found} (and {len(group) - 1} more like it)"
        condensed.append(replace(first, found=found, hosts=tuple(hosts)))
    return condensed


def _file_order(file: str) -> tuple[str, int]:
    path, _, line = file.rpartition(":")
    return (path, int(line)) if line.isdecimal() else (file, 0)


class SiteError(RailweldError):
    """The site description cannot be used; `problems` says why, all at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.is_error]
        count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
        lines = [f"the site description has {count}:"]
        lines += [f"  {problem.sentence()}" for problem in condense(errors)]
        super().__init__("\n".join(lines))
