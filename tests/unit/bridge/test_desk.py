"""Whose jobs the daemon tells whom of, when Slurm or Kubernetes no longer say whose they are."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from railweld.bridge import explain
from railweld.bridge.daemon import Bridge
from railweld.bridge.desk import Desk
from railweld.bridge.kube import Kube, KubeUnknownError
from railweld.bridge.mirror import Mirror, RunObjects
from railweld.bridge.observed import JobView, Key, PodView
from railweld.bridge.run import Run
from railweld.bridge.server import Refused
from railweld.bridge.slurm import Slurm, SlurmUnknownError

ALICE, BOB = 2001, 2002
JOB = JobView.of({"metadata": {"name": "j", "uid": "u", "labels": {"railweld.io/uid": str(ALICE)}}})
LINE = f"7|RUNNING|{ALICE}|{ALICE}|0|2026-11-30T03:04:41|gpu1|1|gpu|7|N/A|1|10:00|gpu1|\n"
POD = PodView.of(
    {
        "metadata": {"name": "p", "uid": "v", "annotations": {}, "labels": {}},
        "status": {"phase": "Running"},
    }
)


class Silent:
    """An API server that does not answer; events are not what is asked here."""

    async def request(self, *_: object, **__: object) -> dict[str, Any]:
        raise KubeUnknownError("no answer")


def desk(*, slurm: str | None, job: JobView | None, owner: int | None) -> Desk:
    """A daemon that sees a pod of job 7.

    Args:
        slurm: what squeue prints; None where slurmctld does not answer.
        job: the Job of the pod, if it is still there.
        owner: whose the run is, None where the daemon has none.
    """

    async def run(*_: str) -> str:
        if slurm is None:
            raise SlurmUnknownError("no answer")
        return slurm

    kube = cast("Kube", Silent())
    mirror = Mirror(kube, "jobs", "lab")
    mirror.runs[Key(7, 0)] = RunObjects(job, {POD.name: POD})
    bridge = SimpleNamespace(
        config=SimpleNamespace(partitions={"gpu": "gpu"}, namespace="jobs"),
        kube=kube,
        mirror=mirror,
        runs={},
        server=SimpleNamespace(handle=lambda *_: None),
        slurm=Slurm(run),
    )
    if owner is not None:
        known = Run(Key(7, 0), kube, mirror, cast("Any", bridge))
        known.owner = owner
        bridge.runs = {known.key: known}
    return Desk(cast("Bridge", bridge))


@pytest.mark.parametrize(
    ("slurm", "job", "owner"),
    [
        (LINE, JOB, ALICE),
        (LINE, None, None),
        (None, JOB, None),
        # The Job is deleted and its pod takes its grace, slurmctld is away.
        (None, None, ALICE),
        ("", None, None),
    ],
)
def test_nobody_is_told_of_somebody_elses_job(
    slurm: str | None, job: JobView | None, owner: int | None
) -> None:
    asked = desk(slurm=slurm, job=job, owner=owner)
    with pytest.raises(Refused, match="is not yours"):
        asyncio.run(asked.facts(BOB, "7"))


def test_the_owner_and_administrators_are_told() -> None:
    for uid in (ALICE, os.geteuid()):
        facts = asyncio.run(desk(slurm=LINE, job=JOB, owner=ALICE).facts(uid, "7"))
        assert [pod["name"] for pod in facts["runs"][0]["pods"]] == ["p"]
    # The user's own job, of which Slurm knows nothing any more.
    assert asyncio.run(desk(slurm="", job=JOB, owner=None).facts(ALICE, "7"))["job"] is None
    # Whose it is cannot be said: an administrator may look, nobody else.
    lost = desk(slurm=None, job=None, owner=None)
    assert asyncio.run(lost.facts(os.geteuid(), "7"))["runs"]
    with pytest.raises(Refused, match="is not yours"):
        asyncio.run(lost.facts(ALICE, "7"))


def test_a_job_that_nothing_is_known_of_is_no_secret() -> None:
    assert asyncio.run(desk(slurm=LINE, job=JOB, owner=ALICE).facts(BOB, "8"))["runs"] == []


def test_how_a_run_ended_is_said_after_the_daemon_is_through_with_it() -> None:
    asked = desk(slurm=LINE, job=dataclasses.replace(JOB, hosts=("gpu1",)), owner=None)
    ended = dataclasses.replace(
        POD, index=0, hostname="gpu1", phase="Failed", exit_code=137, reason="OOMKilled"
    )
    asked._bridge.mirror.runs[Key(7, 0)].pods = {ended.name: ended}
    assert "ran out of memory" in explain.page(asyncio.run(asked.facts(ALICE, "7")))
