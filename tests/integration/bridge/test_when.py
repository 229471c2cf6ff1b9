"""When Slurm lets a job start: times, reservations and licences are its own."""

from __future__ import annotations

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SLEEP = "#!/bin/bash\necho here\nsleep 300\n"
DATE = "#!/bin/sh\ndate +%s\n"


def seconds(world: World, job: int, name: str) -> float:
    """A time of a job, as slurmctld has it, in the clock of the container."""
    return float(world.slurm.run("date", "--date", world.slurm.job(job)[name], "+%s").stdout)


def test_a_job_with_a_begin_time_has_no_pod_before_it(world: World) -> None:
    job = world.slurm.script(DATE, "--begin=now+8")
    begin = seconds(world, job, "StartTime")
    looks = 0
    while True:
        made = world.objects("jobs", job)
        # In this order: it may start between the two looks.
        if world.slurm.state(job) != "PENDING":
            break
        assert made == []
        looks += 1
    assert looks
    world.slurm.wait_state(job, "COMPLETED")
    assert int(world.output(job).splitlines()[-1]) >= begin


def test_jobs_of_a_reservation_run_on_its_nodes_and_others_do_not(world: World) -> None:
    slurm = world.slurm
    slurm.run(
        *("scontrol", "create", "reservation", "reservationname=course", "users=alice"),
        *("starttime=now", "duration=60", "nodes=gpu1,gpu2", "flags=ignore_jobs"),
    )
    try:
        inside = slurm.script(SLEEP, "--reservation=course", "-N2")
        other = slurm.script(SLEEP, "-w", "gpu1", user="bob")
        world.has_said(inside, "here\n")
        assert sorted(world.hosts(inside)) == ["gpu1", "gpu2"]
        slurm.run("scancel", str(inside))
        slurm.wait_state(inside, "CANCELLED")
        wait_for(lambda: "ReqNodeNotAvail" in slurm.job(other)["Reason"])
        assert world.objects("jobs", other) == []
        refused = slurm.run("sbatch", "--reservation=course", user="bob", check=False, stdin=DATE)
        assert refused.returncode != 0
    finally:
        slurm.sh("scancel --full --user=alice; scancel --full --user=bob", check=False)
        # A reservation goes only when no job is in it.
        wait_for(
            lambda: (
                slurm.run("scontrol", "delete", "reservationname=course", check=False).returncode
                == 0
            )
        )


def test_a_licence_is_one_jobs_at_a_time(world: World) -> None:
    slurm = world.slurm
    first = slurm.script(SLEEP, "--licenses=solver:1")
    second = slurm.script(SLEEP, "--licenses=solver:1")
    world.has_said(first, "here\n")
    wait_for(lambda: slurm.job(second)["Reason"] == "Licenses")
    assert world.objects("jobs", second) == []
    slurm.run("scancel", str(first))
    world.has_said(second, "here\n")
    assert len(world.live_pods(second)) == 1
