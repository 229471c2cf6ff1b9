"""sbatch to pods on real kubelets: Slurm, the bridge and the stack on one lab, as a site has them.

What the bridge does under every fault is in tests/integration/bridge, on simulated nodes; here its
pods are real ones: images, user, volumes, devices, logs and the way to the daemon on the head.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator

import pytest

from railweld import names
from tests.integration.cluster.helpers import (
    DEVICES,
    GPU_NODES,
    PATIENCE_S,
    Cluster,
    eventually,
    has_devices,
)
from tests.labs import REPOSITORY, PlayRun

pytestmark = [pytest.mark.lab, pytest.mark.deep]

FIXTURE = (REPOSITORY / "tests/fixtures/bridge/train.slurm").read_text()
HOME = "/data/alice"
UID = 1001
#: Of one node, with all its GPUs.
ONE = ("--nodes=1", "--gres=gpu:8")
TWO = ("--nodes=2", "--gres=gpu:8")
#: Slurm lets a requeued job wait for two minutes; a node is given up after its lease and a grace.
REQUEUE_S = 420
COUNTS = (
    "#!/bin/bash\nn=0\n"
    f"while [ ! -e {HOME}/go ]; do n=$((n + 1)); echo line $n; sleep 0.2; done\necho last $n\n"
)
#: Sleeps on its first node, and ends at once on its second.
ONCE = (
    "#!/bin/bash\necho run $SLURM_RESTART_COUNT on $(uname -n)\n"
    '[ "$SLURM_RESTART_COUNT" != 0 ] || sleep 4321\n'
)
APISERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"


class Site:
    """The lab as alice uses it, on the Slurm head."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def deploy(self) -> PlayRun:
        """Run deploy-slurm.yml."""
        return self.cluster.lab.play(playbook="playbooks/deploy-slurm.yml", timeout=1200)

    def alice(self, command: str) -> str:
        """Output of a command line of the user's, in her folder."""
        line = f"cd {HOME} && {command}"
        return self.cluster.lab.node("head1", "runuser", "-u", "alice", "--", "bash", "-c", line)

    def submit(self, script: str, *options: str) -> int:
        """Submit a script; the job's number."""
        quoted = script.replace("'", "'\\''")
        self.alice(f"printf %s '{quoted}' > job.slurm")
        answer = self.alice(f"sbatch --parsable {' '.join(options)} job.slurm")
        # The hook may have a note beside it.
        found = re.search(r"^\d+$", answer, re.MULTILINE)
        assert found, answer
        return int(found[0])

    def job(self, number: int) -> dict[str, str]:
        """What Slurm says of a job."""
        text = self.alice(f"scontrol --oneliner show job {number}")
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, number: int) -> str:
        """State of a job."""
        return self.job(number)["JobState"]

    def output(self, number: int, name: str = "slurm-{}.out") -> str:
        """What the job has printed so far; empty if nothing."""
        return self.alice(f"cat {name.format(number)} 2>/dev/null || true")

    def pods(self) -> list[dict[str, str]]:
        """Pods of jobs that have not ended, by name, node and phase."""
        items = self.cluster.get("pods", "--namespace", names.NAMESPACE_JOBS)["items"]
        return [
            {"name": each["metadata"]["name"], "node": each["spec"].get("nodeName", "")}
            for each in items
            if each["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def comes_to(self, number: int, *states: str, seconds: float = PATIENCE_S) -> str:
        """Wait until a job is in one of these states."""
        found: str = eventually(
            lambda: self.state(number), lambda state: state in states, seconds=seconds
        )
        return found

    def runs_on(self, number: int) -> str:
        """Node of a job of one node whose body has begun."""
        eventually(lambda: self.output(number), lambda output: "run 0" in output)
        (node,) = {pod["node"] for pod in self.pods()}
        return node

    def counts(self) -> int:
        """A job that prints lines until it is let go."""
        self.alice("rm -f go")
        number = self.submit(COUNTS, *ONE)
        eventually(lambda: self.output(number), lambda output: "line 3\n" in output)
        return number

    def has_gone_on(self, number: int) -> None:
        """Wait until such a job has printed more."""
        before = self.output(number).count("line")
        eventually(lambda: self.output(number).count("line"), lambda found: found > before + 5)

    def ends_whole(self, number: int) -> None:
        """Let it go: it ran once, and its output has every line once."""
        self.alice("touch go")
        assert self.comes_to(number, "COMPLETED", "FAILED", "NODE_FAIL") == "COMPLETED"
        lines = [
            each for each in self.output(number).splitlines() if not each.startswith("bridge:")
        ]
        last = int(lines[-1].removeprefix("last "))
        assert lines == [*(f"line {n}" for n in range(1, last + 1)), f"last {last}"]
        assert self.job(number)["Restarts"] == "0"

    def node_is(self, name: str, state: str) -> None:
        """Wait until Slurm has a node in a state."""
        eventually(
            lambda: self.alice(f"sinfo -h -n {name} -o %t").strip(), lambda found: found == state
        )


@pytest.fixture(scope="module")
def site(stack: Cluster) -> Iterator[Site]:
    """The stack's cluster with Slurm, the bridge and a user."""
    found = Site(stack)
    found.deploy().assert_ok()
    stack.lab.node("head1", "useradd", "--uid", str(UID), "--create-home", "alice", check=False)
    stack.lab.node("head1", "install", "-d", "-o", "alice", "-g", "alice", HOME)
    yield found
    found.alice("scancel --user=alice; true")
    eventually(found.pods, lambda pods: pods == [])


def test_second_run_changes_nothing_and_the_stage_is_green(site: Site) -> None:
    assert set(site.deploy().assert_ok().changed().values()) == {0}
    code, records = site.cluster.verify_stage("slurm")
    assert code == 0, [each for each in records if each["status"] not in ("pass", "skipped")]


def test_training_script_runs_unchanged_in_pods_on_slurms_nodes(site: Site) -> None:
    job = site.submit(FIXTURE, "--ntasks=16")
    assert site.comes_to(job, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    output = site.output(job, "train-{}.out")
    for node in GPU_NODES:
        assert f"[{node}] job {job} on gpu[1-2]\n" in output
    # A rendezvous over the pods' own network at MASTER_ADDR, and a sum over all 16 ranks.
    assert output.count(f"of 16: sum {16 * 15 // 2}\n") == len(GPU_NODES), output
    assert site.job(job)["ExitCode"] == "0:0"
    assert site.alice(f"stat -c %U train-{job}.out").strip() == "alice"
    # Billed to who has submitted it.
    assert site.alice(f"sacct -nXP -j {job} -o user,state,exitcode,nodelist").strip() == (
        "alice|COMPLETED|0:0|gpu[1-2]"
    )
    assert site.pods() == []


def test_job_has_its_user_devices_profile_limits_and_folders(site: Site) -> None:
    probe = (
        "#!/bin/bash\n#BRIDGE mode=leader\n"
        "id -u; whoami; echo HOME=$HOME; pwd; ulimit -l; stat -f -c %T /dev/shm\n"
        "ls /dev/infiniband | grep -c verbs\n"
        "IFS=, read -ra gpus <<< $NVIDIA_VISIBLE_DEVICES; echo gpus ${#gpus[@]}\n"
        "env | grep ^NCCL_IB_TC\necho written > from-the-pod\nexit 3\n"
    )
    job = site.submit(probe, "--nodes=1", "--gres=gpu:8")
    assert site.comes_to(job, "COMPLETED", "FAILED") == "FAILED"
    output = site.output(job)
    lines = [line for line in output.splitlines() if not line.startswith("bridge:")]
    assert lines[:2] == [str(UID), "alice"], output
    assert lines[2].startswith("HOME=/")
    assert lines[3:] == [
        HOME,
        "8192",
        "tmpfs",
        str(DEVICES["rdma/hca"]),
        "gpus 8",
        "NCCL_IB_TC=104",
    ]
    assert site.job(job)["ExitCode"] == "3:0"
    # What a lab node cannot give is said, as it would be on a node that has it wrong.
    assert "found 8192 KiB of memory that may be locked" in output
    assert site.alice("cat from-the-pod; stat -c %U from-the-pod").split() == ["written", "alice"]


def test_training_script_meets_through_srun(site: Site) -> None:
    text = (
        "#!/bin/bash\nsrun --ntasks-per-node=1 bash -c 'torchrun --nnodes=$SLURM_NNODES "
        "--node_rank=$SLURM_PROCID --nproc_per_node=8 --master_addr=$MASTER_ADDR "
        "--master_port=$MASTER_PORT train.py'\n"
    )
    job = site.submit(text, *TWO)
    assert site.comes_to(job, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    output = site.output(job)
    assert "bridge: leader: srun reaches the other nodes by itself" in output
    assert output.count(f"of 16: sum {16 * 15 // 2}\n") == len(GPU_NODES), output


def test_bench_measures_what_a_job_gets_and_leaves_nothing(site: Site) -> None:
    """mpirun's daemons start through the pods' srun; the figure follows from the pods' profile."""
    before = site.alice("ls -A").split()
    options = ("--nodes", ",".join(GPU_NODES), "--all", "--launcher", "bridge", "--user", "alice")
    done = site.cluster.bench(*options, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    measurement = json.loads(done.stdout)
    (measured,) = measurement["runs"]
    assert (measured["nodes"], measured["failure"]) == (list(GPU_NODES), "")
    assert measured["busbw_gb_per_s"] > measured["needed_gb_per_s"]
    assert site.alice("squeue -h -n railweld-bench") == ""
    assert site.pods() == []
    assert site.alice("ls -A").split() == before


def test_array_of_eight_two_at_a_time(site: Site) -> None:
    text = (
        "#!/bin/bash\nmkdir -p array; touch array/$SLURM_ARRAY_TASK_ID; sleep 1\n"
        "echo task $SLURM_ARRAY_TASK_ID beside $(ls array | wc -l)\n"
        "rm array/$SLURM_ARRAY_TASK_ID\n"
    )
    job = site.submit(text, *ONE, "--array=1-8%2", "--output=array-%a.out")
    query = f"sacct -nXP -j {job} -o jobid,state,exitcode"
    wanted = sorted(f"{job}_{task}|COMPLETED|0:0" for task in range(1, 9))
    eventually(
        lambda: sorted(site.alice(query).split()), lambda found: found == wanted, seconds=600
    )
    for task in range(1, 9):
        output = site.output(task, "array-{}.out")
        assert re.search(rf"^task {task} beside [12]$", output, re.MULTILINE), output
    assert site.pods() == []


def test_dependencies_follow_the_exit_status_of_pods(site: Site) -> None:
    first = site.submit("#!/bin/sh\nexit 4\n", *ONE)
    after = site.submit("#!/bin/sh\ntrue\n", *ONE, f"--dependency=afternotok:{first}")
    never = site.submit("#!/bin/sh\ntrue\n", *ONE, f"--dependency=afterok:{first}")
    site.comes_to(after, "COMPLETED")
    assert site.job(first)["ExitCode"] == "4:0"
    assert site.job(never)["Reason"] == "DependencyNeverSatisfied"
    site.alice(f"scancel {never}")


def test_requeued_job_runs_again_and_appends(site: Site) -> None:
    job = site.submit(ONCE, *ONE, "--requeue")
    site.runs_on(job)
    site.alice(f"scontrol requeue {job}")
    assert site.comes_to(job, "COMPLETED", "FAILED", seconds=REQUEUE_S) == "COMPLETED"
    output = site.output(job)
    assert output.index("run 0 on") < output.index("run 1 on")
    assert site.job(job)["Restarts"] == "1"


def test_warning_and_time_limit_reach_the_script(site: Site) -> None:
    text = (
        "#!/bin/bash\ntrap 'echo got USR1' USR1\ntrap 'echo got TERM; exit 0' TERM\n"
        "while :; do sleep 0.2; done\n"
    )
    # Slurm sends it 60 to 120 seconds before the end.
    job = site.submit(text, *ONE, "--time=3", "--signal=B:USR1@60")
    assert site.comes_to(job, "TIMEOUT", "FAILED", "COMPLETED", seconds=400) == "TIMEOUT"
    output = site.output(job)
    assert output.index("got USR1") < output.index("got TERM")
    assert "DUE TO TIME LIMIT" in output
    assert site.pods() == []


def test_output_is_whole_across_rotations_of_the_containers_log(site: Site) -> None:
    """The kubelet rotates at 10 MiB, which the time stamps of 300,000 lines exceed."""
    text = "#!/bin/bash\nfor part in 1 2 3; do seq 1 300000; sleep 15; done\n"
    job = site.submit(text, *ONE)
    assert site.comes_to(job, "COMPLETED", "FAILED", seconds=300) == "COMPLETED"
    rotated = f"ls /var/log/pods/*-{job}-r0-*/*/ 2>/dev/null | grep -c 'log[.]' || true"
    found = [site.cluster.lab.node(node, "sh", "-c", rotated).strip() for node in GPU_NODES]
    assert any(count != "0" for count in found), "no log was rotated: this shows nothing"
    digest = site.alice(f"grep -v ^bridge: slurm-{job}.out | sha256sum").split()[0]
    part = "".join(f"{n}\n" for n in range(1, 300_001)).encode()
    assert digest == hashlib.sha256(3 * part).hexdigest()


def test_scancel_takes_the_pods_along_before_slurm_frees_the_nodes(site: Site) -> None:
    text = (
        "#!/bin/bash\n#BRIDGE mode=spmd\n"
        "trap 'echo saved; exit 0' TERM\necho up\nsleep 600 & wait\n"
    )
    job = site.submit(text, "--nodes=2", "--gres=gpu:8")
    eventually(lambda: site.output(job).count("up\n"), lambda count: count == len(GPU_NODES))
    assert {pod["node"] for pod in site.pods()} == set(GPU_NODES)
    site.alice(f"scancel {job}")
    site.comes_to(job, "CANCELLED")
    assert site.pods() == []
    assert site.output(job).count("saved\n") == len(GPU_NODES)


def test_image_that_is_not_there_is_named_where_the_user_looks(site: Site) -> None:
    text = "#!/bin/bash\n#BRIDGE image=nvcr.io/nvidia/pytorch:99.99-py3\necho never\n"
    job = site.submit(text, "--nodes=1", "--gres=gpu:8")
    explained = eventually(
        lambda: site.alice(f"railweld-bridge explain {job}"), lambda found: "ImagePull" in found
    )
    assert "nvcr.io/nvidia/pytorch:99.99-py3" in explained or "check its name" in explained
    site.alice(f"scancel {job}")
    site.comes_to(job, "CANCELLED")
    assert "never" not in site.output(job)
    assert site.pods() == []


def test_cancelled_at_the_barrier_keeps_a_node_whose_kubelet_is_away(site: Site) -> None:
    lab = site.cluster.lab
    lab.node("gpu2", "systemctl", "stop", "kubelet")
    try:
        job = site.submit("#!/bin/bash\n#BRIDGE mode=spmd\necho never\n", *TWO)
        eventually(
            lambda: site.alice(f"railweld-bridge explain {job}"), lambda found: "1/2 pods" in found
        )
        site.alice(f"scancel {job}")
        eventually(lambda: {pod["node"] for pod in site.pods()}, lambda found: found == {"gpu2"})
        assert site.state(job) == "COMPLETING"
    finally:
        lab.node("gpu2", "systemctl", "start", "kubelet")
    site.comes_to(job, "CANCELLED")
    assert site.pods() == []
    assert "never" not in site.output(job)
    has_devices(site.cluster, "gpu2")
    site.node_is("gpu2", "idle")


def test_daemon_that_is_killed_comes_back_to_its_job(site: Site) -> None:
    lab, job = site.cluster.lab, site.counts()
    before = site.pods()
    lab.node("head1", "systemctl", "kill", "--signal=KILL", "bridged")
    eventually(
        lambda: lab.node("head1", "systemctl", "is-active", "bridged", check=False).strip(),
        lambda found: found == "active",
    )
    site.has_gone_on(job)
    assert site.pods() == before
    site.ends_whole(job)


def test_two_minutes_without_the_api_server_end_nothing(site: Site) -> None:
    """Longer than nodes' leases: all of them look unready for a moment afterwards."""
    lab, job = site.cluster.lab, site.counts()
    before = site.pods()

    def answer() -> str:
        return site.cluster.kubectl("get", "--raw", "/readyz", check=False).strip()

    lab.node("head1", "mv", APISERVER, "/root/kube-apiserver.yaml")
    try:
        eventually(answer, lambda found: found == "")
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert site.state(job) == "RUNNING"
            time.sleep(5)
        site.has_gone_on(job)
    finally:
        lab.node("head1", "mv", "/root/kube-apiserver.yaml", APISERVER)
    eventually(answer, lambda found: found == "ok")
    eventually(site.cluster.ready, lambda found: all(found.values()))
    site.has_gone_on(job)
    assert site.pods() == before
    site.ends_whole(job)
    for node in GPU_NODES:
        site.node_is(node, "idle")


def test_drained_node_sends_its_job_elsewhere(site: Site) -> None:
    cluster = site.cluster
    job = site.submit(ONCE, *ONE, "--requeue")
    node = site.runs_on(job)
    (other,) = set(GPU_NODES) - {node}
    try:
        cluster.kubectl(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"),
            f"--pod-selector={names.LABEL_JOB_ID}={job}",
        )
        site.comes_to(job, "COMPLETED", seconds=REQUEUE_S)
        output = site.output(job)
        assert f"bridge: {node}: Kubernetes ended the pod" in output
        assert f"run 1 on {other}" in output
        assert site.alice(f"sinfo -h -n {node} -o %E").strip() == "railweld: cordoned"
    finally:
        cluster.kubectl("uncordon", node)
    site.node_is(node, "idle")


def test_node_whose_kubelet_stops_is_given_to_nobody_while_its_pod_may_run(site: Site) -> None:
    lab = site.cluster.lab
    job = site.submit(ONCE, *ONE, "--requeue")
    node = site.runs_on(job)
    (other,) = set(GPU_NODES) - {node}
    lab.node(node, "systemctl", "stop", "kubelet")
    try:
        site.comes_to(job, "COMPLETED", seconds=REQUEUE_S)
        assert f"run 1 on {other}" in site.output(job)
        assert site.alice(f"sinfo -h -n {node} -o %E").startswith("railweld: NotReady")
        site.node_is(node, "down")
    finally:
        lab.node(node, "systemctl", "start", "kubelet")
    eventually(site.cluster.ready, lambda found: found[node])
    has_devices(site.cluster, node)
    site.node_is(node, "idle")
    assert lab.node(node, "pgrep", "--full", "sleep 4321", check=False).strip() == ""


def test_node_that_dies_ends_the_run_and_the_job_goes_on_elsewhere(site: Site) -> None:
    lab = site.cluster.lab
    job = site.submit(ONCE, *ONE, "--requeue")
    node = site.runs_on(job)
    (other,) = set(GPU_NODES) - {node}
    lab.fault("power-cut", node, "seconds=-1")
    try:
        # Unready for the kubelet's lease and the grace, and Slurm lets a requeued job wait as well.
        site.comes_to(job, "COMPLETED", seconds=REQUEUE_S)
        output = site.output(job)
        assert f"run 1 on {other}" in output, output
        assert "railweld: " in site.alice(f"sinfo -h -n {node} -o %E")
    finally:
        lab.clear("power-cut", node)
    eventually(site.cluster.ready, lambda found: found[node])
    has_devices(site.cluster, node)
    site.node_is(node, "idle")


def test_head_that_loses_its_power_starts_the_job_again_after_its_pods_are_gone(
    site: Site,
) -> None:
    """slurmctld, all slurmds, the daemon and the API server at once: the batch step is lost."""
    lab, job = site.cluster.lab, site.submit(ONCE, *ONE, "--requeue")
    node = site.runs_on(job)
    # One whose start slurmctld had not saved yet it starts again, and the bridge finds its pod.
    begun = int(site.alice(f"date -d $(squeue -h -j {job} -o %S) +%s"))
    saved = ("stat", "-c", "%Y", "/var/lib/slurm/slurmctld/job_state")
    eventually(lambda: int(lab.node("head1", *saved)), lambda found: found > begun)
    lab.fault("power-cut", "head1")
    services = ("systemctl", "is-active", "slurmctld", "bridged")
    eventually(
        lambda: lab.node("head1", *services, check=False).split(),
        lambda found: found == ["active", "active"],
        seconds=600,
    )
    eventually(
        lambda: site.cluster.kubectl("get", "--raw", "/readyz", check=False).strip(),
        lambda found: found == "ok",
        seconds=600,
    )
    site.comes_to(job, "COMPLETED", seconds=600)
    assert "run 1 on" in site.output(job)
    assert site.pods() == []
    assert lab.node(node, "pgrep", "--full", "sleep 4321", check=False).strip() == ""
    for each in GPU_NODES:
        site.node_is(each, "idle")
