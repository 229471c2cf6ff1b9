"""What a restart of the daemon must not do to jobs that run, whatever has changed meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from railweld import names
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.test_faults import complete, uids
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

#: Ends when /data/go is there; prints all the while.
WAITS = "#!/bin/bash\n#BRIDGE mode=spmd image=registry.site/ml/x:1\n" + (
    "echo up $SLURM_NODEID\nn=0\n"
    "while [ ! -e /data/go ]; do n=$((n + 1)); echo line $n; sleep 0.2; done\necho last $n\n"
)
USER = 2001


@pytest.fixture(autouse=True)
def _no_go(world: World) -> None:
    world.slurm.sh("rm -f /data/go")


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
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    before = uids(world, job)
    with change(world):
        world.restart_daemon()
        lines = world.output(job).count("line")
        wait_for(
            lambda: world.output(job).count("line") > lines + 10, what=lambda: world.output(job)
        )
        assert world.slurm.state(job) == "RUNNING"
        world.slurm.sh("touch /data/go")
        world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)
