"""`railweld verify --stage cluster` on a living cluster: green when whole, right about faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import pytest

from railweld import names
from railweld.errors import ExitCode
from tests.fault_table import NODES, SITE, by_checks
from tests.integration.cluster.helpers import GPU_NODES, Cluster, eventually, has_devices
from tests.integration.stack.plane import Pulumi

pytestmark = [pytest.mark.lab, pytest.mark.deep]

#: What the stage is for; a check that is no longer there proves nothing.
KINDS = {
    *("kubernetes.member", "kubernetes.labels", "kubernetes.taints", "cni.ready"),
    *("containerd.memlock", "cluster.node", "cluster.gpus", "cluster.rdma", "cluster.clock"),
    *("stack.objects", "stack.agent", "job.pod", "job.memlock", "job.shm", "job.nccl_profile"),
    *("job.hcas", "job.dns", "job.rendezvous"),
}


def bad(checks: Iterable[dict[str, str]]) -> dict[tuple[str, str], str]:
    """What is not as it should be: (check, target) to status."""
    return {
        (each["id"], each["target"]): each["status"]
        for each in checks
        if each["status"] not in ("pass", "skipped")
    }


def trial_pods(cluster: Cluster) -> list[str]:
    """Pods of the command that are left."""
    listed = cluster.get(
        "pods", "--namespace", names.NAMESPACE_JOBS, "--selector", "railweld.io/verify"
    )
    return [each["metadata"]["name"] for each in listed["items"]]


def test_whole_cluster_is_green_and_no_pod_is_left(stack: Cluster) -> None:
    code, checks = stack.verify()
    assert bad(checks) == {}
    assert code == ExitCode.OK
    assert {each["id"] for each in checks} >= KINDS
    eventually(lambda: trial_pods(stack), lambda found: found == [])


def test_it_looks_beside_a_job_that_has_all_gpus(stack: Cluster) -> None:
    namespace = ("--namespace", names.NAMESPACE_JOBS)
    template = stack.get("podtemplate", "gpu", *namespace)["template"]
    template["spec"]["containers"][0]["command"] = ["sleep", "infinity"]
    template["spec"]["securityContext"]["runAsUser"] = 1000
    template["spec"]["nodeSelector"]["kubernetes.io/hostname"] = "gpu1"
    template["spec"]["terminationGracePeriodSeconds"] = 0
    metadata = {**template["metadata"], "name": "busy"}
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
    stack.kubectl("apply", *namespace, "--filename", "-", stdin=json.dumps(pod))
    try:
        stack.kubectl("wait", *namespace, "--for=condition=Ready", "pod/busy", "--timeout=120s")
        code, checks = stack.verify()
        assert bad(checks) == {}
        assert code == ExitCode.OK
    finally:
        stack.kubectl("delete", "pod", "busy", *namespace)


def test_limit_and_no_pods_look_at_less(stack: Cluster) -> None:
    code, checks = stack.verify("--limit", "gpu1", "--no-pods")
    assert code == ExitCode.OK
    assert "gpu2" not in {each["target"] for each in checks}
    assert {each["status"] for each in checks if each["id"] == "job.pod"} == {"skipped"}


@pytest.mark.parametrize("fault", [name for name, row in NODES.items() if row.stage == "cluster"])
def test_fault_turns_exactly_its_declared_checks_red_and_doctor_names_it(
    stack: Cluster, fault: str
) -> None:
    row = NODES[fault]
    wanted = {
        (check, stack.site if machine == SITE else machine)
        for machine, ids in row.red.items()
        for check in ids
    }
    began = int(time.time())
    words = [f"{key}={value}" for key, value in row.settings.items()]
    stack.lab.fault(fault, row.node, *words)
    try:
        eventually(lambda: set(bad(stack.verify("--no-pods")[1])), lambda found: found == wanted)
        said = stack.doctor(row.node, began)
        assert by_checks(said) == {row.cause}, said["incidents"]
    finally:
        stack.lab.clear(fault, row.node)
    eventually(lambda: bad(stack.verify("--no-pods")[1]), lambda found: found == {})
    for node in GPU_NODES:
        has_devices(stack, node)


def test_unhealthy_gpu_is_named_on_its_node_alone(stack: Cluster) -> None:
    stack.lab.fault("gpu-unhealthy", "gpu1", "count=2")
    has_devices(stack, "gpu1", gpu=6)
    code, checks = stack.verify("--no-pods")
    assert bad(checks) == {("cluster.gpus", "gpu1"): "fail"}
    found = next(each for each in checks if each["id"] == "cluster.gpus" and each["fix"])
    assert found["found"].startswith("6 nvidia.com/gpu of 8")
    assert code == ExitCode.FAILED
    stack.lab.clear("gpu-unhealthy", "gpu1")
    has_devices(stack, "gpu1")


def test_vanished_plugin_fails_its_node_and_leaves_the_pod_unknown(stack: Cluster) -> None:
    stack.lab.fault("device-plugin-gone", "gpu2", "resource=rdma")
    has_devices(stack, "gpu2", rdma=0)
    code, checks = stack.verify()
    assert bad(checks) == {("cluster.rdma", "gpu2"): "fail", ("job.pod", "gpu2"): "unknown"}
    assert code == ExitCode.FAILED
    stack.lab.clear("device-plugin-gone", "gpu2")
    has_devices(stack, "gpu2")
    assert bad(stack.verify()[1]) == {}


def test_clock_that_is_off_fails_the_clock_and_not_its_guard(stack: Cluster) -> None:
    stack.lab.fault("clock-offset", "gpu2", "ms=800")
    label = lambda: stack.node("gpu2")["metadata"]["labels"][names.LABEL_CLOCK]  # noqa: E731 - one use
    eventually(label, lambda found: found == "off")
    _, checks = stack.verify("--no-pods")
    assert bad(checks) == {("cluster.clock", "gpu2"): "fail"}
    stack.lab.clear("clock-offset", "gpu2")
    eventually(label, lambda found: found == "ok")


def test_profile_that_someone_edited_shows_in_the_cluster_and_in_pods(
    stack: Cluster, engine: Pulumi
) -> None:
    where = ("configmap", names.CONFIGMAP_NCCL, "--namespace", names.NAMESPACE_JOBS)
    stack.kubectl("patch", *where, "--type=merge", "--patch", '{"data": {"NCCL_IB_TC": "0"}}')
    code, checks = stack.verify()
    found = bad(checks)
    assert code == ExitCode.FAILED
    profile = f"ConfigMap {names.NAMESPACE_JOBS}/{names.CONFIGMAP_NCCL}"
    assert set(found) == {
        ("stack.objects", profile),
        ("job.nccl_profile", "gpu1"),
        ("job.nccl_profile", "gpu2"),
    }
    engine.up()
    assert bad(stack.verify()[1]) == {}


def test_agent_without_its_image_is_named_with_the_reason(stack: Cluster, engine: Pulumi) -> None:
    where = ("daemonset/dcgm-exporter", "--namespace", names.NAMESPACE_SYSTEM)
    stack.kubectl("set", "image", *where, "*=registry.test/absent:1")

    def told() -> str:
        return "".join(
            each["found"] for each in stack.verify("--no-pods")[1] if each["id"] == "stack.agent"
        )

    eventually(told, lambda text: "ErrImagePull" in text or "ImagePullBackOff" in text)
    engine.up()
    eventually(told, lambda text: "Image" not in text)


def test_cluster_without_its_stack_is_one_failure(stack: Cluster, engine: Pulumi) -> None:
    engine("destroy", "--yes")
    code, checks = stack.verify()
    assert bad(checks) == {("stack.deployed", "cluster"): "fail"}
    assert code == ExitCode.FAILED


def test_nodes_are_judged_beside_a_silent_api_server(cluster: Cluster) -> None:
    cluster.lab.fault("api-stopped", "head1")
    try:
        code, checks = cluster.verify()
        assert bad(checks)["cluster.reached", cluster.site] == "unknown"
        assert "containerd.memlock" in {each["id"] for each in checks}
        assert code != ExitCode.OK
    finally:
        cluster.lab.clear("api-stopped", "head1")
    answers = ("get", "--raw", "/readyz")
    eventually(lambda: cluster.kubectl(*answers, check=False), lambda found: found.strip() == "ok")
