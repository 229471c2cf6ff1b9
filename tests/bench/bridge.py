"""What the Slurm bridge costs against the same Indexed Job, unpinned, from `kubectl apply`.

    python -m tests.bench.bridge [NODES ...] [--kinds gang rate load]       default: 1 16, all kinds

Slurm, etcd, API server, controllers, scheduler, hook, client and daemon are real; kubelets and
agents are one stand-in for all nodes (`tests.bench.fleet`), the same for both. Each size gets a
Slurm and a control plane of its own. Seconds are wall time from before the command was started
until the stand-in had reported the last pod. Needs root and podman, as the lab.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from railweld import names
from railweld.site import load_site
from railweld.stack.graph import stack_for
from tests.integration.bridge import world as worlds
from tests.integration.bridge.world import World
from tests.integration.stack import plane as planes
from tests.integration.stack.plane import ROOT

#: A gang that runs until it is ended, and a job that has nothing to do.
GANG = "#!/bin/bash\n#BRIDGE mode=spmd\nsleep 86400\n"
NOTHING = "#!/bin/sh\ntrue\n"
#: A node that an EpilogSlurmctld has held is not looked at when that ends, but by the next look
#: of the backfill scheduler: 30 s later at most, by default.
SCHEDULING = "sched_min_interval=0,batch_sched_delay=0,bf_interval=1,sched_interval=1"
#: slurmctld's answers wait for a core while a thousand nodes' epilogs run on the same two.
ANSWER_SECONDS = "100"
#: How often a start is measured; on as many nodes as ONCE_FROM it takes minutes.
TIMES, ONCE_FROM = 3, 256
#: Jobs that do nothing, at most.
QUEUED = 256
#: Over so many seconds the daemon's CPU is measured.
WATCHED_SECONDS = 30.0
#: Jobs of one node that run at the same time, at most.
RUNNING = 1000
PATIENCE = 1800.0
#: What is measured: jobs on all nodes, short jobs, many jobs that run at the same time.
KINDS = ("gang", "rate", "load")


class Events:
    """What the fleet says."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open()
        self._rest = ""
        self._at: dict[tuple[str, str, int], float] = {}
        self.total: Counter[str] = Counter()

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._stream.read()).split("\n")
        for event in map(json.loads, lines):
            self._at[event["what"], event["job"], event["count"]] = event["at"]
            self.total[event["what"]] += 1

    def wait(self, what: str, job: str, count: int) -> float:
        """When it had happened so often in a Job."""
        return until(lambda: self.read() or self._at.get((what, job, count)), pause=0.05)

    def wait_total(self, what: str, count: int) -> None:
        until(lambda: self.read() or self.total[what] >= count, pause=0.2)


def until(condition: Callable[[], Any], *, pause: float = 1.0) -> Any:
    """The first true value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE:g} s")
        time.sleep(pause)
    return value


class Bench:
    """One size."""

    def __init__(self, world: World, events: Events, nodes: int) -> None:
        self.world, self.events, self.nodes = world, events, nodes

    def sbatch(self, text: str, *options: str) -> tuple[float, int]:
        """When it was called, by the same clock as the fleet's, and the job."""
        command = f"date +%s.%N; sbatch --parsable --output=/dev/null {' '.join(options)} <<'END'\n"
        at, job = self.world.slurm.sh(f"{command}{text}END", user="alice").split()
        return float(at), int(job)

    def scancel(self, *which: str) -> float:
        return float(self.world.slurm.sh(f"date +%s.%N; scancel {' '.join(which)}").split()[0])

    def idle(self) -> None:
        until(self.is_empty)
        until(self.world.slurm.idle)

    def is_empty(self) -> bool:
        """Whether Slurm has no job; not known is no."""
        done = self.world.slurm.run("squeue", "--noheader", check=False)
        return done.returncode == 0 and not done.stdout.strip()

    def requests(self) -> int:
        """Requests of the daemon to the API; watches are counted apart."""
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in self.world.get("/metrics").splitlines()
            if line.startswith("railweld_bridge_api_requests_total") and '"WATCH"' not in line
        )

    # -- a gang ------------------------------------------------------------------------------

    def plain(self) -> float:
        """What Slurm alone takes on as many nodes, from `sbatch` to the script's first line."""
        path = "/tmp/plain"
        text = f"#!/bin/sh\ndate +%s.%N > {path}.new && mv {path}.new {path}\n"
        at, _ = self.sbatch(text, "--partition=plain", "--exclusive", f"--nodes={self.nodes}")
        found = until(lambda: self.world.slurm.sh(f"cat {path}", check=False), pause=0.1)
        self.world.slurm.sh(f"rm {path}")
        self.idle()
        return float(found) - at

    def gang(self) -> dict[str, float]:
        """A job on all nodes by the bridge, and by kubectl."""
        slurm = self.plain()
        before = self.requests()
        at, job = self.sbatch(GANG, f"--nodes={self.nodes}")
        name = f"slurm-lab-{job}-r0"
        found = {
            "slurm": slurm,
            "running": self.events.wait("running", name, self.nodes) - at,
            "started": self.events.wait("started", name, self.nodes) - at,
        }
        manifest = self.unpinned(name)
        at = self.scancel(str(job))
        found["gone"] = self.events.wait("gone", name, self.nodes) - at
        self.idle()
        found["requests"] = self.requests() - before
        at = time.time()
        self.world.plane.kubectl("apply", "-f", "-", text=json.dumps(manifest))
        name = manifest["metadata"]["name"]
        found["kubectl"] = self.events.wait("running", name, self.nodes) - at
        at = time.time()
        self.world.plane.kubectl("delete", "job", name, "-n", names.NAMESPACE_JOBS, "--wait=false")
        found["deleted"] = self.events.wait("gone", name, self.nodes) - at
        return found

    def unpinned(self, name: str) -> dict[str, Any]:
        """The bridge's own Job, for anybody and any node."""
        text = self.world.plane.kubectl(
            "get", "job", name, "-n", names.NAMESPACE_JOBS, "-o", "json"
        ).stdout
        job: dict[str, Any] = json.loads(text)
        template = job["spec"]["template"]
        for key in ("annotations", "labels"):
            template["metadata"].pop(key, None)
        for key in ("nodeSelector", "subdomain"):
            template["spec"].pop(key, None)
        for key in ("selector", "manualSelector"):
            job["spec"].pop(key, None)
        metadata = {"name": f"plain-{name}", "namespace": names.NAMESPACE_JOBS}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job["spec"]}

    # -- many jobs ---------------------------------------------------------------------------

    def rate(self) -> tuple[int, float]:
        """Jobs of one node that do nothing: how many, and how many a minute."""
        count = min(max(4 * self.nodes, 20), QUEUED)
        at, _ = self.sbatch(NOTHING, "--nodes=1", f"--array=1-{count}")
        until(self.is_empty, pause=0.5)
        return count, count / (time.time() - at) * 60

    def load(self) -> tuple[int, float, float, float]:
        """Jobs of one node that run; the daemon's MiB, its own CPU and that of its squeue."""
        count = min(self.nodes, RUNNING)
        self.events.read()
        started = self.events.total["started"] + count
        self.sbatch(GANG, "--nodes=1", f"--array=1-{count}")
        self.events.wait_total("started", started)
        before, at = self.used(), time.monotonic()
        time.sleep(WATCHED_SECONDS)
        own, children = (
            (after - earlier) / (time.monotonic() - at) * 100
            for after, earlier in zip(self.used(), before, strict=True)
        )
        status = self.world.slurm.sh(f"grep VmRSS /proc/{self.world.pid}/status").split()
        return count, int(status[1]) / 1024, own, children

    def used(self) -> tuple[float, float]:
        """CPU seconds of the daemon, and of what it started and waited for."""
        text = self.world.slurm.sh(f"cat /proc/{self.world.pid}/stat; getconf CLK_TCK").split()
        user, system, waited_user, waited_system = map(int, text[13:17])
        ticks = int(text[-1])
        return (user + system) / ticks, (waited_user + waited_system) / ticks


@contextlib.contextmanager
def fleet(folder: Path, world_of: planes.ControlPlane, nodes: int) -> Iterator[Events]:
    """Kubelets and agents, for the length of a `with`."""
    path = folder / "fleet.log"
    command = [sys.executable, "-m", "tests.bench.fleet", "--kubeconfig", world_of.kubeconfig]
    with (
        path.open("w") as log,
        subprocess.Popen(
            [*map(str, command), "--nodes", str(nodes)], cwd=ROOT, stdout=log
        ) as process,
    ):
        try:
            events = Events(path)
            events.wait("following", "", 1)
            yield events
        finally:
            process.terminate()


@contextlib.contextmanager
def bench(nodes: int) -> Iterator[Bench]:
    """Everything, of one size."""
    extra = {
        "railweld_job_gpu_quota": nodes * 8,
        "railweld_rdma_shares": min(nodes, 1000),
        "railweld_cache_device": "/dev/nvme1n1",
    }
    stack = stack_for(load_site([str(ROOT / "inventories/lab")], extra))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as open_:
        folder = Path(name)
        plane = open_.enter_context(planes.running(folder / "plane"))
        plane.nodes(nodes, {"nvidia.com/gpu": "8", "rdma/hca": "4"}, alive=False)
        worlds.apply_stack(plane, stack)
        events = open_.enter_context(fleet(folder, plane, nodes))
        world = open_.enter_context(
            worlds.running(
                folder,
                plane,
                nodes,
                kubelets=False,
                tick=5.0,
                SchedulerParameters=SCHEDULING,
                MessageTimeout=ANSWER_SECONDS,
            )
        )
        until(lambda: world.ready_nodes() == nodes)
        yield Bench(world, events, nodes)


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def measure(nodes: int, kinds: Sequence[str]) -> None:
    """Print what one size takes, as soon as it is known."""
    with bench(nodes) as found:
        # The first job of a daemon makes what all of them share.
        found.gang()
        if "gang" in kinds:
            gangs = [found.gang() for _ in range(TIMES if nodes < ONCE_FROM else 1)]
            middle = {key: statistics.median(each[key] for each in gangs) for key in gangs[0]}
            order = ("running", "started", "slurm", "kubectl", "gone", "deleted")
            row("gang", f"{nodes:,}", *(f"{middle[key]:.1f}" for key in order), middle["requests"])
        if "rate" in kinds:
            count, rate = found.rate()
            row("rate", f"{nodes:,}", count, f"{rate:.0f}")
        if "load" in kinds:
            running, memory, own, children = found.load()
            row("load", f"{nodes:,}", running, f"{memory:.0f}", f"{own:.1f}", f"{children:.1f}")


def main() -> None:
    """Print the rows of each kind per size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    row("gang", "nodes", "sbatch to pods running", "to bodies started",
        "sbatch to a plain script", "kubectl apply to running",
        "scancel to pods gone", "kubectl delete to gone", "API requests of the daemon")  # fmt: skip
    row("rate", "nodes", "jobs of one node", "a minute")
    row("load", "nodes", "running jobs", "daemon MiB", "CPU %", "CPU % of its squeue")
    for nodes in options.nodes:
        measure(nodes, options.kinds)


if __name__ == "__main__":
    main()
