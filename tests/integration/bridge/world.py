"""Slurm, a control plane and the daemon between them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from railweld import names
from railweld.stack.graph import Stack
from tests.integration.bridge import slurmlab
from tests.integration.bridge.slurmlab import SlurmLab, wait_for
from tests.integration.stack.plane import ROOT, ControlPlane, free_port

CONFIG = "/tmp/bridge.json"
LOG = "/var/log/bridged.log"
DAEMON = "railweld.bridge.daemon"


@dataclass
class World:
    """Everything, for tests."""

    slurm: SlurmLab
    plane: ControlPlane
    config: dict[str, Any]
    pid: int = 0
    monitor: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    # -- the daemon --------------------------------------------------------------------------

    def start_daemon(self, **changes: Any) -> None:
        """Start bridged and wait until it follows the API server."""
        self.config |= changes
        self.slurm.run("tee", CONFIG, stdin=json.dumps(self.config))
        self.pid = self.slurm.background(
            "env",
            f"PYTHONPATH={ROOT}/src",
            "python3",
            "-m",
            "railweld.bridge.daemon",
            "--config",
            CONFIG,
            "--log-level",
            "DEBUG",
            log=LOG,
        )
        wait_for(lambda: self.get("/readyz", check=False) == "ok\n", what=self.log)

    def stop_daemon(self, name: str = "TERM") -> None:
        """End bridged, gently or not."""
        self.slurm.signal(name, self.pid)
        wait_for(lambda: not self.slurm.pids(DAEMON))

    def get(self, path: str, *, check: bool = True) -> str:
        """Ask the monitor."""
        host = self.config["monitor"]
        done = self.slurm.run(
            "python3",
            "-c",
            "import sys,urllib.request as u\n"
            "try: print(u.urlopen(sys.argv[1]).read().decode(), end='')\n"
            "except OSError as e: print(e); sys.exit(1)",
            f"http://{host}{path}",
            check=check,
        )
        return done.stdout

    def get_any(self, path: str) -> str:
        """The same, also what an answer of failure says."""
        done = self.slurm.run(
            "python3",
            "-c",
            "import sys,urllib.request as u,urllib.error as e\n"
            "try: print(u.urlopen(sys.argv[1]).read().decode(), end='')\n"
            "except e.HTTPError as x: print(x.read().decode(), end='')",
            f"http://{self.config['monitor']}{path}",
            check=False,
        )
        return done.stdout

    def restart_daemon(self, name: str = "KILL", **changes: Any) -> None:
        """End it and start it again."""
        self.stop_daemon(name)
        self.start_daemon(**changes)

    def metric(self, name: str, **labels: str) -> float:
        """A number of /metrics; 0 for one that is not there."""
        inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
        wanted = f"railweld_bridge_{name}{{{inner}}}" if inner else f"railweld_bridge_{name}"
        for line in self.get("/metrics").splitlines():
            key, _, value = line.rpartition(" ")
            if key == wanted:
                return float(value)
        return 0.0

    def output(self, job: int, user: str = "alice") -> str:
        """What the user's file has."""
        return self.slurm.sh(f"cat /home/{user}/slurm-{job}.out", check=False)

    def has_said(self, job: int, text: str, seconds: float = 180.0) -> None:
        """Wait for a text in the user's file."""
        wait_for(lambda: text in self.output(job), seconds, lambda: self.output(job) + self.log())

    @property
    def command(self) -> str:
        """`railweld-bridge` as role bridge installs it, but of the source tree."""
        return f"env PYTHONPATH={ROOT}/src python3 -m railweld.bridge.ask"

    def ask(self, *arguments: str, user: str, check: bool = True) -> str:
        """What it prints; errors too where it may fail."""
        done = self.slurm.run(*self.command.split(), *arguments, user=user, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def log(self) -> str:
        """The end of the daemon's log."""
        return self.slurm.sh(f"tail -n 40 {LOG}", check=False)

    # -- kubelets ----------------------------------------------------------------------------

    def start_kubelets(self, nodes: int, kubeconfig: Path) -> None:
        """Run pods of all nodes as processes."""
        self.slurm.background(
            "env",
            f"PYTHONPATH={ROOT}/src",
            "python3",
            f"{ROOT}/tests/integration/bridge/kubelets.py",
            "--kubeconfig",
            str(kubeconfig),
            "--nodes",
            str(nodes),
            "--port",
            str(free_port()),
            log="/var/log/kubelets.log",
        )
        wait_for(lambda: self.ready_nodes() == nodes, what="kubelets")

    def ready_nodes(self) -> int:
        """Nodes that pods can go to."""
        done = self.plane.kubectl("get", "nodes", "-o", "json")
        return sum(
            not item["spec"].get("taints")
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in item["status"].get("conditions", ())
            )
            for item in json.loads(done.stdout)["items"]
        )

    def recover(self) -> None:
        """After a test: no faults, no jobs, a daemon, idle nodes."""
        self.slurm.sh("rm -f /run/kubelets/*")
        if not self.slurm.pids(DAEMON):
            self.start_daemon()
        self.slurm.sh("scancel --full --state=pending; scancel --state=running; true")
        wait_for(self._quiet, what=lambda: self.slurm.sh("squeue; sinfo -NR") + self.log())

    def _quiet(self) -> bool:
        jobs = self.slurm.sh("squeue --noheader --format=%T", check=False).split()
        return not jobs and self.slurm.idle() and not self.live_pods()

    def live_pods(self, job: int | None = None) -> list[str]:
        """Pods of the bridge that have not ended, of one job or of all."""
        return [
            pod["metadata"]["name"]
            for pod in self.objects("pods", job)
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def fault(self, node: str, kind: str, text: str | None = "") -> None:
        """Put a fault on a node, or take it away with None."""
        path = f"/run/kubelets/{node}.{kind}"
        if text is None:
            self.slurm.run("rm", "-f", path)
        else:
            self.slurm.run("tee", path, stdin=text)

    # -- Kubernetes --------------------------------------------------------------------------

    def pods(self, job: int) -> list[dict[str, Any]]:
        """Pods of a Slurm job by rank."""
        done = self.plane.kubectl(
            "get",
            "pods",
            "-n",
            names.NAMESPACE_JOBS,
            "-l",
            f"{names.LABEL_JOB_ID}={job}",
            "-o",
            "json",
        )
        items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return sorted(
            items,
            key=lambda pod: int(
                pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            ),
        )

    def objects(self, kind: str, job: int | None = None) -> list[dict[str, Any]]:
        """Objects of the bridge."""
        label = names.LABEL_SLURM_CLUSTER if job is None else f"{names.LABEL_JOB_ID}={job}"
        done = self.plane.kubectl(
            "get", kind, "-n", names.NAMESPACE_JOBS, "-l", label, "-o", "json"
        )
        items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return items

    def hosts(self, job: int) -> list[str]:
        """Node of each pod, by rank, once all are bound."""
        return [pod["spec"].get("nodeName", "") for pod in self.pods(job)]


def bridge_kubeconfig(plane: ControlPlane, path: Path) -> None:
    """A kubeconfig with the bridge's own account, as deploy-slurm.yml makes it."""
    token = plane.kubectl(
        "create",
        "token",
        names.SERVICE_ACCOUNT_BRIDGE,
        "-n",
        names.NAMESPACE_SYSTEM,
        "--duration=24h",
    ).stdout.strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)


def apply_stack(plane: ControlPlane, stack: Stack) -> None:
    """The stack's objects, and what its policies need to be in force."""
    cluster = plane.cluster()
    for manifest in stack.manifests():
        if manifest["kind"] not in ("NodeFeatureRule", "DaemonSet"):
            cluster.apply(manifest, manager="test")
    cluster.close()


@contextlib.contextmanager
def running(
    folder: Path,
    plane: ControlPlane,
    nodes: int,
    *,
    kubelets: bool = True,
    tick: float = 1.0,
    **slurm_conf: str,
) -> Iterator[World]:
    """Slurm and the daemon, on a control plane that has the stack and the nodes.

    Pods run as processes; without `kubelets` somebody else has to take care of them.
    """
    kubeconfig = folder / "bridge-kubeconfig"
    bridge_kubeconfig(plane, kubeconfig)
    hosts = [f"gpu{number}" for number in range(1, nodes + 1)]
    with slurmlab.running(folder / "slurm", hosts, [folder], **slurm_conf) as slurm:
        port = free_port()
        # The same after a restart: pods that run know no other.
        hub = f"127.0.0.1:{free_port()}"
        config = {
            "cluster": "lab",
            "partitions": dict.fromkeys(slurmlab.PARTITIONS, "gpu"),
            "kubeconfig": str(kubeconfig),
            "advertise": hub,
            "listen": hub,
            "monitor": f"127.0.0.1:{port}",
            "devices": {name: {"nvidia.com/gpu": 8, "rdma/hca": 1} for name in slurmlab.PARTITIONS},
            "tick": tick,
        }
        world = World(slurm, plane, config)
        if kubelets:
            world.start_kubelets(nodes, plane.kubeconfig)
        world.start_daemon()
        yield world
