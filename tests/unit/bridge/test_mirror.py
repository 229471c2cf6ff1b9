"""What the copy of Kubernetes' objects may be trusted for."""

from __future__ import annotations

from dataclasses import replace

from railweld.bridge.mirror import RunObjects
from railweld.bridge.observed import JobView, PodView

JOB = JobView(
    name="j", uid="u", owner=2001, submitted="", hosts=("gpu1", "gpu2"), template="gpu",
    deleting=False, finished=False, outcome=None,
)  # fmt: skip


def pod(name: str) -> PodView:
    return PodView.of({"metadata": {"name": name, "uid": name}})


def test_the_job_of_pods_is_known_after_it_has_gone() -> None:
    """Their agents show a key that follows from its uid."""
    owners = [{"uid": "x"}, {"uid": "u", "controller": True}]
    left = PodView.of({"metadata": {"name": "a", "uid": "a", "ownerReferences": owners}})
    assert RunObjects(None, {"a": left}).job_uid == RunObjects(JOB).job_uid == "u"
    assert RunObjects().job_uid == ""


def test_a_jobs_end_and_deadline_are_read() -> None:
    manifest = {
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"activeDeadlineSeconds": 3960},
        "status": {
            "startTime": "2026-01-01T00:00:10Z",
            "conditions": [
                {"type": "FailureTarget", "status": "True", "reason": "x"},
                {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "m"},
            ],
        },
    }
    found = JobView.of(manifest)
    assert (found.finished, found.failed) == (True, "DeadlineExceeded: m")
    assert (found.deadline, found.started) == (3960, 1767225610.0)
    complete = JobView.of(
        {**manifest, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    )
    assert (complete.finished, complete.failed, complete.started) == (True, "", None)
    assert not JobView.of({"metadata": {"name": "j", "uid": "u"}}).finished


def test_a_job_whose_pods_are_not_all_there_may_still_get_them() -> None:
    """Its epilog must not take an empty list for pods that are gone."""
    assert RunObjects(JOB).may_grow
    assert RunObjects(JOB, {"a": pod("a")}).may_grow
    assert not RunObjects(JOB, {"a": pod("a"), "b": pod("b")}).may_grow
    # The controller makes none any more.
    assert not RunObjects(replace(JOB, deleting=True)).may_grow
    assert not RunObjects(replace(JOB, finished=True)).may_grow
    assert not RunObjects().may_grow
