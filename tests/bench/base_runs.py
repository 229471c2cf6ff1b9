"""First and second run of deploy-base.yml on 1 to 64 lab nodes, beside twelve no-op tasks.

Wall times and CPU seconds depend on the machine; the ratio to the no-op playbook of the same run
and the remote operations per node do not.
"""

from __future__ import annotations

import re
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.labs import PlayRun, play, running_lab, write_inventory

SIZES = (1, 4, 8, 16, 64)
REMOTE_OPERATION = re.compile(r"^<(?P<address>[\d.]+)> SSH: EXEC ", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """One playbook run: wall and controller CPU seconds, operations and changes per node."""

    run: PlayRun
    wall_s: float
    cpu_s: float

    @property
    def operations_per_node(self) -> float:
        """SSH executions per address, from the `-vvv` log."""
        counts = Counter(match["address"] for match in REMOTE_OPERATION.finditer(self.run.output))
        return max(counts.values(), default=0)


def measure(
    inventory: Path, *arguments: str, playbook: str = "playbooks/deploy-base.yml"
) -> Measured:
    """Run a playbook once and take its times."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    run = play(inventory, *arguments, playbook=playbook, timeout=3600)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(run.assert_ok(), wall, cpu)


def noop_playbook(folder: Path) -> Path:
    """A playbook of twelve `command: true` tasks on the GPU nodes and the head."""
    path = folder / "noop.yml"
    path.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "all",
                    "gather_facts": False,
                    "tasks": [
                        {
                            "name": f"No-op {number}",
                            "ansible.builtin.command": "true",
                            "changed_when": False,
                        }
                        for number in range(1, 13)
                    ],
                }
            ]
        )
    )
    return path


def main(sizes: list[int]) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noop = noop_playbook(folder)
        first: list[str] = []
        second: list[str] = []
        for nodes in sizes or SIZES:
            inventory = write_inventory(
                folder, site=f"bench{nodes}", third_octet=40, gpu_nodes=nodes
            )
            with running_lab(inventory):
                fresh = measure(inventory)
                changed = max(fresh.run.changed().values())
                first.append(
                    f"| {nodes} | {fresh.wall_s:.0f} | {fresh.wall_s / nodes:.1f} "
                    f"| {fresh.cpu_s:.0f} | {changed} |"
                )
                print(f"first run, {nodes} nodes: {fresh.wall_s:.0f} s", flush=True)
                again = measure(inventory)
                operations = measure(inventory, "-vvv").operations_per_node
                base = measure(inventory, playbook=str(noop))
                second.append(
                    f"| {nodes} | {again.wall_s:.1f} | {base.wall_s:.1f} "
                    f"| {again.wall_s / base.wall_s:.2f} | {again.cpu_s:.1f} "
                    f"| {operations} | {max(again.run.changed().values())} |"
                )
        print("\n| nodes | first run s | s per node | controller CPU s | changed per node |")
        print("|---|---|---|---|---|")
        print("\n".join(first))
        print(
            "\n| nodes | second run s | 12 no-op tasks s | ratio | controller CPU s "
            "| remote operations per node | changed |"
        )
        print("|---|---|---|---|---|---|---|")
        print("\n".join(second))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
