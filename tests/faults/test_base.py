"""Every fault of the base stage, made on real SSH nodes and read back from them.

What must never happen, whatever the fault: a node left unheld, half-configured packages without a
word, a reboot loop, a secret in the output.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.labs import REPOSITORY, PlayRun, TestLab, environment

pytestmark = [pytest.mark.lab, pytest.mark.deep]

DRIVER = "515.86.01"
#: A name of each family that a provisioned node must hold.
HELD = {"libnccl2", "libnccl-dev", "cuda-toolkit-12-1", "cuda-compat-12-1"}


def driver_packages(lab: TestLab, node: str) -> set[str]:
    """Installed packages of the driver family."""
    return {name for name in lab.installed(node) if re.match(r"(lib)?nvidia-|cuda-drivers", name)}


def assert_no_dpkg_remains(lab: TestLab, node: str) -> None:
    """Nothing is half installed or half configured."""
    assert lab.node(node, "dpkg", "--audit") == ""


def assert_provisioned(lab: TestLab, node: str) -> None:
    """The node runs what the site describes and holds all of it."""
    loaded = lab.node(node, "cat", "/sys/module/nvidia/version").strip()
    assert loaded == DRIVER
    assert lab.node(node, "nvidia-smi", "-L").count("GPU ") == 8
    assert "release 12.1" in lab.node(node, "/usr/local/cuda-12.1/bin/nvcc", "--version")
    holds = lab.holds(node)
    assert holds >= HELD
    assert holds >= driver_packages(lab, node)
    assert_no_dpkg_remains(lab, node)


def failed(run: PlayRun, *words: str) -> None:
    """The run failed and its output has all these words."""
    assert run.returncode != 0, run.output[-4000:]
    for word in words:
        assert word in run.output, f"{word!r} is not in:\n{run.output[-6000:]}"


def test_version_that_the_repository_lacks_is_refused_before_anything_is_installed(
    lab: TestLab, node: str
) -> None:
    lab.fault("repository-version", "head1")
    try:
        run = lab.play("--limit", node)
    finally:
        lab.clear("repository-version", "head1")
    failed(run, node, DRIVER, "expected")
    assert driver_packages(lab, node) == set()
    assert_no_dpkg_remains(lab, node)


def test_seven_of_eight_gpus_are_named_before_anything_is_installed(
    lab: TestLab, node: str
) -> None:
    lab.fault("gpu-missing", node)
    run = lab.play("--limit", node)
    failed(run, "found 7", "8 GPUs")
    assert driver_packages(lab, node) == set()


def test_skipped_reboot_stops_at_the_next_guard_and_a_rerun_reboots_once(
    lab: TestLab, node: str
) -> None:
    before = lab.boots(node)
    run = lab.play("--limit", node, "-e", "railweld_reboot=skip")
    failed(run, f"driver {DRIVER}", "railweld_reboot")
    assert lab.boots(node) == before
    assert lab.holds(node) >= driver_packages(lab, node)
    lab.play("--limit", node).assert_ok()
    assert lab.boots(node) == before + 1
    assert_provisioned(lab, node)


def test_driver_loaded_in_another_version_than_installed_is_rebooted_away(
    lab: TestLab, node: str
) -> None:
    lab.play("--limit", node).assert_ok()
    lab.fault("driver-mismatch", node)
    broken = lab.node(node, "nvidia-smi", check=False)
    assert "Driver/library version mismatch" in broken
    before = lab.boots(node)
    failed(lab.play("--limit", node, "-e", "railweld_reboot=skip"), "expected driver", "reboot")
    lab.play("--limit", node).assert_ok()
    assert lab.boots(node) == before + 1
    assert_provisioned(lab, node)


def test_clock_off_by_800_ms_stops_the_node_before_the_driver(lab: TestLab, node: str) -> None:
    lab.fault("clock-offset", node, "ms=800")
    run = lab.play("--limit", node)
    failed(run, node, "chrony", "expected")
    assert driver_packages(lab, node) == set()
    lab.clear("clock-offset", node)
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)


def test_no_time_source_is_not_taken_for_an_offset_of_zero(lab: TestLab, node: str) -> None:
    lab.fault("no-time-source", node)
    try:
        run = lab.play("--limit", node)
    finally:
        lab.clear("no-time-source", node)
    failed(run, "chrony", "synchronised")
    assert driver_packages(lab, node) == set()


def test_stopped_chrony_is_started_again(lab: TestLab, node: str) -> None:
    lab.play("--limit", node).assert_ok()
    lab.fault("chrony-stopped", node)
    assert lab.node(node, "systemctl", "is-active", "chrony", check=False).strip() != "active"
    lab.play("--limit", node).assert_ok()
    assert lab.node(node, "systemctl", "is-active", "chrony").strip() == "active"


def test_apt_lock_held_for_a_minute_is_waited_for_without_retries(lab: TestLab, node: str) -> None:
    lab.fault("apt-lock", node, "seconds=60")
    run = lab.play("--limit", node).assert_ok()
    assert "FAILED - RETRYING" not in run.output
    assert_provisioned(lab, node)


def test_unattended_upgrade_in_mid_run_is_waited_for_and_then_kept_off(
    lab: TestLab, node: str
) -> None:
    lab.fault("unattended-upgrade", node)
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"):
        state = lab.node(node, "systemctl", "is-enabled", unit, check=False).strip()
        assert state in ("masked", "not-found"), f"{unit}: {state}"


def test_package_unheld_and_upgraded_by_hand_is_not_downgraded_silently(
    lab: TestLab, node: str
) -> None:
    lab.play("--limit", node).assert_ok()
    pinned = lab.installed(node)["libnccl2"]
    lab.node(node, "apt-mark", "unhold", "libnccl2", "libnccl-dev")
    lab.node(node, "apt-get", "-qq", "-y", "install", "libnccl2", "libnccl-dev")
    newer = lab.installed(node)["libnccl2"]
    assert newer != pinned
    run = lab.play("--limit", node)
    failed(run, newer, pinned, "package_lock_allow_downgrade")
    assert lab.installed(node)["libnccl2"] == newer
    lab.play("--limit", node, "-e", "package_lock_allow_downgrade=true").assert_ok()
    assert lab.installed(node)["libnccl2"] == pinned
    assert_provisioned(lab, node)


def test_distribution_upgrade_moves_nothing_that_railweld_pinned(lab: TestLab, node: str) -> None:
    lab.play("--limit", node).assert_ok()
    lab.node(node, "apt-get", "-qq", "update")
    plan = lab.node(node, "apt-get", "-s", "dist-upgrade")
    moved = set(re.findall(r"^Inst (\S+)", plan, re.MULTILINE))
    pinned = lab.holds(node)
    assert pinned
    assert moved & pinned == set()


def test_nouveau_is_blacklisted_and_gone_after_one_reboot(lab: TestLab, node: str) -> None:
    lab.fault("nouveau-loaded", node)
    assert "nouveau" in lab.node(node, "lsmod")
    before = lab.boots(node)
    lab.play("--limit", node).assert_ok()
    assert lab.boots(node) == before + 1
    assert "nouveau" not in lab.node(node, "lsmod")
    assert_provisioned(lab, node)


def test_secure_boot_is_explained_before_anything_is_installed(lab: TestLab, node: str) -> None:
    lab.fault("secure-boot", node)
    run = lab.play("--limit", node)
    failed(run, "Secure Boot on", "railweld_secure_boot_signer")
    assert driver_packages(lab, node) == set()


def test_missing_kernel_headers_are_named_before_the_driver_is_installed(
    lab: TestLab, node: str
) -> None:
    lab.fault("headers-missing", node)
    try:
        run = lab.play("--limit", node)
    finally:
        lab.clear("headers-missing", node)
    kernel = lab.node(node, "uname", "-r").strip()
    failed(run, f"linux-headers-{kernel}")
    assert driver_packages(lab, node) == set()
    assert_no_dpkg_remains(lab, node)


def test_full_disk_is_named_before_anything_is_installed(lab: TestLab, node: str) -> None:
    lab.fault("disk-full", node)
    run = lab.play("--limit", node)
    failed(run, node, "free", "expected")
    assert driver_packages(lab, node) == set()
    lab.clear("disk-full", node)
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)


class Cut:
    """A run of deploy-base.yml that is cut once the driver's installation is under way."""

    def __init__(self, lab: TestLab, node: str, log: Path) -> None:
        self.lab, self.node, self.log = lab, node, log

    def during_driver_install(self, fault: str, target: str, *settings: str) -> PlayRun:
        """Start the run, wait until dpkg unpacks the driver, make the fault, wait for the end."""
        # The build of the kernel module is given the time of a real one, to cut in its middle.
        self.lab.fault("slow-build", self.node, "seconds=45")
        with self.log.open("w") as output:
            run = subprocess.Popen(
                [
                    "ansible-playbook",
                    *("-i", str(self.lab.inventory), "--limit", self.node),
                    "playbooks/deploy-base.yml",
                ],
                cwd=REPOSITORY,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait_for_build(run)
                self.lab.fault(fault, target, *settings)
                run.wait(timeout=600)
            finally:
                if run.poll() is None:
                    run.terminate()
                    run.wait(timeout=30)
        self.lab.clear(fault, target)
        self.lab.clear("slow-build", self.node)
        return PlayRun(run.returncode, self.log.read_text())

    def _wait_for_build(self, run: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 300
        while (
            self.lab.node(self.node, "pgrep", "-f", "dkms (autoinstall|install|build)", check=False)
            == ""
        ):
            assert run.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, "the driver's build did not begin"
            time.sleep(0.2)


@pytest.fixture
def cut(lab: TestLab, node: str, tmp_path: Path) -> Cut:
    return Cut(lab, node, tmp_path / "run.log")


def test_power_cut_in_the_middle_of_the_driver_install_is_repaired_by_a_rerun(
    lab: TestLab, node: str, cut: Cut
) -> None:
    run = cut.during_driver_install("power-cut", node)
    assert run.returncode != 0
    assert lab.node(node, "dpkg", "--audit") != "", "the cut missed the installation"
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)


def test_ssh_cut_in_the_middle_of_the_driver_install_is_repaired_by_a_rerun(
    lab: TestLab, node: str, cut: Cut
) -> None:
    run = cut.during_driver_install("ssh-cut", node, "seconds=20")
    assert run.returncode != 0, run.output[-3000:]
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)


def test_repository_down_in_mid_run_leaves_holds_and_a_rerun_converges(
    lab: TestLab, node: str, cut: Cut
) -> None:
    run = cut.during_driver_install("repository-down", "head1")
    assert run.returncode != 0, run.output[-3000:]
    assert_no_dpkg_remains(lab, node)
    assert lab.holds(node) >= driver_packages(lab, node)
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)
