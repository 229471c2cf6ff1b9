"""How `srun` in a pod lays out its tasks."""

from __future__ import annotations

import pytest

from railweld.bridge.pod import srun

HOSTS = ("gpu1", "gpu2", "gpu3", "gpu4")


def plan(line: str, **environment: str) -> srun.Step:
    return srun.plan(line.split(), environment, "/data", HOSTS)


@pytest.mark.parametrize(
    ("line", "environment", "tasks"),
    [
        ("a", {}, [[0], [1], [2], [3]]),
        ("a", {"SLURM_NTASKS": "8"}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("-n6 a", {}, [[0, 1], [2, 3], [4], [5]]),
        ("-n 2 a", {}, [[0], [1]]),
        ("-N2 --ntasks-per-node=2 a", {"SLURM_NTASKS": "32"}, [[0, 1], [2, 3]]),
        ("--ntasks-per-node=1 a", {"SLURM_NTASKS": "32"}, [[0], [1], [2], [3]]),
        ("-n4 -N2 -m cyclic a", {}, [[0, 2], [1, 3]]),
        ("-lKn1 a", {}, [[0]]),
    ],
)
def test_tasks_are_laid_out_as_slurm_does(
    line: str, environment: dict[str, str], tasks: list[list[int]]
) -> None:
    assert plan(line, **environment).tasks == tasks


def test_nodes_are_chosen() -> None:
    assert plan("-w gpu[2-3] a").nodes == [1, 2]
    assert plan("-x gpu1 a").nodes == [1, 2, 3]
    assert plan("-r 2 -N 1 a").nodes == [2]


def test_everything_behind_the_command_is_the_commands() -> None:
    assert plan("-n1 python -n 5 --nodes=3").argv == ["python", "-n", "5", "--nodes=3"]
    assert plan("-n1 -- -x").argv == ["-x"]


#: What mpirun of Open MPI starts its daemons with on two nodes of four: 1.10 to 2.1, 3.0, 4.x,
#: PRRTE 3.0, Open MPI 5.0.11 (PRRTE 4), PRRTE's newest where a daemon may die.
OPEN_MPI = (
    "--ntasks-per-node=1 --kill-on-bad-exit --cpu_bind=none",
    "--ntasks-per-node=1 --kill-on-bad-exit",
    "--ntasks-per-node=1 --kill-on-bad-exit --mpi=none",
    "--resv-ports=1 --ntasks-per-node=1 --kill-on-bad-exit --mpi=none --cpu-bind=none",
    "--external-launcher --ntasks-per-node=1 --kill-on-bad-exit --mpi=none --cpu-bind=none",
    "--ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --mpi=none --cpu-bind=none --jobid=7",
)


@pytest.mark.parametrize("options", OPEN_MPI)
def test_mpirun_starts_a_daemon_on_each_node(options: str) -> None:
    daemon = 'orted -mca ess "slurm" -mca ess_base_num_procs "3"'
    # SLURM_NTASKS is the job's, which has a task per GPU.
    step = plan(f"{options} --nodes=2 --nodelist=gpu2,gpu4 --ntasks=2 {daemon}", SLURM_NTASKS="32")
    assert (step.nodes, step.tasks) == ([1, 3], [[0], [1]])
    assert step.kill is ("=0" not in options)
    assert step.argv == daemon.split()
    # The daemon computes its own name from these.
    found = [srun.task_environment(step, 0, task) for task in (0, 1)]
    assert [(each["SLURM_NODEID"], each["SLURMD_NODENAME"]) for each in found] == [
        ("0", "gpu2"), ("1", "gpu4"),
    ]  # fmt: skip
    assert plan(f"{options} --ntasks=4 orted").tasks == [[0], [1], [2], [3]]


def test_a_step_knows_its_job_also_when_the_caller_has_forgotten() -> None:
    """Open MPI's newest takes Slurm's list of nodes from its srun."""
    found = plan("a", SLURM_JOB_ID="7").environment
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_JOB_NUM_NODES"]) == ("gpu[1-4]", "4")


@pytest.mark.parametrize("program", ["srun", "scontrol"])
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_release_is_said_as_slurm_does(
    program: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert srun.main(program, [option]) == 0
    name, number = capsys.readouterr().out.split()
    # Open MPI reads `slurm MAJOR.MINOR`, and wants 17.11 at the least.
    assert name == "slurm"
    assert tuple(map(int, number.split(".")[:2])) >= (17, 11)


@pytest.mark.parametrize(
    "line",
    [
        *("", "-n", "-n0 a", "-nx a", "-N5 a", "-w gpu9 a", "--mpi=pmix a", "--pty a"),
        *("-n9 -N2 --ntasks-per-node=2 a", "-x gpu[1-4] a"),
    ],
)
def test_what_cannot_be_is_refused(line: str) -> None:
    with pytest.raises(srun.StepError):
        plan(line)


def test_a_task_knows_its_place() -> None:
    step = plan("-n6 -c4 --gpus-per-task=2 a")
    found = srun.task_environment(step, 3, 3)
    assert found["SLURM_PROCID"] == "3"
    assert (found["SLURM_NODEID"], found["SLURM_LOCALID"]) == ("1", "1")
    assert found["SLURM_GTIDS"] == "2,3"
    assert found["SLURM_STEP_TASKS_PER_NODE"] == "2(x2),1(x2)"
    assert found["SLURM_STEP_NODELIST"] == "gpu[1-4]"
    assert found["SLURMD_NODENAME"] == "gpu2"
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert found["SLURM_STEP_ID"] == "3"


def test_export_is_slurms() -> None:
    job = {"SLURM_JOB_NODELIST": "gpu[1-4]", "SLURM_JOB_NUM_NODES": "4"}
    everything = {"A": "1", "PATH": "/bin", "SLURM_JOB_ID": "7", **job}
    assert plan("a", **everything).environment == everything
    assert plan("--export=ALL,B=2 a", **everything).environment == {**everything, "B": "2"}
    assert "A" not in plan("--export=NONE a", **everything).environment


def test_a_step_survives_the_wire() -> None:
    step = plan("-n6 -l a b")
    assert srun.Step.of(step.to_words()) == step
