"""A cluster from one minor release of Kubernetes to the next, in order, with pods on it.

Pays for a second build of Kubernetes, so it belongs to this suite alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cluster.helpers import Cluster
from tests.labs import command, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

BEFORE, AFTER = "1.35.4", "1.36.3"
NODES = ("head1", "gpu1", "gpu2")


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
    assert not any(each["spec"].get("unschedulable") for each in cluster.get("nodes")["items"])


def test_second_run_continues_to_the_end(cluster: Cluster) -> None:
    cluster.lab.node("gpu1", "systemctl", "start", "kubelet.service")
    code, output = upgrade(cluster, AFTER, "-e", "railweld_serial=1")
    assert code == 0, output[-6000:]
    assert versions(cluster) == dict.fromkeys(NODES, f"v{AFTER}")
    assert cluster.ready() == dict.fromkeys(NODES, True)
    assert not any(each["spec"].get("unschedulable") for each in cluster.get("nodes")["items"])
    for node in NODES:
        held = cluster.lab.holds(node)
        assert {"kubeadm", "kubelet", "kubectl", "kubernetes-cni", "cri-tools"} <= held


def test_deploy_after_the_upgrade_changes_nothing(cluster: Cluster) -> None:
    cluster.deploy(*version(AFTER)).assert_ok()
    run = cluster.deploy(*version(AFTER)).assert_ok()
    assert set(run.changed().values()) == {0}
