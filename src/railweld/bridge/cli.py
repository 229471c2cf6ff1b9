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

from railweld.access import Access, given
from railweld.options import AsJson, grouped

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


@grouped(access=given)
def status(
    *,
    access: Access,
    as_json: AsJson = False,
) -> int:
    """The daemon, the nodes that it took out, and your jobs."""
    words = ["status", *(["--json"] if as_json else [])]
    return _ask(access, words)


@grouped(access=given)
def explain(
    *,
    access: Access,
    job: Job,
    as_json: AsJson = False,
) -> int:
    """One page about one job: Slurm, Kubernetes, what it waits for, last events, what to do."""
    words = ["explain", job, *(["--json"] if as_json else [])]
    return _ask(access, words)


@grouped(access=given)
def logs(
    *,
    access: Access,
    job: Job,
    node: Node = "",
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
    return _ask(access, words, on_head=follow)


@grouped(access=given)
def shell(
    *,
    access: Access,
    job: Job,
    node: Node = "",
) -> int:
    """A shell in a pod of your job, with its environment; on the head only, Ctrl-] leaves it."""
    words = ["shell", job, *([node] if node else [])]
    return _ask(access, words, on_head=True)


def _ask(access: Access, words: Sequence[str], *, on_head: bool = False) -> int:
    from railweld import names
    from railweld.bridge import ask

    if Path(names.BRIDGE_SOCKET).exists():
        return ask.main(words)
    from railweld import nodes
    from railweld.errors import CouldNotLookError, UsageError
    from railweld.slurm.model import heads
    from railweld.verify.stages import request_for

    request = request_for(access)
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
        request.access,
        [head],
        [{"name": _TASK, "ansible.builtin.command": {"argv": [names.BRIDGE_COMMAND, *words]}}],
        timeout_s=_TIMEOUT_S,
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
