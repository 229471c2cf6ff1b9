"""Observes nodes through Ansible's own connection, for commands that are not playbooks.

`playbooks/observe.yml` runs the same probe as the roles do, one round trip per node, and leaves
one file per node that answered.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweld.errors import CouldNotLookError

_PLAYBOOK = "playbooks/observe.yml"
_REPORT = re.compile(r"^report: (?P<path>\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """One node: what the probe read (`railweld_node`), or why there is nothing."""

    node: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Access:
    """What the operator gave on the command line to reach the nodes, handed on as it is."""

    inventory: tuple[str, ...]
    extra_vars: tuple[str, ...] = ()
    vault_password_file: str | None = None


def checkout() -> Path:
    """Folder with playbooks and plugins; they are part of a checkout, not of the wheel."""
    here = Path(__file__).resolve().parents[3]
    if not (here / _PLAYBOOK).is_file():
        raise CouldNotLookError(
            f"found no {_PLAYBOOK} beside the program in {here}, expected a checkout of railweld: "
            "nodes are observed by its playbook. Run the command from a checkout"
        )
    return here


def observe(access: Access, names: Iterable[str]) -> dict[str, Seen]:
    """Observe these nodes at the same time; each has an entry, also when it did not answer."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory(prefix="railweld-observe-") as name:
        folder = Path(name)
        limit = folder / "limit"
        limit.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        done = subprocess.run(
            _command(access, limit, folder), cwd=checkout(), env=_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        reasons = _reasons(done.stdout)
        return {host: _seen(folder / f"{host}.json", reasons.get(host)) for host in wanted}


def _command(access: Access, limit: Path, folder: Path) -> Sequence[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    return [
        str(program) if program.exists() else "ansible-playbook",
        _PLAYBOOK,
        *(part for source in access.inventory for part in ("-i", _absolute(source))),
        *(part for text in access.extra_vars for part in ("-e", _absolute_file(text))),
        *(["--vault-password-file", str(Path(access.vault_password_file).resolve())]
          if access.vault_password_file else []),
        "--limit", f"@{limit}",
        "-e", json.dumps({"observe_folder": str(folder)}),
    ]  # fmt: skip


def _environment() -> dict[str, str]:
    values = dict(os.environ)
    values.setdefault("ANSIBLE_CONFIG", str(checkout() / "ansible.cfg"))
    values["ANSIBLE_NOCOLOR"] = "1"
    return values


def _absolute(source: str) -> str:
    """An inventory path that holds from another folder too; a host list stays as it is."""
    return source if "," in source else str(Path(source).resolve())


def _absolute_file(text: str) -> str:
    return f"@{Path(text[1:]).resolve()}" if text.startswith("@") else text


def _seen(path: Path, reason: str | None) -> Seen:
    try:
        return Seen(node=json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Seen(reason=reason or "no observation")


def _reasons(output: str) -> dict[str, str]:
    """Why hosts failed, from the run's report; else the end of the output stands for all."""
    found = _REPORT.search(output)
    if found is None:
        last = "; ".join(line.strip() for line in output.splitlines()[-5:] if line.strip())
        raise CouldNotLookError(f"observing the nodes: ansible-playbook ended with: {last}")
    report = json.loads(Path(found["path"]).read_text(encoding="utf-8"))
    return {
        host: " ".join(str(entry["failure"]["reason"]).split())
        for host, entry in report["hosts"].items()
        if entry.get("failure")
    }
