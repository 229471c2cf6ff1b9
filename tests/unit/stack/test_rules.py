"""The rules as plain functions: each has something that it lets through and something it stops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from railweld.stack.rules import DESCRIPTIONS, RULES, Context, judge, judge_all

CONTEXT = Context(nccl="2.28.9", transport="roce", rdma_resource="rdma/hca")


def pod(**changes: Any) -> dict[str, Any]:
    container = {
        "name": "job",
        "image": "r.example.com/job:1",
        "resources": {"limits": {"nvidia.com/gpu": "8", "rdma/hca": "1"}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        **changes,
    }
    memory = {"medium": "Memory", "sizeLimit": "1Gi"}
    return {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container], "volumes": [{"name": "shm", "emptyDir": memory}]},
    }


def made_by(kind: str, of: Mapping[str, Any]) -> dict[str, Any]:
    template = {"metadata": of["metadata"], "spec": of["spec"]}
    if kind == "PodTemplate":
        return {"kind": kind, "metadata": {"name": "p"}, "template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": {"template": template}}}
        return {"kind": kind, "metadata": {"name": "p"}, "spec": spec}
    return {"kind": kind, "metadata": {"name": "p"}, "spec": {"template": template}}


def broken(manifest: Mapping[str, Any], context: Context = CONTEXT) -> set[str]:
    return {each.rule for each in judge(manifest, context)}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_a_good_pod_breaks_nothing() -> None:
    assert broken(pod()) == set()


@pytest.mark.parametrize(
    "kind", ["Pod", "Job", "Deployment", "DaemonSet", "PodTemplate", "CronJob"]
)
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"image": "r.example.com/job"}, "image-names-a-build"),
        ({"image": "r.example.com/job:latest"}, "image-names-a-build"),
        ({"resources": {"limits": {"nvidia.com/gpu": "8"}}}, "gpu-pods-can-use-rdma"),
        ({"securityContext": {}}, "gpu-pods-can-use-rdma"),
        ({"volumeMounts": []}, "gpu-pods-can-use-rdma"),
        ({"env": [{"name": "NCCL_IB_GID_INDEX", "value": "3"}]}, "nccl-as-advised"),
        (
            {"securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}}},
            "privileged-by-list",
        ),
    ],
)
def test_pods_are_found_in_whatever_makes_them(
    kind: str, changes: dict[str, Any], rule: str
) -> None:
    manifest = pod(**changes)
    assert broken(manifest if kind == "Pod" else made_by(kind, manifest)) == {rule}


def test_a_sidecar_with_gpus_is_judged_as_a_container_is() -> None:
    manifest = pod()
    sidecar = {
        "name": "log",
        "image": "r.example.com/log:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    manifest["spec"]["initContainers"] = [sidecar]
    # One that ends before the job begins runs no NCCL.
    assert broken(manifest) == set()
    sidecar["restartPolicy"] = "Always"
    assert broken(manifest) == {"gpu-pods-can-use-rdma"}


def test_a_pod_on_one_node_may_do_without_rdma() -> None:
    manifest = pod(resources={"limits": {"nvidia.com/gpu": "1"}})
    manifest["metadata"]["labels"] = {"railweld.io/rdma": "none"}
    assert broken(manifest) == set()


def test_sites_without_rdma_ask_for_none() -> None:
    manifest = pod(resources={"limits": {"nvidia.com/gpu": "1"}})
    assert broken(manifest, Context(nccl="2.28.9", transport="roce", rdma_resource="")) == set()


@pytest.mark.parametrize(
    ("container", "spec", "found"),
    [
        ({}, {}, ""),
        ({}, {"volumes": [{"name": "a", "hostPath": {"path": "/local/cache/set"}}]}, ""),
        ({}, {"volumes": [{"name": "a", "hostPath": {"path": "/local/cache2"}}]}, "/local/cache2"),
        ({}, {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "is the node's /"),
        ({"allowPrivilegeEscalation": True}, {}, "allowPrivilegeEscalation"),
        ({"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}, {}, "adds SYS_ADMIN"),
        ({}, {"hostPID": True}, "hostPID"),
        ({}, {"nodeName": "gpu1"}, "nodeName"),
    ],
)
def test_jobs_reach_no_further_than_the_api_server_lets_them(
    container: dict[str, Any], spec: dict[str, Any], found: str
) -> None:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["IPC_LOCK"]},
        **container,
    }
    manifest = made_by("PodTemplate", pod(securityContext=security))
    manifest["template"]["spec"] |= spec
    manifest["template"]["spec"]["volumes"] = [
        *spec.get("volumes", []),
        *pod()["spec"]["volumes"],
    ]
    context = replace(CONTEXT, host_paths=("/local/cache",))
    manifest["metadata"]["namespace"] = "railweld-jobs"
    messages = [
        each.message for each in judge(manifest, context) if each.rule == "jobs-stay-in-their-pod"
    ]
    assert len(messages) == bool(found)
    assert found in "".join(messages)
    # Elsewhere pods are their owners' business.
    manifest["metadata"]["namespace"] = "team"
    assert broken(manifest, context) == set()


def test_a_gid_row_is_wrong_for_new_nccl_only() -> None:
    profile = config_map("nccl-profile", NCCL_IB_GID_INDEX="3")
    assert broken(profile) == {"nccl-as-advised"}
    old = Context(nccl="2.14.3", transport="roce", rdma_resource="rdma/hca")
    assert broken(profile, old) == set()


@pytest.mark.parametrize(
    ("hard", "ok"),
    [
        ({"requests.nvidia.com/gpu": "8", "limits.memory": "1Gi", "pods": "5"}, True),
        ({"limits.nvidia.com/gpu": "8"}, False),
        ({"nvidia.com/gpu": "8"}, False),
    ],
)
def test_quota_keys(hard: dict[str, str], ok: bool) -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    assert (broken(quota) == set()) is ok


@pytest.mark.parametrize(
    ("limit", "ok"),
    [
        ({"type": "Container", "max": {"memory": "1Ti"}}, True),
        ({"type": "Container", "max": {"rdma/hca": "1"}}, False),
        ({"type": "Pod", "max": {"rdma/hca": "1"}}, False),
        (
            {
                "type": "Container",
                "max": {"rdma/hca": "1"},
                "default": {"rdma/hca": "0"},
                "defaultRequest": {"rdma/hca": "0"},
            },
            True,
        ),
    ],
)
def test_limit_ranges(limit: dict[str, Any], ok: bool) -> None:
    manifest = {"kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [limit]}}
    assert (broken(manifest) == set()) is ok


@pytest.mark.parametrize(
    "config",
    [
        "{",
        {"configList": [{"resourceName": "rdma/hca"}]},
        {"configList": [{"resourceName": "hca", "rdmaHCAMax": 4}]},
        {"configList": [{"resourceName": "hca", "selectors": {"linkType": ["ether"]}}]},
        {"configlist": []},
    ],
)
def test_configs_that_the_plugin_dies_of_or_ignores(config: Any) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    assert broken(config_map("rdma-devices", **{"config.json": text})) == {"rdma-config"}


def test_two_node_feature_discoveries_are_one_too_many() -> None:
    def master(name: str) -> dict[str, Any]:
        container = {"name": "m", "image": "r.example.com/nfd:1", "command": ["nfd-master"]}
        return {
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }

    release = {
        "chart": "gpu-operator",
        "name": "gpu-operator",
        "values": {"nfd": {"enabled": True}},
    }
    quiet = {**release, "values": {"nfd": {"enabled": False}}}
    assert judge_all([master("a")], CONTEXT) == []
    assert judge_all([master("a"), quiet], CONTEXT) == []
    assert [v.rule for v in judge_all([master("a"), master("b")], CONTEXT)] == ["one-nfd"]
    assert [v.rule for v in judge_all([master("a"), release], CONTEXT)] == ["one-nfd"]


def test_every_rule_is_described() -> None:
    assert set(DESCRIPTIONS) == {*RULES, "one-nfd"}
