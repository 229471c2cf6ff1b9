"""A job that has to give way to one of a partition that goes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

#: Takes a while to end, so that whoever looks sees its pods live on.
LOW = """\
#!/bin/bash
#BRIDGE mode=spmd
echo run $SLURM_RESTART_COUNT of $SLURM_NODEID
[ "$SLURM_RESTART_COUNT" = 0 ] || exit 0
trap 'echo told $SLURM_NODEID; sleep 4; exit 0' TERM
sleep 600 & wait
"""


@pytest.fixture
def tiers(world: World) -> Iterator[None]:
    """Partition gpu2 goes before gpu, as `PriorityTier` says."""
    update = ("scontrol", "update", "partitionname=gpu2")
    world.slurm.run(*update, "prioritytier=10")
    yield
    world.slurm.run(*update, "prioritytier=1")


@pytest.mark.usefixtures("tiers")
def test_a_preempted_job_gives_its_nodes_away_without_pods_and_runs_again(world: World) -> None:
    slurm = world.slurm
    low = slurm.script(LOW, "-N16", "--requeue")
    for rank in range(16):
        world.has_said(low, f"run 0 of {rank}\n")
    high = slurm.script("#!/bin/sh\necho first\n", "-N16", "--partition=gpu2", user="bob")
    looks = 0
    while True:
        # In this order: pods that live after a look lived during it.
        state = slurm.state(high)
        if not world.live_pods(low):
            break
        assert state == "PENDING"
        looks += 1
    assert looks
    slurm.wait_state(high, "COMPLETED")
    assert world.output(high, "bob").endswith("first\n")
    assert slurm.state(low) == "PENDING"
    assert slurm.job(low)["Restarts"] == "1"
    # Slurm lets a job that was put back wait for two minutes.
    world.has_said(low, "run 1 of 15\n")
    slurm.wait_state(low, "COMPLETED")
    output = world.output(low)
    for rank in range(16):
        parts = (f"run 0 of {rank}\n", f"told {rank}\n", f"run 1 of {rank}\n")
        places = [output.index(each) for each in parts]
        assert places == sorted(places)
    assert slurm.job(low)["Restarts"] == "1"
