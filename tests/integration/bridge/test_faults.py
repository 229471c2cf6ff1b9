"""The failure matrix: what breaks while jobs run, and what must not follow from it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweld import names
from tests.integration.bridge.proxy import WRITES, Proxy
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep, pytest.mark.usefixtures("no_go")]

SPMD = "#!/bin/bash\n#BRIDGE mode=spmd\n"
SLEEP = SPMD + "echo up $SLURM_NODEID\nsleep 300\n"
#: Ends when /data/go is there; prints all the while.
WAITS = SPMD + (
    "echo up $SLURM_NODEID\nn=0\n"
    "while [ ! -e /data/go ]; do n=$((n + 1)); echo line $n; sleep 0.2; done\necho last $n\n"
)
#: Takes a part of its grace, and prints at the end of it. After a requeue there is nothing to do.
SAVES = SPMD + (
    "trap 'echo saving; sleep 8; echo saved; exit 0' TERM\n"
    '[ "$SLURM_RESTART_COUNT" = 0 ] || exit 0\necho up\nsleep 600 & wait\n'
)
#: Ends at once the second time.
ONCE = SPMD + 'echo run $SLURM_RESTART_COUNT\n[ "$SLURM_RESTART_COUNT" != 0 ] || sleep 300\n'
CLIENT = "/usr/libexec/railweld/exec .*slurm_script"


@pytest.fixture
def settings(world: World) -> Iterator[dict[str, object]]:
    """Entries of bridge.json for one test; the daemon has its old ones afterwards."""
    before = dict(world.config)
    changes: dict[str, object] = {}
    yield changes
    for name in changes:
        world.config.pop(name, None)
    world.config |= before
    world.restart_daemon("TERM")


def uids(world: World, job: int) -> list[str]:
    return [pod["metadata"]["uid"] for pod in world.pods(job)]


def complete(world: World, job: int, ranks: int = 1) -> None:
    """The job's output has every line of every rank, once."""
    output = world.output(job)
    for rank in range(ranks):
        mark = f"[gpu{rank + 1}] " if ranks > 1 else ""
        lines = [
            line[len(mark) :]
            for line in output.splitlines()
            if line.startswith(mark) and not line[len(mark) :].startswith("bridge:")
        ]
        count = int(lines[-1].removeprefix("last "))
        wanted = [f"up {rank}", *(f"line {n}" for n in range(1, count + 1)), f"last {count}"]
        assert lines == wanted


# -- the daemon --------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_each_write_to_the_api_loses_nothing(
    world: World, proxy: Proxy, moment: str
) -> None:
    """Killed at its 1st, 2nd, ... write until a job needs no more: one Job each, status kept."""
    step = 0
    while True:
        reached = _crash_at(world, proxy, step, moment)
        job = world.slurm.script("#!/bin/bash\necho once\nexit 5\n", "-w", "gpu1,gpu2", "-N2")
        wait_for(lambda at=reached, j=job: at.is_set() or world.slurm.state(j) == "FAILED")
        if reached.is_set():
            world.start_daemon()
        world.slurm.wait_state(job, "FAILED")
        assert world.slurm.job(job)["ExitCode"] == "5:0"
        assert world.output(job).count("once\n") == 1
        assert len(world.objects("jobs", job)) == 1
        if not reached.is_set():
            break
        step += 1
    # The agent's ConfigMap, the Job, its Secret.
    assert step >= 3


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_each_write_of_a_cancellation_leaves_no_pod(
    world: World, proxy: Proxy, moment: str
) -> None:
    step = 0
    while True:
        job = world.slurm.script(SLEEP, "-N2")
        world.has_said(job, "up 1\n")
        reached = _crash_at(world, proxy, step, moment)
        world.slurm.run("scancel", str(job))
        wait_for(lambda at=reached, j=job: at.is_set() or world.slurm.state(j) == "CANCELLED")
        if reached.is_set():
            assert world.slurm.state(job) in ("COMPLETING", "CANCELLED")
            world.start_daemon()
        world.slurm.wait_state(job, "CANCELLED")
        assert world.live_pods() == []
        if not reached.is_set():
            break
        step += 1
    assert step >= 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", ["PATCH", "DELETE"])
def test_a_crash_at_each_write_after_an_eviction_still_puts_the_job_back(
    world: World, proxy: Proxy, write: str, moment: str
) -> None:
    """The daemon is away until nothing is left that could tell it why the run ended."""
    job = world.slurm.script(ONCE, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: world.output(job).count("run 0\n") == 2)
    reached = _crash_at(world, proxy, ["PATCH", "DELETE"].index(write), moment)
    evict(world, world.pods(job)[1]["metadata"]["name"])
    wait_for(reached.is_set)
    assert [method for method, _ in proxy.seen if method in WRITES][-1] == write
    wait_for(lambda: not _deleting(world, job))
    world.start_daemon()
    # It waits two minutes then, as Slurm lets every job that is requeued.
    wait_for(lambda: world.slurm.job(job).get("Restarts") == "1", what=world.log)
    world.slurm.wait_state(job, "PENDING")
    assert world.live_pods() == []
    world.slurm.run("scancel", str(job))


def _deleting(world: World, job: int) -> bool:
    found = [*world.objects("jobs", job), *world.objects("pods", job)]
    return any("deletionTimestamp" in each["metadata"] for each in found)


def _crash_at(world: World, proxy: Proxy, step: int, moment: str) -> threading.Event:
    """Kill the daemon at a write of it; returns what is set then."""
    reached, writes = threading.Event(), [0]

    def matches(method: str, path: str, _query: str) -> bool:
        if method not in WRITES or path.endswith("/token") or reached.is_set():
            return False
        writes[0] += 1
        return writes[0] == step + 1

    def crash() -> None:
        world.stop_daemon("KILL")
        reached.set()

    proxy.faults.clear()
    proxy.fault(matches=matches, **{moment: crash})
    return reached


def test_killed_while_pods_start(world: World) -> None:
    world.fault("gpu2", "hold")
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: len(world.hosts(job)) == 2)
    before = uids(world, job)
    world.restart_daemon()
    world.slurm.sh("touch /data/go")
    world.fault("gpu2", "hold", None)
    world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)


def test_killed_while_bodies_run_and_not_a_line_is_lost_or_twice(world: World) -> None:
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "line 5\n")
    before = uids(world, job)
    for _ in range(3):
        world.restart_daemon()
        lines = world.output(job).count("line")
        wait_for(lambda at=lines: world.output(job).count("line") > at + 4)
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)


def test_away_when_the_bodies_end_and_their_status_still_arrives(world: World) -> None:
    job = world.slurm.script(SPMD + "echo up\nsleep 3\nexit 9\n", "-N2")
    world.has_said(job, "up\n")
    world.stop_daemon("KILL")
    pods = wait_for(lambda: not world.live_pods() and world.pods(job))
    assert pods
    assert world.slurm.state(job) == "RUNNING"
    world.start_daemon()
    world.slurm.wait_state(job, "FAILED")
    assert world.slurm.job(job)["ExitCode"] == "9:0"


def test_away_for_minutes_when_the_bodies_end_and_not_a_line_is_lost(world: World) -> None:
    text = WAITS + "touch /data/ended-$SLURM_NODEID\nexit 9\n"
    world.slurm.sh("rm -f /data/ended-*")
    job = world.slurm.script(text, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "line 5\n")
    world.stop_daemon("KILL")
    world.slurm.sh("touch /data/go")
    wait_for(lambda: world.slurm.sh("ls /data/ended-*", check=False).count("ended") == 2)
    # Longer than output waits for a file that cannot be written.
    time.sleep(130)
    assert "last" not in world.output(job)
    world.start_daemon()
    world.slurm.wait_state(job, "FAILED")
    assert world.slurm.job(job)["ExitCode"] == "9:0"
    complete(world, job, 2)


@pytest.mark.parametrize(
    ("options", "end", "state"),
    [
        pytest.param((), "scancel {job}", "CANCELLED", id="cancelled"),
        pytest.param(("--requeue",), "scontrol requeue {job}", "COMPLETED", id="requeued"),
        pytest.param(("--time=1",), "true", "TIMEOUT", id="out-of-time"),
        pytest.param(
            ("--no-requeue",),
            "scontrol update nodename=gpu2 state=down reason=test",
            "NODE_FAIL",
            id="node-failed",
        ),
    ],
)
def test_killed_while_pods_take_their_grace(
    world: World, options: tuple[str, ...], end: str, state: str
) -> None:
    """What bodies print in their grace is in the file, whoever ended the job."""
    job = world.slurm.script(SAVES, "-w", "gpu1,gpu2", "-N2", *options)
    wait_for(lambda: world.output(job).count("up\n") == 2)
    world.slurm.sh(end.format(job=job))
    try:
        wait_for(lambda: world.output(job).count("saving\n") == 2)
        world.restart_daemon()
        if world.live_pods():
            assert world.slurm.state(job) in ("COMPLETING", "NODE_FAIL")
        world.slurm.wait_state(job, state)
        assert world.output(job).count("saved\n") == 2
        assert world.live_pods() == []
    finally:
        if state == "NODE_FAIL":
            world.slurm.run("scontrol", "update", "nodename=gpu2", "state=resume")


def test_a_signal_while_the_daemon_is_away_arrives_once_on_every_node(world: World) -> None:
    text = SPMD + (
        "trap 'echo got' USR1\necho up\nwhile [ ! -e /data/go ]; do sleep 0.1; done\necho last\n"
    )
    job = world.slurm.script(text, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: world.output(job).count("up\n") == 2)
    world.stop_daemon("KILL")
    # So long that agents ask for it in their longest intervals.
    time.sleep(10)
    world.slurm.run("scancel", "--batch", "--signal=USR1", str(job))
    world.start_daemon()
    wait_for(lambda: world.output(job).count("got\n") == 2)
    # What the client tells again is not passed on again.
    world.restart_daemon()
    wait_for(lambda: world.metric("agents") == 2)
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("got\n") == 2
    assert world.output(job).count("last\n") == 2


def test_sigterm_while_the_daemon_is_away_ends_only_what_slurm_ends(world: World) -> None:
    """Nothing is made for these jobs yet."""
    world.stop_daemon("KILL")
    text = (
        "#!/bin/bash\ntrap 'saved=1' TERM\nuntil [ \"$saved\" ]; do sleep 0.1; done\necho saved\n"
    )
    kept, ended = (world.slurm.script(text, "-w", node) for node in ("gpu1", "gpu2"))
    for job in (kept, ended):
        world.slurm.wait_state(job, "RUNNING")
    wait_for(lambda: len(world.slurm.pids(CLIENT)) == 2)
    world.slurm.run("scancel", "--batch", "--signal=TERM", str(kept))
    world.slurm.run("scancel", str(ended))
    # Not only when Slurm kills it, after KillWait.
    wait_for(lambda: len(world.slurm.pids(CLIENT)) == 1, 30)
    world.start_daemon()
    world.slurm.wait_state(ended, "CANCELLED")
    world.slurm.wait_state(kept, "COMPLETED")
    assert "saved\n" in world.output(kept)
    assert world.objects("jobs", ended) == []


def test_a_second_daemon_is_refused(world: World) -> None:
    done = world.slurm.run(
        "env", f"PYTHONPATH={Path(__file__).parents[3]}/src", "python3", "-m",
        "railweld.bridge.daemon", "--config", "/tmp/bridge.json", check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "found another bridged at work" in done.stderr


# -- the client and Slurm ----------------------------------------------------------------------


def test_a_killed_client_fails_the_job_and_takes_its_pods_along(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2")
    world.has_said(job, "up 1\n")
    world.slurm.signal("KILL", *world.slurm.pids(CLIENT))
    world.slurm.wait_state(job, "FAILED", "NODE_FAIL", "CANCELLED")
    # No node is given away before its pod is gone.
    assert world.live_pods() == []
    wait_for(world.slurm.idle)


def test_a_restart_of_slurmctld_and_its_silence_end_nothing(world: World) -> None:
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    before = uids(world, job)
    world.slurm.stop_slurmctld()
    wait_for(lambda: "slurmctld does not answer" in world.get_any("/readyz"))
    lines = world.output(job).count("line")
    wait_for(lambda: world.output(job).count("line") > lines + 10)
    assert len(world.live_pods()) == 2
    world.slurm.start_slurmctld()
    wait_for(lambda: world.get("/readyz", check=False) == "ok\n")
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)


def test_a_restart_of_slurmd_ends_nothing(world: World) -> None:
    job = world.slurm.script(WAITS, "-w", "gpu1")
    world.has_said(job, "up 0\n")
    before = uids(world, job)
    world.slurm.signal("TERM", *world.slurm.pids("slurmd -N gpu1$"))
    wait_for(lambda: not world.slurm.pids("slurmd -N gpu1$"))
    world.slurm.run("slurmd", "-N", "gpu1")
    lines = world.output(job).count("line")
    wait_for(lambda: world.output(job).count("line") > lines + 10)
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job)


def test_a_full_disk_loses_no_output(world: World) -> None:
    slurm = world.slurm
    slurm.sh("mkdir -p /data/small; mount -t tmpfs -o size=256k,mode=1777 none /data/small")
    try:
        job = slurm.script(
            "#!/bin/bash\nseq 1 100000\n", "--output=/data/small/out", "--chdir=/data"
        )
        wait_for(lambda: int(slurm.sh("stat -c %s /data/small/out", check=False) or 0) > 200_000)
        time.sleep(2)  # as long as a full disk may last; what is tested is that nothing happens
        assert slurm.state(job) == "RUNNING"
        slurm.sh("mount -o remount,size=8m /data/small")
        slurm.wait_state(job, "COMPLETED")
        lines = [line for line in slurm.read("/data/small/out").splitlines() if line.isdigit()]
        assert lines == [str(n) for n in range(1, 100_001)]
    finally:
        slurm.sh("umount /data/small", check=False)


def test_a_disk_that_stays_full_costs_output_but_not_the_status(world: World) -> None:
    """Of five nodes, whose output under way is more than the batch step takes at a time."""
    slurm = world.slurm
    slurm.sh("mkdir -p /data/small; mount -t tmpfs -o size=256k,mode=1777 none /data/small")
    try:
        text = SPMD + "seq 1 100000\nexit 3\n"
        job = slurm.script(
            text, "-N5", "--output=/data/small/out", "--error=/data/err", "--chdir=/data"
        )
        slurm.wait_state(job, "FAILED", seconds=420)
        assert slurm.job(job)["ExitCode"] == "3:0"
        said = slurm.read("/data/err")
        assert "output is not complete" in said
        assert "bytes of output did not arrive: the pods' own logs have it" in said
        assert f"railweld-bridge logs {job} gpu" in said
        comment = slurm.run("scontrol", "show", "job", str(job)).stdout
        assert "bytes of output were not in its file at the end" in comment
    finally:
        slurm.sh("umount /data/small; rm -f /data/err", check=False)


# -- the API server ----------------------------------------------------------------------------


def test_an_outage_of_two_minutes_ends_nothing(world: World) -> None:
    """Longer than nodes' leases: all of them look unready for a moment afterwards."""
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    before = uids(world, job)
    world.plane.stop("apiserver")
    try:
        wait_for(lambda: "Kubernetes API does not answer" in world.get_any("/readyz"))
        lines = world.output(job).count("line")
        wait_for(lambda: world.output(job).count("line") > lines + 20)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert world.slurm.state(job) == "RUNNING"
            time.sleep(2)
    finally:
        world.plane.start_api_server()
        world.plane.wait()
    wait_for(lambda: world.get("/readyz", check=False) == "ok\n")
    # Every kubelet has reported again, and Slurm's nodes are what they were.
    wait_for(lambda: world.ready_nodes() == len(world.slurm.nodes))
    wait_for(lambda: "down" not in world.slurm.sh("sinfo --noheader --format=%T"))
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    assert uids(world, job) == before
    complete(world, job, 2)


def test_a_job_cancelled_in_an_outage_keeps_its_nodes_until_its_pods_are_gone(
    world: World,
) -> None:
    job = world.slurm.script(SLEEP, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    world.plane.stop("apiserver")
    try:
        world.slurm.run("scancel", str(job))
        wait_for(lambda: world.slurm.state(job) == "COMPLETING")
        end = time.monotonic() + 8
        while time.monotonic() < end:
            assert world.slurm.state(job) == "COMPLETING"
            time.sleep(0.5)
    finally:
        world.plane.start_api_server()
        world.plane.wait()
    world.slurm.wait_state(job, "CANCELLED")
    assert world.live_pods() == []


def test_a_job_that_starts_in_an_outage_waits_and_says_so(world: World) -> None:
    world.plane.stop("apiserver")
    try:
        job = world.slurm.script("#!/bin/sh\necho ran\n")
        world.slurm.wait_state(job, "RUNNING")
        wait_for(lambda: "Kubernetes API does not answer" in world.get_any("/readyz"))
    finally:
        world.plane.start_api_server()
        world.plane.wait()
    world.slurm.wait_state(job, "COMPLETED")
    assert "ran\n" in world.output(job)


def test_a_job_cancelled_while_it_is_made_leaves_nothing(world: World, proxy: Proxy) -> None:
    """The server has made the Job and its answer gets lost; the user cancels in that moment."""
    jobs: list[int] = []
    submitted = threading.Event()

    def cancel() -> None:
        submitted.wait(60)
        world.slurm.run("scancel", str(jobs[0]))
        wait_for(lambda: world.slurm.state(jobs[0]) == "COMPLETING")

    proxy.fault(matches=lambda m, p, _q: m == "POST" and p.endswith("/jobs"), after=cancel, times=1)
    jobs.append(world.slurm.script(SLEEP, "-N2"))
    submitted.set()
    world.slurm.wait_state(jobs[0], "CANCELLED")
    assert proxy.faults[0].happened == 1
    assert world.live_pods() == []
    assert world.objects("jobs", jobs[0]) == []
    assert "up" not in world.output(jobs[0])


def test_cancelling_everything_over_a_slow_api_server_drains_no_node(
    world: World, proxy: Proxy
) -> None:
    jobs = [world.slurm.script(SLEEP, "-N1") for _ in world.slurm.nodes]
    for job in jobs:
        world.has_said(job, "up 0\n")
    proxy.fault(matches=lambda m, _p, q: m != "GET" and "watch" not in q, delay=5.0)
    started = time.monotonic()
    world.slurm.run("scancel", *map(str, jobs))
    for job in jobs:
        world.slurm.wait_state(job, "CANCELLED")
    # KillWait would end the batch steps by force, the epilogs' own limit would drain the nodes.
    assert time.monotonic() - started < 60
    assert world.live_pods() == []
    wait_for(world.slurm.idle)
    assert proxy.faults[0].happened >= len(jobs)


def test_a_busy_api_server_is_asked_again(world: World, proxy: Proxy) -> None:
    busy = {"kind": "Status", "status": "Failure", "code": 429, "message": "too many requests"}
    for method in ("POST", "GET", "DELETE"):
        proxy.fault(
            matches=lambda m, _p, q, want=method: m == want and "watch" not in q,
            answer=(429, {"Retry-After": "1"}, json.dumps(busy).encode()),
            times=3,
        )
    job = world.slurm.script("#!/bin/sh\necho ran\nexit 3\n", "-N2")
    world.slurm.wait_state(job, "FAILED")
    assert world.slurm.job(job)["ExitCode"] == "3:0"
    assert len(world.objects("jobs", job)) == 1
    assert proxy.faults[0].happened == 3


def test_an_expired_watch_is_begun_anew(world: World, proxy: Proxy) -> None:
    expired = {
        "type": "ERROR",
        "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
    }
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    world.has_said(job, "up 1\n")
    before = world.metric("watch_restarts_total", kind="pods")
    proxy.fault(
        matches=lambda _m, _p, q: "watch=1" in q,
        answer=(200, {"Content-Type": "application/json"}, json.dumps(expired).encode() + b"\n"),
        times=6,
    )
    proxy.cut_watches()
    wait_for(lambda: proxy.faults[0].happened == 6)
    wait_for(lambda: world.get("/readyz", check=False) == "ok\n")
    assert world.metric("watch_restarts_total", kind="pods") > before
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")
    complete(world, job, 2)


def test_a_watch_that_falls_silent_is_noticed(world: World, proxy: Proxy) -> None:
    proxy.fault(matches=lambda _m, p, q: "watch=1" in q and p.endswith("/pods"), freeze=True,
                times=1)  # fmt: skip
    proxy.cut_watches()
    wait_for(lambda: proxy.faults[0].happened == 1)
    job = world.slurm.script("#!/bin/sh\necho ran\n")
    world.slurm.wait_state(job, "COMPLETED", seconds=150)


# -- nodes and pods ----------------------------------------------------------------------------


def test_an_evicted_pod_puts_the_job_back_into_the_queue(world: World) -> None:
    job = world.slurm.script(ONCE, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: world.output(job).count("run 0\n") == 2)
    world.fault("gpu2", "evict")
    world.has_said(job, "low on resource")
    world.fault("gpu2", "evict", None)
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("run 1\n") == 2
    assert world.slurm.job(job)["Restarts"] == "1"


def test_a_job_is_put_back_only_so_often(world: World, settings: dict[str, object]) -> None:
    settings["requeues"] = 0
    world.restart_daemon("TERM", requeues=0)
    job = world.slurm.script(SLEEP, "-w", "gpu2", "--requeue")
    world.has_said(job, "up 0\n")
    world.fault("gpu2", "evict")
    world.slurm.wait_state(job, "FAILED")
    assert "low on resource" in world.output(job)
    assert world.slurm.job(job)["Restarts"] == "0"


def evict(world: World, pod: str) -> None:
    """As `kubectl drain` does it."""
    metadata = {"name": pod, "namespace": names.NAMESPACE_JOBS}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{names.NAMESPACE_JOBS}/pods/{pod}/eviction"
    world.plane.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(body))


def delete(world: World, pod: str) -> None:
    argv = ("delete", "pod", pod, "-n", names.NAMESPACE_JOBS, "--wait=false")
    world.plane.kubectl(*argv)


@pytest.mark.parametrize(
    ("way", "said"), [(evict, "Kubernetes ended the pod"), (delete, "its pod was deleted")]
)
def test_a_pod_that_someone_takes_away_puts_the_job_back_into_the_queue(
    world: World, way: Callable[[World, str], None], said: str
) -> None:
    job = world.slurm.script(ONCE, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: world.output(job).count("run 0\n") == 2)
    way(world, world.pods(job)[1]["metadata"]["name"])
    world.has_said(job, f"bridge: gpu2: {said}")
    world.has_said(job, "put back into the queue")
    world.slurm.wait_state(job, "COMPLETED")
    assert world.output(job).count("run 1\n") == 2
    assert world.slurm.job(job)["Restarts"] == "1"


def test_pods_that_a_deleted_job_leaves_behind_are_ended(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2", "--no-requeue")
    world.has_said(job, "up 1\n")
    argv = ("delete", "job", f"slurm-lab-{job}-r0", "-n", names.NAMESPACE_JOBS)
    world.plane.kubectl(*argv, "--cascade=orphan", "--wait=false")
    world.slurm.wait_state(job, "FAILED")
    assert "deleted from outside" in world.output(job)
    assert world.live_pods() == []
    assert world.objects("secrets", job) == []


def test_a_quota_that_holds_a_pod_back_is_said_in_the_output(world: World) -> None:
    namespace = ("-n", names.NAMESPACE_JOBS)
    world.plane.kubectl("create", "quota", "tight", "--hard=pods=1", *namespace)
    try:
        job = world.slurm.script(SPMD + "echo ran\n", "-w", "gpu1,gpu2", "-N2")
        world.has_said(job, "exceeded quota: tight")
        assert "quota of railweld-jobs" in world.ask("explain", str(job), user="alice")
        assert "ran\n" not in world.output(job)
    finally:
        world.plane.kubectl("delete", "quota", "tight", *namespace)
    # The Job controller tries again by itself, less often each time.
    world.slurm.wait_state(job, "COMPLETED", seconds=400)
    assert world.output(job).count("ran\n") == 2


def test_a_job_for_which_its_node_has_no_room_goes_back_into_the_queue(
    world: World, settings: dict[str, object]
) -> None:
    settings |= {"start_limit": 4, "sync_nodes": False}
    world.restart_daemon("TERM", start_limit=4, sync_nodes=False)
    _allocatable(world, "gpu4", "7")
    try:
        job = world.slurm.script(SPMD + "echo ran\n", "-w", "gpu4")
        world.has_said(job, "Insufficient nvidia.com/gpu")
        world.has_said(job, "put back into the queue")
        wait_for(lambda: world.slurm.job(job).get("Restarts") == "1")
        assert "ran\n" not in world.output(job)
    finally:
        _allocatable(world, "gpu4", "8")
    world.slurm.wait_state(job, "COMPLETED")


def test_a_node_taken_out_of_the_cluster_and_a_restart_of_slurmctld_end_its_job_only(
    world: World,
) -> None:
    gone = world.slurm.script(SLEEP, "-w", "gpu16", "--no-requeue")
    other = world.slurm.script(WAITS, "-w", "gpu1")
    world.has_said(gone, "up 0\n")
    world.has_said(other, "up 0\n")
    before = uids(world, other)
    node = json.loads(world.plane.kubectl("get", "node", "gpu16", "-o", "json").stdout)
    world.plane.kubectl("delete", "node", "gpu16", "--wait=false")
    try:
        wait_for(lambda: "DOWN" in world.slurm.node("gpu16")["state"])
        assert world.slurm.node("gpu16")["reason"] == "railweld: no such node in Kubernetes"
        world.slurm.stop_slurmctld()
        world.slurm.start_slurmctld()
        world.slurm.wait_state(gone, "NODE_FAIL", "FAILED")
        assert "DOWN" in world.slurm.node("gpu16")["state"]
        assert uids(world, other) == before
        world.slurm.sh("touch /data/go")
        world.slurm.wait_state(other, "COMPLETED")
    finally:
        metadata = {key: node["metadata"].get(key) for key in ("name", "labels", "annotations")}
        node = {**node, "metadata": metadata, "spec": {}}
        world.plane.kubectl("create", "-f", "-", text=json.dumps(node))
    wait_for(lambda: world.slurm.node("gpu16")["state"] == "IDLE", 240)
    assert [pod for pod in world.live_pods() if f"-{gone}-" in pod] == []


def test_a_job_deleted_from_outside_fails_and_says_so(world: World) -> None:
    job = world.slurm.script(SLEEP, "-N2", "--no-requeue")
    world.has_said(job, "up 1\n")
    name = f"slurm-lab-{job}-r0"
    world.plane.kubectl("delete", "job", name, "-n", names.NAMESPACE_JOBS, "--wait=false")
    world.slurm.wait_state(job, "FAILED")
    assert "deleted from outside" in world.output(job)
    assert world.live_pods() == []


def test_an_image_that_never_comes_ends_the_job_with_the_reason(
    world: World, settings: dict[str, object]
) -> None:
    settings["start_limit"] = 4
    world.restart_daemon("TERM", start_limit=4)
    world.fault("gpu2", "pull", "manifest unknown")
    job = world.slurm.script(SLEEP, "-w", "gpu1,gpu2", "-N2", "--no-requeue")
    world.slurm.wait_state(job, "FAILED")
    output = world.output(job)
    assert "did not start within 4 s" in output
    assert "gpu2: ImagePullBackOff: manifest unknown" in output
    assert "up 0" not in output
    assert world.live_pods() == []


def test_a_dead_node_ends_its_job_and_comes_back_when_it_is_ready(
    world: World, settings: dict[str, object]
) -> None:
    settings["node_grace"] = 2
    world.restart_daemon("TERM", node_grace=2)
    job = world.slurm.script(SLEEP, "-w", "gpu7,gpu8", "-N2", "--no-requeue")
    other = world.slurm.script(WAITS, "-w", "gpu1")
    world.has_said(job, "up 1\n")
    world.has_said(other, "up 0\n")
    before = uids(world, other)
    world.fault("gpu8", "dead")
    wait_for(lambda: "DOWN" in world.slurm.node("gpu8")["state"], 240)
    assert world.slurm.node("gpu8")["reason"].startswith("railweld: NotReady")
    world.slurm.wait_state(job, "NODE_FAIL", "FAILED")
    wait_for(lambda: "IDLE" in world.slurm.node("gpu7")["state"])
    # Its pod may still run there, so Slurm gives it to nobody.
    assert "DOWN" in world.slurm.node("gpu8")["state"]
    world.fault("gpu8", "dead", None)
    wait_for(lambda: world.slurm.node("gpu8")["state"] == "IDLE")
    assert [pod for pod in world.live_pods() if f"-{job}-" in pod] == []
    assert uids(world, other) == before
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(other, "COMPLETED")


def test_a_gang_with_a_hole_is_ended_though_slurm_would_keep_it(world: World) -> None:
    job = world.slurm.script(SLEEP, "-w", "gpu1,gpu2", "-N2", "--no-kill", "--no-requeue")
    world.has_said(job, "up 1\n")
    world.slurm.run("scontrol", "update", "nodename=gpu2", "state=down", "reason=fan")
    try:
        world.slurm.wait_state(job, "FAILED", "NODE_FAIL")
        assert world.live_pods() == []
    finally:
        # An administrator's reason is not the bridge's to take back.
        assert world.slurm.node("gpu2")["reason"] == "fan"
        world.slurm.run("scontrol", "update", "nodename=gpu2", "state=resume")
        # Slurm 22.05.8 counts the lost node as not shared until it starts anew: no job of several
        # nodes would ever get it.
        world.slurm.stop_slurmctld()
        world.slurm.start_slurmctld()
    job = world.slurm.script("#!/bin/sh\ntrue\n", "-w", "gpu1,gpu2", "-N2")
    world.slurm.wait_state(job, "COMPLETED")


def test_cordons_and_missing_devices_drain_and_come_back(world: World) -> None:
    plane, slurm = world.plane, world.slurm
    plane.kubectl("cordon", "gpu4")
    try:
        wait_for(lambda: slurm.node("gpu4")["reason"] == "railweld: cordoned")
        assert "DRAIN" in slurm.node("gpu4")["state"]
    finally:
        plane.kubectl("uncordon", "gpu4")
    wait_for(lambda: slurm.node("gpu4")["state"] == "IDLE")
    _allocatable(world, "gpu4", "7")
    try:
        wait_for(
            lambda: slurm.node("gpu4")["reason"] == "railweld: 7 of 8 nvidia.com/gpu allocatable"
        )
    finally:
        _allocatable(world, "gpu4", "8")
    wait_for(lambda: slurm.node("gpu4")["state"] == "IDLE")


def test_an_administrators_drain_is_never_undone(world: World) -> None:
    slurm = world.slurm
    slurm.run("scontrol", "update", "nodename=gpu5", "state=drain", "reason=memory errors")
    try:
        world.plane.kubectl("cordon", "gpu5")
        world.plane.kubectl("cordon", "gpu6")
        wait_for(lambda: slurm.node("gpu6")["reason"] == "railweld: cordoned")
        world.plane.kubectl("uncordon", "gpu5")
        world.plane.kubectl("uncordon", "gpu6")
        wait_for(lambda: slurm.node("gpu6")["state"] == "IDLE")
        assert "DRAIN" in slurm.node("gpu5")["state"]
        assert slurm.node("gpu5")["reason"] == "memory errors"
    finally:
        slurm.run("scontrol", "update", "nodename=gpu5", "state=resume")


def test_a_cordon_under_a_job_ends_no_pod(world: World) -> None:
    job = world.slurm.script(WAITS, "-w", "gpu3")
    world.has_said(job, "up 0\n")
    world.plane.kubectl("cordon", "gpu3")
    try:
        wait_for(lambda: world.slurm.node("gpu3")["reason"] == "railweld: cordoned")
        assert len(world.live_pods()) == 1
    finally:
        world.plane.kubectl("uncordon", "gpu3")
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")


def _allocatable(world: World, node: str, gpus: str) -> None:
    patch = {"status": {"allocatable": {"nvidia.com/gpu": gpus}}}
    world.plane.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch)
    )


def test_no_body_starts_before_the_last_pod_is_there(world: World) -> None:
    world.fault("gpu2", "hold")
    job = world.slurm.script(WAITS, "-w", "gpu1,gpu2", "-N2")
    wait_for(lambda: "1/2 pods" in world.ask("explain", str(job), user="alice"))
    time.sleep(2)  # as long as a late pod may take; what is tested is that nothing happens
    assert "up" not in world.output(job)
    world.fault("gpu2", "hold", None)
    world.has_said(job, "up 0\n")
    world.has_said(job, "up 1\n")
    world.slurm.sh("touch /data/go")
    world.slurm.wait_state(job, "COMPLETED")


def test_out_of_memory_is_137_and_said(world: World) -> None:
    world.fault("gpu1", "reason", "OOMKilled")
    job = world.slurm.script("#!/bin/bash\nkill -9 $$\n", "-w", "gpu1")
    world.slurm.wait_state(job, "FAILED")
    assert world.slurm.job(job)["ExitCode"] == "137:0"
    assert "gpu1: out of memory (OOMKilled)" in world.output(job)
    assert "ran out of memory" in world.ask("explain", str(job), user="alice")


def test_nothing_of_an_ended_job_stays(world: World, settings: dict[str, object]) -> None:
    settings["keep"] = 1
    world.restart_daemon("TERM", keep=1)
    jobs = [world.slurm.script("#!/bin/sh\ntrue\n", "-N2") for _ in range(3)]
    for job in jobs:
        world.slurm.wait_state(job, "COMPLETED")
        wait_for(lambda j=job: not any(world.objects(k, j) for k in ("jobs", "pods", "secrets")))
