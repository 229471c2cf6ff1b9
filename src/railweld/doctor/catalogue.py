"""The catalogue of known faults: data files, read strictly, errors with file, line and key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import hyperscan
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from railweld.doctor.layers import Layer
from railweld.errors import UsageError

Text = Annotated[str, Field(min_length=3)]
#: Values that a fact may have to have: `NAME=VALUE`, or `NAME` for "set to anything".
Setting = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]+(=\S+)?$")]


class CatalogueError(UsageError):
    """A catalogue file is wrong; nothing was looked at."""


class Role(StrEnum):
    """What a message is: a cause, or an effect that other ranks print after somebody failed."""

    CAUSE = "cause"
    EFFECT = "effect"


class Severity(StrEnum):
    """What it does to a job; unknown for checks that no entry knows."""

    STOPS = "stops"
    SLOWS = "slows"
    UNKNOWN = "unknown"


class Condition(BaseModel):
    """What the rest of the log must show. All that are given must hold.

    Attributes:
        spans_hosts: the NCCL process that printed the line is part of a communicator over more
            than one host.
        settings: environment variables that NCCL reported, any one of them.
        nccl_below: the NCCL that printed the line is older than this, e.g. `2.26.2`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    spans_hosts: Literal[True] | None = None
    settings: tuple[Setting, ...] = ()
    nccl_below: Annotated[str, Field(pattern=r"^\d+(\.\d+){1,2}$")] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self == Condition.model_construct():
            raise ValueError("found no condition, expected spans_hosts, settings or nccl_below")
        return self


class Entry(BaseModel):
    """One known fault.

    Attributes:
        id: stable name, used in reports.
        title: what is wrong, in a few words.
        layer: where it has to be repaired.
        role: an effect is never named as the cause.
        severity: whether the job stops or only gets slow.
        patterns: regular expressions (Python's, case ignored), matched within one line; one is
            enough; a character outside ASCII is several `.`. The group `subject` names the object
            that is meant: port, GPU, pod.
        unless: a line that one of these matches does not count.
        checks: ids of railweld's own checks that show the same fault; `*` stands for anything.
        warnings: such ids that show it as a warning already: a counter that is not zero.
        only_if: conditions that must be seen to hold.
        not_if: conditions that, seen to hold, take the blame away.
        armed_by: the lines count only after one of these (same host and subject).
        cleared_by: patterns of later lines that say it has passed (same host and subject).
        at_least: so many lines about one subject are needed.
        within_s: within so many seconds, where the lines have a time.
        proof: what else must be true where the line alone proves nothing.
        cause: what is wrong and why.
        explains: ids of causes that follow from this one. Effects follow from any cause.
        confirm: commands or observations that prove or refute it. `{host}` and `{subject}` are
            filled in where they are known.
        fix: what to do, in order.
        sources: where the facts come from.
        basis: how sure that is.
        samples: logs in which it must be found.
        near_misses: logs in which it must not be found.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]
    title: Annotated[str, Field(min_length=5, max_length=80)]
    layer: Layer
    role: Role = Role.CAUSE
    severity: Severity = Severity.STOPS
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    only_if: Condition | None = None
    not_if: Condition | None = None
    armed_by: tuple[str, ...] = ()
    cleared_by: tuple[str, ...] = ()
    at_least: Annotated[int, Field(ge=1)] = 1
    within_s: Annotated[int, Field(ge=1)] | None = None
    proof: str = ""
    cause: Annotated[str, Field(min_length=20)]
    explains: tuple[str, ...] = ()
    confirm: Annotated[tuple[Text, ...], Field(min_length=1)]
    fix: Annotated[tuple[Text, ...], Field(min_length=1)]
    sources: Annotated[tuple[Text, ...], Field(min_length=1)]
    basis: Literal["source", "reproduced", "thread", "inferred"]
    samples: tuple[Text, ...] = ()
    near_misses: tuple[Text, ...] = ()

    @field_validator("patterns", "unless", "armed_by", "cleared_by")
    @classmethod
    def _usable(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            _check_pattern(pattern)
        return patterns

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.patterns and not self.checks and not self.warnings:
            raise ValueError("found neither patterns nor checks, expected at least one")
        if self.patterns and not (self.samples and self.near_misses):
            raise ValueError("found patterns without samples or near_misses, expected one of each")
        if self.role is Role.EFFECT and self.explains:
            raise ValueError("found explains on an effect, expected it on causes only")
        return self


def _check_pattern(pattern: str) -> None:
    """Refuse what cannot be searched for: not an expression, matches anything, spans lines."""
    try:
        compiled = compile_one(pattern)
    except re.error as error:
        raise ValueError(f"found {pattern!r}, expected a regular expression: {error}") from error
    if compiled.search(b""):
        raise ValueError(f"found {pattern!r}, expected a pattern that does not match nothing")
    if r"\n" in pattern:
        raise ValueError(f"found {pattern!r}, expected a pattern within one line")
    try:
        compile_patterns((pattern,))
    except hyperscan.error as error:
        raise ValueError(
            f"found {pattern!r}, expected a pattern with fixed text to look for: {error}"
        ) from error


@cache
def compile_one(pattern: str) -> re.Pattern[bytes]:
    """The expression that decides about a line. It sees bytes, as the search does."""
    return re.compile(pattern.encode(), re.IGNORECASE)


@cache
def compile_patterns(patterns: tuple[str, ...]) -> hyperscan.Database:
    """Compile patterns into one search that finds every line at which one may match.

    The search knows no look-around and works on bytes, so it may find too much, never too little:
    Python's own expression decides about the line.

    Raises:
        hyperscan.error: a pattern cannot be searched for.
    """
    flags = hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_PREFILTER
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[pattern.encode() for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[flags] * len(patterns),
    )
    return database


@cache
def built_in() -> tuple[Entry, ...]:
    """The project's own catalogue, from the cable upward."""
    folder = resources.files("railweld.doctor") / "known"
    found: list[Entry] = []
    for layer in Layer:
        file = folder / f"{layer.value}.yml"
        found += read(file.read_text(), str(file))
    return tuple(found)


def load(files: Iterable[Path] = ()) -> tuple[Entry, ...]:
    """The project's catalogue and the user's own files.

    Raises:
        CatalogueError: a file cannot be read or is wrong, with file, line and key.
    """
    entries = list(built_in())
    where = {entry.id: "railweld's own catalogue" for entry in entries}
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{file}: cannot be read: {error}") from error
        added = read(text, str(file))
        for entry in added:
            if entry.id in where:
                raise CatalogueError(
                    f"{file}: entry {entry.id}: found in {where[entry.id]} too, expected an id of "
                    "its own. Fix: choose another id"
                )
            where[entry.id] = str(file)
        entries += added
    known = {entry.id for entry in entries}
    for entry in entries:
        unknown = sorted(set(entry.explains) - known)
        if unknown:
            raise CatalogueError(
                f"{where[entry.id]}: entry {entry.id}: explains: found {', '.join(unknown)}, "
                "expected ids of entries"
            )
    return tuple(entries)


def read(text: str, name: str) -> list[Entry]:
    """Read one catalogue file.

    Raises:
        CatalogueError: it is wrong; the text names file, line and key of each fault.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[tuple[str | int, ...], int] = {}
        duplicates = list(_walk(node, (), lines)) if node else []
        data = loader.construct_document(node) if node else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise CatalogueError(f"{name}{at}: found no YAML: {problem}") from error
    finally:
        loader.dispose()
    if duplicates:
        raise CatalogueError("\n".join(f"{name}:{line}: {text}" for line, text in duplicates))
    try:
        entries = _File.model_validate(data).entries
    except ValidationError as error:
        raise CatalogueError(
            "\n".join(
                _problem(name, lines, dict(each))
                for each in error.errors()
                # Said of a list whose items are all wrong, beside each of them.
                if each["type"] != "too_short" or not each["input"]
            )
        ) from error
    for id_, count in Counter(entry.id for entry in entries).items():
        if count > 1:
            raise CatalogueError(f"{name}: entry {id_}: found {count} times, expected once")
    return list(entries)


class _File(BaseModel):
    """A catalogue file as a whole."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Form of the file; a file of another form is refused.
    version: Literal[1]
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]


def _walk(
    node: yaml.Node, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]
) -> Iterable[tuple[int, str]]:
    """Note the line of every key and item; yield keys that stand twice, which YAML would drop."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*path, index), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            if here in lines:
                yield key.start_mark.line + 1, f"{_dotted(here)}: found twice, expected once"
            yield from _walk(value, here, lines)
            lines[here] = key.start_mark.line + 1


def _problem(name: str, lines: dict[tuple[str | int, ...], int], error: dict[str, Any]) -> str:
    path = tuple(error["loc"])
    known = path
    while known and known not in lines:
        known = known[:-1]
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        message = "found nothing, expected this key"
    elif error["type"] == "extra_forbidden":
        message = "found a key that no entry has"
    elif not message.startswith("found"):
        message = f"found {error['input']!r:.80}, expected: {message}"
    return f"{name}:{lines.get(known, 1)}: {_dotted(path) or 'file'}: {message}"


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
