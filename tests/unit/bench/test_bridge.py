"""Runs as jobs of the bridge: what is submitted, and the shell that does it on the Slurm head.

`sbatch`, `squeue`, `scancel`, `id` and `getent` are stand-ins; the shell and coreutils are real.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from railweld.bench.bridge import PATH, SCRIPT, check
from railweld.bench.judge import Run
from railweld.bench.launch import Options, Planned, plan_nodes, plan_single, run
from railweld.errors import RailweldError, UsageError
from railweld.nodes import Answer
from railweld.site import Site, load_site
from tests.unit.bench.made import PRINTED

ROOT = Path(__file__).parents[3]
EXAMPLE = "inventories/example-a100"
NODES = ("gpu01", "gpu02")
BRIDGE = Options(launcher="bridge", user="alice", timeout_s=90)
#: As Slurm's programs do it: sbatch says its number when it ends (its output is no terminal), gives
#: the job's status with --wait, and refuses with the hook's sentence before its own.
SLURM = """\
import os, pathlib, re, signal, subprocess, sys
spool = pathlib.Path({spool!r})
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
options = dict(re.findall(r"^--([a-z-]+)=(.*)$", "\\n".join(words), re.MULTILINE))
with (spool / "calls").open("a") as calls:
    calls.write(name + " " + repr(words) + "\\n")
if name == "id":
    print("alice" if words == ["-un"] else {uid})
elif name == "getent":
    print("alice:x:{uid}:{uid}::{home}:/bin/bash")
elif name == "squeue":
    print("(null) 6 RUNNING (None)")
    if (spool / "running").exists():
        print((spool / "running").read_text(), "7", {state!r})
elif name == "scancel":
    assert words == ["7"], words
    os.killpg(int((spool / "pid").read_text()), signal.SIGTERM)
elif name == "sbatch":
    (spool / "script").write_text(sys.stdin.read())
    (spool / "environment").write_text(repr(dict(os.environ)))
    if {refuses!r}:
        sys.stderr.write("sbatch: error: " + {refuses!r} + "\\n")
        sys.exit("sbatch: error: Batch job submission failed: Unspecified error")
    with open(options["output"], "w") as out:
        job = subprocess.Popen(
            ["sh", "-c", {does!r}], stdout=out, stderr=out, cwd=options["chdir"],
            start_new_session=True,
        )
    (spool / "pid").write_text(str(job.pid))
    (spool / "running").write_text(options["comment"])
    status = job.wait()
    (spool / "running").unlink()
    print("7")
    sys.exit(status if status >= 0 else 128 - status)
"""


class Head:
    """A Slurm head on which the job of a run is a line of shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "data"
        self.home = self.shared / "alice"
        self.home.mkdir(parents=True)
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()

    def slurm(
        self,
        does: str = "true",
        *,
        refuses: str = "",
        state: str = "RUNNING (None)",
        uid: int = 1001,
    ) -> None:
        """Put the stand-ins into place."""
        text = SLURM.format(
            spool=str(self.spool), home=self.home, does=does, refuses=refuses, state=state, uid=uid
        )
        for name in ("sbatch", "squeue", "scancel", "id", "getent"):
            program = self.programs / name
            program.write_text(f"#!{sys.executable} -IS\n{text}")
            program.chmod(0o755)

    def plan(self, *, shares: bool = True, **options: Any) -> Planned:
        """A run whose jobs share this head's folder, or none."""
        volume = {"name": "data", "mount": str(self.shared), "host_path": "/data"}
        example = site({"railweld_job_volumes": [volume] if shares else []})
        given = {"launcher": "bridge", "user": "alice", "timeout_s": 60, **options}
        return plan_nodes(example, NODES, Options(**given))

    def start(self, planned: Planned) -> subprocess.Popen[str]:
        """Start it as on the head, by its user."""
        assert planned.argv[:4] == ("runuser", "-u", "alice", "--")
        argv = [
            word.replace(PATH, f"{self.programs}:{PATH}") if word == f"PATH={PATH}" else word
            for word in planned.argv[4:]
        ]
        return subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
            env={**os.environ, "SECRET_OF_CALLER": "hunter2"},
        )  # fmt: skip

    def ends(self, process: subprocess.Popen[str], planned: Planned) -> tuple[Run, Answer]:
        """What bench makes of it."""
        out, err = process.communicate(timeout=60)
        answer = Answer(
            "ok" if process.returncode == 0 else "failed",
            {"rc": process.returncode, "stdout": out, "stderr": err, "msg": "non-zero return code"},
        )
        (found,) = run([planned], lambda commands, _: dict.fromkeys(commands, answer), 90)
        return found, answer

    def measure(self, **options: Any) -> tuple[Run, Answer]:
        """Start a run and wait for it."""
        planned = self.plan(**options)
        return self.ends(self.start(planned), planned)

    def calls(self, name: str) -> list[list[str]]:
        """How a program was called."""
        lines = (self.spool / "calls").read_text().splitlines()
        return [
            ast.literal_eval(line.partition(" ")[2])
            for line in lines
            if line.startswith(f"{name} ")
        ]

    def left(self) -> list[Path]:
        """Files below the shared folder."""
        return [path for path in self.shared.rglob("*") if path != self.home]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    found = Head(tmp_path)
    yield found
    with contextlib.suppress(OSError, ValueError):
        os.killpg(int((found.spool / "pid").read_text()), signal.SIGKILL)


def site(variables: Mapping[str, Any] | None = None) -> Site:
    return load_site([EXAMPLE], dict(variables or {}))


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- what is submitted -------------------------------------------------------------------------


def test_a_job_has_exactly_these_nodes_and_all_their_gpus(head: Head) -> None:
    planned = head.plan(max_bytes="2G", timeout_s=90)
    assert planned.host == "head1"
    assert planned.argv[4:8] == ("timeout", "--foreground", "--kill-after=90", "90")
    words = {"--partition=gpu", "--nodes=2", "--nodelist=gpu01,gpu02", "--ntasks-per-node=8"}
    assert words <= set(planned.argv)
    # A limit of its own, in whole minutes beyond the run's.
    assert "--time=2" in planned.argv
    body = next(word for word in planned.argv if word.startswith("#!/bin/bash\n"))
    assert body.splitlines()[1] == "#BRIDGE mode=leader"
    assert body.splitlines()[2].startswith(
        "exec mpirun -np 16 --map-by ppr:8:node --bind-to numa all_reduce_perf_mpi -b 8 -e 2G "
    )
    # The profile is the pods' own, as every job has it.
    assert "NCCL_" not in body
    # Four rails of 100 Gb/s.
    assert planned.limit.gb_per_s == 50.0


def test_the_command_that_is_shown_is_one_to_submit(head: Head) -> None:
    words = shlex.split(head.plan().command, comments=True)
    assert words[0] == "sbatch"
    assert words[-1].startswith("--wrap=exec mpirun -np 16 ")


def test_nothing_of_it_is_a_template_of_ansible(head: Head) -> None:
    for word in head.plan(image="reg.example/nccl:1").argv:
        assert not re.search(r"\{[{%#]", word)


def test_image_and_programs_are_those_of_the_job(head: Head) -> None:
    planned = head.plan(image="nvcr.io/nvidia/pytorch:25.08-py3", programs="/opt/nccl tests")
    body = next(word for word in planned.argv if word.startswith("#!/bin/bash\n"))
    assert "#BRIDGE mode=leader image=nvcr.io/nvidia/pytorch:25.08-py3\n" in body
    assert "'/opt/nccl tests/all_reduce_perf_mpi' -b 8" in body
    # Runs inside a node are on the node, where that folder is not.
    single = plan_single(site(), "gpu01", Options(launcher="bridge", programs="/opt/nccl tests"))
    assert "/opt/railweld/nccl-tests/bin/all_reduce_perf" in single.argv


@pytest.mark.parametrize(
    "user", [None, "root", "", "-c", "a;id", "a b", "$(id)", "a\n", "a/b", "Alice'", "a" * 40]
)
def test_a_user_is_needed_and_is_a_plain_name(user: str | None) -> None:
    with pytest.raises(UsageError, match=r"found .* ordinary user .*Fix: --user"):
        check(site(), Options(launcher="bridge", user=user))
    with pytest.raises(UsageError):
        plan_nodes(site(), NODES, Options(launcher="bridge", user=user))


@pytest.mark.parametrize(
    "image", ["a b:1", "a:1\nrm", "a:1 mode=spmd", "$(id):1", "a;b:1", "a", "a:latest", ""]
)
def test_an_image_is_one_word_and_one_build(image: str) -> None:
    with pytest.raises(UsageError, match=r"--image: .*expected"):
        check(site(), Options(launcher="bridge", user="alice", image=image))


def test_an_image_of_another_registry_is_refused() -> None:
    example = site({"railweld_job_registries": ["reg.example"]})
    with pytest.raises(UsageError, match=r"expected one from reg\.example"):
        check(example, Options(launcher="bridge", user="alice", image="other.example/a:1"))


def test_nodes_whose_jobs_are_no_pods_have_another_launcher() -> None:
    plain = {"name": "gpu", "group": "gpu_nodes", "bridge": False}
    with pytest.raises(RailweldError, match=r"gpu01, gpu02: found in no .* Fix: --launcher slurm"):
        plan_nodes(site({"railweld_partitions": [plain]}), NODES, BRIDGE)
    one = {"name": "one", "hosts": ["gpu01"]}
    with pytest.raises(RailweldError, match=r"gpu02: found in no .* Fix: --launcher mpirun"):
        plan_nodes(site({"railweld_partitions": [one]}), NODES, BRIDGE)


def test_a_run_is_in_one_partition() -> None:
    parts = [{"name": "a", "hosts": ["gpu01"]}, {"name": "b", "hosts": ["gpu02"]}]
    with pytest.raises(RailweldError, match="gpu01, gpu02: found in different bridge partitions"):
        plan_nodes(site({"railweld_partitions": parts}), NODES, BRIDGE)


# -- the shell on the head ---------------------------------------------------------------------


def test_the_run_is_what_the_job_printed(head: Head) -> None:
    (head.folder / "printed").write_text(f"bridge: leader: #BRIDGE says so\n{PRINTED}")
    head.slurm(f"cat {head.folder}/printed")
    found, answer = head.measure()
    assert answer.rc == 0
    assert (found.busbw, found.failure) == (312.45, "")
    (submitted,) = head.calls("sbatch")
    assert "--wait" in submitted
    assert (head.spool / "script").read_text().startswith("#!/bin/bash\n#BRIDGE mode=leader\n")
    assert not head.calls("scancel")
    assert head.left() == []


def test_the_command_reaches_the_head_as_it_is(head: Head) -> None:
    """Over the real Ansible, which neither fills in templates nor expands `$HOME`."""
    (head.folder / "printed").write_text(PRINTED)
    head.slurm(f"cat {head.folder}/printed")
    runuser = head.programs / "runuser"
    runuser.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\nassert sys.argv[1:4] == ['-u', 'alice', '--']\n"
        f"words = [w.replace('PATH=', 'PATH={head.programs}:') for w in sys.argv[4:]]\n"
        "os.execvp(words[0], words)\n"
    )
    runuser.chmod(0o755)
    volumes = [{"name": "data", "mount": str(head.shared), "host_path": "/data"}]
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "railweld", "bench", "-i", ROOT / EXAMPLE),
            *("-e", "ansible_connection=local", "-e", "ansible_become=false"),
            *("-e", f"ansible_python_interpreter={sys.executable}"),
            *("-e", json.dumps({"railweld_job_volumes": volumes}), "--nodes", "gpu01,gpu02"),
            *("--all", "--launcher", "bridge", "--user", "alice", "--json"),
        ],
        cwd=ROOT,
        env={"PATH": f"{head.programs}:/usr/bin:/bin", "HOME": str(head.folder), "folder": "/x"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    (measured,) = json.loads(done.stdout)["runs"]
    assert (measured["busbw_gb_per_s"], measured["failure"]) == (312.45, ""), done.stdout
    assert done.returncode == 0
    assert head.left() == []


def test_the_callers_environment_stays_with_the_caller(head: Head) -> None:
    head.slurm("true")
    head.measure()
    stored = (head.spool / "environment").read_text()
    assert "hunter2" not in stored
    assert f"'HOME': '{head.home}'" in stored


def test_a_job_that_fails_says_why(head: Head) -> None:
    head.slurm("echo 'There are not enough slots'; echo ------; exit 3")
    found, answer = head.measure()
    assert answer.rc == 3
    assert found.failure == "exit code 3: job 7: There are not enough slots"
    assert head.left() == []


def test_a_refusal_at_submit_is_the_hooks_sentence(head: Head) -> None:
    sentence = "bridge: working directory /x: not on storage that the nodes have"
    head.slurm(refuses=sentence)
    found, _ = head.measure()
    assert sentence in found.failure
    assert "Batch job submission failed" in found.failure
    assert head.left() == []


@pytest.mark.parametrize("state", ["RUNNING (None)", "PENDING (Resources)"])
def test_a_run_without_end_is_cancelled(head: Head, state: str) -> None:
    head.slurm("sleep 1000", state=state)
    planned = head.plan()
    process = head.start(planned)
    until((head.spool / "running").exists)
    # The alarm of timeout(1) itself, as if its time were over.
    process.send_signal(signal.SIGALRM)
    found, answer = head.ends(process, planned)
    assert answer.rc == 124
    assert found.failure == f"no end in time; job 7 was {state} and has been cancelled"
    assert head.calls("scancel") == [["7"]]
    assert head.left() == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_cut_connection_cancels_the_job(head: Head, number: int) -> None:
    head.slurm("sleep 1000")
    planned = head.plan()
    process = head.start(planned)
    until((head.spool / "running").exists)
    process.send_signal(number)
    _, answer = head.ends(process, planned)
    assert answer.rc != 0
    assert head.calls("scancel") == [["7"]]
    assert head.left() == []


def test_root_is_refused_on_the_head_too(head: Head) -> None:
    head.slurm(uid=0)
    found, _ = head.measure()
    assert "found root, expected an ordinary user" in found.failure
    assert not head.calls("sbatch")


def test_without_a_home_that_is_shared_the_folder_of_the_users_name_is_taken(head: Head) -> None:
    named, head.home = head.home, head.folder / "home"
    head.slurm("pwd >&2; pwd")
    found, _ = head.measure()
    assert "exit code 0" in found.failure
    (submitted,) = head.calls("sbatch")
    assert any(f"--chdir={named}/.railweld-bench." in word for word in submitted)


def test_a_user_without_a_folder_is_told_so(head: Head) -> None:
    head.slurm()
    head.home.rmdir()
    head.shared.rmdir()
    found, _ = head.measure()
    assert f"alice: found no folder to write to below {head.shared}" in found.failure


def test_where_nothing_is_shared_a_job_starts_in_a_folder_of_every_image(head: Head) -> None:
    head.slurm("echo kept; exit 4")
    found, _ = head.measure(shares=False)
    assert found.failure == "exit code 4: job 7: kept"
    (submitted,) = head.calls("sbatch")
    assert "--chdir=/tmp" in submitted
    (output,) = (word for word in submitted if word.startswith("--output="))
    assert not Path(output.removeprefix("--output=")).parent.exists()


def test_the_shell_is_in_the_package() -> None:
    assert SCRIPT.is_file()
