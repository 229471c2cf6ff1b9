"""A cluster from one minor release of Kubernetes to the next, in order, with pods on it.

Pays for a second build of Kubernetes, so it belongs to this suite alone.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.integration.cluster.helpers import Cluster, eventually
from tests.labs import BIN, REPOSITORY, command, environment, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

BEFORE, AFTER = "1.35.4", "1.36.3"
NODES = ("head1", "gpu1", "gpu2")
#: Slurm on the head, played by programs that write down what they are asked: a job on each node.
SLURM = r"""
set -e
mkdir -p /etc/slurm /root/slurm
touch /etc/slurm/slurm.conf /root/slurm/asked
for node in gpu1 gpu2; do
  echo 'idle|none' > /root/slurm/$node
  echo 7 > /root/slurm/$node.jobs
done
program() {
  printf '#!/bin/sh\ncd /root/slurm\n%s\n' "$2" > /usr/local/bin/$1
  chmod +x /usr/local/bin/$1
}
program sinfo 'case "$*" in --Node*) printf "gpu1\ngpu2\n" ;; *) cat "$3" ;; esac'
program squeue 'echo "squeue $3" >> asked; cat "$3.jobs"; : > "$3.jobs"'
program scontrol '
node=${2#nodename=}
echo "$3 $node" >> asked
case "$3" in state=resume) echo "idle|none" ;; *) echo "drained|${4#reason=}" ;; esac > "$node"'
"""


def version(wanted: str) -> tuple[str, str]:
    """The option that asks for a version of Kubernetes."""
    return ("-e", f'{{"railweld_version_overrides": {{"kubernetes": "{wanted}"}}}}')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the older release."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("kubernetes"), site="k8supgrade", third_octet=21, gpu_nodes=2
    )
    with running_lab(inventory) as lab:
        command(
            [
                *("railweld", "lab", "kubernetes", "-i", str(inventory)),
                *("--version", BEFORE, "--version", AFTER),
            ],
            timeout=3600,
        )
        lab.play().assert_ok()
        cluster = Cluster(lab)
        cluster.deploy(*version(BEFORE)).assert_ok()
        lab.node("head1", "bash", "-c", SLURM)
        yield cluster


def versions(cluster: Cluster) -> dict[str, str]:
    """Version of every kubelet."""
    return {
        each["metadata"]["name"]: each["status"]["nodeInfo"]["kubeletVersion"]
        for each in cluster.get("nodes")["items"]
    }


def upgrade(cluster: Cluster, wanted: str, *arguments: str) -> tuple[int, str]:
    run = cluster.lab.play(
        *version(wanted), *arguments, playbook="playbooks/upgrade-cluster.yml", timeout=2400
    )
    return run.returncode, run.output


def out_of_service(cluster: Cluster) -> set[str]:
    """Nodes that are cordoned, or drained in Slurm."""
    cordoned = {
        each["metadata"]["name"]
        for each in cluster.get("nodes")["items"]
        if each["spec"].get("unschedulable")
    }
    drained = {
        node
        for node in ("gpu1", "gpu2")
        if "drained" in cluster.lab.node("head1", "cat", f"/root/slurm/{node}")
    }
    return cordoned | drained


def asked(cluster: Cluster) -> list[str]:
    """What Slurm was asked to do so far."""
    return cluster.lab.node("head1", "cat", "/root/slurm/asked").splitlines()


def test_skipping_a_minor_release_is_refused_with_nothing_changed(cluster: Cluster) -> None:
    code, output = upgrade(cluster, "1.37.2")
    assert code != 0
    assert "must not be skipped" in output
    assert versions(cluster) == dict.fromkeys(NODES, f"v{BEFORE}")


def test_deploying_another_version_is_refused_and_names_the_upgrade(cluster: Cluster) -> None:
    run = cluster.deploy(*version(AFTER))
    assert run.returncode != 0
    assert "playbooks/upgrade-cluster.yml" in run.output
    assert versions(cluster) == dict.fromkeys(NODES, f"v{BEFORE}")


def test_failing_node_stops_the_others_and_is_not_left_cordoned(cluster: Cluster) -> None:
    cluster.lab.node("gpu1", "systemctl", "mask", "--runtime", "kubelet.service")
    code, output = upgrade(cluster, AFTER, "-e", "railweld_serial=1")
    cluster.lab.node("gpu1", "systemctl", "unmask", "--runtime", "kubelet.service")
    assert code != 0
    found = versions(cluster)
    assert found["head1"] == f"v{AFTER}", output[-6000:]
    assert found["gpu2"] == f"v{BEFORE}"
    assert out_of_service(cluster) == set()
    # Its job was waited for before anything was evicted.
    assert asked(cluster) == [
        *("state=drain gpu1", "squeue gpu1", "squeue gpu1", "state=resume gpu1"),
    ]


def test_node_that_loses_its_power_in_its_turn_stays_out_of_service(cluster: Cluster) -> None:
    cluster.lab.node("gpu1", "systemctl", "start", "kubelet.service")
    eventually(cluster.ready, lambda found: found == dict.fromkeys(NODES, True))
    argv = [
        *(str(BIN / "ansible-playbook"), "-i", str(cluster.lab.inventory)),
        *("playbooks/upgrade-cluster.yml", *version(AFTER), "-e", "railweld_serial=1"),
    ]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as run:
        try:
            while not cluster.node("gpu2")["spec"].get("unschedulable"):
                assert run.poll() is None, "the playbook ended before it was gpu2's turn"
                time.sleep(0.2)
            cluster.lab.fault("power-cut", "gpu2", "seconds=-1")
            assert run.wait(timeout=1800) != 0
        finally:
            run.kill()
    assert versions(cluster)["gpu1"] == f"v{AFTER}"
    assert out_of_service(cluster) == {"gpu2"}
    cluster.lab.clear("power-cut", "gpu2")
    # Not until it is Ready: its kubelet may have been in the middle of being unpacked.
    eventually(
        lambda: cluster.lab.node("gpu2", "systemctl", "is-active", "ssh", check=False).strip(),
        lambda found: found == "active",
    )


def test_next_run_continues_to_the_end_and_returns_every_node(cluster: Cluster) -> None:
    code, output = upgrade(cluster, AFTER, "-e", "railweld_serial=1")
    assert code == 0, output[-6000:]
    assert versions(cluster) == dict.fromkeys(NODES, f"v{AFTER}")
    assert cluster.ready() == dict.fromkeys(NODES, True)
    assert out_of_service(cluster) == set()
    for node in NODES:
        held = cluster.lab.holds(node)
        assert {"kubeadm", "kubelet", "kubectl", "kubernetes-cni", "cri-tools"} <= held


def test_deploy_after_the_upgrade_changes_nothing(cluster: Cluster) -> None:
    cluster.deploy(*version(AFTER)).assert_ok()
    run = cluster.deploy(*version(AFTER)).assert_ok()
    assert set(run.changed().values()) == {0}
