"""The objects of a run, and what of a request can reach them."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from typing import Any

import pytest

from railweld import names
from railweld.bridge import render
from railweld.bridge.config import Config
from railweld.bridge.observed import INDEX, Key, PodView
from railweld.stack import bridge as stack
from tests.unit.bridge.facts import FACTS

TEMPLATE = stack.pod_template(
    stack.BridgeArgs(templates=(), image="registry.example.com/job:1", rdma_resource="rdma/hca"),
    stack.Template(
        name="gpu", partition="gpu", gpus=8, nccl="nccl-profile", cache=None, scratch=None
    ),
)


def request(**changes: Any) -> render.Request:
    values: dict[str, Any] = {
        "script": b"#!/bin/sh\n",
        "arguments": (),
        "directory": "/data",
        "umask": 0o22,
        "apart": False,
        "environment": {},
        "mode": "spmd",
        "reason": "",
        "image": None,
    }
    return render.Request(**{**values, **changes})


def job(asked: render.Request | None = None, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "namespace": "railweld-jobs",
        "hub": "head1:6830",
        "agent": "railweld-agent-x",
        "kill_wait": 60,
        "gated": False,
    }
    return render.job(FACTS, asked or request(), TEMPLATE, **{**options, **changes})


def test_one_pod_per_node_and_the_first_failure_ends_all() -> None:
    spec = job()["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
    assert spec["activeDeadlineSeconds"] == 3600 + 60 + 300


def test_objects_that_nobody_cleaned_up_go_by_themselves() -> None:
    ttl = job()["spec"]["ttlSecondsAfterFinished"]
    # Later than the bridge itself, which keeps them for logs.
    assert ttl > Config.keep
    assert ttl <= 7 * 86400
    # What belongs to a run goes with its Job.
    owner = job()
    owner["metadata"]["uid"] = "u"
    for each in (secret(request()), render.service(FACTS, owner)):
        assert [one["uid"] for one in each["metadata"]["ownerReferences"]] == ["u"]


@pytest.mark.parametrize(
    ("limit", "age", "current", "kept"),
    [
        (3600.0, 0.0, 3960, 3960),
        # Raised and lowered by scontrol.
        (7200.0, 1800.0, 3960, 7560),
        (1800.0, 600.0, 3960, 2160),
        (math.inf, 1800.0, 3960, None),
        (3600.0, 1800.0, None, 3960),
        # Past the limit and active still: OverTimeLimit, or a suspension that Slurm does not count.
        (3600.0, 3700.0, 3960, 4300),
        (3600.0, 3900.0, 4300, 4300),
        (3600.0, 4100.0, 4300, 4700),
    ],
)
def test_kubernetes_ends_no_job_that_slurm_still_gives_time(
    limit: float, age: float, current: int | None, kept: int | None
) -> None:
    found = render.kept_deadline(current, limit, 60, age)
    assert found == kept
    assert found is None or found >= age + render.DEADLINE_SLACK / 2


def test_pods_are_told_their_nodes_in_rank_order() -> None:
    found = job()
    template = found["spec"]["template"]
    assert template["metadata"]["annotations"][names.ANNOTATION_HOSTS] == "gpu1,gpu2"
    assert "nodeName" not in template["spec"]
    gated = job(gated=True)["spec"]["template"]
    assert names.ANNOTATION_HOSTS not in gated["metadata"]["annotations"]
    assert gated["spec"]["schedulingGates"] == [{"name": names.GATE_PLACEMENT}]


def test_where_nothing_pins_pods_they_are_ranked_by_the_nodes_of_the_job() -> None:
    template = job(ranked=True)["spec"]["template"]
    assert template["metadata"]["annotations"] == {names.ANNOTATION_RANKS: "gpu1,gpu2"}
    (term,) = template["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu1", "gpu2"]}
    ]
    (container,) = template["spec"]["containers"]
    assert names.POD_VARIABLE_NODE in [each["name"] for each in container["env"]]
    assert "schedulingGates" not in template["spec"]

    def seen(**spec: Any) -> tuple[int, str | None, bool]:
        metadata = {**template["metadata"], "name": "p", "uid": "u"}
        metadata["labels"] = {**metadata["labels"], INDEX: "0"}
        pod = PodView.of({"metadata": metadata, "spec": {**template["spec"], **spec}})
        return pod.index, pod.hostname, pod.gated

    assert seen() == (0, None, True)
    assert seen(nodeName="gpu2") == (1, "gpu2", False)
    # Of none of the job's nodes; the run is ended then.
    assert seen(nodeName="gpu9") == (-1, "gpu9", False)


def test_pods_run_as_the_submitter_and_without_an_account_of_kubernetes() -> None:
    spec = job()["spec"]["template"]["spec"]
    security = spec["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (2001, 2001)
    assert security["supplementalGroups"] == [3000]
    assert security["runAsNonRoot"] is True
    assert "fsGroup" not in security
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }


def test_the_kubelet_kills_before_slurm_does() -> None:
    assert job()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 50


def test_a_template_is_not_changed_by_a_job() -> None:
    before = json.dumps(TEMPLATE)
    job(request(image="registry.example.com/other:2"))
    assert json.dumps(TEMPLATE) == before


def test_nothing_that_a_user_writes_is_in_the_pod_but_the_image() -> None:
    wild = request(
        script=b"#!/bin/sh\nPRIVILEGED",
        arguments=("PRIVILEGED",),
        directory="/PRIVILEGED",
        environment={"PRIVILEGED": "PRIVILEGED"},
    )
    assert "PRIVILEGED" not in json.dumps(job(wild))


def secret(asked: render.Request) -> dict[str, Any]:
    owner = job(asked)
    owner["metadata"]["uid"] = "u"
    return render.secret(FACTS, asked, owner, "k" * 64)


def test_the_secret_belongs_to_the_job_and_has_the_script_as_it_is() -> None:
    found = secret(request(script=b"#!/bin/sh\n\xff\0"))
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert base64.b64decode(found["data"]["script"]) == b"#!/bin/sh\n\xff\0"
    passwd = base64.b64decode(found["data"]["passwd"]).decode()
    assert "alice:x:2001:2001::/home/alice:/bin/sh\n" in passwd


def test_the_agent_knows_beside_which_files_it_writes() -> None:
    plans = [
        json.loads(base64.b64decode(secret(request(**given))["data"]["plan"]))["outputs"]
        for given in ({}, {"outputs": ("/home/alice/o", None)})
    ]
    assert plans == [[], ["/home/alice/o", None]]


def test_the_agent_knows_the_runs_part_of_the_scratch_folder() -> None:
    mounts = [
        {"name": "cache", "mountPath": "/local/cache"},
        {"name": "scratch", "mountPath": "/local/scratch", "subPathExpr": "$(RAILWELD_JOB)"},
    ]
    assert render.scratch({"containers": [{"volumeMounts": mounts}]}) == "/local/scratch"
    # The whole of a folder is not a job's to empty.
    del mounts[1]["subPathExpr"]
    assert render.scratch({"containers": [{"volumeMounts": mounts}]}) is None


def test_keys_follow_from_the_seed_and_the_job_alone() -> None:
    found = {render.key(seed, uid) for seed in (b"1" * 32, b"2" * 32) for uid in ("a", "b")}
    assert len(found) == 4
    assert render.key(b"1" * 32, "a") in found
    assert all(len(bytes.fromhex(key.decode())) == 32 for key in found)


def test_slurms_own_facts_win_over_the_clients_variables() -> None:
    plan = json.loads(base64.b64decode(secret(request())["data"]["plan"]))
    assert plan["slurm"]["SLURM_JOB_NODELIST"] == "gpu[1-2]"
    assert plan["slurm"]["SLURM_JOB_UID"] == "2001"


def test_a_script_that_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="expected at most 1000000"):
        secret(request(script=b"x" * 1_000_001))


def test_the_port_of_the_rendezvous_is_no_local_port_and_differs_between_jobs() -> None:
    ports = [render.master_port(number) for number in range(1, 20000)]
    assert min(ports) >= 20000
    assert max(ports) < 30000
    assert ports[0] != ports[1]


def test_the_agent_is_named_by_its_content_and_fits_into_a_config_map() -> None:
    found = render.agent("railweld-jobs")
    assert found["metadata"]["name"].startswith("railweld-agent-")
    assert sum(map(len, found["data"].values())) < 500_000
    keys = {item["key"] for item in render.agent_items()}
    assert keys == set(found["data"])


def test_a_service_finds_the_pods_of_its_own_run_only() -> None:
    def pods(cluster: str, job_id: int = 7, restart: int = 0) -> dict[str, str]:
        facts = dataclasses.replace(FACTS, cluster=cluster, key=Key(job_id, restart))
        return render.labels(facts, "gpu")

    owner = job()
    owner["metadata"]["uid"] = "u"
    wanted = render.service(FACTS, owner)["spec"]["selector"].items()
    assert wanted <= pods("lab").items()
    for others in (pods("second"), pods("lab", job_id=8), pods("lab", restart=1)):
        assert not wanted <= others.items()


def test_the_services_names_are_there_before_the_pods_are_ready() -> None:
    owner = job()
    owner["metadata"]["uid"] = "u"
    assert render.service(FACTS, owner)["spec"]["publishNotReadyAddresses"] is True
