"""Which run of Ansible this is: facts of another run are never taken for an observation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Set by the stdout callback in the main process; every worker inherits it.
RUN_VARIABLE: Final = "RAILWELD_RUN"


def run_id() -> str:
    """Return a text that is the same in all workers of one `ansible-playbook` process.

    With another stdout callback than railweld's there is no name, and the process that started the
    worker stands for the run: its id together with its start time is unique on this machine.
    """
    named = os.environ.get(RUN_VARIABLE)
    if named:
        return named
    parent = os.getppid()
    try:
        # Field 22, counted behind the command's closing parenthesis.
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return f"{parent}-{started}"
