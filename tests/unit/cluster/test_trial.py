"""The pod that stage `cluster` starts: what it is made of, and what is made of what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railweld import names
from railweld.cluster import trial
from railweld.cluster.trial import Peer, Told, Trial
from railweld.nccl import profiles_for
from railweld.record import Check, Status
from railweld.site import Site
from railweld.stack.graph import stack_for
from railweld.stack.objects import Manifest
from railweld.stack.quota import PRIORITY_PROOF

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
NODES: dict[str, Manifest] = {"head1": READY, "gpu1": READY, "gpu2": READY}


@pytest.fixture
def tiny(site: Callable[..., Site]) -> Site:
    return site()


def planned(site: Site, *chosen: str, nodes: dict[str, Manifest] = NODES) -> list[Trial]:
    return trial.trials(site, profiles_for(site), nodes, (), chosen or tuple(NODES))


def good(site: Site, each: Trial) -> Told:
    """What a pod says on a node that is as described."""
    limit = site.memlock_kib
    return Told(
        memlock=str(limit * 1024) if isinstance(limit, int) else limit,
        shm_kind="tmpfs",
        shm_bytes=site.job_shm_gib << 30,
        environment=dict(each.profile.environment),
        hcas=("uverbs0",),
        dns=("10.96.0.1",),
        peers=frozenset(peer.node for peer in each.peers),
    )


def judged(site: Site, each: Trial, **different: Any) -> dict[str, Check]:
    told = Told(**{**good(site, each).__dict__, **different})
    return {check.id: check for check in trial.judge_trial(site, each, told)}


def test_each_gpu_node_gets_one_and_reaches_for_the_next(tiny: Site) -> None:
    assert [(each.node, each.peers) for each in planned(tiny)] == [
        ("gpu1", (Peer("gpu2", "10.0.0.22", 10250),)),
        ("gpu2", (Peer("gpu1", "10.0.0.21", 10250),)),
    ]


def test_node_that_is_not_ready_is_nobodys_peer(tiny: Site) -> None:
    nodes: dict[str, Manifest] = {**NODES, "gpu2": {"status": {}}}
    assert planned(tiny, "gpu1", nodes=nodes)[0].peers == ()
    assert judged(tiny, planned(tiny, "gpu1", nodes=nodes)[0])["job.rendezvous"].status is (
        Status.SKIPPED
    )


def test_pods_with_a_network_of_their_own_reach_for_the_clusters_dns(
    site: Callable[..., Site],
) -> None:
    macvlan = site(everywhere={"railweld_network_mode": "macvlan"})
    dns = [
        {"spec": {"nodeName": name}, "status": {"podIP": f"10.244.{number}.5"}}
        for number, name in enumerate(("gpu1", "head1"))
    ]
    found = trial.trials(macvlan, profiles_for(macvlan), NODES, dns, ("gpu1",))
    assert found[0].peers == (Peer("head1", "10.244.1.5", 53),)


def test_pod_is_a_jobs_without_gpus_and_gives_way_to_jobs(tiny: Site) -> None:
    template = next(m for m in stack_for(tiny).manifests() if m["kind"] == "PodTemplate")
    made = trial.pod(template, planned(tiny, "gpu1")[0], "abc")
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"rdma/hca": "1"}}
    assert container["envFrom"] == [{"configMapRef": {"name": names.CONFIGMAP_NCCL}}]
    assert spec["nodeSelector"]["kubernetes.io/hostname"] == "gpu1"
    assert spec["priorityClassName"] == PRIORITY_PROOF
    assert spec["securityContext"]["runAsUser"] >= 1000
    assert spec["hostNetwork"] is True
    assert made["metadata"]["labels"][trial.LABEL] == "abc"
    job = template["template"]["spec"]["containers"][0]
    assert job["resources"]["limits"][names.RESOURCE_GPU] == "8", "the template itself is unchanged"


def test_script_runs_in_a_shell_and_says_what_it_sees(tiny: Site, tmp_path: Path) -> None:
    message = tmp_path / "message"
    each = planned(tiny, "gpu1")[0]
    # The peer is this machine's port 9, on which nothing listens.
    script = trial.script(
        Trial(node="gpu1", partition="gpu", profile=each.profile, hcas=1,
              peers=(Peer("gpu2", "127.0.0.1", 9),))
    )  # fmt: skip
    subprocess.run(
        ["/bin/sh", "-c", script.replace("/dev/termination-log", str(message))],
        env={"PATH": "/usr/bin:/bin", **each.profile.environment},
        check=True,
        timeout=60,
    )
    ended = {"state": {"terminated": {"message": message.read_text()}}}
    told = trial.parse({"status": {"phase": "Succeeded", "containerStatuses": [ended]}})
    assert told.failure == ""
    assert told.environment == each.profile.environment
    assert told.memlock
    assert told.shm_kind
    assert told.shm_bytes > 0
    assert told.peers == frozenset()


def test_pod_as_described_passes_every_check(tiny: Site) -> None:
    checks = judged(tiny, planned(tiny, "gpu1")[0])
    assert {each.status for each in checks.values()} == {Status.PASS}
    assert set(checks) == {
        *("job.pod", "job.memlock", "job.shm", "job.nccl_profile", "job.hcas", "job.dns"),
        "job.rendezvous",
    }


@pytest.mark.parametrize(
    ("check", "different", "found"),
    [
        ("job.memlock", {"memlock": "8388608"}, "8388608"),
        ("job.shm", {"shm_bytes": 64 << 20}, "tmpfs of 64 MiB"),
        ("job.shm", {"shm_kind": ""}, "nothing of"),
        ("job.hcas", {"hcas": ()}, "0 verbs devices"),
        ("job.dns", {"dns": ()}, "no answer"),
        ("job.dns", {"dns": ("192.0.2.1",)}, "192.0.2.1"),
        ("job.rendezvous", {"peers": frozenset()}, "no connection to gpu2 at 10.0.0.22:10250"),
    ],
)
def test_each_difference_fails_its_own_check_alone(
    tiny: Site, check: str, different: dict[str, Any], found: str
) -> None:
    checks = judged(tiny, planned(tiny, "gpu1")[0], **different)
    assert {name for name, each in checks.items() if each.is_bad} == {check}
    assert found in checks[check].found
    assert checks[check].fix


def test_profile_names_what_is_missing_and_what_differs(tiny: Site) -> None:
    each = planned(tiny, "gpu1")[0]
    environment = {**each.profile.environment, "NCCL_IB_TC": "0"}
    del environment["NCCL_IB_HCA"]
    found = judged(tiny, each, environment=environment)["job.nccl_profile"]
    assert found.status is Status.FAIL
    assert "NCCL_IB_TC=0" in found.found
    assert "no NCCL_IB_HCA" in found.found


def test_pod_that_finds_no_place_is_unknown_and_one_that_dies_a_failure(tiny: Site) -> None:
    each = planned(tiny, "gpu1")[0]
    waits = list(trial.judge_trial(tiny, each, Told(failure="Unschedulable", waits=True)))
    dies = list(trial.judge_trial(tiny, each, Told(failure="ErrImagePull")))
    assert [(check.id, check.status) for check in waits] == [("job.pod", Status.UNKNOWN)]
    assert [(check.id, check.status) for check in dies] == [("job.pod", Status.FAIL)]


def test_pod_without_a_whole_message_is_no_pass() -> None:
    for state, says in (
        ({"terminated": {"reason": "StartError", "message": ""}}, "StartError"),
        ({"terminated": {"reason": "Error", "message": "memlock 65536\n"}}, "stopped after"),
        ({}, "Failed"),
    ):
        status = {"phase": "Failed", "containerStatuses": [{"state": state}]}
        assert says in trial.parse({"status": status}).failure
