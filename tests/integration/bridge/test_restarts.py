"""What must not befall jobs when daemon, slurmctld or API server are away at a bad moment."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest

from railweld import names
from tests.integration.bridge.proxy import Proxy
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.test_faults import CLIENT, ONCE, SLEEP, WAITS, complete, uids
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep, pytest.mark.usefixtures("no_go")]

#: The same with an image of its own.
IMAGED = WAITS.replace("mode=spmd", "mode=spmd image=registry.site/ml/x:1")
USER = 2001


@contextlib.contextmanager
def settings(world: World, **changes: object) -> Iterator[None]:
    """Entries of bridge.json that the next start of the daemon finds."""
    before = dict(world.config)
    world.config |= changes
    try:
        yield
    finally:
        world.config.clear()
        world.config |= before
        world.restart_daemon("TERM")


def other_registries(world: World) -> contextlib.AbstractContextManager[None]:
    """An image of the job is not allowed any more."""
    return settings(world, registries=["registry.other/x"])


def higher_minimum(world: World) -> contextlib.AbstractContextManager[None]:
    """The job's user gets no more jobs."""
    return settings(world, minimum_uid=USER + 1)


@contextlib.contextmanager
def no_account(world: World) -> Iterator[None]:
    """Nobody on the head knows the user, as while SSSD is down."""
    world.slurm.sh("cp /etc/passwd /root/passwd; sed '/^alice:/d' /root/passwd > /etc/passwd")
    try:
        assert world.slurm.run("getent", "passwd", "alice", check=False).returncode != 0
        yield
    finally:
        world.slurm.sh("cat /root/passwd > /etc/passwd")


@contextlib.contextmanager
def no_template(world: World) -> Iterator[None]:
    """The partition's PodTemplate is being replaced."""
    what = ("podtemplate", "gpu", "-n", names.NAMESPACE_JOBS)
    saved = json.loads(world.plane.kubectl("get", *what, "-o", "json").stdout)
    world.plane.kubectl("delete", *what)
    try:
        yield
    finally:
        for name in ("resourceVersion", "uid", "creationTimestamp"):
            saved["metadata"].pop(name)
        world.plane.kubectl("create", "-f", "-", text=json.dumps(saved))


@pytest.mark.parametrize("change", [other_registries, higher_minimum, no_account, no_template])
def test_what_forbids_new_jobs_ends_none_that_runs(
    world: World, change: Callable[[World], contextlib.AbstractContextManager[None]]
) -> None:
    job = world.slurm.script(IMAGED, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    before = uids(world, job)
    with change(world):
        world.restart_daemon()
        lines = world.output(job).count("line")
        wait_for(
            lambda: (
                world.output(job).count("line") > lines + 10 or world.slurm.state(job) != "RUNNING"
            )
        )
        assert world.slurm.state(job) == "RUNNING", world.output(job)
        world.slurm.sh("touch /data/go")
        world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)


def test_a_job_that_starts_while_the_api_server_is_away_says_once_that_it_waits(
    world: World,
) -> None:
    world.plane.stop("apiserver")
    try:
        wait_for(lambda: "Kubernetes API does not answer" in world.get_any("/readyz"))
        job = world.slurm.script("#!/bin/sh\necho ran\n")
        world.has_said(job, "bridge: the Kubernetes API does not answer; the job waits\n")
    finally:
        world.plane.start_api_server()
        world.plane.wait()
    world.slurm.wait_state(job, "COMPLETED")
    assert "ran\n" in world.output(job)
    assert world.output(job).count("the job waits") == 1


def test_a_job_that_the_cluster_fails_while_slurmctld_is_away_is_put_back_when_it_answers(
    world: World,
) -> None:
    job = world.slurm.script(ONCE, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: world.output(job).count("run 0\n") == 2)
    world.slurm.stop_slurmctld()
    try:
        world.fault("gpu2", "evict")
        world.has_said(job, "low on resource")
        world.fault("gpu2", "evict", None)
        wait_for(lambda: not world.live_pods(job))
        world.has_said(job, "waiting for slurmctld")
        # What would end the job for good is the end of its batch step.
        assert world.slurm.pids(CLIENT)
    finally:
        world.slurm.start_slurmctld()
    world.has_said(job, "put back into the queue\n")
    # Slurm starts it again two minutes later.
    wait_for(lambda: world.slurm.job(job)["Restarts"] == "1")
    world.slurm.wait_state(job, "PENDING")


def test_a_client_killed_while_its_job_is_on_the_way_keeps_its_nodes_until_that_is_gone(
    world: World, proxy: Proxy
) -> None:
    fault = proxy.fault(
        matches=lambda m, p, _q: m == "POST" and p.endswith("/jobs"), delay=6.0, times=1
    )
    job = world.slurm.script(SLEEP, "-N2")
    wait_for(lambda: fault.happened == 1)
    world.slurm.signal("KILL", *world.slurm.pids(CLIENT))
    end = time.monotonic() + 12  # twice as long as it is on the way
    while time.monotonic() < end:
        free = world.slurm.state(job) not in ("RUNNING", "COMPLETING")
        assert not (free and world.objects("jobs", job)), world.log()
    world.slurm.wait_state(job, "FAILED", "NODE_FAIL", "CANCELLED")
    assert ("POST", f"/apis/batch/v1/namespaces/{names.NAMESPACE_JOBS}/jobs") in proxy.seen
    assert world.objects("jobs", job) == []
    assert "up" not in world.output(job)


def test_a_killwait_that_a_reconfigure_changes_is_the_grace_of_the_next_pods(world: World) -> None:
    def grace() -> int:
        job = world.slurm.script("#!/bin/sh\ntrue\n")
        world.slurm.wait_state(job, "COMPLETED")
        return int(world.pods(job)[0]["spec"]["terminationGracePeriodSeconds"])

    assert grace() == 50
    try:
        world.slurm.configure(KillWait="30")
        world.slurm.run("scontrol", "reconfigure")
        wait_for(lambda: grace() == 20)
    finally:
        world.slurm.configure()
        world.slurm.run("scontrol", "reconfigure")
        world.restart_daemon("TERM")
    assert grace() == 50
