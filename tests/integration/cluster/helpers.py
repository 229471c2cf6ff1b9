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

from railweld.lab import tools
from railweld.state import site_state_dir
from tests.labs import PlayRun, TestLab

#: A job's image as the version set names it; the lab's stand-in has a shell and Python.
IMAGE = "nvcr.io/nvidia/cuda:12.1.1-devel-ubuntu22.04"
#: How long something that the cluster does by itself may take on a loaded machine.
PATIENCE_S = 180


@dataclass(frozen=True)
class Cluster:
    """The running lab and its cluster."""

    lab: TestLab

    @property
    def kubeconfig(self) -> Path:
        """What deploy-cluster.yml left on the controller."""
        return site_state_dir(self.lab.inventory.name) / "kubeconfig"

    def deploy(self, *arguments: str) -> PlayRun:
        """Run deploy-cluster.yml."""
        return self.lab.play(*arguments, playbook="playbooks/deploy-cluster.yml", timeout=1800)

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

    def run(self, name: str, script: str, *, node: str, gpus: int = 0) -> str:
        """Run a Python script in a pod on a node to its end; return what it printed."""
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": node},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["python3", "-c", script],
                        "resources": {"limits": limits},
                    }
                ],
            },
        }
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(pod))
        phase = eventually(
            lambda: self.get("pod", name)["status"].get("phase"),
            lambda found: found in ("Succeeded", "Failed"),
        )
        output = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name, "--wait=false")
        assert phase == "Succeeded", output
        return output


def eventually(look: Callable[[], Any], accept: Callable[[Any], bool]) -> Any:
    """Look until the answer is accepted; the last answer in the failure."""
    deadline = time.monotonic() + PATIENCE_S
    found = look()
    while not accept(found):
        assert time.monotonic() < deadline, f"still {found!r} after {PATIENCE_S} s"
        time.sleep(0.5)
        found = look()
    return found
