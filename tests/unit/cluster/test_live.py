"""What stage `cluster` makes of the API server's answers: a whole cluster, and one fault each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from railweld import names
from railweld.cluster import live, model
from railweld.cluster.live import Answers, judge_answers
from railweld.record import Check, Status
from railweld.site import Site
from railweld.stack.diff import Difference, Finding
from railweld.stack.graph import stack_for
from railweld.stack.objects import Key, Manifest

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
#: The small site of conftest: two nodes with eight GPUs and one HCA, and a head.
DEVICES = {"nvidia.com/gpu": "8", "rdma/hca": "1"}


def node(site: Site, name: str) -> Manifest:
    host = site.hosts[name]
    devices = DEVICES if host.gpu else {}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/os": "linux",
                names.LABEL_CLOCK: "ok",
                **model.labels(site, host),
            },
        },
        "spec": {"podCIDR": "10.244.1.0/24"},
        "status": {
            "allocatable": dict(devices),
            "capacity": dict(devices),
            "addresses": [{"type": "InternalIP", "address": host.address}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {
                    "type": names.CONDITION_CLOCK,
                    "status": "True",
                    "message": "0.1 ms",
                    "lastHeartbeatTime": (NOW - timedelta(minutes=4)).isoformat(),
                },
            ],
        },
    }


def pod(manifest: Manifest, where: str) -> Manifest:
    labels = manifest["spec"]["selector"]["matchLabels"]
    return {
        "metadata": {"name": f"{manifest['metadata']['name']}-{where}", "labels": dict(labels)},
        "spec": {"nodeName": where},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"running": {}}}],
        },
    }


class Whole:
    """Answers of a cluster on which everything is as described, to be changed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.stack = stack_for(site)
        self.nodes = {name: node(site, name) for name in model.members(site)}
        self.agents: list[Manifest] = []
        self.findings: list[Finding] = []
        for each in self.stack.manifests():
            if each["kind"] == "DaemonSet":
                selector = each["spec"]["template"]["spec"]["nodeSelector"].items()
                self.agents += [
                    pod(each, name)
                    for name, found in self.nodes.items()
                    if selector <= found["metadata"]["labels"].items()
                ]
            elif each["kind"] == "Deployment":
                self.agents.append(pod(each, "head1"))

    def judge(self, *chosen: str) -> list[Check]:
        answers = Answers(
            nodes=copy.deepcopy(self.nodes),
            agents=self.agents,
            findings=self.findings,
            now=NOW,
        )
        return judge_answers(
            self.site, self.stack, answers, lambda name: not chosen or name in chosen
        )

    def bad(self) -> dict[tuple[str, str], str]:
        """Check and target, to what was found."""
        return {(each.id, each.target): each.found for each in self.judge() if each.fix}

    def agent(self, name: str, where: str) -> Manifest:
        return next(each for each in self.agents if each["metadata"]["name"] == f"{name}-{where}")


@pytest.fixture
def whole(site: Callable[..., Site]) -> Whole:
    return Whole(site())


def test_whole_cluster_has_no_finding_and_every_kind_of_check(whole: Whole) -> None:
    checks = whole.judge()
    assert {each.status for each in checks} == {Status.PASS}
    assert {each.id for each in checks} == {
        *("cluster.node", "cluster.gpus", "cluster.rdma", "cluster.clock"),
        *("stack.objects", "stack.agent"),
    }
    assert {each.layer for each in checks} == {"cluster"}
    assert all(each.ran for each in checks)


def test_limit_leaves_other_nodes_out(whole: Whole) -> None:
    del whole.nodes["gpu2"]
    assert {each.status for each in whole.judge("gpu1")} == {Status.PASS}


def test_node_that_never_joined_is_a_failure_and_nothing_else_is_said_of_it(whole: Whole) -> None:
    del whole.nodes["gpu2"]
    assert whole.bad() == {("cluster.node", "gpu2"): "no such node"}


def test_node_that_nobody_described_is_a_warning(whole: Whole) -> None:
    whole.nodes["gpu9"] = node(whole.site, "gpu1") | {"metadata": {"name": "gpu9"}}
    found = [each for each in whole.judge() if each.fix]
    assert [(each.id, each.target, each.status) for each in found] == [
        ("cluster.stranger", "gpu9", Status.WARN)
    ]
    assert not [each for each in whole.judge("gpu1") if each.id == "cluster.stranger"]


def test_unhealthy_gpus_are_counted_against_what_the_kubelet_knows(whole: Whole) -> None:
    whole.nodes["gpu1"]["status"]["allocatable"]["nvidia.com/gpu"] = "6"
    assert whole.bad() == {("cluster.gpus", "gpu1"): "6 nvidia.com/gpu of 8 that the kubelet knows"}


@pytest.mark.parametrize(
    ("resource", "check"), [("nvidia.com/gpu", "cluster.gpus"), ("rdma/hca", "cluster.rdma")]
)
def test_plugin_that_never_registered_is_a_failure(whole: Whole, resource: str, check: str) -> None:
    for kind in ("allocatable", "capacity"):
        del whole.nodes["gpu2"]["status"][kind][resource]
    assert whole.bad() == {(check, "gpu2"): f"0 {resource}"}


def test_devices_on_a_node_that_has_none_are_a_failure(whole: Whole) -> None:
    whole.nodes["head1"]["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    assert whole.bad() == {("cluster.gpus", "head1"): "8 nvidia.com/gpu"}


def test_agent_that_is_missing_or_broken_is_named_by_node_with_the_reason(whole: Whole) -> None:
    whole.agents.remove(whole.agent("nvidia-device-plugin", "gpu1"))
    broken = whole.agent("rdma-shared-device-plugin", "gpu2")["status"]
    broken["conditions"] = [{"type": "Ready", "status": "False"}]
    broken["containerStatuses"] = [
        {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    ]
    assert whole.bad() == {
        ("stack.agent", "gpu1"): "nvidia-device-plugin: no pod",
        ("stack.agent", "gpu2"): "rdma-shared-device-plugin: ErrImagePull: no such image",
    }


def test_pod_that_is_being_replaced_does_not_count(whole: Whole) -> None:
    old = copy.deepcopy(whole.agent("nvidia-device-plugin", "gpu1"))
    old["metadata"]["deletionTimestamp"] = NOW.isoformat()
    old["status"]["conditions"] = []
    whole.agents.append(old)
    assert whole.bad() == {}


def test_guard_that_is_unready_for_a_bad_clock_is_alive(whole: Whole) -> None:
    whole.agent("clock-guard", "gpu1")["status"]["conditions"] = [
        {"type": "Ready", "status": "False"}
    ]
    whole.nodes["gpu1"]["metadata"]["labels"][names.LABEL_CLOCK] = "off"
    whole.nodes["gpu1"]["status"]["conditions"][1]["message"] = "800 ms off"
    assert whole.bad() == {("cluster.clock", "gpu1"): "off: 800 ms off"}


def test_guard_that_has_gone_silent_is_not_believed(whole: Whole) -> None:
    told = whole.nodes["gpu1"]["status"]["conditions"][1]
    told["lastHeartbeatTime"] = (NOW - timedelta(minutes=40)).isoformat()
    del whole.nodes["gpu2"]["status"]["conditions"][1]
    assert whole.bad() == {
        ("cluster.clock", "gpu1"): "ok, last said 40 minutes ago",
        ("cluster.clock", "gpu2"): "nothing from the clock guard",
    }


def test_objects_that_are_not_as_described_are_failures_and_leftovers_warnings(
    whole: Whole,
) -> None:
    profile = Key("v1", "ConfigMap", "railweld-jobs", "nccl-profile")
    role = Key("rbac.authorization.k8s.io/v1", "Role", "railweld-jobs", "bridge")
    old = Key("apps/v1", "DaemonSet", "railweld-system", "old")
    changes = tuple(Difference(f"data.{name}", "0", "1") for name in "ABCDE")
    whole.findings = [
        Finding(profile, "differs", changes), Finding(role, "foreign"), Finding(old, "extra"),
    ]  # fmt: skip
    found = {each.target: each for each in whole.judge() if each.id == "stack.objects"}
    assert {str(key): found[str(key)].status for key in (profile, role, old)} == {
        str(profile): Status.FAIL,
        str(role): Status.FAIL,
        str(old): Status.WARN,
    }
    assert found[str(profile)].found.endswith("2 more")
    assert "kubectl label" in found[str(role)].fix


def test_cluster_without_the_stack_is_one_failure(whole: Whole) -> None:
    whole.findings = [Finding(Key("v1", "Namespace", "", "railweld-system"), "missing")]
    whole.agents = []
    for each in whole.nodes.values():
        each["status"]["allocatable"] = {}
    assert set(whole.bad()) == {("stack.deployed", "tiny")}


def test_nodes_are_told_to_the_roles_checks_as_the_control_plane_would(whole: Whole) -> None:
    seen: dict[str, Any] = live.as_seen(whole.nodes.values())
    assert seen["reachable"]
    assert seen["nodes"]["gpu1"] == {
        "pod_cidr": "10.244.1.0/24",
        "address": "10.0.0.21",
        "version": "1.36.3",
        "unschedulable": False,
        "ready": True,
    }
