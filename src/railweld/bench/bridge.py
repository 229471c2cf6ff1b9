"""Runs between nodes as jobs of the bridge: what they measure is what a researcher's job gets.

The pods' devices, limits, image and NCCL profile are those of every job of the partition; so the
run brings none of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railweld.bridge.script import ScriptError, check_image
from railweld.errors import RailweldError, UsageError
from railweld.slurm.model import bridged, heads, placement

if TYPE_CHECKING:
    from railweld.bench.launch import Options
    from railweld.site.model import Site
    from railweld.site.variables import Partition

#: Submits, waits, prints and cleans up; read by bash on the head.
SCRIPT: Final = Path(__file__).parent / "data" / "bridge_job.sh"
JOB: Final = "railweld-bench"
#: Nothing else of whoever calls is in the environment that sbatch stores with the job.
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: As useradd(8) takes them: nothing in them means anything to a shell or to runuser.
_USER: Final = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\Z")
#: A cancelled job has Slurm's KillWait and the kubelet's grace to end its pods in.
_KILL_AFTER_S: Final = 90


def check(site: Site, options: Options) -> None:
    """Refuse what cannot be submitted, before anything is started.

    Raises:
        UsageError: no user, no ordinary one, or an image that jobs may not name.
    """
    if options.user is None:
        raise UsageError(
            "--launcher bridge: found no --user, expected an ordinary user of the Slurm head: the "
            "bridge runs no job of root's. Fix: --user NAME"
        )
    if not _USER.match(options.user) or options.user == "root":
        raise UsageError(
            f"--user: found {options.user!r}, expected the name of an ordinary user of the Slurm "
            "head. Fix: --user NAME"
        )
    if options.image is not None:
        try:
            check_image(options.image, site.job_registries)
        except ScriptError as error:
            raise UsageError(f"--image: {error}. Fix: --image REGISTRY/PATH:TAG") from error


def job(
    site: Site, nodes: Sequence[str], options: Options, *, ranks: int, program: Sequence[str]
) -> tuple[str, tuple[str, ...], str]:
    """Host, command, and how an operator repeats it, of a run as a job.

    Args:
        site: the site.
        nodes: of the run.
        options: checked ones.
        ranks: processes on each node, one per GPU.
        program: the MPI program in the image, with its arguments.

    Raises:
        RailweldError: no Slurm head, or no bridge partition has all the nodes.
    """
    head = heads(site)
    if not head:
        raise RailweldError(
            f"site {site.name}: found no host in group slurm_head, expected one to submit jobs "
            "on. Fix: --launcher mpirun"
        )
    check(site, options)
    # The pods' folders are the head's too: see railweld_job_volumes.
    folders = sorted(volume.mount for volume in site.job_volumes)
    submit = [
        f"--job-name={JOB}",
        f"--partition={_partition(site, nodes).name}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks-per-node={ranks}",
        f"--gres={site.gres(nodes[0])}",
        # Slurm's own limit, in minutes, so that a lost head leaves no job behind.
        f"--time={options.timeout_s // 60 + 1}",
        # A second run of it would be another measurement.
        "--no-requeue",
    ]
    body = _body(len(nodes), ranks, program, options.image)
    user = str(options.user)
    argv = (
        *("runuser", "-u", user, "--"),
        # Only the shell is told; it ends the job, and waits for sbatch.
        *("timeout", "--foreground", f"--kill-after={_KILL_AFTER_S}", str(options.timeout_s)),
        *("env", "-i", f"PATH={PATH}", "LANG=C.UTF-8"),
        *("bash", "-c", SCRIPT.read_text(encoding="utf-8"), JOB, ":".join(folders), body),
        *submit,
    )
    shown = shlex.join(["sbatch", *submit, f"--wrap={body.splitlines()[-1]}"])
    return head[0], argv, f"{shown}  # as {user}, on {head[0]}"


def _body(nodes: int, ranks: int, program: Sequence[str], image: str | None) -> str:
    """The job's script. mpirun has its nodes from Slurm's variables, and reaches them by srun."""
    bridge = "#BRIDGE mode=leader" + (f" image={image}" if image else "")
    start = [
        *("mpirun", "-np", str(ranks * nodes)),
        *("--map-by", f"ppr:{ranks}:node", "--bind-to", "numa"),
    ]
    return f"#!/bin/bash\n{bridge}\nexec {shlex.join([*start, *program])}\n"


def _partition(site: Site, nodes: Sequence[str]) -> Partition:
    """The bridge partition that has all these nodes; the default one if there are several."""
    found = [each for each in bridged(site) if set(nodes) <= set(each.hosts)]
    if found:
        return next((each for each in found if each.default), found[0])
    inside = {host for each in bridged(site) for host in each.hosts}
    outside = [node for node in nodes if node not in inside]
    if not outside:
        raise RailweldError(
            f"{_some(nodes)}: found in different bridge partitions, expected one that has them all "
            "(see: railweld_partitions). Fix: nodes of one partition with --nodes, or --launcher "
            "mpirun"
        )
    plain = {host for each in site.partitions for host in each.hosts}
    slurm = all(node in plain and placement(site, site.host(node)) == "real" for node in nodes)
    raise RailweldError(
        f"{_some(outside)}: found in no bridge partition, expected nodes whose jobs are pods "
        f"(see: docs/slurm.md). Fix: --launcher {'slurm' if slurm else 'mpirun'}"
    )


def _some(nodes: Sequence[str]) -> str:
    return f"{', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}"
