"""Each run has a part of the node's scratch folder, which goes with it; the cache stays."""

from __future__ import annotations

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World
from tests.integration.stack.plane import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.deep]

#: The disk of gpu1, as kubelets.py keeps it.
DISK = "/var/lib/kubelets/disks/gpu1/local"
JOBS = f"{DISK}/scratch/.railweld/jobs"
AGENT = "python3 -IS /opt/railweld$"


def run_of(job: int) -> str:
    return f"{JOBS}/slurm-lab-{job}-r0"


def clean(world: World) -> tuple[int, str]:
    """One run of the node's program."""
    program = f"{ROOT}/roles/nvme_cache/files/railweld_scratch.py"
    done = world.slurm.run("python3", program, JOBS, check=False)
    return done.returncode, done.stdout + done.stderr


def listing(world: World, path: str) -> list[str]:
    return world.slurm.sh(f"ls -A {path}", check=False).split()


def removed(world: World, job: int) -> bool:
    clean(world)
    return run_of(job).rpartition("/")[2] not in listing(world, JOBS)


def test_scratch_is_the_runs_own_and_goes_with_it_and_the_cache_stays(world: World) -> None:
    slurm = world.slurm
    mark = "touch /local/scratch/$SLURM_JOB_ID /local/cache/$SLURM_JOB_ID; ls -A /local/scratch\n"
    first = slurm.script(f"#!/bin/bash\n{mark}", "-w", "gpu1")
    second = slurm.script(
        f"#!/bin/bash\n{mark}while [ ! -e /data/go ]; do sleep 0.2; done\necho then $(ls -A "
        "/local/scratch)\n",
        "-w",
        "gpu1",
    )
    slurm.sh("rm -f /data/go")
    slurm.wait_state(first, "COMPLETED")
    # Before Slurm gives the node away, the space is free.
    assert listing(world, run_of(first)) == []
    world.has_said(second, f"{second}\n")
    wait_for(lambda: removed(world, first))
    # However old the folder of a job that runs is, nothing is taken from it.
    wait_for(lambda: slurm.sh(f"find {run_of(second)} -maxdepth 0 -cmin +0.6").strip())
    assert clean(world) == (0, "")
    slurm.sh("touch /data/go")
    slurm.wait_state(second, "COMPLETED")
    assert f"{first}\n" in world.output(first)
    assert world.output(second).splitlines()[-2:] == [str(second), f"then {second}"]
    wait_for(lambda: removed(world, second))
    assert {str(first), str(second)} <= set(listing(world, f"{DISK}/cache"))


def test_what_a_killed_job_leaves_goes_and_links_lead_nowhere(world: World) -> None:
    slurm = world.slurm
    slurm.sh("mkdir -p /data/kept && touch /data/kept/file && chown -R alice /data/kept")
    script = (
        "#!/bin/bash\ncd /local/scratch\nln -s /data/kept link\nln -s / root\n"
        "mkdir -p closed/inner && chmod 0 closed\n"
        # Deeper than a path may be long, and than Python recurses.
        'python3 -c \'import os\nos.mkdir("deep")\nos.chdir("deep")\n'
        'for _ in range(2500):\n os.mkdir("dd")\n os.chdir("dd")\'\n'
        "echo made\nsleep 300\n"
    )
    job = slurm.script(script, "-w", "gpu1")
    world.has_said(job, "made\n")
    slurm.signal("KILL", *slurm.pids(AGENT))
    slurm.wait_state(job, "FAILED")
    assert {"link", "closed", "deep"} <= set(listing(world, run_of(job)))
    wait_for(lambda: removed(world, job))
    assert listing(world, "/data/kept") == ["file"]
    assert listing(world, "/data/kept/..")


def test_a_folder_that_another_user_made_first_is_not_used(world: World) -> None:
    """On a node only root reaches the folder; whoever comes there nevertheless gains nothing."""
    slurm = world.slurm
    job = slurm.script("#!/bin/bash\necho secret > /local/scratch/data\n", "-w", "gpu1", "--hold")
    slurm.sh(f"mkdir -p {JOBS} && chmod 1777 {JOBS} && mkdir -m 777 {run_of(job)}")
    slurm.run("chown", "bob", run_of(job))
    slurm.run("scontrol", "release", str(job))
    slurm.wait_state(job, "FAILED")
    assert "found a folder that somebody else has made" in world.output(job)
    status, said = clean(world)
    assert status == 1
    assert f"{run_of(job)}: no folder of a job's; left" in said
    slurm.run("rm", "-r", run_of(job))
