"""Which variables of the submitter reach the pods: what Slurm sets, and what was asked for by name.

A login shell's PATH or library path means nothing in an image, and its credentials are not to be
spread over a cluster, so nothing is passed that is not on a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

#: Always, whatever `--export` says.
PASSED: Final = frozenset({"HOME", "USER", "LOGNAME", "LANG", "TERM", "TZ"})
#: Of the submitter's shell; over what the site's profile sets.
PATTERNS: Final = ("NCCL_*", "RAILWELD_BRIDGE_*")

#: Of Slurm, but about the machine that the batch step runs on, or a credential.
DROPPED: Final = frozenset(
    {
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_NODE_ALIASES",
        "SLURM_JOB_GPUS",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_SCRIPT_CONTEXT",
        "SLURM_WORKING_CLUSTER",
        "SLURM_PRIO_PROCESS",
        "SLURM_EXPORT_ENV",
        "SLURM_GET_USER_ENV",
    }
)
DROPPED_PREFIXES: Final = ("SLURMD_", "SLURM_TOPOLOGY_")

#: `--export=ALL,NAME=value,NAME`; sbatch hands the text on in SLURM_EXPORT_ENV.
EXPORT: Final = "SLURM_EXPORT_ENV"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: What a name may not be, whoever asks for it: the loader of the agent itself obeys these.
FORBIDDEN: Final = ("LD_PRELOAD", "LD_AUDIT", "KUBECONFIG", "SLURM_JWT", "SLURM_CONF")


def parse(block: bytes) -> dict[str, str]:
    """Read NAME=value pairs, NUL-separated, as a process has them; malformed ones are left out."""
    found = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        text = name.decode("utf-8", "replace")
        if equals and _NAME.match(text):
            # A Secret holds text; bytes that are none come back as they were in the agent.
            found[text] = value.decode("utf-8", "surrogateescape")
    return found


def exported(text: str) -> set[str]:
    """Names that the user listed in `--export`, without the words that are none."""
    names = {each.partition("=")[0].strip() for each in text.split(",")}
    return {name for name in names if _NAME.match(name)} - {"ALL", "NONE", "NIL"}


def select(variables: Mapping[str, str], patterns: Iterable[str] = ()) -> dict[str, str]:
    """The variables that are passed into pods."""
    asked = exported(variables.get(EXPORT, ""))
    wanted = (*PATTERNS, *patterns)
    return {
        name: value
        for name, value in variables.items()
        if name not in FORBIDDEN
        and (
            name in asked
            or name in PASSED
            or _of_slurm(name)
            or any(fnmatchcase(name, pattern) for pattern in wanted)
        )
    }


def _of_slurm(name: str) -> bool:
    return (
        name.startswith("SLURM_") and name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
    )
