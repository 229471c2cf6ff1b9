"""Each fault really happens on the node, and is gone when it is taken away."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from railweld.lab import Lab, Node
from railweld.lab.process import LabError

from .conftest import DRIVER, boot_time, connects, install, reboot, until

pytestmark = [pytest.mark.lab, pytest.mark.deep]

Make = Callable[..., None]


def test_gpu_missing(driver: Node, make: Make) -> None:
    make("gpu-missing", "gpu1", count=1)
    assert driver.exec(["lspci", "-n"]).stdout.count("10de:20b2") == 7
    assert len(driver.exec(["nvidia-smi", "-L"]).stdout.splitlines()) == 7
    reboot(driver)
    assert len(driver.exec(["nvidia-smi", "-L"]).stdout.splitlines()) == 7


def test_gpu_missing_cleared(lab: Lab, driver: Node) -> None:
    lab.fault("gpu-missing", "gpu1", count=3)
    lab.clear("gpu-missing", "gpu1")
    assert len(driver.exec(["nvidia-smi", "-L"]).stdout.splitlines()) == 8


def test_driver_mismatch_until_the_reboot(lab: Lab, driver: Node) -> None:
    lab.fault("driver-mismatch", "gpu1", version="515.65.01")
    assert driver.read("/sys/module/nvidia/version").strip() == "515.65.01"
    assert " 515.65.01 " in driver.read("/proc/driver/nvidia/version")
    assert driver.exec(["modinfo", "-F", "version", "nvidia"]).stdout.strip() == DRIVER
    answer = driver.exec(["nvidia-smi"], check=False)
    assert answer.returncode != 0
    assert "Driver/library version mismatch" in answer.text
    reboot(driver)
    assert driver.read("/sys/module/nvidia/version").strip() == DRIVER
    assert driver.exec(["nvidia-smi"]).ok
    assert driver.faults() == {}


def test_driver_mismatch_needs_a_loaded_driver(lab: Lab) -> None:
    with pytest.raises(LabError, match="nvidia is not loaded"):
        lab.fault("driver-mismatch", "gpu2")


def test_nouveau_loaded(lab: Lab, driver: Node) -> None:
    lab.fault("nouveau-loaded", "gpu1")
    modules = driver.exec(["lsmod"]).stdout
    assert "nouveau" in modules
    assert "nvidia" not in modules
    answer = driver.exec(["modprobe", "nvidia"], check=False)
    assert "could not insert 'nvidia': No such device" in answer.stderr
    assert driver.exec(["nvidia-smi"], check=False).returncode != 0
    lab.clear("nouveau-loaded", "gpu1")
    assert driver.exec(["nvidia-smi"]).ok


def test_hca_down(lab: Lab, make: Make) -> None:
    node = lab.node("gpu1")
    make("hca-down", "gpu1", hca="mlx5_1")
    assert node.read("/sys/class/infiniband/mlx5_1/ports/1/state").strip() == "1: DOWN"
    assert node.read("/sys/class/infiniband/mlx5_0/ports/1/state").strip() == "4: ACTIVE"
    until(lambda: "NO-CARRIER" in node.exec(["ip", "link", "show", "rail2"]).stdout, "lost carrier")


def test_link_rate(lab: Lab, make: Make) -> None:
    make("link-rate", "gpu1", hca="mlx5_0", gbps=50)
    assert (
        lab.node("gpu1").read("/sys/class/infiniband/mlx5_0/ports/1/rate").startswith("50 Gb/sec")
    )


def test_secure_boot_refuses_an_unsigned_module(driver: Node, make: Make) -> None:
    make("secure-boot", "gpu1", state="on")
    assert driver.exec(["mokutil", "--sb-state"]).stdout == "SecureBoot enabled\n"
    driver.exec(["modprobe", "-r", "nvidia_uvm"], check=False)
    reboot(driver)
    assert "nvidia" not in driver.exec(["lsmod"]).stdout
    answer = driver.exec(["modprobe", "nvidia"], check=False)
    assert answer.returncode != 0
    assert "Key was rejected" in answer.stderr or "Required key" in answer.stderr


def test_secure_boot_unsupported(lab: Lab, make: Make) -> None:
    make("secure-boot", "gpu2", state="unsupported")
    answer = lab.node("gpu2").exec(["mokutil", "--sb-state"], check=False)
    assert answer.returncode == 1
    assert "EFI variables are not supported" in answer.stderr


def test_apt_lock_is_a_real_lock_that_ends(lab: Lab) -> None:
    node = lab.node("gpu1")
    lab.fault("apt-lock", "gpu1", seconds=5)
    answer = node.exec(["apt-get", "install", "-y", "-q", "jq"], check=False)
    assert "Could not get lock /var/lib/dpkg/lock-frontend" in answer.stderr
    assert "(apt-get)" in answer.stderr
    node.exec(["apt-get", "update", "-q"])
    # Waits, as roles do, and gets in when the five seconds are over.
    node.exec(["apt-get", "-o", "DPkg::Lock::Timeout=60", "install", "-y", "-q", "jq"])
    until(lambda: node.faults() == {}, "end of the fault")


def test_unattended_upgrade_runs_and_holds_the_lock(lab: Lab) -> None:
    node = lab.node("gpu1")
    lab.fault("unattended-upgrade", "gpu1", seconds=120)
    assert "unattended-upgr" in node.exec(["sh", "-c", "cat /proc/*/comm"], check=False).stdout
    answer = node.exec(["apt-get", "install", "-y", "-q", "numactl"], check=False)
    assert "lock" in answer.stderr
    lab.clear("unattended-upgrade", "gpu1")
    status = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", "railweld-lab-slow"]
    until(lambda: node.exec(status).stdout == "ii 2", "upgraded package")


def test_unpacking_takes_long_enough_to_be_cut(lab: Lab, make: Make) -> None:
    node = lab.node("gpu2")
    node.exec(["apt-get", "update", "-q"])
    make("slow-unpack", "gpu2", package="jq", seconds=600)
    node.exec(["systemd-run", "--unit=unpacks", "apt-get", "install", "-y", "-q", "jq"])
    status = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "jq"]
    until(lambda: node.exec(status, check=False).stdout.startswith("iH"), "half unpacked package")
    node.exec(["systemctl", "kill", "--signal=KILL", "unpacks"])
    lab.clear("slow-unpack", "gpu2")
    assert "reinstall" in node.exec(["dpkg", "--audit"]).stdout
    # apt refuses everything until dpkg has finished what was cut.
    node.exec(["dpkg", "--configure", "-a"])
    install(node, "--reinstall", "jq")
    assert node.exec(["dpkg", "--audit"]).stdout == ""


def test_headers_missing(lab: Lab, make: Make) -> None:
    node = lab.node("gpu2")
    release = node.exec(["uname", "-r"]).stdout.strip()
    package = f"linux-headers-{release}"
    assert node.exec(["dpkg-query", "-W", package]).ok
    make("headers-missing", "gpu2")
    assert node.exec(["dpkg-query", "-W", package], check=False).returncode != 0
    assert node.exec(["test", "-e", f"/lib/modules/{release}/build"], check=False).returncode
    node.exec(["apt-get", "update", "-q"])
    answer = node.exec(["apt-get", "install", "-y", "-q", package], check=False)
    assert "no installation candidate" in answer.stderr


def test_repository_down_for_one_node(lab: Lab, make: Make) -> None:
    make("repository-down", "gpu2")
    answer = lab.node("gpu2").exec(["apt-get", "update", "-q"], check=False)
    assert "Could not connect to 10.213.10.10:80" in answer.text
    lab.node("gpu1").exec(["apt-get", "update", "-q", "--error-on=any"])


def test_repository_down_for_everybody(lab: Lab) -> None:
    lab.fault("repository-down", "head1")
    assert not connects(lab.plan.mirror.address, 80)
    lab.clear("repository-down", "head1")
    until(lambda: connects(lab.plan.mirror.address, 80), "mirror")


@pytest.mark.usefixtures("vendor_sources")
def test_repository_serves_other_versions(lab: Lab) -> None:
    node = lab.node("gpu1")
    wanted = ["apt-get", "-s", "install", "libnccl2=2.14.3-1+cuda11.7"]
    assert node.exec(wanted).ok
    lab.fault("repository-version", "head1", hide="libnccl2=2.14.3*")
    try:
        node.exec(["apt-get", "update", "-q", "--error-on=any"])
        answer = node.exec(wanted, check=False)
        assert "Version '2.14.3-1+cuda11.7' for 'libnccl2' was not found" in answer.stderr
        assert node.exec(["apt-get", "-s", "install", "libnccl2"]).ok
        status = {row.node: row.faults for row in lab.status()}
        assert status["head1"] == ("repository-version",)
    finally:
        lab.clear("repository-version", "head1")
    node.exec(["apt-get", "update", "-q", "--error-on=any"])
    assert node.exec(wanted).ok


def test_disk_full_is_real_and_lasts_over_a_reboot(lab: Lab, make: Make) -> None:
    node = lab.node("gpu2")
    node.exec(["apt-get", "update", "-q"])
    node.exec(["touch", "/var/lib/kept"])
    make("disk-full", "gpu2", path="/var", free_kib=64)
    free, size = map(int, node.exec(["stat", "-f", "-c", "%a %S", "/var"]).stdout.split())
    assert free * size <= 64 * 1024
    answer = node.exec(["apt-get", "install", "-y", "-q", "xfsprogs"], check=False)
    assert answer.returncode != 0
    assert "space" in answer.text
    reboot(node)
    assert node.exec(["sh", "-c", "head -c 1000000 /dev/zero > /var/x"], check=False).returncode
    node.exec(["rm", "-f", "/var/x", "/var/lib/kept"])
    node.exec(["touch", "/var/lib/new"])
    lab.clear("disk-full", "gpu2")
    # The folder came back as it was on the full disk, not as it was before.
    assert node.exec(["test", "-e", "/var/lib/new"]).ok
    assert node.exec(["test", "-e", "/var/lib/kept"], check=False).returncode
    install(node, "xfsprogs")


def test_ssh_cut_breaks_a_session_and_heals(lab: Lab) -> None:
    node = lab.node("gpu2")
    with subprocess.Popen(
        [*node.ssh_command(), "echo started; exec sleep 600"], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        lab.fault("ssh-cut", "gpu2", seconds=5)
        assert client.wait(timeout=60) == 255
    assert not node.answers_ssh()
    until(node.answers_ssh, "SSH server")
    until(lambda: node.faults() == {}, "end of the fault")


def test_power_cut_is_no_shutdown(lab: Lab) -> None:
    node = lab.node("gpu2")
    before = boot_time(node)
    node.exec(
        ["sh", "-c", "cat > /run/stop-me.sh; chmod +x /run/stop-me.sh"],
        stdin=b"#!/bin/sh\ntouch /root/was-asked\n",
    )
    node.exec(
        ["systemd-run", "--unit=asked", "-p", "ExecStop=/run/stop-me.sh", "sleep", "infinity"]
    )
    lab.fault("power-cut", "gpu2", seconds=0)
    assert boot_time(node) != before
    assert node.exec(["test", "-e", "/root/was-asked"], check=False).returncode
    assert node.ssh(["true"]).ok


def test_power_stays_off_until_it_is_given_back(lab: Lab) -> None:
    node = lab.node("gpu2")
    lab.fault("power-cut", "gpu2", seconds=-1)
    assert node.state() == "exited"
    lab.clear("power-cut", "gpu2")
    assert node.ssh(["true"]).ok


# --- time ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clocks(lab: Lab) -> tuple[Node, Node]:
    """head1 serves time, gpu1 follows."""
    server, client = lab.node("head1"), lab.node("gpu1")
    for node in (server, client):
        node.exec(["apt-get", "update", "-q"])
        install(node, "chrony")
    server.exec(
        ["tee", "/etc/chrony/chrony.conf"], stdin=b"local stratum 10\nallow 10.213.10.0/24\n"
    )
    client.exec(
        ["tee", "/etc/chrony/chrony.conf"],
        stdin=b"server 10.213.10.10 iburst minpoll 0 maxpoll 1\n",
    )
    for node in (server, client):
        node.exec(["systemctl", "restart", "chrony"])
    until(lambda: abs(offset(client)) < 0.05, "synchronised clock")
    return server, client


def offset(node: Node) -> float:
    """What chronyd measures, in seconds; far off while it has no source."""
    fields = node.exec(["chronyc", "-c", "tracking"], check=False).stdout.split(",")
    if len(fields) < 14 or fields[13].strip() != "Normal":
        return 1e9
    return float(fields[4])


def test_clock_offset_of_one_node(clocks: tuple[Node, Node], make: Make) -> None:
    _, client = clocks
    make("clock-offset", "gpu1", ms=800)
    until(lambda: abs(abs(offset(client)) - 0.8) < 0.05, "offset of 800 ms")


def test_clock_offset_of_the_server_reaches_its_clients(
    clocks: tuple[Node, Node], make: Make
) -> None:
    _, client = clocks
    until(lambda: abs(offset(client)) < 0.05, "synchronised clock")
    make("clock-offset", "head1", ms=300)
    client.exec(["systemctl", "restart", "chrony"])
    until(lambda: abs(abs(offset(client)) - 0.3) < 0.05, "offset of 300 ms")


def test_no_time_source(clocks: tuple[Node, Node], make: Make) -> None:
    _, client = clocks
    make("no-time-source", "gpu1")
    answer = client.exec(["chronyc", "waitsync", "3", "0.1", "0", "1"], check=False)
    assert answer.returncode == 1


def test_chrony_stopped(clocks: tuple[Node, Node], make: Make) -> None:
    _, client = clocks
    make("chrony-stopped", "gpu1")
    assert client.exec(["systemctl", "is-active", "chrony"], check=False).stdout == "inactive\n"


# --- wrong use -------------------------------------------------------------------------------


def test_unknown_fault_setting_and_node_are_named(lab: Lab) -> None:
    with pytest.raises(LabError, match="no such fault, expected one of apt-lock"):
        lab.fault("gremlins", "gpu1")
    with pytest.raises(LabError, match="found settings minutes, expected seconds=60"):
        lab.fault("apt-lock", "gpu1", minutes=1)
    with pytest.raises(LabError, match="gpu9: no node of lab labtest, expected one of"):
        lab.fault("apt-lock", "gpu9")
