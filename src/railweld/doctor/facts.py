"""What a log says beside its faults: NCCL's version, its settings, whether a job spans hosts."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from railweld.doctor.catalogue import Condition
from railweld.doctor.lines import Origin

#: Lines that a fact may stand in. They are searched for together with the catalogue's patterns.
_VERSION: Final = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_SETTING: Final = re.compile(r"\b(NCCL_[A-Z0-9_]+) set by environment to (\S*?)[.,]?(?:\s|$)")
_SPAN: Final = re.compile(r"\brank (\d+) nranks (\d+) nnodes (\d+)\b", re.IGNORECASE)
_START: Final = re.compile(r"\brank (\d+) nranks (\d+) cudaDev \d+", re.IGNORECASE)
_BOOTSTRAP: Final = re.compile(r"NCCL INFO Bootstrap ?: Using", re.IGNORECASE)
PATTERNS: Final = (
    r"NCCL version \d+\.\d+",
    r"NCCL_[A-Z0-9_]+ set by environment to",
    r"rank \d+ nranks \d+ nnodes \d+",
    r"rank \d+ nranks \d+ cudaDev \d+",
    r"NCCL INFO Bootstrap ?: Using",
)
#: Processes that are told apart; a job of more is judged as one.
_LIMIT: Final = 65_536
#: Settings, and values of each, that are told apart: memory must not grow with a log's length.
_SETTINGS: Final = 1024
_VALUES: Final = 64


class Facts:
    """Collects facts while logs stream by. Facts belong to a process where the line names one."""

    def __init__(self) -> None:
        self._versions: dict[str, tuple[int, ...]] = {}
        self._settings: dict[str, set[str]] = defaultdict(set)
        self._nodes: dict[str, int] = {}
        self._ranks: dict[str, set[int]] = defaultdict(set)
        self._hosts_of_file: dict[str, set[str]] = defaultdict(set)
        self._file_of: dict[str, str] = {}

    def learn(self, text: str, origin: Origin, file: str) -> None:
        """Take what a line says."""
        process = origin.process
        if len(self._file_of) >= _LIMIT and process not in self._file_of:
            return
        if process:
            self._file_of[process] = file
        if match := _VERSION.search(text):
            self._versions[process] = _numbers(match[1])
        elif match := _SETTING.search(text):
            self._set(match[1], match[2])
        elif match := _SPAN.search(text):
            self._nodes[process] = max(self._nodes.get(process, 0), int(match[3]))
            self._ranks[process].add(int(match[1]))
        elif match := _START.search(text):
            self._ranks[process].add(int(match[1]))
        if process and _BOOTSTRAP.search(text):
            self._hosts_of_file[file].add(origin.host)

    def _set(self, name: str, value: str) -> None:
        if name not in self._settings and len(self._settings) >= _SETTINGS:
            return
        if len(self._settings[name]) < _VALUES:
            self._settings[name].add(value)

    def rank(self, process: str) -> int | None:
        """The rank of a process that is only one rank."""
        ranks = self._ranks.get(process, set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def hold(self, condition: Condition, process: str) -> bool:
        """True if everything that a condition asks for was seen."""
        return (
            (condition.spans_hosts is None or self._spans_hosts(process))
            and (not condition.settings or any(map(self._is_set, condition.settings)))
            and (condition.nccl_below is None or self._is_older(condition.nccl_below, process))
        )

    def _spans_hosts(self, process: str) -> bool:
        if process in self._nodes:
            return self._nodes[process] > 1
        if any(self._nodes.values()):
            return False
        # NCCL before 2.20 prints no nNodes: several hosts in one log are one job over hosts.
        return len(self._hosts_of_file.get(self._file_of.get(process, ""), ())) > 1

    def _is_set(self, wanted: str) -> bool:
        name, given, value = wanted.partition("=")
        seen = self._settings.get(name, set())
        return value.lower() in {each.lower() for each in seen} if given else bool(seen)

    def _is_older(self, version: str, process: str) -> bool:
        seen = self._versions.get(process)
        if seen is None:
            # Rank 0 prints the version for all ranks.
            seen = max(self._versions.values(), default=None)
        return seen is not None and seen < _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
