"""sbatch to pods and back, on simulated nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railweld import names
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

FIXTURE = Path(__file__).parents[2] / "fixtures/bridge/train.slurm"


def test_the_training_script_runs_unchanged_on_slurms_nodes_in_slurms_order(world: World) -> None:
    slurm = world.slurm
    job = slurm.script(FIXTURE.read_text(), "--chdir=/home/alice")
    slurm.wait_state(job, "COMPLETED", seconds=120)
    assert world.hosts(job) == [f"gpu{n}" for n in range(1, 17)]
    assert slurm.job(job)["ExitCode"] == "0:0"
    output = slurm.read(f"/home/alice/train-{job}.out")
    for rank in range(16):
        assert f"[gpu{rank + 1}] job {job} on gpu[1-16]\n" in output
    # A real rendezvous at MASTER_ADDR:MASTER_PORT, and a sum over all 128 ranks.
    assert output.count(f"of 128: sum {128 * 127 // 2}\n") == 16
    owner = slurm.run("stat", "-c", "%U", f"/home/alice/train-{job}.out").stdout.strip()
    assert owner == "alice"


BY_SCONTROL = """\
#!/bin/bash
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
MASTER_PORT=29511
export MASTER_ADDR MASTER_PORT
echo "list $(scontrol show hostlist $(scontrol show hostnames | paste -sd,))"
torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 --rdzv_backend=c10d \\
  --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py
"""


def test_a_script_that_finds_its_first_node_by_scontrol_meets_there(world: World) -> None:
    slurm, nodes = world.slurm, ("gpu3", "gpu5", "gpu12")
    # As a site's name server has them.
    names_of_nodes = "".join(f"127.0.1.{1 + int(node[3:])} {node}\\n" for node in nodes)
    slurm.sh(f"grep -q gpu12 /etc/hosts || printf '{names_of_nodes}' >> /etc/hosts")
    job = slurm.script(
        BY_SCONTROL,
        *(f"--nodelist={','.join(nodes)}", "--nodes=3", "--ntasks-per-node=1"),
    )
    slurm.wait_state(job, "COMPLETED")
    output = world.output(job)
    assert output.count("list gpu[3,5,12]\n") == 3
    assert output.count(f"of 24: sum {24 * 23 // 2}\n") == 3


@pytest.mark.parametrize("placement", ["patch", "affinity"])
def test_ranks_are_in_slurms_order_where_no_policy_pins_pods(world: World, placement: str) -> None:
    """Kubernetes 1.27 to 1.35, and before: the ways work on newer ones too."""
    slurm, nodes = world.slurm, ("gpu3", "gpu5", "gpu9", "gpu12")
    world.restart_daemon("TERM", placement=placement)
    try:
        job = slurm.script(
            FIXTURE.read_text(),
            *("--chdir=/home/alice", f"--nodelist={','.join(nodes)}", "--nodes=4", "--ntasks=32"),
            "--export=ALL,TORCHRUN_SECONDS=5",
        )
        path = f"/home/alice/train-{job}.out"
        wait_for(lambda: "job" in slurm.sh(f"cat {path}", check=False))
        # A daemon that starts in mid-job knows the ranks again.
        world.restart_daemon()
        slurm.wait_state(job, "COMPLETED")
    finally:
        world.restart_daemon("TERM", placement="auto")
    assert sorted(world.hosts(job)) == sorted(nodes)
    output = slurm.read(path)
    for node in nodes:
        assert f"[{node}] job {job} on gpu[3,5,9,12]\n" in output
    # The rendezvous is at the address of the first one, and its sum over all ranks.
    assert output.count(f"of 32: sum {32 * 31 // 2}\n") == 4


def test_pods_in_a_network_of_their_own_meet_by_address_and_have_names(world: World) -> None:
    def patch(operation: dict[str, object]) -> None:
        where = ("podtemplate", "gpu", "-n", names.NAMESPACE_JOBS, "--type=json")
        text = json.dumps([{"path": "/template/spec/hostNetwork", **operation}])
        world.plane.kubectl("patch", *where, "-p", text)

    patch({"op": "remove"})
    try:
        job = world.slurm.script(
            FIXTURE.read_text(),
            *("--chdir=/home/alice", "--nodes=4", "--ntasks=32"),
            "--export=ALL,TORCHRUN_SECONDS=3",
        )
        (service,) = wait_for(lambda: world.objects("services", job))
        world.slurm.wait_state(job, "COMPLETED")
    finally:
        patch({"op": "add", "value": True})
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for pod in world.pods(job):
        assert not pod["spec"].get("hostNetwork")
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    output = world.slurm.read(f"/home/alice/train-{job}.out")
    assert output.count(f"of 32: sum {32 * 31 // 2}\n") == 4


def test_scancel_ends_every_pod_before_slurm_frees_the_nodes(world: World) -> None:
    slurm = world.slurm
    job = slurm.script(
        FIXTURE.read_text(), "--export=ALL,TORCHRUN_SECONDS=300", "--chdir=/home/alice"
    )
    wait_for(lambda: "job" in slurm.sh(f"cat train-{job}.out", cwd="/home/alice", check=False))
    assert len(world.pods(job)) == 16
    slurm.run("scancel", str(job))
    slurm.wait_state(job, "CANCELLED")
    assert world.pods(job) == []
    assert slurm.job(job)["ExitCode"] == "0:15"
