"""First and second run of deploy-base.yml on 1 to 64 lab nodes, beside twelve no-op tasks.

Wall times and CPU seconds depend on the machine; the ratio to the no-op playbook of the same run
and the remote operations per node do not. Above FIRST_RUN_MAX nodes only the second run is of
interest: one node is taken to the base, the others get a copy of its disk and records of their own,
and a run of all of them settles what differs from node to node (rail addresses, names).
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from railweld.lab.lab import Lab, Node
from railweld.lab.podman import podman
from tests.labs import PlayRun, play, running_lab, write_inventory

SIZES = (1, 4, 8, 16, 64)
#: How often second run and no-op tasks are measured, in turns, because other work on the machine
#: comes and goes; on more nodes than ONE_TURN_ABOVE a run is long enough to even that out.
TURNS = 3
ONE_TURN_ABOVE = 16
#: Up to how many nodes the first run is measured on every node.
FIRST_RUN_MAX = 8
#: What makes one lab node different from the next; a copy of a disk leaves it out.
IDENTITY = (
    *("etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname", "etc/railweld-lab"),
    *("etc/ssh/ssh_host_*", "var/lib/railweld-lab/profile.json"),
    "etc/systemd/network/05-railweld-*",
)
#: Roles whose result is another on each node; they run on the copies.
SETTLED_BY_A_RUN = ("rail_network",)
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


def records_playbook(folder: Path) -> Path:
    """A playbook that gives a copied node the records that the roles would have written on it.

    The description of a node is a part of what its roles ran with, so copied records say another
    node's. What is on the node is observed by the runs that follow, as ever.
    """
    path = folder / "records.yml"
    copied = "railweld_node.records.values() | rejectattr('role', 'in', here) | list"
    path.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "gpu_nodes",
                    "gather_facts": False,
                    "vars": {"here": list(SETTLED_BY_A_RUN)},
                    "tasks": [
                        {"import_role": {"name": "observe"}},
                        {
                            "name": "Record what the copied disk holds",
                            "railweld_record": {
                                "role": "{{ item.role }}",
                                "files": "{{ item.files.keys() | list }}",
                            },
                            "loop": f"{{{{ {copied} }}}}",
                            "loop_control": {"label": "{{ item.role }}"},
                        },
                    ],
                }
            ]
        )
    )
    return path


def second_run(inventory: Path, noop: Path) -> str:
    """Measure the second run beside the no-op tasks, in turns; a row with the medians."""
    nodes = inventory.name.removeprefix("bench")
    turns = 1 if int(nodes) > ONE_TURN_ABOVE else TURNS
    pairs = [(measure(inventory), measure(inventory, playbook=str(noop))) for _ in range(turns)]
    operations = measure(inventory, "-vvv").operations_per_node
    again, base = (median(run.wall_s for run in runs) for runs in zip(*pairs, strict=True))
    ratio = median(mine.wall_s / theirs.wall_s for mine, theirs in pairs)
    cpu, base_cpu = (median(run.cpu_s for run in runs) for runs in zip(*pairs, strict=True))
    changed = max(max(mine.run.changed().values()) for mine, _ in pairs)
    return (
        f"| {nodes} | {again:.1f} | {base:.1f} | {ratio:.2f} | {cpu:.1f} | {base_cpu:.1f} "
        f"| {operations} | {changed} |"
    )


def first_run(inventory: Path) -> str:
    """Measure the run that takes bare nodes to the base; a row."""
    nodes = int(inventory.name.removeprefix("bench"))
    fresh = measure(inventory)
    changed = max(fresh.run.changed().values())
    return (
        f"| {nodes} | {fresh.wall_s:.0f} | {fresh.wall_s / nodes:.1f} | {fresh.cpu_s:.0f} "
        f"| {changed} |"
    )


def copied_nodes(inventory: Path) -> None:
    """Take one GPU node and the head to the base, the others by a copy of that node's disk."""
    lab = Lab.from_inventory([str(inventory)])
    source, *others = (node for node in lab.nodes if node.name.startswith("gpu"))
    measure(inventory, "--limit", f"head1,{source.name}")
    source.cut_power()
    for node in others:
        node.cut_power()
        copy_disk(source, node)
    for node in (source, *others):
        node.start()
    measure(inventory, playbook=str(records_playbook(inventory.parent)))
    settled = measure(inventory)
    changed = max(settled.run.changed().values())
    print(f"{len(others)} copies settled in {settled.wall_s:.0f} s, changed {changed}", flush=True)


def copy_disk(source: Node, target: Node) -> None:
    """Replace what a node that is off has written by what another that is off has written."""
    leave = [f"--exclude=./{path}" for path in IDENTITY]
    with subprocess.Popen(
        ["tar", "--xattrs", "--xattrs-include=*", *leave, "-C", written(source), "-cf", "-", "."],
        stdout=subprocess.PIPE,
    ) as reading:
        subprocess.run(
            ["tar", "--xattrs", "--xattrs-include=*", "-C", written(target), "-xpf", "-"],
            stdin=reading.stdout,
            check=True,
        )
    if reading.returncode:
        raise RuntimeError(f"{source.name}: its disk could not be read")


def written(node: Node) -> str:
    """The folder on this machine with all that a node has written over its image."""
    done = podman(
        "container", "inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", node.container
    )
    return done.stdout.strip()


def main(sizes: list[int]) -> None:
    """Print both tables, and each row as soon as it is there."""
    first, second = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noop = noop_playbook(folder)
        for nodes in sizes or SIZES:
            inventory = write_inventory(
                folder, site=f"bench{nodes}", third_octet=40, gpu_nodes=nodes
            )
            with running_lab(inventory):
                if nodes > FIRST_RUN_MAX:
                    copied_nodes(inventory)
                else:
                    first.append(first_run(inventory))
                    print("first run, load", *os.getloadavg(), first[-1], flush=True)
                second.append(second_run(inventory, noop))
                print("second run, load", *os.getloadavg(), second[-1], flush=True)
    print("\n| nodes | first run s | s per node | controller CPU s | changed per node |")
    print("|---|---|---|---|---|")
    print("\n".join(first))
    print(
        "\n| nodes | second run s | 12 no-op tasks s | ratio | CPU s | CPU s of no-op "
        "| remote operations per node | changed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(second))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
