"""What `railweld check` costs beyond reading the inventory: time and memory at growing sizes.

    python tests/bench/check_scale.py [HOSTS ...]        default: 16 160 1280

Each size gets an inventory of scalable units: 16 nodes and two leaves with their own subnets. Both
programs run as processes of their own, three times; the table shows the median.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
REPETITIONS = 3
UNIT = 16
GOAL_SECONDS, GOAL_MIB = 5.0, 300

ALL = """\
railweld_site: scale
railweld_version_set: a100-2023
railweld_vendor_repository: ubuntu2204
railweld_time_sources: [ntp.example.com]
railweld_pod_cidr: 10.224.0.0/12
railweld_service_cidr: 10.240.0.0/16
ansible_user: ops
ansible_ssh_common_args: "-o ProxyJump={{ jump_host }}"
jump_host: jump.example.com
"""

GPU_NODES = """\
railweld_gpu_count: 8
railweld_gpu_model: A100-SXM4-80GB
railweld_cache_device: /dev/nvme0n1
railweld_mirrors:
  cuda:
    url: "http://{{ jump_host }}/cuda"
    key_url: "http://{{ jump_host }}/key.asc"
    key_fingerprint: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
"""


class Cost(NamedTuple):
    """What one process took."""

    seconds: float
    cpu: float
    mib: float


def write_inventory(folder: Path, hosts: int) -> None:
    """Write a site of `hosts` GPU nodes in units of 16."""
    variables = folder / "group_vars"
    variables.mkdir(parents=True)
    (variables / "all.yml").write_text(ALL)
    (variables / "gpu_nodes.yml").write_text(GPU_NODES)
    (variables / "leaves.yml").write_text("railweld_switch_model: DCS-7050CX3-32S\n")
    units = range(1, -(-hosts // UNIT) + 1)
    lines = ["all:", "  children:"]
    lines += ["    control_plane: {hosts: {head1: {ansible_host: 10.0.0.10}}}"]
    lines += ["    time_servers: {hosts: {head1: }}", "    leaves:", "      hosts:"]
    lines += [
        f"        leaf{unit}{side}: {{ansible_host: 10.1.{unit}.{number}}}"
        for unit in units
        for number, side in enumerate("ab", 1)
    ]
    lines += ["    gpu_nodes:", "      children:"]
    lines += [f"        unit{unit}:" for unit in units]
    for unit in units:
        lines += [f"    unit{unit}:", "      hosts:"]
        nodes = min(UNIT, hosts - (unit - 1) * UNIT)
        lines += [
            f"        u{unit}-gpu{node:02}: {{ansible_host: 10.2.{unit}.{node}}}"
            for node in range(1, nodes + 1)
        ]
        (variables / f"unit{unit}.yml").write_text(unit_rails(unit))
    (folder / "hosts.yml").write_text("\n".join(lines) + "\n")


def unit_rails(unit: int) -> str:
    """The four rails of one unit."""
    rails = ["railweld_rails:"]
    for rail in range(1, 5):
        leaf = f"leaf{unit}{'a' if rail <= 2 else 'b'}"
        port = "Ethernet{index}/1" if rail % 2 else "Ethernet{index+16}/1"
        rails.append(
            f"  - {{rail: {rail}, hca: mlx5_{rail - 1}, netdev: ens{rail}f0np0, "
            f"subnet: 10.{100 + rail}.{unit}.0/24, switch: {leaf}, port: '{port}'}}"
        )
    return "\n".join(rails) + "\n"


def measure(command: list[str]) -> Cost:
    """Run a command and read its own usage from the kernel."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{output.decode(errors='replace')[-2000:]}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(command: list[str]) -> Cost:
    """Median of several runs, field by field."""
    costs = [measure(command) for _ in range(REPETITIONS)]
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def main(sizes: list[int]) -> None:
    """Print one row per size."""
    print(f"{'hosts':>6} {'what':<25} {'wall s':>8} {'cpu s':>8} {'MiB':>8}")
    for hosts in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_inventory(Path(folder) / "site", hosts)
            inventory = str(Path(folder) / "site")
            listing = median([str(BIN / "ansible-inventory"), "-i", inventory, "--list"])
            check = median([str(BIN / "railweld"), "check", "-i", inventory])
        beyond = Cost(*(mine - theirs for mine, theirs in zip(check, listing, strict=True)))
        for what, cost in (
            ("ansible-inventory --list", listing),
            ("railweld check", check),
            ("beyond", beyond),
        ):
            print(f"{hosts:>6} {what:<25} {cost.seconds:>8.2f} {cost.cpu:>8.2f} {cost.mib:>8.0f}")
    print(f"goal at 1280 hosts: less than {GOAL_SECONDS:g} s and {GOAL_MIB} MiB beyond")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [16, 160, 1280])
