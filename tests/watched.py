"""A lab whose runs are each followed by a look at what must never happen."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.labs import REPOSITORY, PlayRun, TestLab, environment

#: Never to be seen in any output: the value of a variable that only a vault would hold.
SECRET = "canary-8e21b7"


@dataclass(frozen=True)
class Moment:
    """A moment of the driver's installation that is long enough to be cut.

    Attributes:
        fault: the lab's fault that makes it long.
        settings: of that fault.
        process: pattern of the command line that shows the moment.
    """

    fault: str
    settings: tuple[str, ...]
    process: str


#: dpkg configures: the cut leaves half configured packages.
#: The driver's own script asks for the build by way of the one that dkms brings for all of them.
BUILD = Moment("slow-build", ("seconds=45",), "dkms(/common.postinst| autoinstall| install| build)")
#: dpkg unpacks: the cut leaves a package that has to be unpacked again.
UNPACK = Moment(
    "slow-unpack",
    ("package=nvidia-utils-*", "seconds=45"),
    "dpkg-deb --fsys-tarfile .*[/-]nvidia-utils-",
)


@dataclass(frozen=True)
class FaultLab(TestLab):
    """A lab whose runs are each followed by a look at what must never happen."""

    def nodes(self, arguments: Sequence[str]) -> list[str]:
        """The nodes that a run with these arguments works on."""
        if "--limit" in arguments:
            return arguments[arguments.index("--limit") + 1].split(",")
        described = yaml.safe_load((self.inventory / "hosts.yml").read_text())
        return list(described["all"]["hosts"])

    def play(self, *arguments: str, **options: Any) -> PlayRun:
        """Run deploy-base.yml on the lab, or on what `--limit` names."""
        before = {node: self.boots(node) for node in self.nodes(arguments)}
        run = super().play(*arguments, **options)
        for node, boots in before.items():
            self.assert_never(node, run, reboots=self.boots(node) - boots)
        return run

    def assert_never(self, node: str, run: PlayRun, *, reboots: int) -> None:
        """Nothing unheld, no half-configured package without a word, no second reboot, no secret.

        Args:
            node: a node of the run.
            run: how it ended.
            reboots: how often the node booted during the run by the run's own doing.
        """
        assert self.unheld(node) == set()
        broken = self.node(node, "dpkg", "--audit")
        assert not broken or "half installed" in run.output, f"{broken}\n{run.output[-4000:]}"
        assert reboots <= 1
        assert SECRET not in run.output
        assert SECRET not in json.dumps(run.report)

    def cut_run(
        self,
        node: str,
        log: Path,
        cut: Callable[[], None],
        *arguments: str,
        moment: Moment = BUILD,
    ) -> PlayRun:
        """Start a run, of this node if nothing else is said, and cut it while it installs there."""
        self.fault(moment.fault, node, *moment.settings)
        with log.open("w") as output:
            run = subprocess.Popen(
                [
                    *("ansible-playbook", "-i", str(self.inventory), "playbooks/deploy-base.yml"),
                    *(arguments or ("--limit", node)),
                ],
                cwd=REPOSITORY,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait_for(node, moment.process, run, log)
                cut()
                run.wait(timeout=900)
            finally:
                if run.poll() is None:
                    run.terminate()
                    run.wait(timeout=30)
        self.clear(moment.fault, node)
        return PlayRun(run.returncode, log.read_text())

    def _wait_for(self, node: str, process: str, run: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + 600
        while self.node(node, "pgrep", "-f", process, check=False) == "":
            assert run.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, f"found no process {process}"
            time.sleep(0.2)

    def is_installing(self, node: str) -> bool:
        """True while apt is at work on the node."""
        return self.node(node, "pgrep", "-x", "apt-get", check=False) != ""

    def wait_for_holds(self, node: str) -> None:
        """Wait until apt is done and what it installed is on hold."""
        deadline = time.monotonic() + 300
        while self.is_installing(node) or self.unheld(node):
            assert time.monotonic() < deadline, f"found unheld: {self.unheld(node)}"
            time.sleep(0.5)
