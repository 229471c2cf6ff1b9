"""What users do with jobs: options, signals, ends, arrays, requeues."""

from __future__ import annotations

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SPMD = "#!/bin/bash\n#BRIDGE mode=spmd\n"
SLEEP = "#!/bin/bash\necho here\nsleep 300\n"


def finish(world: World, text: str, *options: str, state: str = "COMPLETED") -> tuple[int, str]:
    """Submit, wait for the end, return job and output."""
    job = world.slurm.script(text, *options)
    world.slurm.wait_state(job, state)
    return job, world.output(job)


@pytest.mark.parametrize("status", ["0", "3", "42", "255"])
def test_the_scripts_exit_status_is_the_jobs(world: World, status: str) -> None:
    state = "COMPLETED" if status == "0" else "FAILED"
    job, _ = finish(world, f"#!/bin/sh\nexit {status}\n", state=state)
    assert world.slurm.job(job)["ExitCode"] == f"{status}:0"


def test_a_script_that_kills_itself_shows_as_128_and_the_signal(world: World) -> None:
    job, output = finish(world, "#!/bin/bash\necho before\nkill -SEGV $$\n", state="FAILED")
    assert world.slurm.job(job)["ExitCode"] == "139:0"
    assert "before" in output


def test_the_first_node_to_fail_decides_and_the_others_are_ended(world: World) -> None:
    text = SPMD + '[ "$SLURM_NODEID" = 2 ] && exit 7\nsleep 300\n'
    job, output = finish(world, text, "-N4", state="FAILED")
    assert world.slurm.job(job)["ExitCode"] == "7:0"
    assert "bridge: gpu3: exit status 7" in output
    assert world.live_pods() == []


@pytest.mark.parametrize(
    "interpreter", ["/usr/bin/python3", "/usr/bin/env python3", "/usr/bin/python3 -u"]
)
def test_scripts_of_other_languages_run(world: World, interpreter: str) -> None:
    _, output = finish(world, f"#!{interpreter}\nimport os\nprint('pid', os.getpid() > 1)\n")
    assert "pid True" in output


def test_arguments_and_wrap_arrive(world: World) -> None:
    slurm = world.slurm
    job = slurm.submit("--wrap", "echo wrapped '$x' \"a  b\"")
    slurm.wait_state(job, "COMPLETED")
    assert "wrapped $x a  b" in world.output(job)
    slurm.run("tee", "/home/alice/args.sh", user="alice", stdin='#!/bin/bash\nprintf "<%s>" "$@"\n')
    job = slurm.submit("args.sh", "one", "two words", "", "$HOME")
    slurm.wait_state(job, "COMPLETED")
    assert "<one><two words><><$HOME>" in world.output(job)


def test_a_missing_interpreter_is_said_in_the_output(world: World) -> None:
    _, output = finish(world, "#!/opt/none/bin/julia\n", state="FAILED")
    assert (
        "/opt/none/bin/julia: No such file or directory; is the interpreter in the image?" in output
    )


def test_output_and_error_go_to_their_files_with_slurms_patterns(world: World) -> None:
    job = world.slurm.script(
        "#!/bin/sh\necho out\necho err >&2\n", "--output=o-%x-%j.txt", "--error=e-%u-%j.txt", "-Jab"
    )
    world.slurm.wait_state(job, "COMPLETED")
    assert world.slurm.read(f"/home/alice/o-ab-{job}.txt") == "out\n"
    assert "err\n" in world.slurm.read(f"/home/alice/e-alice-{job}.txt")
    assert "out" not in world.slurm.read(f"/home/alice/e-alice-{job}.txt")


def test_output_is_complete_to_the_last_byte(world: World) -> None:
    text = "#!/bin/bash\nseq 1 400000\nprintf 'no end of line'\n"
    job, output = finish(world, text)
    assert output == "".join(f"{n}\n" for n in range(1, 400001)) + "no end of line"
    assert world.slurm.job(job)["ExitCode"] == "0:0"


def test_bytes_that_are_no_text_arrive_as_they_are(world: World) -> None:
    slurm = world.slurm
    job = slurm.script("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' '\\377'; printf '\\r\\0x'\n")
    slurm.wait_state(job, "COMPLETED")
    found = slurm.sh(f"sha256sum < slurm-{job}.out; wc -c < slurm-{job}.out", cwd="/home/alice")
    expected = slurm.sh(
        "(head -c 300000 /dev/zero | tr '\\0' '\\377'; printf '\\r\\0x') | sha256sum"
    )
    assert found.split()[0] == expected.split()[0]
    assert found.split()[-1] == "300003"


def test_output_of_many_nodes_is_marked_by_lines(world: World) -> None:
    text = SPMD + "for i in $(seq 1 2000); do echo $SLURM_NODEID:$i; done; echo -n end\n"
    _, output = finish(world, text, "-N4")
    for rank in range(4):
        mark = f"[gpu{rank + 1}] "
        lines = [line[len(mark) :] for line in output.splitlines() if line.startswith(mark)]
        assert lines == [f"{rank}:{n}" for n in range(1, 2001)] + ["end"]


def test_of_more_nodes_than_are_streamed_each_has_a_file_of_its_own(world: World) -> None:
    world.restart_daemon("TERM", streams=2)
    try:
        job, output = finish(world, SPMD + "seq 1 2000; echo end $SLURM_NODEID\n", "-N3")
    finally:
        world.restart_daemon("TERM", streams=32)
    path = f"/home/alice/slurm-{job}.out"
    assert f"bridge: output of the other nodes: {path}.NODE\n" in output
    lines = "".join(f"{n}\n" for n in range(1, 2001))
    assert output.endswith(f"{lines}end 0\n")
    for rank in (1, 2):
        assert world.slurm.read(f"{path}.gpu{rank + 1}") == f"{lines}end {rank}\n"
        owner = world.slurm.run("stat", "-c", "%U", f"{path}.gpu{rank + 1}").stdout
        assert owner == "alice\n"


def test_the_environment_is_slurms_and_the_images_not_the_login_nodes(world: World) -> None:
    job = world.slurm.script(
        "#!/bin/bash\nenv -0 | sort -z | tr '\\0' '\\n'\n",
        "-N2",
        "--ntasks-per-node=8",
        "--export=ALL,WANTED=yes",
        env={"PATH": "/usr/bin:/bin:/login/only", "SECRET_TOKEN": "s3cret", "NCCL_DEBUG": "INFO"},
    )
    world.slurm.wait_state(job, "COMPLETED")
    output = world.output(job)
    found = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert found["IMAGE_MARK"] == "from-image"
    assert found["WANTED"] == "yes"
    assert "/login/only" not in found["PATH"]
    assert found["PATH"].startswith("/opt/railweld/bin:")
    assert "s3cret" not in output
    # The profile's value gives way to the user's; the rest of the profile is there.
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["NCCL_IB_TC"] == "104"
    assert (found["HOME"], found["USER"], found["LOGNAME"]) == ("/home/alice", "alice", "alice")
    assert found["SLURM_JOB_ID"] == str(job)
    assert found["SLURM_NNODES"] == "2"
    assert found["SLURM_NTASKS"] == "16"
    assert found["SLURM_TASKS_PER_NODE"] == "8(x2)"
    assert found["SLURM_JOB_NODELIST"] == "gpu[1-2]"
    assert 20000 <= int(found["MASTER_PORT"]) < 29000
    for name in ("SLURM_CONF", "SLURM_JWT", "SLURM_TOPOLOGY_ADDR", "LC_CTYPE", "RAILWELD_HUB"):
        assert name not in found


def test_every_node_has_its_own_rank_and_the_same_master(world: World) -> None:
    text = SPMD + (
        "echo $SLURM_NODEID/$SLURM_PROCID/$SLURM_LOCALID $SLURMD_NODENAME "
        "$MASTER_ADDR:$MASTER_PORT "
        "$PET_NODE_RANK/$PET_NNODES $PET_MASTER_ADDR:$PET_MASTER_PORT $PET_RDZV_CONF\n"
    )
    job, output = finish(world, text, "-N3")
    port = 20000 + job % 9000
    for rank in range(3):
        host = "is_host=true" if rank == 0 else "is_host=false"
        assert (
            f"[gpu{rank + 1}] {rank}/{rank}/0 gpu{rank + 1} 127.0.1.2:{port} {rank}/3 "
            f"127.0.1.2:{port} {host}\n"
        ) in output


def test_the_user_in_the_pod_is_the_submitter(world: World) -> None:
    text = (
        "#!/bin/sh\nid -u; id -g; umask\n"
        "python3 -c 'import pwd, os; print(pwd.getpwuid(os.getuid()).pw_name)'\n"
        "touch /home/bob/made; grep -E '^(Cap|NoNewPrivs)' /proc/self/status\n"
    )
    slurm = world.slurm
    slurm.sh("umask 027; cat > m.sh", user="bob", cwd="/home/bob", stdin=text)
    job = int(slurm.sh("umask 027; sbatch --parsable m.sh", user="bob", cwd="/home/bob"))
    slurm.wait_state(job, "COMPLETED")
    output = world.output(job, "bob")
    assert output.splitlines()[:4] == ["2002", "2002", "0027", "bob"]
    assert "NoNewPrivs:\t1" in output
    assert "CapEff:\t0000000000000000" in output
    assert slurm.sh("stat -c '%U %a' /home/bob/made").split() == ["bob", "640"]


# -- srun --------------------------------------------------------------------------------------


def test_srun_reaches_every_node_with_slurms_ranks(world: World) -> None:
    command = "echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURMD_NODENAME"
    text = f"#!/bin/bash\nsrun bash -c '{command}'\n"
    _, output = finish(world, text, "-N4", "--ntasks-per-node=2")
    lines = [line for line in output.splitlines() if "/" in line and not line.startswith("bridge")]
    assert sorted(lines) == [f"{n}/8 {n % 2} gpu{n // 2 + 1}" for n in range(8)]


def test_sruns_status_is_the_highest_of_its_tasks(world: World) -> None:
    text = "#!/bin/bash\nsrun -n4 bash -c 'exit $((SLURM_PROCID * 3))'\nexit $?\n"
    job, output = finish(world, text, "-N4", state="FAILED")
    assert world.slurm.job(job)["ExitCode"] == "9:0"
    assert "3 of 4 tasks failed" in output


def test_srun_torchrun_meets_and_sums(world: World) -> None:
    text = (
        "#!/bin/bash\nsrun --ntasks-per-node=1 bash -c 'torchrun --nnodes=$SLURM_NNODES "
        "--node_rank=$SLURM_PROCID --nproc_per_node=8 --master_addr=$MASTER_ADDR "
        "--master_port=$MASTER_PORT x.py'\n"
    )
    _, output = finish(world, text, "-N4")
    assert output.count("of 32: sum 496\n") == 4


def test_two_steps_at_a_time_labels_and_input(world: World) -> None:
    text = (
        "#!/bin/bash\nsrun -l -N1 -n2 sh -c 'sleep 1; echo a' &\n"
        "srun -l -w gpu2 -n1 sh -c 'echo b' &\nwait\n"
        "printf 'x\\ny\\n' | srun -n2 -N2 --label cat\n"
    )
    _, output = finish(world, text, "-N2")
    for line in ("0: a\n", "1: a\n", "0: b\n", "0: x\n", "1: y\n"):
        assert line in output


def test_a_killed_srun_takes_its_tasks_with_it(world: World) -> None:
    text = (
        "#!/bin/bash\nsrun -n2 -N2 sleep 1234 &\nsleep 3\nkill -9 $!\nsleep 2\n"
        "srun -N2 -n2 sh -c 'pgrep -f \"sleep 123[4]\" | wc -l'\n"
    )
    _, output = finish(world, text, "-N2")
    assert output.splitlines()[-2:] == ["0", "0"]


def test_signals_of_the_script_reach_the_tasks(world: World) -> None:
    text = (
        "#!/bin/bash\ntrap 'kill -USR1 $PID' USR1\n"
        'srun -n2 -N2 bash -c \'trap "echo got; exit 5" USR1; echo up; '
        "while :; do sleep 0.1; done' &\n"
        "PID=$!\nwait $PID\nwait $PID; exit $?\n"
    )
    job = world.slurm.script(text, "-N2")
    wait_for(lambda: world.output(job).count("up\n") == 2)
    world.slurm.run("scancel", "--batch", "--signal=USR1", str(job))
    world.slurm.wait_state(job, "FAILED")
    assert world.output(job).count("got\n") == 2
    assert world.slurm.job(job)["ExitCode"] == "5:0"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--mpi=pmix", "--mpi=pmix"),
        ("--pty", "--pty"),
        ("-w gpu9", "gpu9, which is not a node of this job"),
        ("-N9", "at most 2"),
        ("--partition=gpu", "--partition"),
    ],
)
def test_srun_says_what_it_cannot(world: World, option: str, said: str) -> None:
    _, output = finish(world, f"#!/bin/bash\nsrun {option} hostname\n", "-N2", state="FAILED")
    assert said in output


def test_srun_in_mode_spmd_is_refused_with_the_way_out(world: World) -> None:
    _, output = finish(world, SPMD + "srun hostname\n", "-N2", state="FAILED")
    assert "#BRIDGE mode=leader" in output


# -- signals and ends --------------------------------------------------------------------------

TRAP = (
    "#!/bin/bash\n#BRIDGE mode=spmd\ntrap 'echo got {name}; exit 9' {name}\n"
    "echo up\nwhile :; do sleep 0.1; done\n"
)


@pytest.mark.parametrize("name", ["USR1", "USR2", "HUP", "INT"])
def test_signals_to_the_batch_script_reach_the_body_on_every_node(world: World, name: str) -> None:
    job = world.slurm.script(TRAP.format(name=name), "-N2")
    wait_for(lambda: world.output(job).count("up\n") == 2)
    world.slurm.run("scancel", "--batch", f"--signal={name}", str(job))
    world.slurm.wait_state(job, "FAILED")
    assert world.output(job).count(f"got {name}\n") == 2
    assert world.slurm.job(job)["ExitCode"] == "9:0"


#: Saves when it is told to, and goes on as if nothing had been.
CHECKPOINT = SPMD + (
    "trap 'saved=1; echo saving' TERM\necho up\n"
    'until [ "$saved" ]; do sleep 0.1; done\nsleep 3\necho went on\n'
)


def test_a_sigterm_that_somebody_asks_for_is_no_end(world: World) -> None:
    job = world.slurm.script(CHECKPOINT, "-N2")
    wait_for(lambda: world.output(job).count("up\n") == 2)
    world.slurm.run("scancel", "--batch", "--signal=TERM", str(job))
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("saving\n") == 2
    assert world.output(job).count("went on\n") == 2


def test_a_sigterm_before_the_time_limit_is_no_end(world: World) -> None:
    job = world.slurm.script(CHECKPOINT, "--time=1", "--signal=B:TERM@50")
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("saving\n") == 1
    assert "went on\n" in world.output(job)


def test_a_signal_that_comes_before_the_bodies_run_waits_for_them(world: World) -> None:
    world.fault("gpu2", "hold")
    job = world.slurm.script(CHECKPOINT, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: "1/2 pods" in world.ask("explain", str(job), user="alice"))
    world.slurm.run("scancel", "--batch", "--signal=TERM", str(job))
    world.fault("gpu2", "hold", None)
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("saving\n") == 2


def test_a_warning_before_the_time_limit_arrives(world: World) -> None:
    job = world.slurm.script(TRAP.format(name="USR1"), "--time=1", "--signal=B:USR1@50")
    world.slurm.wait_state(job, "FAILED")
    assert "got USR1\n" in world.output(job)


def test_the_time_limit_ends_the_pods_and_the_job_is_a_timeout(world: World) -> None:
    text = "#!/bin/bash\ntrap 'echo got TERM; exit 0' TERM\necho up\nsleep 600 & wait\n"
    job = world.slurm.script(text, "--time=1")
    world.slurm.wait_state(job, "TIMEOUT")
    assert "got TERM\n" in world.output(job)
    assert "DUE TO TIME LIMIT" in world.output(job)
    assert world.live_pods() == []


def test_a_time_limit_that_is_changed_reaches_kubernetes(world: World) -> None:
    """Otherwise Kubernetes would end a job whose time was extended, at its old limit."""
    job = world.slurm.script(SLEEP, "--time=10")
    world.has_said(job, "here\n")

    def deadline() -> object:
        (found,) = world.objects("jobs", job)
        return found["spec"].get("activeDeadlineSeconds")

    assert deadline() == 600 + 60 + 300
    world.slurm.run("scontrol", "update", f"jobid={job}", "timelimit=20")
    wait_for(lambda: deadline() == 1200 + 60 + 300)
    world.slurm.run("scontrol", "update", f"jobid={job}", "timelimit=UNLIMITED")
    wait_for(lambda: deadline() is None)
    assert world.slurm.state(job) == "RUNNING"
    world.slurm.run("scancel", str(job))
    world.slurm.wait_state(job, "CANCELLED")


def test_scancel_of_a_job_that_waits_in_slurm(world: World) -> None:
    first = world.slurm.script(SLEEP, "-w", "gpu1")
    world.has_said(first, "here\n")
    second = world.slurm.script(SLEEP, "-w", "gpu1")
    world.slurm.wait_state(second, "PENDING")
    world.slurm.run("scancel", str(second))
    world.slurm.wait_state(second, "CANCELLED")
    assert world.objects("jobs", second) == []
    assert world.slurm.state(first) == "RUNNING"


@pytest.mark.parametrize(
    ("fault", "nodes", "seen"),
    [
        pytest.param("hold", ("gpu1", "gpu2"), "ContainerCreating", id="creating"),
        pytest.param("pull", ("gpu1", "gpu2"), "ImagePullBackOff", id="pulling"),
        # The first pod's agent waits for the second pod.
        pytest.param("hold", ("gpu2",), "1/2 pods", id="barrier"),
    ],
)
def test_scancel_before_the_bodies_run(
    world: World, fault: str, nodes: tuple[str, ...], seen: str
) -> None:
    for node in nodes:
        world.fault(node, fault, "no such image")
    job = world.slurm.script(SPMD + "echo here\n", "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: seen in world.ask("explain", str(job), user="alice"))
    assert len(world.live_pods()) == 2
    world.slurm.run("scancel", str(job))
    world.slurm.wait_state(job, "CANCELLED")
    assert world.live_pods() == []
    assert world.objects("jobs", job) == []
    assert "here\n" not in world.output(job)
    wait_for(world.slurm.idle)


def test_scancel_again_while_the_pods_take_their_grace(world: World) -> None:
    """Impatience gives no node away: not a second time, nor with SIGKILL for the batch step."""
    trap = "trap 'echo saving; sleep 12; echo saved; exit 0' TERM"
    job = world.slurm.script(f"#!/bin/bash\n{trap}\necho up\nsleep 600 & wait\n", "-w", "gpu1")
    world.has_said(job, "up\n")
    world.slurm.run("scancel", str(job))
    world.has_said(job, "saving\n")
    world.slurm.run("scancel", str(job), check=False)
    world.slurm.run("scancel", "--full", "--signal=KILL", str(job), check=False)
    after = world.slurm.script("#!/bin/sh\necho after\n", "-w", "gpu1")
    wait_for(lambda: world.slurm.state(after) != "PENDING")
    assert [pod for pod in world.live_pods() if f"-{job}-" in pod] == []
    world.slurm.wait_state(job, "CANCELLED")
    world.slurm.wait_state(after, "COMPLETED")


def test_scancel_of_one_task_leaves_the_array_alone(world: World) -> None:
    job = world.slurm.script(SLEEP, "--array=1-2", "--output=one-%A-%a.out")
    for task in (1, 2):
        path = f"/home/alice/one-{job}-{task}.out"
        wait_for(lambda p=path: "here" in world.slurm.sh(f"cat {p}", check=False))
    world.slurm.run("scancel", f"{job}_2")
    wait_for(lambda: len(world.live_pods()) == 1)
    explained = world.ask("explain", f"{job}_1", user="alice")
    assert "it runs; nothing to do" in explained
    world.slurm.run("scancel", str(job))
    wait_for(lambda: not world.live_pods() and world.slurm.idle())


def test_a_body_may_take_its_grace_and_slurm_waits_for_it(world: World) -> None:
    trap = "trap 'echo saving; sleep 6; echo saved; exit 0' TERM"
    text = f"#!/bin/bash\n{trap}\necho up\nsleep 600 & wait\n"
    job = world.slurm.script(text)
    world.has_said(job, "up\n")
    world.slurm.run("scancel", str(job))
    world.has_said(job, "saving\n")
    assert world.slurm.state(job) == "COMPLETING"
    assert world.live_pods()
    world.slurm.wait_state(job, "CANCELLED")
    assert "saved\n" in world.output(job)
    assert world.live_pods() == []


def test_a_body_that_ignores_everything_is_killed_and_the_nodes_are_free(world: World) -> None:
    text = "#!/bin/bash\ntrap '' TERM INT HUP\necho up\nwhile :; do sleep 1; done\n"
    job = world.slurm.script(text)
    world.has_said(job, "up\n")
    world.slurm.run("scancel", str(job))
    world.slurm.wait_state(job, "CANCELLED")
    assert world.live_pods() == []
    wait_for(world.slurm.idle)


def test_the_next_job_starts_only_after_the_last_pod_is_gone(world: World) -> None:
    first = world.slurm.script(
        "#!/bin/bash\ntrap 'sleep 5; exit 0' TERM\necho up\nsleep 600 & wait\n", "-N16"
    )
    world.has_said(first, "up\n")
    second = world.slurm.script("#!/bin/sh\necho second\n", "-N16")
    world.slurm.run("scancel", str(first))
    looks = 0
    while True:
        # In this order: pods that live after a look lived during it.
        state = world.slurm.state(second)
        if not world.live_pods(first):
            break
        assert state == "PENDING"
        looks += 1
    assert looks
    world.slurm.wait_state(second, "COMPLETED")


def test_suspending_is_refused_loudly(world: World) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "here\n")
    world.slurm.run("scontrol", "suspend", str(job))
    world.has_said(job, "cannot be suspended")
    world.slurm.run("scontrol", "resume", str(job))
    world.slurm.run("scancel", str(job))
    world.slurm.wait_state(job, "CANCELLED")


# -- arrays, requeues, dependencies ------------------------------------------------------------


def test_an_array_of_eight_two_at_a_time(world: World) -> None:
    slurm = world.slurm
    text = (
        "#!/bin/bash\nmkdir -p /data/array; touch /data/array/$SLURM_ARRAY_TASK_ID\n"
        "sleep 2\nls /data/array | wc -l; rm /data/array/$SLURM_ARRAY_TASK_ID\n"
        "echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID job $SLURM_JOB_ID\n"
    )
    job = slurm.script(text, "--array=1-8%2", "--output=a-%A-%a.out")
    wait_for(
        lambda: (
            not slurm.sh(
                f"squeue --noheader --job={job} -t pending,running,completing", check=False
            ).strip()
        )
    )
    outputs = [slurm.read(f"/home/alice/a-{job}-{task}.out") for task in range(1, 9)]
    ids = set()
    for task, output in enumerate(outputs, 1):
        assert f"task {task} of {job} job " in output
        ids.add(output.split()[-1])
        assert int(output.split()[0]) <= 2
    assert len(ids) == 8
    assert str(job) in ids


def test_a_requeue_runs_again_with_its_own_objects_and_appends(world: World) -> None:
    slurm = world.slurm
    job = slurm.script(
        '#!/bin/bash\necho run $SLURM_RESTART_COUNT\n[ "$SLURM_RESTART_COUNT" = 1 ] || sleep 300\n'
    )
    world.has_said(job, "run")
    slurm.run("scontrol", "requeue", str(job))
    world.has_said(job, "run 1\n")
    slurm.wait_state(job, "COMPLETED")
    assert slurm.job(job)["Restarts"] == "1"
    output = world.output(job)
    assert output.index("run 0\n") < output.index("run 1\n")
    names = {each["metadata"]["name"] for each in world.objects("jobs", job)}
    assert f"slurm-lab-{job}-r1" in names


def test_a_job_can_requeue_itself(world: World) -> None:
    slurm = world.slurm
    text = (
        '#!/bin/bash\nif [ "$SLURM_RESTART_COUNT" = 0 ]; then\n'
        "scontrol requeue $SLURM_JOB_ID; sleep 300\nfi\necho second\n"
    )
    job = slurm.script(text)
    world.has_said(job, "second\n")
    slurm.wait_state(job, "COMPLETED")


def test_dependencies_follow_the_pods_end(world: World) -> None:
    slurm = world.slurm
    first = slurm.script("#!/bin/sh\nsleep 2\nexit 4\n")
    after = slurm.script("#!/bin/sh\necho after\n", f"--dependency=afternotok:{first}")
    never = slurm.script("#!/bin/sh\necho never\n", f"--dependency=afterok:{first}")
    slurm.wait_state(after, "COMPLETED")
    assert slurm.job(never)["Reason"] == "DependencyNeverSatisfied"


def test_wait_returns_the_jobs_status(world: World) -> None:
    done = world.slurm.run(
        "sbatch", "--wait", user="alice", check=False, stdin="#!/bin/sh\nexit 6\n"
    )
    assert done.returncode == 6


def test_two_jobs_for_one_node_run_one_after_the_other(world: World) -> None:
    text = "#!/bin/bash\nmkdir /data/lock || exit 1\nsleep 2\nrmdir /data/lock\n"
    jobs = [world.slurm.script(text, "-w", "gpu5") for _ in range(3)]
    for job in jobs:
        world.slurm.wait_state(job, "COMPLETED")


def test_other_partitions_are_left_alone(world: World) -> None:
    job = world.slurm.script("#!/bin/sh\nls /opt/railweld 2>&1; echo plain\n", "--partition=plain")
    world.slurm.wait_state(job, "COMPLETED")
    assert "plain\n" in world.output(job)
    assert world.objects("jobs", job) == []


def test_test_only_makes_nothing(world: World) -> None:
    def there() -> tuple[set[str], set[str]]:
        jobs = world.slurm.sh("squeue --noheader --states=all --format=%i").split()
        return set(jobs), {each["metadata"]["name"] for each in world.objects("jobs")}

    # Something that would be seen to be more, and lives as long as this test.
    held = world.slurm.script("#!/bin/sh\ntrue\n", "--hold")
    before = there()
    assert str(held) in before[0]
    done = world.slurm.run("sbatch", "--test-only", user="alice", stdin="#!/bin/sh\ntrue\n")
    assert "to start at" in done.stderr
    # What was before may be forgotten meanwhile; nothing is new.
    now = there()
    assert now[0] <= before[0]
    assert now[1] <= before[1]


def test_admin_comment_says_where_the_pods_are_and_comment_is_the_users(world: World) -> None:
    job = world.slurm.script(SLEEP, "--comment=mine")
    world.has_said(job, "here\n")
    wait_for(lambda: "running" in world.slurm.run("scontrol", "show", "job", str(job)).stdout)
    found = world.slurm.job(job)
    assert found["AdminComment"] == f"k8s=railweld-jobs/slurm-lab-{job}-r0"
    assert found["Comment"] == "mine"
