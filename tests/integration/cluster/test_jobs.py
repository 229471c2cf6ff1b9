"""sbatch to pods on real kubelets: Slurm, the bridge and the stack on one lab, as a site has them.

What the bridge does under every fault is in tests/integration/bridge, on simulated nodes; here its
pods are real ones: images, user, volumes, devices, logs and the way to the daemon on the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from railweld import names
from tests.integration.cluster.helpers import (
    DEVICES,
    GPU_NODES,
    Cluster,
    eventually,
    has_devices,
)
from tests.labs import REPOSITORY, PlayRun

pytestmark = [pytest.mark.lab, pytest.mark.deep]

FIXTURE = (REPOSITORY / "tests/fixtures/bridge/train.slurm").read_text()
HOME = "/data/alice"
UID = 1001


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

    def comes_to(self, number: int, *states: str) -> str:
        """Wait until a job is in one of these states."""
        found: str = eventually(lambda: self.state(number), lambda state: state in states)
        return found


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
    assert site.alice(f"sacct -nXP -j {job} -o state,exitcode,nodelist").strip() == (
        "COMPLETED|0:0|gpu[1-2]"
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
    assert site.alice("cat from-the-pod; stat -c %U from-the-pod").split() == ["written", "alice"]


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


def test_node_that_dies_ends_the_run_and_the_job_goes_on_elsewhere(site: Site) -> None:
    lab = site.cluster.lab
    text = (
        "#!/bin/bash\necho run $SLURM_RESTART_COUNT on $(uname -n)\n"
        '[ "$SLURM_RESTART_COUNT" != 0 ] || sleep 600\n'
    )
    job = site.submit(text, "--nodes=1", "--gres=gpu:8", "--requeue")
    eventually(lambda: site.output(job), lambda output: "run 0" in output)
    (node,) = {pod["node"] for pod in site.pods()}
    (other,) = set(GPU_NODES) - {node}
    lab.fault("power-cut", node, "seconds=-1")
    try:
        # Unready for the kubelet's lease and the grace, and Slurm lets a requeued job wait as well.
        eventually(lambda: site.state(job), lambda state: state == "COMPLETED", seconds=420)
        output = site.output(job)
        assert f"run 1 on {other}" in output, output
        assert "railweld: " in site.alice(f"sinfo -h -n {node} -o %E")
    finally:
        lab.clear("power-cut", node)
    eventually(site.cluster.ready, lambda found: found[node])
    has_devices(site.cluster, node)
    eventually(lambda: site.alice(f"sinfo -h -n {node} -o %t").strip(), lambda s: s == "idle")
