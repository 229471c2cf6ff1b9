"""The lab starts, also over remains; labs keep apart; nodes behave as machines do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from railweld.lab import Lab, access
from railweld.lab import podman as pod
from railweld.lab.process import LabError

from .conftest import reboot, write_inventory

pytestmark = pytest.mark.lab


def container_ids(lab: Lab) -> set[str]:
    names = [node.container for node in lab.nodes]
    return set(pod.podman("inspect", "--format", "{{.Id}}", *names).stdout.split())


def test_second_up_changes_nothing(lab: Lab) -> None:
    before = container_ids(lab)
    lab.up()
    assert container_ids(lab) == before


def test_every_node_is_reached_over_ssh_with_its_own_host_key(lab: Lab) -> None:
    answers = {node.name: node.ssh(["hostname"]).stdout.strip() for node in lab.nodes}
    assert answers == {"head1": "head1", "gpu1": "gpu1", "gpu2": "gpu2"}


def test_a_node_with_another_host_key_is_refused(lab: Lab) -> None:
    node = lab.node("gpu2")
    known = access.known_hosts(lab.plan.site)
    text = known.read_text()
    other = next(line for line in text.splitlines() if line.startswith("gpu1,"))
    key = " ".join(other.split()[1:])
    try:
        known.write_text(f"gpu2,{node.plan.address} {key}\n")
        answer = node.ssh(["true"], check=False)
    finally:
        known.write_text(text)
    assert answer.returncode == 255
    assert "Host key verification failed" in answer.stderr


def test_nodes_have_identities_of_their_own(lab: Lab) -> None:
    assert len({node.read("/etc/machine-id") for node in lab.nodes}) == 3
    assert len({node.read("/etc/ssh/ssh_host_ed25519_key.pub") for node in lab.nodes}) == 3


def test_nodes_reach_their_mirror_and_nothing_outside(lab: Lab) -> None:
    node = lab.node("gpu1")
    node.exec(["apt-get", "update", "-q"])
    assert node.exec(["ip", "route", "get", "192.0.2.1"]).stdout.split()[2] == "10.213.10.10"
    answer = node.exec(["ping", "-c", "1", "-W", "2", "192.0.2.1"], check=False)
    assert answer.returncode != 0
    assert lab.node("head1").exec(["ip", "route", "show", "default"]).stdout == ""


def test_the_mirror_is_signed_and_a_changed_index_is_refused(lab: Lab) -> None:
    node = lab.node("gpu2")
    node.exec(["sh", "-c", "printf '%s\\n' 'deb http://10.213.10.10/os /' > /etc/apt/sources.list"])
    try:
        answer = node.exec(["apt-get", "update", "-q"], check=False)
    finally:
        node.exec(["truncate", "-s", "0", "/etc/apt/sources.list"])
    assert "is not signed" in answer.text or "NO_PUBKEY" in answer.text


def test_rails_of_two_nodes_reach_each_other_with_jumbo_frames(lab: Lab) -> None:
    first, second = lab.node("gpu1"), lab.node("gpu2")
    for number, node in enumerate((first, second), 1):
        node.exec(["ip", "link", "set", "rail1", "mtu", "9000"])
        node.exec(["ip", "address", "replace", f"10.10.1.{number}/24", "dev", "rail1"])
    first.exec(["ping", "-c", "1", "-W", "3", "-M", "do", "-s", "8972", "10.10.1.2"])


def test_a_reboot_forgets_modules_rail_settings_and_rules(lab: Lab) -> None:
    node = lab.node("gpu2")
    node.exec(["modprobe", "rdma_ucm"])
    node.exec(["ip", "link", "set", "rail2", "mtu", "9000"])
    node.exec(["ip", "address", "add", "10.10.2.2/24", "dev", "rail2"])
    node.exec(["ip", "rule", "add", "preference", "500", "lookup", "100"])
    node.exec(["dcb", "pfc", "set", "dev", "rail2", "prio-pfc", "3:on"])
    mac = node.read("/sys/class/net/eth0/address").strip()
    reboot(node)
    assert node.read("/sys/class/net/eth0/address").strip() == mac == node.plan.mac
    assert "rdma_ucm" not in node.exec(["lsmod"]).stdout
    assert "mtu 1500" in node.exec(["ip", "link", "show", "rail2"]).stdout
    assert "10.10.2.2" not in node.exec(["ip", "address", "show", "rail2"]).stdout
    assert "500:" not in node.exec(["ip", "rule"]).stdout
    assert "3:off" in node.exec(["dcb", "pfc", "show", "dev", "rail2"]).stdout


def test_nouveau_takes_the_gpus_until_it_is_blacklisted_in_root_and_initramfs(lab: Lab) -> None:
    node = lab.node("gpu2")
    assert "nouveau" in node.exec(["lsmod"]).stdout
    node.exec(["sh", "-c", "echo blacklist nouveau > /etc/modprobe.d/test.conf"])
    reboot(node)
    assert "nouveau" in node.exec(["lsmod"]).stdout, "the initramfs was not rebuilt"
    node.exec(["update-initramfs", "-u"])
    reboot(node)
    assert "nouveau" not in node.exec(["lsmod"]).stdout
    node.exec(["rm", "/etc/modprobe.d/test.conf"])
    node.exec(["update-initramfs", "-u"])


def test_kernel_parameters_take_effect_with_update_grub_and_a_reboot(lab: Lab) -> None:
    node = lab.node("gpu2")
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"'
    node.exec(["mkdir", "-p", "/etc/default/grub.d"])
    node.exec(["tee", "/etc/default/grub.d/test.cfg"], stdin=line.encode())
    reboot(node)
    assert "iommu=pt" not in node.read("/proc/cmdline")
    node.exec(["update-grub"])
    reboot(node)
    assert "iommu=pt" in node.read("/proc/cmdline").split()


def test_modules_load_d_is_followed_at_boot(lab: Lab) -> None:
    node = lab.node("gpu2")
    node.exec(["sh", "-c", "echo ib_umad > /etc/modules-load.d/test.conf"])
    reboot(node)
    assert "ib_umad" in node.exec(["lsmod"]).stdout
    assert node.exec(["systemctl", "is-active", "systemd-modules-load"]).ok


def test_real_tools_read_the_hardware(lab: Lab) -> None:
    node = lab.node("gpu1")
    devices = node.exec(["lspci", "-n"]).stdout
    assert devices.count("10de:20b2") == 8
    assert devices.count("10de:1af1") == 6
    assert devices.count("15b3:101b") == 4
    assert "ReqRedir+" in node.exec(["lspci", "-vvv", "-s", "05:00.0"]).stdout
    node.exec(["setpci", "-s", "05:00.0", "ECAP_ACS+6.w=0"])
    assert "ReqRedir-" in node.exec(["lspci", "-vvv", "-s", "05:00.0"]).stdout


def test_up_starts_over_the_remains_of_a_killed_lab(lab: Lab) -> None:
    node = lab.node("gpu2")
    machine_id = node.read("/etc/machine-id")
    image = pod.podman("inspect", "--format", "{{.Image}}", node.container).stdout.strip()
    pod.podman("rm", "--force", "--time", "0", node.container)
    # Killed between making the container and starting it; its volumes are from the one before.
    pod.podman(
        "create", "--name", node.container, "--label", f"{pod.LABEL_LAB}={lab.plan.site}",
        "--label", f"{pod.LABEL_NODE}=gpu2", "--network", "none", image, "true",
    )  # fmt: skip
    lab.node("gpu1").cut_power()
    lab.up()
    assert node.read("/etc/machine-id") != machine_id
    assert all(row.ssh for row in lab.status())


def test_up_makes_a_node_anew_that_was_lost_with_its_watcher(lab: Lab) -> None:
    """As when a machine ends every process at once: podman has the container as running."""
    node = lab.node("gpu2")
    machine_id = node.read("/etc/machine-id")
    shown = pod.podman("inspect", "--format", "{{.State.ConmonPid}} {{.State.Pid}}", node.container)
    watcher, init = map(int, shown.stdout.split())
    for pid in (watcher, init):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{init}").exists():
        assert time.monotonic() < deadline, "the node's init process lives on"
    assert {row.node: row.state for row in lab.status()}["gpu2"] == "lost"
    lab.up()
    assert node.read("/etc/machine-id") != machine_id
    assert all(row.ssh for row in lab.status())


HOLDER = """\
[Unit]
DefaultDependencies=no
Before=railweld-lab-boot.service
[Service]
Type=exec
ExecStart=/bin/sh -c 'exec sleep infinity 3>/sys/kernel/rcu_expedited'
[Install]
WantedBy=sysinit.target
"""


def test_a_node_without_its_hardware_is_no_node(lab: Lab) -> None:
    """Somebody has a file of /sys open for writing, so that it cannot become read-only."""
    node = lab.node("gpu2")
    unit = "/etc/systemd/system/holder.service"
    node.exec(["dd", f"of={unit}", "status=none"], stdin=HOLDER.encode())
    node.exec(["systemctl", "enable", "holder.service"])
    node.cut_power()
    try:
        with pytest.raises(LabError, match=r"gpu2: found railweld-lab-boot(.|\n)*busy"):
            node.start()
    finally:
        node.exec(["systemctl", "disable", "holder.service"])
        node.exec(["rm", unit])
        node.cut_power()
        node.start()


def test_nodes_of_a_lab_whose_keys_are_gone_are_made_anew(state: Path) -> None:
    other = Lab.from_inventory([write_inventory(state, "labtest5", "10.213.13", 0)])
    try:
        other.up()
        key = access.ssh_key("labtest5")
        key.unlink()
        other.up()
        assert other.node("head1").ssh(["hostname"]).stdout.strip() == "head1"
    finally:
        other.down()


def test_two_labs_side_by_side(lab: Lab, state: Path) -> None:
    other = Lab.from_inventory([write_inventory(state, "labtest2", "10.213.11", 0)])
    try:
        other.up()
        assert other.node("head1").ssh(["hostname"]).stdout.strip() == "head1"
        assert (
            lab.node("head1")
            .exec(["ping", "-c", "1", "-W", "1", "10.213.11.10"], check=False)
            .returncode
        )
    finally:
        other.down()
    assert not pod.containers("labtest2")
    assert all(row.ssh for row in lab.status())


@pytest.mark.usefixtures("lab")
def test_a_subnet_of_another_lab_is_refused_by_name(state: Path) -> None:
    other = Lab.from_inventory([write_inventory(state, "labtest3", "10.213.10", 0)])
    try:
        with pytest.raises(LabError, match=r"10\.213\.10\.0/24 overlaps .* railweld-labtest"):
            other.up()
    finally:
        other.down()


def test_down_leaves_no_container_network_or_volume(state: Path) -> None:
    other = Lab.from_inventory([write_inventory(state, "labtest4", "10.213.12", 0)])
    other.up()
    other.down()
    assert not pod.containers("labtest4")
    assert not [name for name in pod.networks() if "labtest4" in name]
    assert not pod.volumes("railweld-labtest4-")
