"""`railweld bridge`: the commands for people, from wherever the site's inventory is.

On the Slurm head they ask the daemon themselves; elsewhere Ansible's connection carries the same
question to the head, where `railweld-bridge` asks it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from railweld.options import AsJson, ExtraVars, Inventory, Vault

Job = Annotated[str, typer.Argument(metavar="JOB", help="A number, or ARRAY_TASK.")]
Node = Annotated[str, typer.Argument(metavar="[NODE]", help="Default: the first of the job.")]

#: Seconds for one answer through Ansible.
_TIMEOUT_S = 120.0
_TASK = "Ask the bridge"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        name="bridge", help="Slurm jobs that run as pods: what they do, and why.",
        no_args_is_help=True,
    )  # fmt: skip
    for command in (status, explain, logs, shell):
        group.command()(command)
    app.add_typer(group)


def status(
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
    as_json: AsJson = False,
) -> int:
    """The daemon, the nodes that it took out, and your jobs."""
    words = ["status", *(["--json"] if as_json else [])]
    return _ask(words, inventory, extra_vars, vault_password_file)


def explain(
    job: Job,
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
    as_json: AsJson = False,
) -> int:
    """One page about one job: Slurm, Kubernetes, what it waits for, last events, what to do."""
    words = ["explain", job, *(["--json"] if as_json else [])]
    return _ask(words, inventory, extra_vars, vault_password_file)


def logs(
    job: Job,
    node: Node = "",
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=1, help="The last lines of each pod.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Until the pod has ended; on the head only.")
    ] = False,
) -> int:
    """What the pods of a job have printed, also what did not reach the output file."""
    words = ["logs", job, *([node] if node else [])]
    words += ["--tail", str(tail)] if tail else []
    words += ["--follow"] if follow else []
    return _ask(words, inventory, extra_vars, vault_password_file, on_head=follow)


def shell(
    job: Job,
    node: Node = "",
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
) -> int:
    """A shell in a pod of your job, with its environment; on the head only, Ctrl-] leaves it."""
    words = ["shell", job, *([node] if node else [])]
    return _ask(words, inventory, extra_vars, vault_password_file, on_head=True)


def _ask(
    words: Sequence[str],
    inventory: list[str] | None,
    extra_vars: list[str] | None,
    vault_password_file: Path | None,
    *,
    on_head: bool = False,
) -> int:
    from railweld import names
    from railweld.bridge import ask

    if Path(names.BRIDGE_SOCKET).exists():
        return ask.main(words)
    from railweld import nodes
    from railweld.errors import CouldNotLookError, UsageError
    from railweld.slurm.model import heads
    from railweld.verify.stages import request_for

    request = request_for(inventory, extra_vars, vault_password_file)
    head = next(iter(heads(request.site)), None)
    if head is None:
        raise UsageError(
            f"site {request.site.name}: found no host in group slurm_head, expected the one that "
            "the bridge's daemon runs on"
        )
    command = " ".join([ask.PROGRAM, *words])
    if on_head:
        raise UsageError(
            f"found no daemon on this machine, expected one for what needs a terminal or goes on. "
            f"Fix: ssh -t {request.site.hosts[head].address} {command}"
        )
    answers = nodes.ask(
        request.access.inventory,
        [head],
        [{"name": _TASK, "ansible.builtin.command": {"argv": [names.BRIDGE_COMMAND, *words]}}],
        timeout_s=_TIMEOUT_S,
        extra_vars=request.access.extra_vars,
        vault_password_file=request.access.vault_password_file,
    )
    answer = answers.get(head, {}).get(_TASK)
    if answer is None or answer.rc is None:
        reason = answer.reason if answer else "no answer"
        raise CouldNotLookError(
            f"{head}: found {reason}, expected {names.BRIDGE_COMMAND}. Fix: run "
            f"playbooks/deploy-slurm.yml; see: ssh {head} {command}"
        )
    sys.stdout.write(answer.stdout + "\n" if answer.stdout else "")
    sys.stderr.write(f"{answer.result.get('stderr')}\n" if answer.result.get("stderr") else "")
    return answer.rc
