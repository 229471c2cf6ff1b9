"""Every fault of the base stage, made on real SSH nodes and read back from them.

What must never happen is looked for after each run, see `FaultLab.assert_never`. One bad node of
four is part of the gate: tests/e2e/test_deploy_base.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.labs import PlayRun
from tests.watched import BUILD, UNPACK, FaultLab

pytestmark = [pytest.mark.lab, pytest.mark.deep]

DRIVER = "515.86.01"
ALLOW_DOWNGRADE = ("-e", "package_lock_allow_downgrade=true")
SKIP_REBOOT = ("-e", "railweld_reboot=skip")
#: On a node that calls itself interrupted, a run finishes that first and says so.
REPAIRED = "an earlier run was cut off"
WAITED = re.compile(r"waited \d+ s for the package lock")


def driver_packages(lab: FaultLab, node: str) -> set[str]:
    """Installed packages of the driver family."""
    return {name for name in lab.installed(node) if re.match(r"(lib)?nvidia-|cuda-drivers", name)}


def assert_untouched(lab: FaultLab, node: str) -> None:
    """Nothing of the GPU stack is installed, wholly or in part."""
    assert driver_packages(lab, node) == set()
    assert lab.node(node, "dpkg", "--audit") == ""


def assert_provisioned(lab: FaultLab, node: str) -> None:
    """The node runs what the site describes and holds all of it."""
    assert lab.node(node, "cat", "/sys/module/nvidia/version").strip() == DRIVER
    assert lab.node(node, "nvidia-smi", "-L").count("GPU ") == 8
    assert "release 12.1" in lab.node(node, "/usr/local/cuda-12.1/bin/nvcc", "--version")
    held = lab.holds(node)
    assert held >= {"libnccl2", "libnccl-dev", "cuda-toolkit-12-1", "cuda-compat-12-1"}
    assert held >= driver_packages(lab, node)
    assert lab.node(node, "dpkg", "--audit") == ""


def assert_failed(run: PlayRun, *words: str) -> None:
    """The run failed and its output has all these words."""
    assert run.returncode != 0, run.output[-4000:]
    for word in words:
        assert word in run.output, f"{word!r} is not in:\n{run.output[-6000:]}"


@contextmanager
def fault(lab: FaultLab, name: str, node: str, *settings: str) -> Iterator[None]:
    """A fault for the time of a block."""
    lab.fault(name, node, *settings)
    try:
        yield
    finally:
        lab.clear(name, node)


# --- refused before anything is installed, and said what to do ---------------------------------


def test_version_that_the_repository_lacks(lab: FaultLab, refused: str) -> None:
    with fault(lab, "repository-version", "head1", "hide=nvidia-utils-515=515.86.01*"):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "version not in repository", f"expected {DRIVER}", "apt-cache")
    assert_untouched(lab, refused)


def test_seven_of_eight_gpus(lab: FaultLab, refused: str) -> None:
    with fault(lab, "gpu-missing", refused):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "found 7 GPUs", "expected 8 GPUs", "lspci")
    assert_untouched(lab, refused)


def test_clock_off_by_800_ms(lab: FaultLab, refused: str) -> None:
    with fault(lab, "clock-offset", refused, "ms=800"):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "expected at most", "railweld_time_max_offset_ms")
    milliseconds = re.search(r"found (\d+)\.\d ms off", run.output)
    assert milliseconds, run.output[-4000:]
    assert 700 < int(milliseconds[1]) < 900
    assert_untouched(lab, refused)


def test_no_time_source_is_not_taken_for_an_offset_of_zero(lab: FaultLab, refused: str) -> None:
    with fault(lab, "no-time-source", refused):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "not synchronised", "chronyc sources")
    assert_untouched(lab, refused)


def test_secure_boot(lab: FaultLab, refused: str) -> None:
    with fault(lab, "secure-boot", refused):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "Secure Boot on", "railweld_secure_boot_signer", "mokutil")
    assert_untouched(lab, refused)


def test_headers_of_the_running_kernel_missing(lab: FaultLab, refused: str) -> None:
    kernel = lab.node(refused, "uname", "-r").strip()
    with fault(lab, "headers-missing", refused):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, f"linux-headers-{kernel}", "neither installed nor in any")
    assert_untouched(lab, refused)


def test_disk_full(lab: FaultLab, refused: str) -> None:
    with fault(lab, "disk-full", refused):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "found 0.0 GiB free", "2.0 GiB free in /var", "df -h /var")
    assert_untouched(lab, refused)


@pytest.mark.parametrize("mode", ["refuse", "silent"])
def test_repository_down(lab: FaultLab, refused: str, mode: str) -> None:
    with fault(lab, "repository-down", refused, f"mode={mode}"):
        run = lab.play("--limit", refused)
    assert_failed(run, refused, "expected the node can fetch it", "railweld_mirrors")
    assert_untouched(lab, refused)


def test_apt_lock_held_for_longer_than_the_site_waits(lab: FaultLab, refused: str) -> None:
    with fault(lab, "apt-lock", refused, "seconds=600"):
        run = lab.play("--limit", refused, "-e", "railweld_apt_lock_timeout_s=5")
    assert_failed(run, refused, "package lock still held by", "railweld_apt_lock_timeout_s")
    assert_untouched(lab, refused)


def test_a_node_converges_once_nothing_is_in_its_way_any_more(lab: FaultLab, refused: str) -> None:
    lab.play("--limit", refused).assert_ok()
    assert_provisioned(lab, refused)


# --- waited for -------------------------------------------------------------------------------


def test_apt_lock_held_for_a_minute_is_waited_for_without_retries(
    lab: FaultLab, provisioned: str
) -> None:
    # Something to do that needs the lock. A minute of it is left when a slow machine gets there.
    lab.node(provisioned, "apt-mark", "unhold", "libnccl2", "cuda-cudart-12-1")
    lab.fault("apt-lock", provisioned, "seconds=120")
    run = lab.play("--limit", provisioned).assert_ok()
    assert WAITED.search(run.output), run.output[-4000:]
    assert "RETRYING" not in run.output
    assert_provisioned(lab, provisioned)


def test_unattended_upgrade_in_mid_run_is_waited_for_and_then_kept_off(
    lab: FaultLab, node: str
) -> None:
    lab.fault("unattended-upgrade", node, "seconds=180")
    run = lab.play("--limit", node).assert_ok()
    assert WAITED.search(run.output), run.output[-4000:]
    assert_provisioned(lab, node)
    # It came to its end: a killed one would have left its package in the middle.
    assert lab.installed(node)["railweld-lab-slow"] == "2"
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"):
        state = lab.node(node, "systemctl", "is-enabled", unit, check=False).strip()
        assert state in ("masked", "not-found"), f"{unit}: {state}"


# --- repaired ---------------------------------------------------------------------------------


def test_driver_loaded_in_another_version_than_installed_is_rebooted_away(
    lab: FaultLab, provisioned: str
) -> None:
    lab.fault("driver-mismatch", provisioned)
    broken = lab.node(provisioned, "nvidia-smi", check=False)
    assert "Driver/library version mismatch" in broken
    before = lab.boots(provisioned)
    run = lab.play("--limit", provisioned, *SKIP_REBOOT)
    assert_failed(run, f"expected driver {DRIVER}", "railweld_reboot: allow")
    assert lab.boots(provisioned) == before
    lab.play("--limit", provisioned).assert_ok()
    assert lab.boots(provisioned) == before + 1
    assert_provisioned(lab, provisioned)


def test_stopped_chrony_is_started_again(lab: FaultLab, provisioned: str) -> None:
    lab.fault("chrony-stopped", provisioned)
    assert lab.node(provisioned, "systemctl", "is-active", "chrony", check=False) == "inactive\n"
    lab.play("--limit", provisioned).assert_ok()
    assert lab.node(provisioned, "systemctl", "is-active", "chrony") == "active\n"


def test_package_unheld_and_upgraded_by_hand_is_not_downgraded_silently(
    lab: FaultLab, provisioned: str
) -> None:
    pinned = lab.installed(provisioned)["libnccl2"]
    lab.node(provisioned, "apt-mark", "unhold", "libnccl2", "libnccl-dev")
    lab.node(provisioned, "apt-get", "-qq", "-y", "install", "libnccl2", "libnccl-dev")
    newer = lab.installed(provisioned)["libnccl2"]
    assert newer != pinned
    run = lab.play("--limit", provisioned)
    assert_failed(run, f"{newer} installed", f"expected {pinned}", "package_lock_allow_downgrade")
    assert lab.installed(provisioned)["libnccl2"] == newer
    lab.play("--limit", provisioned, *ALLOW_DOWNGRADE).assert_ok()
    assert lab.installed(provisioned)["libnccl2"] == pinned
    assert_provisioned(lab, provisioned)


def test_distribution_upgrade_moves_nothing_that_railweld_pinned(
    lab: FaultLab, provisioned: str
) -> None:
    lab.node(provisioned, "apt-get", "-qq", "update")
    plan = lab.node(provisioned, "apt-get", "-s", "dist-upgrade")
    moved = set(re.findall(r"^Inst (\S+)", plan, re.MULTILINE))
    held = lab.holds(provisioned)
    assert held
    assert moved & held == set()
    # The repositories do have newer ones: without holds they would have moved.
    free = lab.node(provisioned, "apt-get", "-s", "dist-upgrade", "--ignore-hold")
    assert set(re.findall(r"^Inst (\S+)", free, re.MULTILINE)) & held


def test_nouveau_is_gone_after_one_reboot_and_a_skipped_one_stops_at_the_next_guard(
    lab: FaultLab, node: str
) -> None:
    lab.fault("nouveau-loaded", node)
    assert "nouveau" in lab.node(node, "lsmod")
    before = lab.boots(node)
    run = lab.play("--limit", node, *SKIP_REBOOT)
    assert_failed(run, "reboot skipped", f"expected driver {DRIVER}", "railweld_reboot: allow")
    assert lab.boots(node) == before
    assert driver_packages(lab, node) != set()
    lab.play("--limit", node).assert_ok()
    assert lab.boots(node) == before + 1
    assert "nouveau" not in lab.node(node, "lsmod")
    assert_provisioned(lab, node)


def test_reason_that_a_reboot_does_not_remove_is_no_loop(lab: FaultLab, provisioned: str) -> None:
    unit = (
        "[Service]\nType=oneshot\n"
        "ExecStart=/bin/sh -c 'echo linux-image-x >> /run/reboot-required.pkgs'\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    lab.node(provisioned, "sh", "-c", f"{WRITE_UNIT} && {START_UNIT} && {CHANGE}", "-", unit)
    before = lab.boots(provisioned)
    run = lab.play("--limit", provisioned)
    assert_failed(run, "found after the reboot still", "package linux-image-x asks for a reboot")
    assert lab.boots(provisioned) == before + 1
    lab.node(provisioned, "sh", "-c", CHANGE)
    run = lab.play("--limit", provisioned)
    assert_failed(run, "found after a reboot still", "reboot_repeat=true")
    assert lab.boots(provisioned) == before + 1
    lab.node(provisioned, "sh", "-c", "systemctl disable asks; rm /run/reboot-required.pkgs")
    lab.play("--limit", provisioned).assert_ok()
    assert_provisioned(lab, provisioned)


WRITE_UNIT = "printf '%s' \"$1\" > /etc/systemd/system/asks.service"
START_UNIT = "systemctl daemon-reload && systemctl enable --now asks"
#: By hand, so that the driver's role has something to do.
CHANGE = "echo >> /etc/modprobe.d/railweld-nvidia.conf"


# --- cut in the middle ------------------------------------------------------------------------


def test_two_power_cuts_in_the_middle_of_the_driver_install(
    lab: FaultLab, node: str, tmp_path: Path
) -> None:
    for moment, state in ((UNPACK, "iH"), (BUILD, "iF")):
        run = lab.cut_run(
            node, tmp_path / "run.log", lambda: lab.fault("power-cut", node), moment=moment
        )
        assert_failed(run, node)
        states = lab.node(node, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}\n")
        assert state in states, "the cut missed the installation"
    run = lab.play("--limit", node).assert_ok()
    assert REPAIRED in run.output
    assert_provisioned(lab, node)


def test_connection_that_dies_silently_leaves_the_transaction_to_its_end(
    lab: FaultLab, node: str, tmp_path: Path
) -> None:
    # For longer than SSH waits for an answer, see ServerAlive in ansible.cfg.
    settings = ("mode=silent", "seconds=300")
    run = lab.cut_run(node, tmp_path / "run.log", lambda: lab.fault("ssh-cut", node, *settings))
    assert_failed(run, node)
    # With nobody watching, and with the holds set.
    lab.wait_for_holds(node)
    lab.clear("ssh-cut", node)
    assert driver_packages(lab, node) != set()
    lab.assert_never(node, run, reboots=0)
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)


def test_ssh_cut_in_the_middle_of_the_driver_install_and_a_rerun_beside_it(
    lab: FaultLab, node: str, tmp_path: Path
) -> None:
    run = lab.cut_run(
        node,
        tmp_path / "run.log",
        lambda: lab.fault("ssh-cut", node, "seconds=30"),
        moment=replace(BUILD, settings=("seconds=240",)),
    )
    assert_failed(run, node)
    lab.clear("ssh-cut", node)
    assert lab.is_installing(node), "the transaction ended before the rerun"
    run = lab.play("--limit", node).assert_ok()
    assert WAITED.search(run.output), run.output[-4000:]
    assert_provisioned(lab, node)


def test_repository_down_and_then_a_full_disk_in_mid_run(
    lab: FaultLab, node: str, tmp_path: Path
) -> None:
    before = lab.boots(node)
    try:
        run = lab.cut_run(node, tmp_path / "run.log", lambda: lab.fault("repository-down", "head1"))
    finally:
        lab.clear("repository-down", "head1")
    assert_failed(run, f"{node} FAILED at", "Fix: ")
    lab.assert_never(node, run, reboots=lab.boots(node) - before)
    assert driver_packages(lab, node) != set()
    with fault(lab, "disk-full", node, "path=/usr/local", "free_kib=0"):
        run = lab.play("--limit", node)
    assert_failed(run, node, "No space left on device")
    lab.play("--limit", node).assert_ok()
    assert_provisioned(lab, node)
