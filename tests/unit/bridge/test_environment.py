"""Which variables reach the pods."""

from __future__ import annotations

import pytest

from railweld.bridge import environment


def select(**variables: str) -> dict[str, str]:
    return environment.select(variables)


def test_slurms_variables_and_the_users_identity_pass() -> None:
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "128",
        "HOME": "/home/alice",
        "USER": "alice",
        "LANG": "C.UTF-8",
        "NCCL_DEBUG": "INFO",
    }
    assert select(**variables) == variables


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "ENV",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "XDG_RUNTIME_DIR",
        "SSH_AUTH_SOCK",
        "KUBECONFIG",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURMD_NODENAME",
        "SLURM_TOPOLOGY_ADDR",
        "SLURM_JOB_GPUS",
        "SLURM_WORKING_CLUSTER",
        "RAILWELD_HUB",
        "RAILWELD_JOB",
    ],
)
def test_what_belongs_to_the_login_node_or_is_a_credential_stays(name: str) -> None:
    assert select(**{name: "x", "SLURM_EXPORT_ENV": "ALL"}) == {}


def test_names_in_export_pass() -> None:
    found = select(HF_TOKEN="t", FOO="1", BAR="2", SLURM_EXPORT_ENV="ALL,HF_TOKEN,FOO=1")
    assert found == {"HF_TOKEN": "t", "FOO": "1"}


def test_what_the_loader_obeys_does_not_pass_even_by_name() -> None:
    assert select(LD_PRELOAD="/tmp/x.so", SLURM_EXPORT_ENV="ALL,LD_PRELOAD=/tmp/x.so") == {}


def test_the_site_may_pass_more() -> None:
    variables = {"WANDB_PROJECT": "p", "WANDB_API_KEY": "k", "OTHER": "o"}
    assert environment.select(variables, ["WANDB_*"]).keys() == {"WANDB_PROJECT", "WANDB_API_KEY"}


def test_names_that_are_none_are_left_out() -> None:
    block = b"A=1\0B\0=x\0BASH_FUNC_f%%=() { :; }\0C D=2\0E=a=b\0"
    assert environment.parse(block) == {"A": "1", "E": "a=b"}


def test_values_that_are_no_text_survive() -> None:
    found = environment.parse(b"A=\xff\xfe\0")
    assert found["A"].encode("utf-8", "surrogateescape") == b"\xff\xfe"


#: What Open MPI 1.10 to 5 reads of a job; the old spellings are the only ones that some know.
OPEN_MPI = {
    "SLURM_JOBID": "7",
    "SLURM_NODELIST": "gpu[1-2]",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "128(x2)",
    "SLURM_CPUS_PER_TASK": "16",
    "SLURM_JOB_NUM_NODES": "2",
}


def test_mpirun_finds_its_nodes() -> None:
    assert select(**OPEN_MPI) == OPEN_MPI
