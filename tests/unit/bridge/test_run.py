"""What a run asks of the API server beside its way from start to end."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from railweld import names
from railweld.bridge.kube import Kube, KubeRefusedError
from railweld.bridge.mirror import Mirror, RunObjects
from railweld.bridge.observed import JobView, Key, Outcome, PodView
from railweld.bridge.run import Run

KEY = Key(7, 0)
NAME = "slurm-lab-7-r0"
JOBS = f"/apis/batch/v1/namespaces/jobs/jobs/{NAME}"
PODS = "/api/v1/namespaces/jobs/pods"


def job(**spec: Any) -> dict[str, Any]:
    labels = {names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0"}
    return {"metadata": {"name": NAME, "uid": "u", "labels": labels}, "spec": spec}


class Server:
    """Answers like an API server that has one Job, or none; keeps what was written."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found
        self.written: list[tuple[str, str, Any]] = []
        self.refuses = False

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == JOBS
        return self.found

    async def list(self, _path: str, **_: object) -> tuple[list[Any], str]:
        return [], "1"

    async def request(self, method: str, path: str, body: Any = None, **_: object) -> Any:
        if self.refuses:
            raise KubeRefusedError(403, "Forbidden", "no")
        self.written.append((method, path, body))
        return {**job(), "spec": (body or {}).get("spec")}


def run_of(server: Server, limit: float | None) -> Run:
    kube = cast("Kube", server)
    world = SimpleNamespace(
        settings=lambda: SimpleNamespace(namespace="jobs", kill_wait=60),
        time_limit=lambda _key: limit,
    )
    return Run(KEY, kube, Mirror(kube, "jobs", "lab"), cast("Any", world))


@pytest.mark.parametrize(
    ("limit", "wanted"), [(3600.0, []), (7200.0, [7560]), (math.inf, [None]), (None, [])]
)
def test_a_changed_time_limit_is_carried_over_once(
    limit: float | None, wanted: list[int | None]
) -> None:
    server = Server(None)
    run = run_of(server, limit)
    run._mirror.seen(KEY, job(activeDeadlineSeconds=3960))

    async def look() -> None:
        for _ in range(2):
            await run._keep_deadline()

    asyncio.run(look())
    assert [body["spec"]["activeDeadlineSeconds"] for _, _, body in server.written] == wanted
    assert all((method, path) == ("PATCH", JOBS) for method, path, _ in server.written)


def test_a_deadline_that_cannot_be_changed_ends_nothing() -> None:
    server = Server(None)
    server.refuses = True
    run = run_of(server, 7200.0)
    run._mirror.seen(KEY, job(activeDeadlineSeconds=3960))
    asyncio.run(run._keep_deadline())
    assert server.written == []


def left(run: Run) -> None:
    """Pods that the copy has, of which no Job is known."""
    pods = {}
    for name, phase, extra in (
        ("runs", "Running", {}),
        ("ends", "Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        ("ended", "Succeeded", {}),
    ):
        metadata = {"name": name, "uid": f"uid-{name}", **extra}
        pods[name] = PodView.of({"metadata": metadata, "status": {"phase": phase}})
    run._mirror.runs[KEY] = RunObjects(pods=pods)


def test_pods_without_their_job_are_deleted_one_by_one() -> None:
    server = Server(None)
    run = run_of(server, None)
    left(run)
    asyncio.run(run._end(Outcome(1, "the Job was deleted from outside", True)))
    assert [(method, path) for method, path, _ in server.written] == [
        ("DELETE", f"{PODS}/runs"),
        ("DELETE", f"/api/v1/namespaces/jobs/secrets/{NAME}"),
        ("DELETE", f"/api/v1/namespaces/jobs/services/{NAME}"),
    ]


def test_a_job_that_only_the_copy_lacks_is_found_and_nothing_is_deleted() -> None:
    server = Server(job())
    run = run_of(server, None)
    # Asked for, and the answer got lost.
    run._posted = True
    left(run)
    asyncio.run(run._end(Outcome(1, "the Job was deleted from outside", True)))
    assert server.written == []
    assert run._mirror.of(KEY).job == JobView.of(job())
    run._mirror.runs.clear()
    # Nor is Slurm told that its nodes are free.
    assert not asyncio.run(run._is_gone())
    server.found = None
    run._mirror.runs.clear()
    assert asyncio.run(run._is_gone())
