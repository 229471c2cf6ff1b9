"""The stack on a real cluster: agents on nodes, devices from the real kubelet, jobs that run.

What the stack does to an API server alone is in tests/integration/stack.
"""

from __future__ import annotations

import json

import pytest

from railweld import names
from railweld.site import load_site
from railweld.stack.objects import Manifest
from tests.integration.cluster.helpers import (
    DEVICES,
    GPU_NODES,
    Cluster,
    devices,
    eventually,
    has_devices,
)
from tests.integration.stack.plane import Pulumi

pytestmark = [pytest.mark.lab, pytest.mark.deep]

NODES = ("head1", "gpu1", "gpu2")

#: What a job finds in its pod.
LOOK = """
import json, os, resource, socket
mounts = [line.split() for line in open("/proc/mounts")]
size = os.statvfs("/dev/shm")
print(json.dumps({
    "environment": dict(os.environ),
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK),
    "shm": [kind for _, path, kind, *_ in mounts if path == "/dev/shm"],
    "shm_bytes": size.f_frsize * size.f_blocks,
    "uid": os.getuid(),
    "host": socket.gethostname(),
    "dns": socket.gethostbyname("kubernetes.default.svc.cluster.local"),
}))
"""


def clocks(cluster: Cluster) -> dict[str, str]:
    """Label of the clock guard by node."""
    return {
        each["metadata"]["name"]: each["metadata"]["labels"].get(names.LABEL_CLOCK, "")
        for each in cluster.get("nodes")["items"]
    }


def registrations(cluster: Cluster, node: str) -> dict[str, int]:
    """How often each device plugin of a node has registered with its kubelet.

    A kubelet that starts shows no logs yet.
    """
    where = ("--namespace", names.NAMESPACE_SYSTEM)
    found = cluster.get("pods", *where, f"--field-selector=spec.nodeName={node}")["items"]
    pods = [each["metadata"]["name"] for each in found]
    return {
        pod: cluster.kubectl("logs", pod, *where, check=False).count(": registered with")
        for pod in pods
        if "device-plugin" in pod
    }


def test_devices_are_as_described_on_every_node(stack: Cluster) -> None:
    site = load_site([str(stack.lab.inventory)])
    for name, host in site.hosts.items():
        expected = host.gpu.count if host.gpu else 0
        assert stack.allocatable(name) == expected
    assert devices(stack, "head1") == dict.fromkeys(DEVICES, 0)


def test_every_clock_is_watched_over_a_service(stack: Cluster) -> None:
    eventually(lambda: clocks(stack), lambda found: found == dict.fromkeys(NODES, "ok"))


def test_second_runs_of_both_change_nothing(stack: Cluster, engine: Pulumi) -> None:
    assert engine.changes() == {}
    again = engine.up()
    assert "unchanged" in again.stdout
    assert not {"created", "updated", "deleted"} & set(again.stdout.split())
    assert set(stack.deploy().assert_ok().changed().values()) == {0}


def test_job_has_devices_limits_and_profile(stack: Cluster) -> None:
    node, output = stack.job("look", LOOK)
    found = json.loads(output)
    assert node in GPU_NODES
    assert found["host"] == node
    given = found["environment"]
    assert len(given["NVIDIA_VISIBLE_DEVICES"].split(",")) == DEVICES[names.RESOURCE_GPU]
    profile: Manifest = stack.get(
        "configmap", names.CONFIGMAP_NCCL, "--namespace", names.NAMESPACE_JOBS
    )
    assert profile["data"].items() <= given.items()
    assert given["NCCL_IB_TC"] == "104"
    site = load_site([str(stack.lab.inventory)])
    assert found["memlock"] == [int(site.memlock_kib) * 1024] * 2
    assert found["shm"] == ["tmpfs"]
    assert found["shm_bytes"] == 1 << 30
    assert found["uid"] == 1000
    assert found["dns"] == "10.96.0.1"


def test_job_goes_where_all_gpus_are_healthy(stack: Cluster) -> None:
    stack.lab.fault("gpu-unhealthy", "gpu1", "count=2")
    has_devices(stack, "gpu1", gpu=6)
    assert stack.job("healthy", "print()")[0] == "gpu2"
    stack.lab.clear("gpu-unhealthy", "gpu1")
    has_devices(stack, "gpu1")


def test_gpu_that_fell_off_the_bus_is_not_offered(stack: Cluster) -> None:
    stack.lab.fault("gpu-missing", "gpu2")
    has_devices(stack, "gpu2", gpu=7)
    stack.lab.clear("gpu-missing", "gpu2")
    has_devices(stack, "gpu2")


@pytest.mark.parametrize("kind", ["gpu", "rdma"])
def test_vanished_plugin_takes_its_devices_along(stack: Cluster, kind: str) -> None:
    stack.lab.fault("device-plugin-gone", "gpu1", f"resource={kind}")
    has_devices(stack, "gpu1", **{kind: 0})
    stack.lab.clear("device-plugin-gone", "gpu1")
    has_devices(stack, "gpu1")


def test_plugins_register_again_with_a_restarted_kubelet(stack: Cluster) -> None:
    before = registrations(stack, "gpu1")
    stack.lab.node("gpu1", "systemctl", "restart", "kubelet")
    eventually(
        lambda: registrations(stack, "gpu1"), lambda now: all(now[pod] > before[pod] for pod in now)
    )
    has_devices(stack, "gpu1")
    assert stack.job("restarted", "print()", node="gpu1")[0] == "gpu1"


def test_clock_that_is_off_shows_on_its_node_and_holds_up_nobody_else(stack: Cluster) -> None:
    stack.lab.fault("clock-offset", "gpu2", "ms=800")
    eventually(lambda: clocks(stack)["gpu2"], lambda found: found == "off")
    assert clocks(stack)["gpu1"] == "ok"
    stack.lab.clear("clock-offset", "gpu2")
    eventually(lambda: clocks(stack)["gpu2"], lambda found: found == "ok")


def test_destroy_leaves_the_cluster_as_the_playbook_made_it(stack: Cluster, engine: Pulumi) -> None:
    before = stack.node("gpu1")
    engine("destroy", "--yes")
    after = stack.node("gpu1")
    assert after["spec"]["taints"] == before["spec"]["taints"]
    kept = set(before["metadata"]["labels"]) - {names.LABEL_CLOCK}
    assert kept <= set(after["metadata"]["labels"])
    found = {each["metadata"]["name"] for each in stack.get("namespaces")["items"]}
    assert not {names.NAMESPACE_SYSTEM, names.NAMESPACE_JOBS} & found
    eventually(lambda: devices(stack, "gpu1"), lambda each: each == dict.fromkeys(DEVICES, 0))
    assert set(stack.deploy().assert_ok().changed().values()) == {0}
