"""A cluster of a lab as a test talks to it: with the controller's own kubeconfig."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweld import names
from railweld.lab import tools
from railweld.state import site_state_dir
from tests.labs import BIN, REPOSITORY, PlayRun, TestLab, answer, command, environment

#: A job's image as the version set names it; the lab's stand-in has a shell and Python.
IMAGE = "nvcr.io/nvidia/cuda:12.1.1-devel-ubuntu22.04"
GPU_NODES = ("gpu1", "gpu2")
RDMA = "rdma/hca"
#: What each of them offers.
DEVICES = {names.RESOURCE_GPU: 8, RDMA: 4}
#: How long something that the cluster does by itself may take on a loaded machine.
PATIENCE_S = 180


def provide(inventory: Path, *versions: str) -> None:
    """Give a lab Kubernetes' packages and images, and the stand-ins that the stack deploys."""
    chosen = [part for version in versions for part in ("--version", version)]
    command(["railweld", "lab", "kubernetes", "-i", str(inventory), *chosen], timeout=3600)


@dataclass(frozen=True)
class Cluster:
    """The running lab and its cluster."""

    lab: TestLab

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.lab.inventory.name

    @property
    def kubeconfig(self) -> Path:
        """What deploy-cluster.yml left on the controller."""
        return site_state_dir(self.lab.inventory.name) / "kubeconfig"

    def deploy(self, *arguments: str) -> PlayRun:
        """Run deploy-cluster.yml."""
        return self.lab.play(*arguments, playbook="playbooks/deploy-cluster.yml", timeout=1800)

    def verify(self, *arguments: str) -> tuple[int, list[dict[str, str]]]:
        """Exit code and records of `railweld verify --stage cluster`."""
        return self.verify_stage("cluster", *arguments)

    def verify_stage(self, stage: str, *arguments: str) -> tuple[int, list[dict[str, str]]]:
        """Exit code and records of `railweld verify` of a stage."""
        sources = ("-i", str(self.lab.inventory))
        run = subprocess.run(
            [str(BIN / "railweld"), "verify", *sources, "--stage", stage, "--json", *arguments],
            cwd=REPOSITORY,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert run.stdout.startswith("{"), run.stdout + run.stderr
        return run.returncode, json.loads(run.stdout)["checks"]

    def bench(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `railweld bench`."""
        sources = ("-i", str(self.lab.inventory))
        return command(["railweld", "bench", *sources, *options], check=False, timeout=1200)

    def doctor(self, node: str, since: int) -> dict[str, Any]:
        """What `railweld doctor` says of a node; journals are read from `since` on (Unix time)."""
        sources = ("-i", str(self.lab.inventory))
        argv = ["railweld", "doctor", node, *sources, "--json", "--since", f"@{since}"]
        return answer(command(argv, check=False).stdout)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Output of kubectl on the controller, with the controller's way into the cluster."""
        program = tools.ensure("kubernetes") / "kubectl"
        done = subprocess.run(
            [str(program), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOME": str(self.kubeconfig.parent)},
        )
        if check:
            assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object or list of the API."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output", "json"))
        return found

    def node(self, name: str) -> dict[str, Any]:
        """A node's object."""
        return self.get("node", name)

    def ready(self) -> dict[str, bool]:
        """Every node, and whether it is Ready."""
        return {
            each["metadata"]["name"]: any(
                state["type"] == "Ready" and state["status"] == "True"
                for state in each["status"]["conditions"]
            )
            for each in self.get("nodes")["items"]
        }

    def allocatable(self, name: str, resource: str = "nvidia.com/gpu") -> int:
        """How much of a resource pods may have on a node."""
        return int(self.node(name)["status"]["allocatable"].get(resource, "0"))

    def run(self, name: str, script: str, *, node: str) -> str:
        """Run a Python script in a pod on a node to its end; return what it printed."""
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-c", script],
                }
            ],
        }
        return self._to_its_end(name, "default", {"spec": spec})[1]

    def job(
        self, name: str, script: str, *, partition: str = "gpu", node: str = ""
    ) -> tuple[str, str]:
        """Run a script in a pod made of a partition's PodTemplate; return its node and output.

        The template decides about GPUs, RDMA, limits and environment, as it does for every job; the
        scheduler about the node, unless one is given.
        """
        namespace = names.NAMESPACE_JOBS
        template = self.get("podtemplate", partition, "--namespace", namespace)["template"]
        template["spec"]["containers"][0]["command"] = ["python3", "-c", script]
        template["spec"]["securityContext"]["runAsUser"] = 1000
        if node:
            template["spec"]["nodeSelector"]["kubernetes.io/hostname"] = node
        return self._to_its_end(name, namespace, template)

    def _to_its_end(self, name: str, namespace: str, template: dict[str, Any]) -> tuple[str, str]:
        metadata = {**template.get("metadata", {}), "name": name, "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(pod))
        where = ("--namespace", namespace)
        found = eventually(
            lambda: self.get("pod", name, *where),
            lambda each: each["status"].get("phase") in ("Succeeded", "Failed"),
        )
        output = self.kubectl("logs", name, *where)
        self.kubectl("delete", "pod", name, *where)
        assert found["status"]["phase"] == "Succeeded", output
        return found["spec"]["nodeName"], output


def eventually(
    look: Callable[[], Any], accept: Callable[[Any], bool], *, seconds: float = PATIENCE_S
) -> Any:
    """Look until the answer is accepted; the last answer in the failure."""
    deadline = time.monotonic() + seconds
    found = look()
    while not accept(found):
        assert time.monotonic() < deadline, f"still {found!r} after {seconds:.0f} s"
        time.sleep(0.5)
        found = look()
    return found


def devices(cluster: Cluster, node: str) -> dict[str, int]:
    """What pods may have of each device on a node."""
    return {resource: cluster.allocatable(node, resource) for resource in DEVICES}


def has_devices(
    cluster: Cluster,
    node: str,
    *,
    gpu: int = DEVICES[names.RESOURCE_GPU],
    rdma: int = DEVICES[RDMA],
) -> None:
    """Wait until a node offers what is described, or fewer."""
    wanted = {names.RESOURCE_GPU: gpu, RDMA: rdma}
    eventually(lambda: devices(cluster, node), lambda found: found == wanted)


def waiting_agents(cluster: Cluster) -> list[str]:
    """DaemonSets of the stack that do not run on every node that they are for."""
    return [
        each["metadata"]["name"]
        for each in cluster.get("daemonsets", "--namespace", names.NAMESPACE_SYSTEM)["items"]
        if each["status"]["numberReady"] != each["status"]["desiredNumberScheduled"]
    ]
