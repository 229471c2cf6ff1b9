"""Jobs that name several partitions: the hook sees the list, all others the one that they got."""

from __future__ import annotations

import subprocess

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SLEEP = "#!/bin/bash\necho in $SLURM_JOB_PARTITION\nsleep 300\n"
BOTH = "--partition=gpu,gpu2"
CLIENT = "/usr/libexec/railweld/exec .*slurm_script"
#: A pod that takes a while to end, once it is told to.
SLOW = """\
#!/bin/bash
#BRIDGE mode=spmd
trap 'sleep 4; exit 0' TERM
echo up $SLURM_NODEID
sleep 600 & wait
"""


def update(world: World, job: int, *changes: str) -> subprocess.CompletedProcess[str]:
    argv = ("scontrol", "update", f"jobid={job}", *changes)
    return world.slurm.run(*argv, user="alice", check=False)


@pytest.mark.parametrize("asked", ["gpu,gpu2", "gpu2,gpu", "gpu2"])
def test_a_job_runs_as_pods_in_whichever_bridge_partition_it_gets(world: World, asked: str) -> None:
    job = world.slurm.script("#!/bin/bash\necho in $SLURM_JOB_PARTITION\n", f"--partition={asked}")
    world.slurm.wait_state(job, "COMPLETED")
    (pod,) = world.pods(job)
    assert pod["status"]["phase"] == "Succeeded"
    (line,) = [line for line in world.output(job).splitlines() if line.startswith("in ")]
    # One of them, as on plain Slurm, where a list would be of no use.
    assert line.removeprefix("in ") in asked.split(",")


@pytest.mark.parametrize("asked", ["gpu,plain", "plain,gpu2", "gpu,gpu2,plain"])
def test_partitions_of_both_kinds_are_refused(world: World, asked: str) -> None:
    argv = ("sbatch", f"--partition={asked}")
    done = world.slurm.run(*argv, user="alice", check=False, stdin=SLEEP)
    assert done.returncode != 0
    assert f"partitions {asked}: some run on Kubernetes and some do not" in done.stderr


@pytest.mark.parametrize("target", ["plain", "gpu,plain", "gpu2,plain"])
def test_a_waiting_job_of_several_does_not_leave_the_bridge(world: World, target: str) -> None:
    job = world.slurm.script(SLEEP, "--hold", BOTH)
    assert update(world, job, f"partition={target}").returncode != 0
    assert world.slurm.job(job)["Partition"] == "gpu,gpu2"


@pytest.mark.parametrize("target", ["gpu", "gpu2", "gpu2,gpu"])
def test_a_waiting_job_of_several_moves_between_bridge_partitions(
    world: World, target: str
) -> None:
    job = world.slurm.script(SLEEP, "--hold", BOTH)
    done = update(world, job, f"partition={target}")
    assert done.returncode == 0, done.stderr
    assert world.slurm.job(job)["Partition"] == target
    world.slurm.run("scontrol", "release", str(job))
    world.has_said(job, "in gpu")
    assert len(world.live_pods(job)) == 1


@pytest.mark.parametrize("resize", ["numnodes=1", "nodelist=gpu1"])
def test_a_running_job_of_several_is_not_resized(world: World, resize: str) -> None:
    job = world.slurm.script(SLEEP, "-N2", BOTH)
    world.has_said(job, "in gpu")
    assert update(world, job, resize).returncode != 0
    assert world.slurm.job(job)["NumNodes"] == "2"
    assert len(world.live_pods(job)) == 2


@pytest.mark.parametrize("asked", ["gpu,gpu2", "gpu2"])
def test_nodes_of_a_job_of_several_are_held_until_its_pods_are_gone(
    world: World, asked: str
) -> None:
    """The epilog does it when the client is dead, and has to know whose job it was."""
    job = world.slurm.script(SLOW, "-N2", "-w", "gpu1,gpu2", f"--partition={asked}")
    for rank in (0, 1):
        world.has_said(job, f"up {rank}\n")
    world.slurm.signal("KILL", *world.slurm.pids(CLIENT))
    looks = 0
    while True:
        # In this order: pods that live after a look lived during it.
        states = world.slurm.sh("sinfo --noheader --Node --nodes=gpu1,gpu2 --format=%T").split()
        if not world.live_pods(job):
            break
        assert "idle" not in states
        looks += 1
    assert looks
    wait_for(world.slurm.idle)
