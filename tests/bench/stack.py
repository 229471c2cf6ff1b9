"""What `pulumi up` costs against `kubectl apply` of the same objects, with few and many nodes.

    python -m tests.bench.stack [NODES ...]        default: 16 1280

Each cell is wall seconds / CPU seconds of the command and what it started; the second hardly
depends on what else the machine does. Each size gets a control plane of its own, whose nodes kwok
keeps alive, and a description of that many nodes. The number of objects does not depend on it, and
neither may the time of `up` beyond what reading the description takes, which the first column
shows.
"""

from __future__ import annotations

import resource
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


Cost = tuple[float, float]


def timed(work: Callable[[], object]) -> Cost:
    """Wall and CPU seconds of the processes that `work` starts and waits for."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, used


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


def measure(nodes: int) -> list[Cost]:
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
    columns = ("nodes", "render", "kubectl apply", "again", "pulumi up", "again")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for nodes in sizes:
        cells = (f"{wall:.1f} / {used:.1f}" for wall, used in measure(nodes))
        print(f"| {nodes:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [16, 1280])
