"""The next step of a run, from what was observed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.bridge.decide import Act, Decision, Slurm, State, View, decide
from railweld.bridge.observed import JobView, Outcome, PodView

HOSTS = ("gpu1", "gpu2", "gpu3")
JOB = JobView(
    name="slurm-lab-7-r0",
    uid="u",
    owner=2001,
    submitted="2026-01-01T00:00:00",
    hosts=HOSTS,
    template="gpu",
    deleting=False,
    finished=False,
    outcome=None,
)


def pod(index: int, **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "name": f"p{index}",
        "uid": f"uid{index}",
        "job_uid": "u",
        "index": index,
        "hostname": HOSTS[index],
        "gated": False,
        "node": HOSTS[index],
        "phase": "Running",
        "deleting": False,
        "ip": "",
        "waiting": "",
        "exit_code": None,
        "finished_at": "",
        "reason": "",
        "disrupted": "",
    }
    return PodView(**{**values, **changes})


def ended(index: int, code: int = 0, at: str = "2026-01-01T00:00:01Z", **changes: Any) -> PodView:
    phase = "Succeeded" if code == 0 else "Failed"
    return pod(index, phase=phase, exit_code=code, finished_at=at, **changes)


def view(*pods: PodView, **changes: Any) -> View:
    values: dict[str, Any] = {
        "hosts": HOSTS,
        "slurm": Slurm.ACTIVE,
        "live": True,
        "job": JOB,
        "pods": {each.name: each for each in pods},
        "attached": True,
        "created": True,
        "settled": all(each.terminal for each in pods),
    }
    return View(**{**values, **changes})


RUNNING = (pod(0), pod(1), pod(2))
ALL = frozenset({0, 1, 2})


def test_a_new_job_is_made() -> None:
    assert decide(view(job=None, created=False)).act is Act.CREATE


def test_no_job_is_made_without_a_client_or_without_slurm() -> None:
    assert decide(view(job=None, created=False, attached=False)).act is Act.WAIT
    assert decide(view(job=None, created=False, slurm=Slurm.UNKNOWN)).act is Act.WAIT


def test_no_body_starts_before_every_pod_is_at_the_barrier() -> None:
    assert decide(view(*RUNNING, ready={0, 1})).act is Act.WAIT
    assert decide(view(pod(0), pod(1), ready=ALL)).act is Act.WAIT
    assert decide(view(*RUNNING, ready=ALL)).act is Act.GO


def test_after_a_restart_in_mid_go_the_others_are_started_too() -> None:
    assert decide(view(*RUNNING, ready={2}, started={0, 1})).act is Act.GO


def test_running_is_left_alone() -> None:
    found = decide(view(*RUNNING, started=ALL))
    assert (found.act, found.state) == (Act.WAIT, State.RUNNING)


def test_a_running_job_outlives_the_start_limit() -> None:
    found = decide(view(*RUNNING, started={0}, waited=10_000.0))
    assert found.act is Act.WAIT


def test_cancelling_deletes_and_then_waits_for_the_pods() -> None:
    assert decide(view(*RUNNING, started=ALL, cancelled=True)).act is Act.DELETE
    deleting = dataclasses.replace(JOB, deleting=True)
    assert decide(view(*RUNNING, job=deleting, cancelled=True)).act is Act.WAIT
    taken_along = (dataclasses.replace(each, deleting=True) for each in RUNNING)
    assert decide(view(*taken_along, job=None, cancelled=True)).act is Act.WAIT
    gone = decide(view(job=None, cancelled=True))
    assert gone.act is Act.FINISH
    assert gone.outcome is not None
    assert gone.outcome.status == -15


def test_a_job_that_slurm_has_ended_is_deleted_without_a_client() -> None:
    assert decide(view(*RUNNING, attached=False, slurm=Slurm.ENDED)).act is Act.DELETE


def test_all_done_is_zero() -> None:
    found = decide(view(ended(0), ended(1), ended(2)))
    assert found.act is Act.FINISH
    assert found.outcome == Outcome(0, "done")


def test_one_that_is_not_reported_by_a_living_kubelet_holds_the_job() -> None:
    assert decide(view(ended(0), ended(1), ended(2), settled=False)).act is Act.WAIT


def test_the_first_failure_decides_and_ties_go_to_the_lowest_rank() -> None:
    failed = dataclasses.replace(JOB, finished=True)
    found = decide(
        view(
            ended(0, 5, at="2026-01-01T00:00:02Z"),
            ended(1, 7, at="2026-01-01T00:00:01Z"),
            ended(2, 9, at="2026-01-01T00:00:01Z"),
            job=failed,
        )
    )
    assert found.outcome == Outcome(7, "gpu2: exit status 7")


def test_what_teardown_kills_does_not_count() -> None:
    failed = dataclasses.replace(JOB, finished=True)
    found = decide(
        view(
            ended(0, 143, at="2026-01-01T00:00:01Z", deleting=True),
            ended(1, 3, at="2026-01-01T00:00:02Z"),
            job=failed,
        )
    )
    assert found.outcome == Outcome(3, "gpu2: exit status 3")


@pytest.mark.parametrize("code", [137, 139, 143, 255, 1])
def test_a_bodys_own_status_is_kept_as_it_is(code: int) -> None:
    found = decide(view(ended(0, code), job=dataclasses.replace(JOB, finished=True)))
    assert found.outcome is not None
    assert found.outcome.status == code


def test_after_a_failure_kubernetes_ends_the_others_and_the_bridge_waits() -> None:
    found = decide(view(ended(0, 3), pod(1), pod(2), started=ALL))
    assert (found.act, found.state) == (Act.WAIT, State.ENDING)


def test_if_kubernetes_does_not_the_bridge_does() -> None:
    assert decide(view(ended(0, 3), pod(1), failing=1000.0)).act is Act.DELETE


def test_out_of_memory_is_said() -> None:
    failed = dataclasses.replace(JOB, finished=True)
    found = decide(view(ended(1, 137, reason="OOMKilled"), job=failed))
    assert found.outcome is not None
    assert "out of memory" in found.outcome.text
    assert found.outcome.status == 137


def test_an_eviction_is_the_clusters_fault_and_ends_the_job() -> None:
    found = decide(view(pod(0), pod(1, disrupted="Evicted: low on memory"), started=ALL))
    assert found.act is Act.DELETE
    assert found.outcome is not None
    assert found.outcome.infrastructure
    assert "gpu2" in found.outcome.text


def test_a_pod_on_another_node_ends_the_job_before_anything_starts() -> None:
    found = decide(view(pod(0), pod(1, hostname="gpu9"), pod(2), ready=ALL))
    assert found.act is Act.DELETE
    assert "gpu9" in found.text


def test_a_pod_that_is_not_pinned_ends_the_job() -> None:
    found = decide(view(pod(0), pod(1, hostname=None), pod(2), ready=ALL))
    assert found.act is Act.DELETE
    assert "railweld-pin" in found.text


def test_a_pod_of_no_rank_ends_the_job() -> None:
    found = decide(view(dataclasses.replace(pod(0), index=7)))
    assert found.act is Act.DELETE


def test_a_pod_that_is_ranked_by_its_node_is_waited_for_until_it_has_one() -> None:
    """Before that it stands with the rank of another; nothing starts, nothing is patched."""
    unplaced = dataclasses.replace(pod(1), name="x", gated=True, hostname=None, node="")
    found = decide(view(pod(0), unplaced, pod(1), ready=ALL - {2}))
    assert (found.act, found.state) == (Act.WAIT, State.STARTING)
    found = decide(view(pod(0), unplaced, pod(1), ready=ALL - {2}, waited=601.0))
    assert found.outcome is not None
    assert found.outcome.again


def test_gated_pods_are_placed() -> None:
    gated = pod(0, gated=True, hostname=None, phase="Pending")
    assert decide(view(gated, gated=True)).act is Act.PLACE


def test_pods_that_do_not_start_are_given_up_with_the_reason() -> None:
    stuck = pod(1, phase="Pending", waiting="ImagePullBackOff: no such image")
    found = decide(view(pod(0), stuck, pod(2), ready={0, 2}, waited=601.0))
    assert found.act is Act.DELETE
    assert "gpu2: ImagePullBackOff: no such image" in found.text
    assert "2/3 pods" in found.text


def test_a_job_for_which_slurms_node_has_no_room_is_put_back_and_a_wrong_image_is_not() -> None:
    unplaced = pod(1, phase="Pending", node="", waiting="0/3 nodes are available: 1 Insufficient")
    pulling = pod(1, phase="Pending", waiting="ImagePullBackOff: no such image")
    for stuck, again in ((unplaced, True), (pulling, False)):
        found = decide(view(pod(0), stuck, pod(2), ready={0, 2}, waited=601.0))
        assert found.act is Act.DELETE
        assert found.outcome is not None
        assert (found.outcome.infrastructure, found.outcome.again) == (True, again)


def test_a_pod_that_is_deleted_from_outside_ends_the_gang_whatever_its_body_makes_of_it() -> None:
    found = decide(view(pod(0), pod(1, deleting=True), pod(2), started=ALL))
    assert found.act is Act.DELETE
    assert found.outcome is not None
    assert found.outcome == Outcome(1, "gpu2: its pod was deleted from outside", True, True)
    # After a failure the Job controller deletes the others: that is its doing.
    found = decide(view(ended(0, 3), pod(1, deleting=True), pod(2, deleting=True)))
    assert found.outcome == Outcome(3, "gpu1: exit status 3")
    deleting = dataclasses.replace(JOB, deleting=True)
    found = decide(view(pod(0, deleting=True), job=deleting, cancelled=True))
    assert found.outcome is not None
    assert found.outcome.status == -15


FAILED = dataclasses.replace(JOB, finished=True, failed="BackoffLimitExceeded: reached the limit")


def test_a_job_that_its_controller_gave_up_ends_though_no_pod_is_left_to_show_why() -> None:
    found = decide(view(job=FAILED, waited=10_000.0, ran=True, over=10.0))
    assert found.act is Act.DELETE
    assert found.outcome is not None
    assert (found.outcome.infrastructure, found.outcome.again) == (True, True)
    assert "BackoffLimitExceeded" in found.text
    assert "a pod of it was deleted from outside" in found.text
    # Until then it has not failed to start, however long it has run.
    for job in (JOB, FAILED):
        found = decide(view(job=job, waited=10_000.0, ran=True))
        assert (found.act, found.state) == (Act.WAIT, State.ENDING)


def test_what_pods_show_counts_more_than_the_jobs_words() -> None:
    """Jobs and pods are watched apart: a pod's end may be seen after the Job's."""
    assert decide(view(pod(0), ended(1, 143, deleting=True), job=FAILED, over=99.0)).outcome is None
    found = decide(view(ended(0, 7), ended(1, 143, deleting=True), job=FAILED, over=99.0))
    assert found.outcome == Outcome(7, "gpu1: exit status 7")


def test_a_complete_job_whose_pods_were_collected_is_done() -> None:
    found = decide(view(job=dataclasses.replace(JOB, finished=True), waited=10_000.0))
    assert (found.act, found.outcome) == (Act.FINISH, Outcome(0, "done"))


def test_the_deadline_of_kubernetes_is_no_reason_for_another_attempt() -> None:
    late = dataclasses.replace(FAILED, failed="DeadlineExceeded: Job was active longer")
    found = decide(view(job=late, over=10.0))
    assert found.outcome is not None
    assert (found.outcome.infrastructure, found.outcome.again) == (True, False)
    assert "from outside" not in found.text


def test_pods_that_a_deleted_job_has_left_are_ended() -> None:
    """`kubectl delete job --cascade=orphan`: no controller would do it."""
    found = decide(view(*RUNNING, job=None))
    assert found.act is Act.DELETE
    assert "deleted from outside" in found.text
    taken_along = (dataclasses.replace(each, deleting=True) for each in RUNNING)
    assert decide(view(*taken_along, job=None)).act is Act.WAIT
    assert decide(view(*RUNNING, job=None, live=False)).act is Act.WAIT


def test_a_job_deleted_by_someone_else_ends() -> None:
    found = decide(view(*RUNNING, job=dataclasses.replace(JOB, deleting=True), started=ALL))
    assert found.act is Act.WAIT
    assert found.outcome is not None
    assert "from outside" in found.outcome.text


def test_a_job_that_vanished_is_not_made_again() -> None:
    found = decide(view(job=None, created=True))
    assert found.act is Act.FINISH
    assert found.outcome is not None
    assert found.outcome.status == 1


def test_why_a_job_was_deleted_outlives_it_and_its_pods() -> None:
    evicted = Outcome(1, "evicted", infrastructure=True, again=True)
    deleting = dataclasses.replace(JOB, deleting=True)
    # Bodies that make something of the SIGTERM have not failed.
    found = decide(view(ended(0, 3), pod(1), pod(2), job=deleting, decided=evicted))
    assert (found.act, found.outcome) == (Act.WAIT, evicted)
    found = decide(view(job=None, decided=evicted, seen=evicted))
    assert (found.act, found.outcome) == (Act.FINISH, evicted)


def test_an_end_that_was_seen_outlives_what_showed_it() -> None:
    failed = Outcome(5, "gpu1: exit status 5")
    found = decide(view(job=None, seen=failed))
    assert (found.act, found.outcome) == (Act.FINISH, failed)
    outside = decide(view(*RUNNING, job=None)).outcome
    found = decide(view(job=None, seen=outside))
    assert found.outcome is not None
    assert "deleted from outside" in found.outcome.text
    # After a restart in mid-teardown nothing says why, until slurmctld or the client does.
    found = decide(view(job=None, seen=outside, cancelled=True))
    assert found.outcome is not None
    assert found.outcome.status == -15


def test_a_reason_written_on_the_job_outlives_the_daemon() -> None:
    why = Outcome(1, "gpu2: evicted", True)
    deleting = dataclasses.replace(JOB, deleting=True, outcome=why)
    assert decide(view(*RUNNING, job=deleting)).outcome == why


def test_missing_objects_of_a_job_are_made_when_the_client_is_back() -> None:
    assert decide(view(complete=False)).act is Act.COMPLETE
    assert decide(view(complete=False, attached=False)).act is Act.WAIT


# -- what must never happen --------------------------------------------------------------------

PODS = st.builds(
    lambda index, phase, code, deleting, disrupted, pinned: pod(
        index,
        phase=phase,
        exit_code=code if phase in ("Succeeded", "Failed") else None,
        deleting=deleting,
        disrupted=disrupted,
        hostname=HOSTS[index] if pinned else None,
    ),
    st.integers(0, 2),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    st.sampled_from([0, 1, 137, 143]),
    st.booleans(),
    st.sampled_from(["", "", "", "Evicted"]),
    st.sampled_from([True, True, True, False]),
)
RANKS = st.frozensets(st.integers(0, 2))
VIEWS = st.builds(
    lambda pods, **rest: View(hosts=HOSTS, pods={each.name: each for each in pods}, **rest),
    st.lists(PODS, max_size=3, unique_by=lambda each: each.index),
    slurm=st.sampled_from(list(Slurm)),
    live=st.booleans(),
    job=st.one_of(
        st.none(),
        st.builds(
            lambda deleting, finished, failed, outcome: dataclasses.replace(
                JOB, deleting=deleting, finished=finished, failed=failed, outcome=outcome
            ),
            st.booleans(),
            st.booleans(),
            st.sampled_from(["", "BackoffLimitExceeded"]),
            st.sampled_from([None, Outcome(1, "x", True)]),
        ),
    ),
    attached=st.booleans(),
    created=st.booleans(),
    complete=st.booleans(),
    cancelled=st.booleans(),
    ready=RANKS,
    started=RANKS,
    settled=st.booleans(),
    waited=st.sampled_from([0.0, 10_000.0]),
    failing=st.sampled_from([0.0, 10_000.0]),
    over=st.sampled_from([0.0, 10_000.0]),
    ran=st.booleans(),
    failed_nodes=st.sampled_from([{}, {}, {1: "lost"}]),
)


@given(VIEWS)
def test_unknown_is_not_gone(seen: View) -> None:
    found = decide(dataclasses.replace(seen, live=False))
    assert found == Decision(Act.WAIT, State.UNKNOWN, found.text)


@given(VIEWS)
def test_slurms_nodes_are_not_freed_while_a_pod_may_run(seen: View) -> None:
    if decide(seen).act is Act.FINISH:
        assert not seen.pods or seen.settled


@given(VIEWS)
def test_silence_of_slurm_deletes_nothing(seen: View) -> None:
    silent = dataclasses.replace(seen, slurm=Slurm.UNKNOWN)
    active = dataclasses.replace(seen, slurm=Slurm.ACTIVE)
    if decide(silent).act is Act.DELETE:
        assert decide(active).act is Act.DELETE
    assert decide(silent).act is not Act.CREATE


@given(VIEWS)
def test_bodies_start_together_or_not_at_all(seen: View) -> None:
    if decide(seen).act is Act.GO:
        assert seen.ready | seen.started == {0, 1, 2}
        assert all(each.hostname == HOSTS[each.index] for each in seen.pods.values())
        assert not seen.cancelled


@given(VIEWS)
def test_every_end_has_a_reason(seen: View) -> None:
    found = decide(seen)
    if found.act in (Act.FINISH, Act.DELETE):
        assert found.outcome is not None
        assert found.text


@given(VIEWS)
def test_a_job_is_made_once(seen: View) -> None:
    if decide(seen).act is Act.CREATE:
        assert seen.job is None
        assert not seen.created
        assert not seen.pods
