"""What people ask: status, explain, logs, shell. Users see their own jobs and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SLEEP = "#!/bin/bash\n#BRIDGE mode=spmd\necho here $SLURM_NODEID\nsleep 300\n"


def facts(world: World, job: object, user: str = "alice") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.ask("explain", str(job), "--json", user=user))
    return found


def test_status_says_what_runs_and_to_whom(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2", "-w", "gpu1,gpu2")
    world.has_said(job, "here 1\n")
    text = world.ask("status", user="root")
    assert text.startswith("bridge of cluster lab: ok\n")
    assert f"{job}-r0" in text
    assert f"{job}-r0" in world.ask("status", user="alice")
    # How much goes on is no secret, whose it is is.
    other = world.ask("status", user="bob")
    assert "1 running" in other
    assert f"{job}-r0" not in other


def test_explain_follows_a_job_through_its_states(world: World) -> None:
    slurm = world.slurm
    world.fault("gpu2", "pull", "no such image")
    job = slurm.script(SLEEP, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: "ImagePullBackOff" in world.ask("explain", str(job), user="alice"))
    text = world.ask("explain", str(job), user="alice")
    assert f"Job {job} of alice, partition gpu, 2 nodes gpu[1-2]" in text
    assert "1 of 2 pods run" in text
    assert "gpu2 (rank 1): Pending, ImagePullBackOff: no such image" in text
    assert "the image cannot be pulled there" in text
    world.fault("gpu2", "pull", None)
    world.has_said(job, "here 1\n")
    assert "it runs; nothing to do" in world.ask("explain", str(job), user="alice")
    slurm.run("scancel", str(job))
    slurm.wait_state(job, "CANCELLED")
    assert "Slurm       CANCELLED" in world.ask("explain", str(job), user="alice")


def test_explain_says_why_a_job_waits_in_slurm(world: World) -> None:
    slurm = world.slurm
    first = slurm.script(SLEEP, "-w", "gpu3")
    waiting = slurm.script(SLEEP, "-w", "gpu3")
    held = slurm.script(SLEEP, "--hold")
    never = slurm.script(SLEEP, f"--dependency=afterok:{held}")
    wait_for(lambda: facts(world, waiting)["job"]["reason"] in ("Resources", "Priority"))
    assert f"-j {waiting}" in facts(world, waiting)["advice"][0]
    assert f"scontrol release {held}" in facts(world, held)["advice"][0]
    assert "another job has to end first" in facts(world, never)["advice"][0]
    assert facts(world, first)["job"]["state"] in ("RUNNING", "CONFIGURING")


def test_explain_knows_tasks_of_arrays_and_jobs_that_are_no_more(world: World) -> None:
    job = world.slurm.script("#!/bin/sh\necho t\n", "--array=1-2")
    wait_for(lambda: facts(world, f"{job}_2")["job"] is not None)
    assert "sacct -j 999999" in world.ask("explain", "999999", user="alice")
    refused = world.ask("explain", "12; rm -rf /", user="alice", check=False)
    assert "expected a number" in refused


@pytest.mark.parametrize("command", ["explain", "logs", "shell"])
def test_nobody_asks_about_somebody_elses_job(world: World, command: str) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "here 0\n")
    argv = ("script", "-qec", f"{world.command} {command} {job}", "/dev/null")
    done = world.slurm.run(*argv, user="bob", check=False)
    assert "is not yours" in done.stdout
    assert "here" not in done.stdout
    assert "is not yours" not in world.ask("logs", str(job), user="root")


def test_logs_come_from_the_pods(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2", "-w", "gpu1,gpu2")
    world.has_said(job, "here 0\n")
    world.has_said(job, "here 1\n")
    text = world.ask("logs", str(job), user="alice")
    assert "==> gpu1 <==\nhere 0\n" in text
    assert "==> gpu2 <==\nhere 1\n" in text
    assert world.ask("logs", str(job), "gpu2", "--tail", "1", user="alice") == "here 1\n"
    refused = world.ask("logs", str(job), "gpu9", user="alice", check=False)
    assert "found no pod on gpu9, expected one of gpu1, gpu2" in refused


def test_a_shell_is_the_users_in_the_pod_with_the_jobs_environment(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2", "-w", "gpu1,gpu2")
    world.has_said(job, "here 1\n")
    typed = (
        "echo who=$(id -un) rank=$SLURM_NODEID job=$SLURM_JOB_ID in=$PWD m=$MASTER_PORT; "
        "grep NoNewPrivs /proc/self/status; stty size; exit 7"
    )
    script = (
        "import os, pty, sys, time\n"
        "pid, fd = pty.fork()\n"
        "if not pid:\n"
        "    os.execvp(sys.argv[2], sys.argv[2:])\n"
        "time.sleep(2); os.write(fd, sys.argv[1].encode() + b'\\n')\n"
        "try:\n"
        "    while data := os.read(fd, 4096):\n"
        "        os.write(1, data)\n"
        "except OSError: pass\n"
        "print('status', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    argv = ("python3", "-c", script, typed, *world.command.split(), "shell", str(job), "gpu2")
    output = world.slurm.run(*argv, user="alice").stdout
    port = 20000 + job % 9000
    assert f"who=alice rank=1 job={job} in=/home/alice m={port}" in output
    assert "NoNewPrivs:\t1" in output
    assert "status 7" in output


def test_a_shell_needs_a_terminal_and_a_running_pod(world: World) -> None:
    job = world.slurm.script("#!/bin/sh\ntrue\n")
    world.slurm.wait_state(job, "COMPLETED")
    argv = ("script", "-qec", f"{world.command} shell {job}", "/dev/null")
    done = world.slurm.run(*argv, user="alice", check=False)
    assert "expected it running" in done.stdout
    refused = world.ask("shell", str(job), user="alice", check=False)
    assert "found no terminal" in refused


def test_logs_are_followed_to_the_pods_end(world: World) -> None:
    job = world.slurm.script("#!/bin/sh\nfor i in 1 2 3 4 5; do echo line $i; sleep 1; done\n")
    world.has_said(job, "line 1\n")
    text = world.ask("logs", str(job), "--follow", user="alice")
    assert text == "".join(f"line {i}\n" for i in range(1, 6))
