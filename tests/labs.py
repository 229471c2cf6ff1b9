"""Labs and playbook runs for the suites that need real SSH nodes.

An inventory made here is a plain site description; the product cannot tell that a test wrote it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
EXAMPLE = REPOSITORY / "inventories/lab"


def write_inventory(
    folder: Path,
    *,
    site: str,
    third_octet: int,
    gpu_nodes: int = 1,
    variables: Mapping[str, Any] | None = None,
    host_variables: Mapping[str, Mapping[str, Any]] | None = None,
    switches: bool = False,
    heads: Sequence[str] = ("control_plane", "slurm_head", "time_servers"),
    more_control_planes: int = 0,
) -> Path:
    """Write the lab site with another name, subnet and number of GPU nodes.

    Args:
        folder: where the inventory goes.
        site: name of the site and so of the lab.
        third_octet: the lab's subnet is 10.213.<third_octet>.0/24.
        gpu_nodes: how many gpuN hosts.
        variables: site variables that replace the lab's.
        host_variables: variables of single hosts.
        switches: with the lab's leaves and spine; else the rails are the nodes' own.
        heads: groups that head1 is in.
        more_control_planes: how many hosts beside head1 are control-plane nodes and nothing else.
    """
    inventory = folder / site
    inventory.mkdir(parents=True)
    subnet = f"10.213.{third_octet}"
    for path in sorted((EXAMPLE / "group_vars").rglob("*.yml")):
        text = path.read_text().replace("10.213.0.", f"{subnet}.")
        content = yaml.safe_load(text)
        if path.stem in ("leaves", "spines") and not switches:
            continue
        for rail in content.get("railweld_rails", ()):
            if not switches:
                rail.pop("switch")
                rail.pop("port")
        target = inventory / path.relative_to(EXAMPLE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(content, sort_keys=False))
    planes = {f"head{n}": f"{subnet}.{40 + n}" for n in range(2, 2 + more_control_planes)}
    hosts = {
        "head1": {"ansible_host": f"{subnet}.10"},
        **{name: {"ansible_host": address} for name, address in planes.items()},
        **{f"gpu{n}": {"ansible_host": f"{subnet}.{10 + n}"} for n in range(1, gpu_nodes + 1)},
    }
    for name, extra in (host_variables or {}).items():
        hosts[name] = {**hosts[name], **extra}
    gpus = {name: None for name in hosts if name.startswith("gpu")}
    groups = {
        "gpu_nodes": gpus,
        **{name: {"head1": None} for name in heads},
    }
    if planes:
        groups["control_plane"] = dict.fromkeys(("head1", *planes))
    if switches:
        groups["leaves"] = {f"leaf{n}": {"ansible_host": f"{subnet}.{20 + n}"} for n in (1, 2)}
        groups["spines"] = {"spine1": {"ansible_host": f"{subnet}.31"}}
    # Variables of hosts.yml's `all` lose against group_vars/all, so they are written there.
    everywhere = inventory / "group_vars/all.yml"
    described = yaml.safe_load(everywhere.read_text())
    described.update({"railweld_site": site, **(variables or {})})
    everywhere.write_text(yaml.safe_dump(described, sort_keys=False))
    (inventory / "hosts.yml").write_text(
        yaml.safe_dump(
            {
                "all": {
                    "hosts": hosts,
                    "children": {name: {"hosts": members} for name, members in groups.items()},
                }
            },
            sort_keys=False,
        )
    )
    return inventory


@dataclass
class PlayRun:
    """What one `ansible-playbook` left behind: exit code, output and the run's JSON report."""

    returncode: int
    output: str
    report: dict[str, Any] = field(default_factory=dict)

    def assert_ok(self) -> PlayRun:
        """Fail with the tail of the output unless every host finished."""
        assert self.returncode == 0, self.output[-8000:]
        return self

    def host(self, name: str) -> dict[str, Any]:
        """The report's entry of one host."""
        entry: dict[str, Any] = self.report["hosts"][name]
        return entry

    def changed(self) -> dict[str, int]:
        """Number of changed tasks per host."""
        return {host: entry["changed"] for host, entry in self.report["hosts"].items()}


#: What the names of packages begin with that must never move on their own.
GPU_PACKAGES = (
    *("nvidia-", "libnvidia-", "cuda-", "libnccl", "doca-", "mlnx-", "nsight-"),
    *("libcublas-", "libcufft-", "libcurand-", "libcusolver-", "libcusparse-", "libnpp-"),
    *("rdma-core", "ibverbs-", "infiniband-diags", "libibverbs", "libibumad", "librdmacm"),
    *("libnvjitlink-", "libnvjpeg-", "perftest", "mstflint"),
)

REPORT_LINE = re.compile(r"^report: (?P<path>\S+)$", re.MULTILINE)


def environment(state: Path | None = None) -> dict[str, str]:
    """The caller's environment with the project's own tools and configuration first."""
    variables = dict(os.environ)
    variables["PATH"] = f"{BIN}:{variables['PATH']}"
    variables["ANSIBLE_CONFIG"] = str(REPOSITORY / "ansible.cfg")
    variables["ANSIBLE_NOCOLOR"] = "1"
    if state is not None:
        variables["RAILWELD_STATE"] = str(state)
    return variables


def command(
    argv: Sequence[str], *, timeout: int = 600, check: bool = True, cwd: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Run one of the project's commands, from the repository root unless told otherwise."""
    run = subprocess.run(
        list(argv),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )
    if check:
        assert run.returncode == 0, f"{' '.join(argv)}\n{run.stdout[-6000:]}"
    return run


def answer(printed: str) -> dict[str, Any]:
    """What a command printed as JSON; fails with all of it if that is something else."""
    assert printed.startswith("{"), printed[-4000:]
    found: dict[str, Any] = json.loads(printed)
    return found


def play(
    inventory: Path,
    *arguments: str,
    playbook: str = "playbooks/deploy-base.yml",
    timeout: int = 900,
) -> PlayRun:
    """Run a playbook and read its recap."""
    run = command(
        ["ansible-playbook", "-i", str(inventory), playbook, *arguments],
        timeout=timeout,
        check=False,
    )
    match = REPORT_LINE.search(run.stdout)
    report = json.loads(Path(match["path"]).read_text()) if match else {}
    return PlayRun(run.returncode, run.stdout, report)


@dataclass(frozen=True)
class TestLab:
    """A running lab and its inventory."""

    __test__ = False
    inventory: Path

    def railweld(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `railweld lab ...` on this lab."""
        return command(["railweld", "lab", *arguments, "-i", str(self.inventory)], check=check)

    def fault(self, name: str, node: str, *settings: str) -> None:
        """Make a fault happen."""
        extra = [part for setting in settings for part in ("--set", setting)]
        self.railweld("fault", name, node, *extra)

    def clear(self, name: str, node: str) -> None:
        """Take a fault away."""
        self.railweld("fault", name, node, "--clear")

    def node(self, name: str, *argv: str, check: bool = True) -> str:
        """Output of a command on a node, read beside the product, not through it."""
        run = command(["podman", "exec", self.container(name), *argv], check=check)
        return run.stdout

    def container(self, name: str) -> str:
        """The node's container name."""
        return f"railweld-{self.inventory.name}-{name}"

    def play(self, *arguments: str, **options: Any) -> PlayRun:
        """Run deploy-base.yml (or another playbook) on this lab."""
        return play(self.inventory, *arguments, **options)

    def boots(self, name: str) -> int:
        """How often a node has booted."""
        return int(self.node(name, "cat", "/var/lib/railweld-lab/boots").strip())

    def holds(self, name: str) -> set[str]:
        """Packages held on a node."""
        return set(self.node(name, "apt-mark", "showhold").split())

    def unheld(self, name: str) -> set[str]:
        """Installed packages of the GPU families that are not on hold.

        The families are spelled out here a second time: what the product forgets, this finds.
        """
        names = {package for package in self.installed(name) if package.startswith(GPU_PACKAGES)}
        # The keyring carries repository keys, not a member of a family.
        return names - self.holds(name) - {"cuda-keyring"}

    def installed(self, name: str) -> dict[str, str]:
        """Name to version of everything installed on a node."""
        listing = self.node(
            name, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\n"
        )
        rows = (line.split("|") for line in listing.splitlines())
        return {package: version for status, package, version in rows if status[1:2] == "i"}


@contextmanager
def running_lab(inventory: Path) -> Iterator[TestLab]:
    """Start the lab of an inventory and take it down afterwards, whatever happened."""
    lab = TestLab(inventory)
    lab.railweld("up")
    try:
        yield lab
    finally:
        lab.railweld("down", check=False)
