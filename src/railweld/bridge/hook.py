"""Slurm's job_submit plugin for the bridge, with the site's settings in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from railweld import names

SOURCE: Final = Path(__file__).parent / "data" / "job_submit.lua"
_BLOCK: Final = re.compile(r"--\[\[SETTINGS\]\].*?--\[\[END\]\]", re.DOTALL)


def render(
    partitions: Sequence[str],
    paths: Iterable[str] = (),
    *,
    client: str = names.BRIDGE_CLIENT,
) -> str:
    """The plugin's text.

    Args:
        partitions: whose jobs run on Kubernetes.
        paths: folders that nodes share with the Slurm head; jobs start below one of them. Empty:
            not checked.
        client: program that takes the place of batch scripts.
    """
    body = "\n".join(
        [
            "{",
            f"  client = {quoted(client)},",
            f"  partitions = {_table(partitions)},",
            f"  paths = {_table(sorted(path.rstrip('/') for path in paths))},",
            "}",
        ]
    )
    text, count = _BLOCK.subn(lambda _: body, SOURCE.read_text(encoding="utf-8"))
    assert count == 1, SOURCE  # noqa: S101 - a broken file is a broken package
    return text


def partitions(text: str) -> frozenset[str]:
    """Whose jobs a plugin that `render` made sends to Kubernetes; nobody's for another text."""
    match = re.search(r"^  partitions = \{(.*)\},$", text, re.MULTILINE)
    return frozenset(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])) if match else frozenset()


def epilog(partitions: Sequence[str], *, client: str = names.BRIDGE_CLIENT) -> str:
    """Slurm's Epilog and EpilogSlurmctld: holds a node until no pod of the job is left on it.

    Jobs of other partitions do not wait for a daemon that has nothing to do with them. A Slurm that
    does not say which partition it was is asked about nothing: the daemon knows its jobs.
    """
    patterns = "|".join(shlex.quote(each) for each in ("", *partitions))
    return (
        "#!/bin/sh\n"
        "# Managed by railweld, role bridge. Change the site description, not this file.\n"
        'case "${SLURM_JOB_PARTITION-}" in\n'
        f"{patterns}) exec {shlex.quote(client)} --epilog ;;\n"
        "esac\n"
    )


def quoted(text: str) -> str:
    """A Lua string."""
    plain = (c if c.isprintable() and c not in '"\\' else f"\\{ord(c):03d}" for c in text)
    return f'"{"".join(plain)}"'


def _table(values: Iterable[str]) -> str:
    return "{ " + ", ".join(map(quoted, values)) + " }" if values else "{}"
