"""The real API server judges: what the policies refuse, what they let through, what they say."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from railweld.site import Site
from railweld.stack import policies
from railweld.stack.api import ApiError
from railweld.stack.graph import Stack, stack_for
from railweld.stack.objects import Manifest
from tests.integration.stack.plane import ControlPlane, wait_until

pytestmark = pytest.mark.deep

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module", autouse=True)
def applied(plane: ControlPlane, stack: Stack) -> None:
    """The stack's objects."""
    plane.apply(stack.manifests())
    plane.kubectl("create", "namespace", "tenant")
    # A team that may use its nodes' network; the cluster's default would not let it.
    plane.kubectl("label", "namespace", "tenant", "pod-security.kubernetes.io/enforce=privileged")
    # Admission takes new policies up a moment after they are stored.
    wait_until(lambda: plane.create(bare_pod(image="x:latest")).returncode != 0)


def bare_pod(**container: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "railweld-jobs"},
        "spec": {
            "securityContext": {"runAsUser": 1000},
            "containers": [
                {
                    "name": "job",
                    "image": "registry.example.com/job:1",
                    "securityContext": {"allowPrivilegeEscalation": False},
                    **container,
                }
            ],
        },
    }


@pytest.fixture
def job_pod(stack: Stack) -> Manifest:
    """What the bridge makes of the template: the template and a user."""
    template = next(each for each in stack.manifests() if each["kind"] == "PodTemplate")
    pod = copy.deepcopy(template["template"])
    pod["spec"]["securityContext"] |= {"runAsUser": 1000, "runAsGroup": 1000}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "railweld-jobs", **pod["metadata"]},
        "spec": pod["spec"],
    }


def as_job(pod: Manifest) -> Manifest:
    metadata = {k: v for k, v in pod["metadata"].items() if k not in ("name", "namespace")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "probe", "namespace": pod["metadata"]["namespace"]},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimit": 0,
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def set_env(pod: dict[str, Any], name: str, value: str) -> None:
    container(pod).setdefault("env", []).append({"name": name, "value": value})


def drop_shm(pod: dict[str, Any]) -> None:
    container(pod)["volumeMounts"] = [
        each for each in container(pod)["volumeMounts"] if each["name"] != "shm"
    ]


def host_path(pod: dict[str, Any], path: str) -> None:
    pod["spec"]["volumes"].append({"name": "h", "hostPath": {"path": path}})


def init_container(pod: dict[str, Any], **changes: Any) -> None:
    pod["spec"]["initContainers"] = [
        {
            "name": "init",
            "image": "registry.example.com/agent:1",
            "securityContext": {"allowPrivilegeEscalation": False},
            **changes,
        }
    ]


def test_the_templates_pod_is_accepted(plane: ControlPlane, job_pod: Manifest) -> None:
    done = plane.create(job_pod)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    done = plane.create(as_job(job_pod))
    assert done.returncode == 0, done.stderr


def test_a_pod_without_gpus_needs_nothing(plane: ControlPlane) -> None:
    done = plane.create(bare_pod())
    assert done.returncode == 0, done.stderr


REFUSED: dict[str, tuple[Change, str]] = {
    "no RDMA": (lambda p: container(p)["resources"]["limits"].pop("rdma/hca"), "NCCL on TCP"),
    "no RDMA by zero": (
        lambda p: container(p)["resources"]["limits"].update({"rdma/hca": "0"}),
        "NCCL on TCP",
    ),
    "no IPC_LOCK": (
        lambda p: container(p)["securityContext"]["capabilities"].pop("add"),
        "lock memory",
    ),
    "no capabilities at all": (
        lambda p: container(p)["securityContext"].pop("capabilities"),
        "lock memory",
    ),
    "no /dev/shm": (drop_shm, "/dev/shm"),
    "/dev/shm without a size": (
        lambda p: p["spec"]["volumes"][0]["emptyDir"].pop("sizeLimit"),
        "/dev/shm",
    ),
    "/dev/shm on the disk": (
        lambda p: p["spec"]["volumes"][0]["emptyDir"].pop("medium"),
        "/dev/shm",
    ),
    "no tag": (lambda p: container(p).update(image="registry.example.com:5000/job"), "tag"),
    "latest": (lambda p: container(p).update(image="registry.example.com/job:latest"), "latest"),
    "latest in an init container": (
        lambda p: init_container(p, image="registry.example.com/agent:latest"),
        "latest",
    ),
    "another folder of the node": (lambda p: host_path(p, "/etc"), "may mount only"),
    "a folder that only begins alike": (lambda p: host_path(p, "/local/cached"), "may mount only"),
    "privileged": (
        lambda p: container(p)["securityContext"].update(
            privileged=True, allowPrivilegeEscalation=True
        ),
        "privileged",
    ),
    "escalation not forbidden": (
        lambda p: container(p)["securityContext"].pop("allowPrivilegeEscalation"),
        "allowPrivilegeEscalation",
    ),
    "another capability": (
        lambda p: container(p)["securityContext"]["capabilities"]["add"].append("SYS_ADMIN"),
        "IPC_LOCK and no other",
    ),
    "a capability of an init container": (
        lambda p: init_container(
            p,
            securityContext={
                "allowPrivilegeEscalation": False,
                "capabilities": {"add": ["NET_ADMIN"]},
            },
        ),
        "IPC_LOCK and no other",
    ),
    "no user": (lambda p: p["spec"]["securityContext"].pop("runAsUser"), "runAsUser"),
    "a system user": (lambda p: p["spec"]["securityContext"].update(runAsUser=999), "runAsUser"),
    "root in one container": (
        lambda p: container(p)["securityContext"].update(runAsUser=0),
        "runAsUser",
    ),
    "the node's processes": (lambda p: p["spec"].update(hostPID=True), "processes"),
    "the node's IPC": (lambda p: p["spec"].update(hostIPC=True), "IPC"),
    "no RDMA in a sidecar": (
        lambda p: init_container(
            p,
            restartPolicy="Always",
            resources={"limits": {"nvidia.com/gpu": "1"}},
        ),
        "lock memory",
    ),
    "a node by name": (lambda p: p["spec"].update(nodeName="gpu1"), "nodeSelector"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pods_and_jobs_are_refused_with_the_reason(
    plane: ControlPlane, job_pod: Manifest, case: str
) -> None:
    change, words = REFUSED[case]
    change(job_pod)
    for manifest in (job_pod, as_job(job_pod)):
        done = plane.create(manifest)
        assert done.returncode != 0
        assert words in done.stderr
        assert "denied" in done.stderr


def test_gpu_rules_hold_for_tenants_and_reach_rules_do_not(
    plane: ControlPlane, job_pod: Manifest
) -> None:
    job_pod["metadata"]["namespace"] = "tenant"
    job_pod["spec"]["securityContext"].pop("runAsUser")
    done = plane.create(job_pod)
    assert done.returncode == 0, done.stderr
    container(job_pod)["resources"]["limits"].pop("rdma/hca")
    assert "NCCL on TCP" in plane.create(job_pod).stderr


def test_a_pod_that_stays_on_its_node_may_do_without_rdma(
    plane: ControlPlane, job_pod: Manifest
) -> None:
    container(job_pod)["resources"]["limits"].pop("rdma/hca")
    job_pod["metadata"]["labels"][policies.LABEL_RDMA] = "none"
    done = plane.create(job_pod)
    assert done.returncode == 0, done.stderr
    done = plane.create(as_job(job_pod))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "warned"),
    [
        ("NCCL_SHM_DISABLE", "1", True),
        ("NCCL_SHM_DISABLE", "0", False),
        ("NCCL_IB_CUDA_SUPPORT", "1", True),
        # The lab's NCCL is older than 2.21 and needs a row.
        ("NCCL_IB_GID_INDEX", "3", False),
    ],
)
def test_bad_nccl_variables_warn_and_are_let_through(
    plane: ControlPlane, job_pod: Manifest, name: str, value: str, warned: bool
) -> None:
    set_env(job_pod, name, value)
    done = plane.create(job_pod)
    assert done.returncode == 0, done.stderr
    assert (name in done.stderr) is warned


@pytest.fixture(scope="module")
def somebody(plane: ControlPlane) -> str:
    """A user with rights in every namespace, as operators of other things have them."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-editor"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "somebody"}],
    }
    plane.create(role, dry_run=False)
    return "somebody"


def test_only_the_bridge_and_administrators_start_jobs(
    plane: ControlPlane, job_pod: Manifest, somebody: str
) -> None:
    done = plane.create(as_job(job_pod), user=somebody)
    assert "only the Slurm bridge" in done.stderr
    bridge = "system:serviceaccount:railweld-system:bridged"
    done = plane.create(as_job(job_pod), user=bridge)
    assert done.returncode == 0, done.stderr


def test_the_bridge_has_the_rights_that_it_needs_and_no_more(plane: ControlPlane) -> None:
    bridge = "system:serviceaccount:railweld-system:bridged"

    def can(*question: str) -> bool:
        return plane.kubectl("auth", "can-i", *question, user=bridge, check=False).returncode == 0

    jobs = ("-n", "railweld-jobs")
    wanted = ["create jobs.batch", "delete jobs.batch", "patch pods", "create secrets"]
    wanted += ["create services", "create configmaps", "get podtemplates"]
    for question in wanted:
        assert can(*question.split(), *jobs), question
    assert can("get", "pods", "--subresource=log", *jobs)
    assert can("create", "pods", "--subresource=exec", *jobs)
    assert can("watch", "nodes")
    assert can("get", "mutatingadmissionpolicies/railweld-pin")
    assert not can("patch", "nodes")
    assert not can("create", "jobs.batch", "-n", "default")
    assert not can("get", "secrets", "-n", "railweld-system")
    assert not can("create", "rolebindings", *jobs)
    assert not can("delete", "validatingadmissionpolicies")


def test_pods_of_the_stack_get_past_a_strict_pod_security(
    plane: ControlPlane, stack: Stack
) -> None:
    """The plane holds namespaces without a level to `baseline`, which no node agent passes."""
    agents = [each for each in stack.manifests() if each["kind"] in ("DaemonSet", "Deployment")]
    assert agents
    for agent in agents:
        template = agent["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": agent["metadata"]["name"], "namespace": "railweld-system"},
            "spec": template["spec"],
        }
        done = plane.create(pod)
        assert done.returncode == 0, done.stderr
    unlabelled = bare_pod()
    unlabelled["metadata"]["namespace"] = "default"
    unlabelled["spec"]["hostNetwork"] = True
    assert "violates PodSecurity" in plane.create(unlabelled).stderr


def test_a_folder_cannot_be_left_by_dots(plane: ControlPlane, job_pod: Manifest) -> None:
    host_path(job_pod, "/local/cache/../../etc")
    assert "must not contain '..'" in plane.create(job_pod).stderr


def test_nobody_puts_a_container_into_a_running_job(plane: ControlPlane, somebody: str) -> None:
    plane.create(bare_pod(), dry_run=False)
    path = "/api/v1/namespaces/railweld-jobs/pods/probe/ephemeralcontainers"
    shell = {"name": "shell", "image": "registry.example.com/shell:1"}
    body = {"spec": {"ephemeralContainers": [shell]}}
    user = plane.as_user(somebody)
    admin = plane.cluster()
    try:
        with pytest.raises(ApiError, match="only the Slurm bridge"):
            user.request("PATCH", path, body, content="application/strategic-merge-patch+json")
        admin.request("PATCH", path, body, content="application/strategic-merge-patch+json")
    finally:
        user.close()
        admin.close()
        plane.kubectl("-n", "railweld-jobs", "delete", "pod", "probe", "--now")


def test_jobs_have_their_priority_and_evict_nobody(plane: ControlPlane, job_pod: Manifest) -> None:
    done = plane.kubectl(
        *("create", "-f", "-", "--dry-run=server"),
        *("-o", "jsonpath={.spec.priority} {.spec.preemptionPolicy}"),
        text=json.dumps(job_pod),
    )
    assert done.stdout == "100000 Never"


def test_all_jobs_together_get_no_more_than_the_sites_gpus(
    plane: ControlPlane, job_pod: Manifest
) -> None:
    def counted() -> bool:
        arguments = ("-n", "railweld-jobs", "get", "resourcequota", "railweld-jobs")
        return bool(plane.kubectl(*arguments, "-o", "jsonpath={.status.hard}").stdout)

    wait_until(counted)
    container(job_pod)["resources"]["limits"]["nvidia.com/gpu"] = "25"
    assert "exceeded quota" in plane.create(job_pod).stderr
    container(job_pod)["resources"]["limits"] = {"nvidia.com/gpu": "24", "rdma/hca": "13"}
    assert "exceeded quota" in plane.create(job_pod).stderr


def test_quota_takes_extended_resources(plane: ControlPlane) -> None:
    found = plane.kubectl(
        "-n",
        "railweld-jobs",
        "get",
        "resourcequota",
        "railweld-jobs",
        "-o",
        "jsonpath={.spec.hard}",
    )
    assert '"requests.nvidia.com/gpu":"24"' in found.stdout
    assert '"requests.rdma/hca":"12"' in found.stdout


def test_pods_of_a_job_go_to_the_hosts_in_rank_order(
    plane: ControlPlane, job_pod: Manifest
) -> None:
    def rank(index: str, hosts: str = "gpu3,gpu1") -> Any:
        pod = copy.deepcopy(job_pod)
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = index
        pod["metadata"]["annotations"] = {"railweld.io/hosts": hosts}
        return plane.create(pod), pod

    for index, host in (("0", "gpu3"), ("1", "gpu1")):
        _, pod = rank(index)
        shown = plane.kubectl(
            *("create", "-f", "-", "--dry-run=server", "-o", "jsonpath={.spec.nodeSelector}"),
            text=json.dumps(pod),
        ).stdout
        assert shown == f'{{"kubernetes.io/hostname":"{host}"}}'
    done, _ = rank("2")
    assert done.returncode != 0
    assert "railweld-pin" in done.stderr


def test_a_jobs_pods_run_on_the_hosts_that_slurm_gave_it(
    plane: ControlPlane, job_pod: Manifest
) -> None:
    """Controller, admission and scheduler together: rank i is on the i-th host."""
    hosts = ["gpu3", "gpu1", "gpu2"]
    plane.start_kwok()
    plane.nodes(3, {"nvidia.com/gpu": "8", "rdma/hca": "4"})
    job = as_job(job_pod)
    job["spec"] |= {"completions": 3, "parallelism": 3}
    annotations = {"railweld.io/hosts": ",".join(hosts)}
    job["spec"]["template"]["metadata"]["annotations"] = annotations

    def placed() -> dict[str, str]:
        rank = "batch\\.kubernetes\\.io/job-completion-index"
        found = plane.kubectl(
            *("-n", "railweld-jobs", "get", "pods", "-l", "job-name=probe", "-o"),
            f"jsonpath={{range .items[*]}}{{.metadata.labels.{rank}}}={{.spec.nodeName}} {{end}}",
        ).stdout
        pairs = (each.partition("=")[::2] for each in found.split())
        return {index: node for index, node in pairs if node}

    try:
        bridge = "system:serviceaccount:railweld-system:bridged"
        done = plane.create(job, user=bridge, dry_run=False)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: len(placed()) == len(hosts), 120)
        assert placed() == {str(rank): host for rank, host in enumerate(hosts)}
    finally:
        plane.kubectl("-n", "railweld-jobs", "delete", "job", "probe", "--ignore-not-found")
        plane.kubectl("delete", "node", *hosts)
        plane.stop("kwok")


def test_a_guard_describes_its_own_node_only(plane: ControlPlane) -> None:
    plane.nodes(2, {"nvidia.com/gpu": "8", "rdma/hca": "4"})
    guard = plane.as_user(
        "system:serviceaccount:railweld-system:clock-guard",
        # As in the token of a pod that runs on gpu1.
        **{"authentication.kubernetes.io/node-name": "gpu1"},
    )

    def patch(node: str, change: Any, part: str = "") -> str:
        try:
            guard.request(
                "PATCH", f"/api/v1/nodes/{node}{part}", change,
                content="application/strategic-merge-patch+json",
            )  # fmt: skip
        except ApiError as error:
            return str(error)
        return ""

    label = {"metadata": {"labels": {"railweld.io/clock": "ok"}}}
    condition = {"type": "ClockSynchronised", "status": "True", "reason": "x", "message": "x"}
    try:
        assert patch("gpu1", label) == ""
        assert patch("gpu1", {"status": {"conditions": [condition]}}, "/status") == ""
        assert "the node that it runs on" in patch("gpu2", label)
        assert "the node that it runs on" in patch(
            "gpu2", {"status": {"conditions": [condition]}}, "/status"
        )
        for change in (
            {"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}},
            {"metadata": {"labels": {"rdma.nvidia.com/available": None}}},
            {"metadata": {"labels": {"rack": "7"}}},
            {"spec": {"unschedulable": True}},
            {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
        ):
            assert "may only set the label" in patch("gpu1", change), change
        # Others are not held to anything.
        plane.kubectl("label", "node", "gpu2", "who=admin")
    finally:
        guard.close()
        plane.kubectl("delete", "node", "gpu1", "gpu2")


def test_every_policy_type_checks(plane: ControlPlane) -> None:
    """The controller compiles each expression against the schema of what it matches."""
    path = "{range .items[*]}{.metadata.name} {.metadata.generation} {.status.observedGeneration} {.status.typeChecking}{'\\n'}{end}"  # noqa: E501 - one expression

    def lines() -> list[list[str]]:
        text = plane.kubectl("get", "validatingadmissionpolicies", "-o", f"jsonpath={path}").stdout
        return [line.split(" ", 3) for line in text.splitlines()]

    wait_until(lambda: all(line[1] == line[2] for line in lines()), 120)
    warned = {line[0]: line[3] for line in lines() if "expressionWarnings" in line[3]}
    assert warned == {}


def test_a_site_without_rdma_or_host_network_gets_other_rules(
    plane: ControlPlane, site: Callable[..., Site]
) -> None:
    args = stack_for(site(network_mode="macvlan", job_registries=["registry.example.com"])).policies
    assert args is not None
    texts = [rule.message for rule in policies.reach_rules(args)]
    assert any("node's network" in text for text in texts)
    cluster = plane.cluster()
    for manifest in policies.render(args):
        cluster.apply(manifest, manager="test", dry_run=True)
    cluster.close()
