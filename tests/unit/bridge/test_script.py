"""What a batch script asks for, and in which pods it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld.bridge import script

FIXTURE = Path(__file__).parents[2] / "fixtures/bridge/train.slurm"

SPMD = {
    "the training script": FIXTURE.read_text(),
    "module": "python -m torch.distributed.run --nnodes 2 --rdzv_endpoint $A:$P train.py",
    "python3.11": "python3.11 -u -m torch.distributed.launch --nnodes=$SLURM_NNODES x.py",
    "after assignments": "OMP_NUM_THREADS=4 torchrun --nnodes $SLURM_NNODES x.py",
    "wrapped": "exec numactl -N 0 torchrun --node_rank=$SLURM_NODEID --nnodes=4 x.py",
    "timeout": "timeout 3h torchrun --nnodes=4 --rdzv-endpoint=a:1 x.py",
    "accelerate": "accelerate launch --num_machines 4 --machine_rank $SLURM_NODEID x.py",
    "path": "/opt/conda/bin/torchrun --nnodes=2 x.py",
    "after &&": "cd /data && torchrun --nnodes=2 --rdzv_endpoint=a:1 x.py",
    "hostnames": 'A=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\n'
    "torchrun --nnodes=2 --rdzv_endpoint=$A:29500 x.py",
    "srun in a comment": "# srun torchrun\ntorchrun --nnodes=2 x.py  # not srun",
    "srun in a string": "echo 'use srun torchrun'\ntorchrun --nnodes=2 x.py",
    "srun in a here-document": "cat > x.sh <<EOF\nsrun hostname\nEOF\ntorchrun --nnodes=2 x.py",
    "elastic": "torchrun --nnodes=1:4 --rdzv_endpoint=a:1 x.py",
}
LEADER = {
    "nothing": "echo hello",
    "srun": "srun torchrun --nnodes=2 --rdzv_endpoint=a:1 x.py",
    "mpirun": "mpirun -np 16 ./all_reduce_perf",
    "deepspeed": "deepspeed --hostfile h train.py",
    "one node": "torchrun --nnodes=1 --nproc_per_node=8 x.py",
    "standalone": "torchrun --standalone --nproc_per_node=8 x.py",
    "variable": 'LAUNCHER="torchrun --nnodes=2"\n$LAUNCHER x.py',
    "variable after": "torchrun --nnodes=2 x.py\n$RUN x.py",
    "srun in a substitution": "A=$(srun -N1 hostname)\ntorchrun --nnodes=2 x.py $A",
    "srun in quotes": 'A="$(srun -N1 hostname)"\ntorchrun --nnodes=2 --rdzv_endpoint=$A:1 x.py',
    "srun in backquotes": "A=`srun -N1 hostname`\ntorchrun --nnodes=2 x.py",
    "ssh loop": "for h in $HOSTS; do ssh $h torchrun --nnodes=2 x.py & done; wait",
    "function": "run() { srun hostname; }\ntorchrun --nnodes=2 x.py\nrun",
    "continued": "srun \\\n  --ntasks-per-node=1 \\\n  torchrun --nnodes=2 x.py",
    "ray": "ray start --head\ntorchrun --nnodes=2 x.py",
    "python": "python train.py --nnodes 4",
}


@pytest.mark.parametrize("name", SPMD)
def test_a_launcher_of_several_nodes_runs_on_every_node(name: str) -> None:
    assert script.detect(SPMD[name])[0] == "spmd"


@pytest.mark.parametrize("name", LEADER)
def test_everything_else_means_what_it_means_in_slurm(name: str) -> None:
    assert script.detect(LEADER[name])[0] == "leader"


def wishes(text: str, nodes: int = 2, **environment: str) -> script.Wishes:
    return script.wishes(text.encode(), environment, nodes)


def test_a_directive_overrides() -> None:
    assert wishes("#!/bin/bash\n#BRIDGE mode=spmd\nhostname").mode == "spmd"
    assert wishes("#!/bin/bash\n#BRIDGE mode=leader\n" + SPMD["path"]).mode == "leader"


def test_a_variable_of_the_submission_overrides_the_directive() -> None:
    found = wishes("#BRIDGE mode=spmd image=r/a:1", RAILWELD_BRIDGE_MODE="leader",
                   RAILWELD_BRIDGE_IMAGE="r/b:2")  # fmt: skip
    assert (found.mode, found.image) == ("leader", "r/b:2")


def test_one_node_needs_no_mode() -> None:
    assert wishes(SPMD["path"], nodes=1).mode == "leader"


def test_directives_end_with_the_first_command() -> None:
    assert wishes("#!/bin/sh\n\n#SBATCH -N2\nhostname\n#BRIDGE image=x/y:1").image is None


@pytest.mark.parametrize(
    "line", ["#BRIDGE mode", "#BRIDGE privileged=true", "#BRIDGE hostPath=/etc", "#BRIDGE image="]
)
def test_an_unknown_directive_is_refused(line: str) -> None:
    with pytest.raises(script.ScriptError, match="line 2"):
        wishes(f"#!/bin/sh\n{line}\n")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(script.ScriptError, match="expected one of auto, spmd, leader"):
        wishes("#BRIDGE mode=every")


REGISTRIES = ("registry.example.com/team",)


@pytest.mark.parametrize(
    "image",
    [
        "registry.example.com/team/job:1",
        "registry.example.com/team/a/b@sha256:" + "0" * 64,
        "registry.example.com/team/job:1.2@sha256:" + "a" * 64,
    ],
)
def test_an_allowed_image_is_taken(image: str) -> None:
    script.check_image(image, REGISTRIES)


@pytest.mark.parametrize(
    "image",
    [
        "registry.example.com/team/job",
        "registry.example.com/team/job:latest",
        "registry.example.com/teamwork/job:1",
        "registry.example.com/team/../other/job:1",
        "registry.example.com/team//job:1",
        "docker.io/library/alpine:3",
        "alpine:3",
        "registry.example.com/team/job:1 --privileged",
        "registry.example.com/team/job:1\nx",
        "/etc/passwd",
        "registry.example.com.evil.org/team/job:1",
        "registry.example.com/team@evil.org/job:1",
    ],
)
def test_any_other_image_is_refused(image: str) -> None:
    with pytest.raises(script.ScriptError, match="expected"):
        script.check_image(image, REGISTRIES)
