"""Asks nodes something over Ansible's own connection: same inventory, keys, become and forks.

The commands that look (`verify`, `bench`, `doctor`) use this, so that whatever lets the playbooks
reach a node lets them reach it too. One call is one play; a task is one round trip per node.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from railweld.access import Access, shown
from railweld.errors import CouldNotLookError, RailweldError

#: Names the file of the answers to the callback `railweld_answers`.
ANSWERS_FILE: Final = "RAILWELD_ANSWERS_FILE"
#: Seconds that an interrupted Ansible has to end its workers.
_STOP_S: Final = 10


@dataclass(frozen=True)
class Answer:
    """What one task gave on one host.

    Attributes:
        status: `ok`, `failed` (the module said so) or `unreachable`.
        result: the module's result; for `unreachable` its `msg` says why.
    """

    status: Literal["ok", "failed", "unreachable"]
    result: Mapping[str, Any]

    @property
    def rc(self) -> int | None:
        """Exit code of a command, None for other modules."""
        return self.result.get("rc")

    @property
    def stdout(self) -> str:
        """Standard output of a command."""
        return str(self.result.get("stdout") or "")

    @property
    def reason(self) -> str:
        """Why it did not answer ok, in one line."""
        text = self.result.get("msg") or self.result.get("stderr") or "no reason given"
        return " ".join(str(text).split())


def repository() -> Path:
    """Folder that holds ansible.cfg, roles and playbooks.

    Raises:
        RailweldError: railweld is not run from a checkout of its repository.
    """
    candidates = [Path.cwd(), *Path.cwd().parents, *Path(__file__).parents]
    if os.environ.get("ANSIBLE_CONFIG"):
        candidates.insert(0, Path(os.environ["ANSIBLE_CONFIG"]).parent)
    for folder in candidates:
        if (folder / "plugins" / "callback" / "railweld_answers.py").is_file():
            return folder
    raise RailweldError(
        f"{Path.cwd()}: found no railweld repository here or above, expected its folder with "
        "ansible.cfg, plugins and playbooks (see: ls ansible.cfg plugins). "
        "Fix: cd to the repository, or set ANSIBLE_CONFIG to its ansible.cfg"
    )


def ask(
    access: Access,
    hosts: Sequence[str],
    tasks: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
    forks: int | None = None,
) -> dict[str, dict[str, Answer]]:
    """Run tasks on hosts and return the answers: host → task name → answer.

    A host that is unreachable has the answer of the task that found out and none of later tasks.

    Args:
        access: inventories and variables of the site.
        hosts: inventory names.
        tasks: Ansible tasks; each needs a `name` of its own.
        timeout_s: seconds for the whole play; a host that has not answered by then is missing
            from the result. A program on the node may outlive it: give it a bound of its own.
        forks: hosts at a time; None for ansible.cfg's.

    Raises:
        CouldNotLookError: Ansible itself failed before any host answered.
    """
    if not hosts:
        return {}
    root = repository()
    with tempfile.TemporaryDirectory(prefix="railweld-ask-") as name:
        # Inventory and results hold connection secrets; the folder is the caller's alone (0700).
        folder = Path(name)
        answers = folder / "answers.jsonl"
        answers.touch(mode=0o600)
        playbook = folder / "ask.yml"
        # JSON is YAML; and it takes the tagged strings that names from an inventory are.
        play = {"hosts": list(hosts), "gather_facts": False, "tasks": [dict(t) for t in tasks]}
        playbook.write_text(json.dumps([play]))
        argv = [_ansible_playbook(), str(playbook), *access.options]
        if forks:
            argv += ["--forks", str(forks)]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": os.environ.get("ANSIBLE_CONFIG") or str(root / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "railweld_answers",
            "ANSIBLE_CALLBACK_PLUGINS": str(root / "plugins" / "callback"),
            ANSWERS_FILE: str(answers),
        }
        output = folder / "output.txt"
        with output.open("wb") as stream:
            if not _run(argv, environment, stream, timeout_s):
                stream.write(f"\nno end within {timeout_s:g} s\n".encode())
        found = read_answers(answers)
        if not found:
            last = output.read_text(errors="replace").strip().splitlines()[-3:]
            raise CouldNotLookError(
                f"{', '.join(hosts[:3])}{', …' if len(hosts) > 3 else ''}: found no answer, "
                f"expected one per node; Ansible said: {' / '.join(last) or 'nothing'} "
                f"(see: {shown(('ansible', *access.options, hosts[0], '-m', 'ping'))})"
            )
        return found


def _run(
    argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes], timeout_s: float
) -> bool:
    """Run a program and whatever it started; False if it had to be stopped."""
    # Standard input is closed: nothing may ask a question that nobody sees. A session of its own,
    # so that Ctrl-C reaches this program first and it stops Ansible in order.
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            _stop(process)
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt Ansible, which ends its workers; they have sessions of their own and would stay."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ansible_playbook() -> str:
    beside = Path(sys.executable).parent / "ansible-playbook"
    return str(beside) if beside.exists() else shutil.which("ansible-playbook") or str(beside)


def read_answers(path: Path) -> dict[str, dict[str, Answer]]:
    """Read what the callback wrote: host → task name → answer."""
    found: dict[str, dict[str, Answer]] = {}
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            # Ansible was stopped in the middle of it, as no time was left.
            break
        item = json.loads(line)
        found.setdefault(item["host"], {})[item["task"]] = Answer(item["status"], item["result"])
    return found
