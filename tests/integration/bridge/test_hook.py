"""What the submit hook takes and refuses, with real sbatch, salloc, srun and scontrol."""

from __future__ import annotations

import subprocess

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SLEEP = "#!/bin/bash\necho here\nsleep 300\n"
TRUE = "#!/bin/sh\ntrue\n"
HET = "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\ntrue\n"


def ask(world: World, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return world.slurm.run(*argv, user="alice", check=False, stdin=stdin)


@pytest.mark.parametrize(
    ("argv", "script", "said"),
    [
        pytest.param(("salloc", "-N1", "true"), "", "submit with sbatch", id="salloc"),
        pytest.param(("srun", "-N1", "true"), "", "submit with sbatch", id="srun"),
        pytest.param(("sbatch",), HET, "heterogeneous jobs", id="heterogeneous"),
        pytest.param(("sbatch", "--partition=gpu,plain"), TRUE, "name one kind", id="both-kinds"),
        pytest.param(
            ("sbatch",), f"{TRUE}{'# much' * 160_000}\n", "on shared storage", id="large-script"
        ),
        pytest.param(("sbatch", "--chdir=/opt"), TRUE, "submit from /data, /home", id="folder"),
        pytest.param(
            ("sbatch", "--chdir=/home/../opt"), TRUE, "not on storage", id="folder-by-dots"
        ),
        # sbatch's own.
        pytest.param(("sbatch",), "#!/bin/sh\r\ntrue\r\n", "DOS line breaks", id="crlf"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_submitted(
    world: World, argv: tuple[str, ...], script: str, said: str
) -> None:
    jobs = "squeue --noheader --states=all --format=%i"
    before = world.slurm.sh(jobs).split()
    done = ask(world, *argv, stdin=script)
    assert done.returncode != 0
    assert said in done.stderr
    assert set(world.slurm.sh(jobs).split()) <= set(before)


def test_tasks_whose_nodes_nobody_named_get_a_note_and_run(world: World) -> None:
    done = ask(world, "sbatch", "--parsable", "--ntasks=2", stdin=TRUE)
    assert "neither --nodes nor --ntasks-per-node is given" in done.stderr
    world.slurm.wait_state(int(done.stdout), "COMPLETED")


def test_a_script_that_begins_with_the_bridges_line_gets_no_second_one(world: World) -> None:
    """As a federation's siblings and other plugins submit it again."""
    job = world.slurm.script("#!/usr/libexec/railweld/exec\n#!/bin/sh\necho once $#\n")
    world.slurm.wait_state(job, "COMPLETED")
    assert "once 0\n" in world.output(job)


def test_a_running_job_is_not_resized(world: World) -> None:
    """Its pods are placed; Slurm would give a node away on which one of them runs."""
    job = world.slurm.script(SLEEP, "-N2")
    world.has_said(job, "here\n")
    assert ask(world, "scontrol", "update", f"jobid={job}", "numnodes=1").returncode != 0
    assert ask(world, "scontrol", "update", f"jobid={job}", "nodelist=gpu1").returncode != 0
    assert world.slurm.job(job)["NumNodes"] == "2"
    assert len(world.live_pods()) == 2


def test_a_job_does_not_change_between_pods_and_plain(world: World) -> None:
    held = world.slurm.script(SLEEP, "--hold")
    plain = world.slurm.script(SLEEP, "--hold", "--partition=plain")
    for job, target, own in ((held, "plain", "gpu"), (plain, "gpu", "plain")):
        done = ask(world, "scontrol", "update", f"jobid={job}", f"partition={target}")
        assert done.returncode != 0
        assert world.slurm.job(job)["Partition"] == own
    # What Slurm itself may change stays the user's.
    assert ask(world, "scontrol", "update", f"jobid={held}", "numnodes=2").returncode == 0
    wait_for(lambda: world.slurm.job(held)["NumNodes"].startswith("2"))
