"""What `pulumi up` costs against `kubectl apply` of the same objects, with few and many nodes.

    python -m tests.bench.stack [NODES ...]        default: 16 1280

Each size gets a control plane of its own, whose nodes kwok keeps alive, and a description of that
many nodes. The number of objects does not depend on it, and neither may the time of `up` beyond
what reading the description takes, which the first column shows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.check_scale import write_inventory
from tests.integration.stack.plane import ControlPlane, Pulumi, running

BIN = Path(sys.executable).parent
SITE = "scale"


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def describe(folder: Path, nodes: int) -> Path:
    """A description of that many nodes, with a Kubernetes that has every policy."""
    write_inventory(folder, nodes)
    with (folder / "group_vars" / "all.yml").open("a") as file:
        file.write('railweld_version_overrides: {kubernetes: "1.36.3"}\n')
        file.write("railweld_stack_without: [nfd]\n")
    return folder


def render(inventory: Path, target: Path) -> None:
    done = subprocess.run(
        [str(BIN / "railweld"), "stack", "render", "-i", str(inventory)],
        check=True,
        capture_output=True,
        text=True,
    )
    target.write_text(done.stdout)


def apply(plane: ControlPlane, manifests: Path) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(manifests))


def wait_for_nodes(plane: ControlPlane, nodes: int) -> None:
    deadline = time.monotonic() + 300
    jsonpath = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
    while True:
        ready = plane.kubectl("get", "nodes", "-o", f"jsonpath={jsonpath}").stdout.split()
        if ready.count("True") >= nodes:
            return
        if time.monotonic() > deadline:
            sys.exit(f"only {ready.count('True')} of {nodes} nodes became ready")
        time.sleep(1)


def measure(nodes: int) -> list[float]:
    """Render, apply twice, remove, up twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inventory = describe(folder / "site", nodes)
        manifests = folder / "stack.yaml"
        rendering = timed(lambda: render(inventory, manifests))
        with running(folder / "plane", SITE) as plane:
            plane.start_kwok()
            plane.nodes(nodes, {"nvidia.com/gpu": "8", "rdma/hca": "4"})
            wait_for_nodes(plane, nodes)
            applying = [timed(lambda: apply(plane, manifests)) for _ in range(2)]
            plane.kubectl("delete", "--wait", "--ignore-not-found", "-f", str(manifests))
            engine = Pulumi(plane, folder / "pulumi", inventory)
            upping = [timed(lambda: engine.up(preview=True)) for _ in range(2)]
        return [rendering, *applying, *upping]


def main(sizes: list[int]) -> None:
    """Print one row per size."""
    columns = ("render", "apply", "again", "up", "again")
    print(f"{'nodes':>6} " + " ".join(f"{each + ' s':>9}" for each in columns))
    for nodes in sizes:
        print(f"{nodes:>6} " + " ".join(f"{each:>9.1f}" for each in measure(nodes)), flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [16, 1280])
