"""The lab's life: up, down, status, and a handle on each node."""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import socket
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from railweld.lab import access, faults, kernel, mirror, switches
from railweld.lab import podman as pod
from railweld.lab.image import ensure_base, ensure_node_image
from railweld.lab.plan import LabPlan, NodePlan, plan_lab
from railweld.lab.podman import podman
from railweld.lab.process import LabError, Report, Result, raise_limits, require_machine, run
from railweld.lab.vendor.programs.nccl_tests import FABRIC
from railweld.state import held

#: How long a node may take from start to a reachable SSH server.
READY_TIMEOUT_S = 120.0
POLL_S = 0.2
#: Makes what firmware and kernel would have made.
BOOT_UNIT = "railweld-lab-boot.service"
#: Nodes that are started at the same time; a boot is a second of one core.
PARALLEL = 4
#: Folders that cannot lie on the container's own overlay.
VOLUMES = {"containerd": "/var/lib/containerd", "kubelet": "/var/lib/kubelet"}
#: States of containers that are no node any more, and why they are made anew.
UNUSABLE = {
    **dict.fromkeys(("created", "configured", "unknown"), "unfinished"),
    "lost": "podman does not know that it has ended",
}
#: The site's shared file system: one folder that every node has.
SHARED = "/data"


@dataclass(frozen=True)
class NodeStatus:
    """One line of `railweld lab status`."""

    node: str
    address: str
    state: str
    ssh: bool
    faults: tuple[str, ...]


class Node:
    """A handle on one node: runs programs in it beside SSH, cuts and restores its power."""

    def __init__(self, plan: LabPlan, node: NodePlan) -> None:
        self.plan = node
        self.name = node.name
        self.container = plan.container(node.name)
        self._site = plan.site

    def exec(
        self, argv: Sequence[str], *, check: bool = True, stdin: bytes | None = None
    ) -> Result:
        """Run a program as root in the node, without SSH.

        Raises:
            LabError: it failed and `check` is true.
        """
        options = ["--interactive"] if stdin is not None else []
        return podman("exec", *options, self.container, *argv, check=check, stdin=stdin)

    def ssh(self, argv: Sequence[str], *, check: bool = True) -> Result:
        """Run a program over SSH, as Ansible would."""
        return run([*self.ssh_command(), *argv], check=check)

    def ssh_command(self) -> list[str]:
        """The `ssh` command line that reaches this node with host key checking on."""
        return [
            "ssh",
            "-i",
            str(access.ssh_key(self._site)),
            "-o",
            f"UserKnownHostsFile={access.known_hosts(self._site)}",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=10",
            f"root@{self.plan.address}",
        ]

    def read(self, path: str) -> str:
        """Content of a file in the node."""
        return self.exec(["cat", path]).stdout

    def state(self) -> str:
        """podman's word for the container: running, exited, created, ..., or `absent`."""
        done = podman(
            "container", "inspect", "--format", "{{.State.Status}}", self.container, check=False
        )
        return done.stdout.strip() if done.ok else "absent"

    def cut_power(self) -> None:
        """Kill every process of the node at once. It stays off until `start`."""
        # `podman kill` would count as a crash, after which podman starts it again by itself.
        podman("stop", "--time", "0", self.container)

    def start(self) -> None:
        """Switch the node on and wait until SSH answers."""
        podman("start", self.container)
        self.wait_ready()

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until systemd has started everything and the SSH server greets.

        Raises:
            LabError: it did not in time, with the units that failed; or the stand-ins for hardware
                were not set up, with the reason.
        """
        deadline = time.monotonic() + timeout
        state = ""
        while time.monotonic() < deadline:
            state = self.exec(["systemctl", "is-system-running"], check=False).stdout.strip()
            if state in ("running", "degraded") and self.answers_ssh():
                self._require_hardware()
                return
            time.sleep(POLL_S)
        failed = self.exec(["systemctl", "--failed", "--no-legend", "--plain"], check=False).text
        raise LabError(
            f"{self.name}: found system state {state or 'unknown'!r} after {timeout:.0f} s, "
            f"expected 'running' and an SSH server on {self.plan.address}:22\n{failed}\n"
            f"see: podman logs {self.container}; podman exec {self.container} journalctl -b"
        )

    def _require_hardware(self) -> None:
        if self.exec(["systemctl", "is-failed", "--quiet", BOOT_UNIT], check=False).ok:
            # The program's own last line; systemd has three of its own after it.
            told = self.exec(["journalctl", "-b", "-t", "boot", "-o", "cat", "-n", "1"]).stdout
            raise LabError(
                f"{self.name}: found {BOOT_UNIT} failed, expected the node's hardware set up:\n"
                f"{told}see: podman exec {self.container} journalctl -b -u {BOOT_UNIT}. "
                f"Fix: podman restart {self.container}"
            )

    def answers_ssh(self) -> bool:
        """True if an SSH server sends its greeting."""
        return answers_ssh(self.plan.address)

    def faults(self) -> dict[str, Any]:
        """Faults that are active in the node, with their settings."""
        done = self.exec(["cat", "/var/lib/railweld-lab/faults.json"], check=False)
        if not done.ok or not done.stdout.strip():
            return {}
        found: dict[str, Any] = json.loads(done.stdout).get("active", {})
        return found


class Lab:
    """The lab of one inventory."""

    def __init__(self, plan: LabPlan, report: Report | None = None) -> None:
        self.plan = plan
        self._report: Report = report or (lambda _line: None)

    @classmethod
    def from_inventory(cls, sources: Sequence[str], report: Report | None = None) -> Lab:
        """The lab that an inventory describes."""
        return cls(plan_lab(sources), report)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Handles on all nodes."""
        return tuple(Node(self.plan, node) for node in self.plan.nodes)

    def node(self, name: str) -> Node:
        """Handle on one node."""
        return Node(self.plan, self.plan.node(name))

    def up(self) -> None:
        """Bring the lab to the state that the inventory describes. A second call changes nothing.

        Starts over whatever a killed lab left. A node that differs from its description, or was
        made from another image, is made anew: what was installed on it is gone.
        """
        require_machine()
        raise_limits(self._report)
        with self._lock():
            base = ensure_base(self._report)
            image = ensure_node_image(base, self._report)
            mirror.ensure_mirror(self.plan.site, base, self._report)
            # What is put into a node at its making counts too: with a new key or another mirror
            # folder, an old node could not be reached, or would serve what is no more.
            public_key = access.ssh_key(self.plan.site).with_suffix(".pub").read_text()
            access.munge_key(self.plan.site)
            access.write_nccl_tests(self.plan.site)
            inputs = (image, public_key, str(mirror.lab_mirror_dir(self.plan.site)), SHARED)
            wanted = {node.name: node.digest(*inputs) for node in self.plan.nodes}
            self._sweep(wanted)
            pod.ensure_network(self.plan.network, self.plan.site, self.plan.subnet)
            pod.ensure_network(self.plan.fabric_network, self.plan.site, None)
            present = {container.node: container for container in pod.containers(self.plan.site)}
            missing = [node for node in self.plan.nodes if node.name not in present]
            if self._shared_volume not in self._volumes():
                self._create_volume(self._shared_volume)
            stopped = [self.node(name) for name, found in present.items() if not found.is_running]
            for node in missing:
                self._create(node, image, wanted[node.name])
            start = [*(self.node(node.name) for node in missing), *stopped]
            # The mirror node first: the others' first apt run may come at once.
            start.sort(key=lambda node: not node.plan.is_mirror)
            self._each(start, lambda node: node.start(), "started")
            self._each(
                [node for node in self.nodes if node.name not in {s.name for s in start}],
                lambda node: node.wait_ready(),
                None,
            )
            switches.up(self.plan, self._report)
            self._write_known_hosts()
            self._report(
                f"lab {self.plan.site}: {len(self.plan.nodes)} nodes on {self.plan.subnet}, "
                f"{len(missing)} made, {len(stopped)} switched on"
            )

    def down(self) -> None:
        """Remove the lab: containers, volumes, networks. Keys and caches stay."""
        require_machine({"podman": "podman"})
        with self._lock():
            found = pod.containers(self.plan.site)
            switches.down(self.plan.site)
            self._sweep({})
            for network in (self.plan.network, self.plan.fabric_network):
                pod.remove_network(network)
            mirror.clear_overrides(self.plan.site)
            access.known_hosts(self.plan.site).unlink(missing_ok=True)
            self._report(f"lab {self.plan.site}: {len(found)} nodes removed")

    def status(self) -> list[NodeStatus]:
        """What every node of the description is doing, and nodes that are in no description."""
        require_machine({"podman": "podman"})
        found = {container.node: container for container in pod.containers(self.plan.site)}

        def look(node: Node) -> NodeStatus:
            container = found.pop(node.name, None)
            running = container is not None and container.is_running
            active = set(node.faults()) if running else set()
            if node.plan.is_mirror:
                active |= set(faults.faults_of_mirror(self.plan.site))
            return NodeStatus(
                node=node.name,
                address=node.plan.address,
                state=container.state if container else "absent",
                ssh=running and node.answers_ssh(),
                faults=tuple(sorted(active)),
            )

        rows = [look(node) for node in self.nodes]
        broken = switches.active_faults(self.plan.site)
        rows += [
            NodeStatus(
                node=name,
                address=address,
                state="running" if switches.is_up(self.plan.site) else "absent",
                ssh=answers_ssh(address),
                faults=tuple(sorted(broken.get(name, ()))),
            )
            for name, address in self.plan.switches.items()
        ]
        rows += [
            NodeStatus(name, "", f"{container.state}, not in the inventory", False, ())
            for name, container in sorted(found.items())
        ]
        return rows

    def fault(self, name: str, node: str, **settings: object) -> None:
        """Make a fault on a node; `railweld.lab.faults.FAULTS` has the names and settings.

        Raises:
            LabError: unknown fault or setting, or the node cannot have it as it is.
        """
        if node in self.plan.switches:
            switches.fault(self.plan.site, name, node, settings)
            return
        faults.make(self, name, node, {key: str(value) for key, value in settings.items()})

    def clear(self, name: str, node: str) -> None:
        """Take a fault away again."""
        if node in self.plan.switches:
            switches.clear(self.plan.site, name, node)
            return
        faults.clear(self, name, node)

    def _sweep(self, wanted: Mapping[str, str]) -> None:
        """Remove what is not wanted, was never finished, or lost its container."""
        kept = set()
        for container in pod.containers(self.plan.site):
            why = UNUSABLE.get(container.state, "")
            if wanted.get(container.node) == container.digest and not why:
                kept.add(container.node)
                continue
            why = why or "no longer as described"
            if container.node in wanted:
                self._report(f"{container.node}: removing the old node ({why})")
            pod.remove_container(container.name)
        prefix = f"railweld-{self.plan.site}-"
        keep = {f"{prefix}{node}-{kind}" for node in kept for kind in VOLUMES}
        if wanted:
            keep.add(self._shared_volume)
        pod.remove_volumes([name for name in self._volumes() if name not in keep])

    @property
    def _shared_volume(self) -> str:
        # No node has a name with a dot, so none has a volume of this name.
        return f"railweld-{self.plan.site}.shared"

    def _create_volume(self, name: str) -> None:
        podman("volume", "create", "--label", f"{pod.LABEL_LAB}={self.plan.site}", name)

    def _volumes(self) -> list[str]:
        """Volumes of this lab, with or without a container."""
        done = podman(
            "volume", "ls", "--filter", f"label={pod.LABEL_LAB}={self.plan.site}",
            "--format", "{{.Name}}",
        )  # fmt: skip
        return done.stdout.split()

    def _create(self, node: NodePlan, image: str, digest: str) -> None:
        name = self.plan.container(node.name)
        pod.remove_container(name)
        mounts = ["--volume", f"{self._shared_volume}:{SHARED}"]
        for kind, path in VOLUMES.items():
            volume = f"{name}-{kind}"
            self._create_volume(volume)
            mounts += ["--volume", f"{volume}:{path}"]
        if node.is_mirror:
            folder = mirror.lab_mirror_dir(self.plan.site)
            mounts += ["--volume", f"{mirror.mirror_root()}:/srv/railweld-lab/builds:ro"]
            mounts += ["--volume", f"{folder}:/srv/railweld-lab/lab:ro"]
        podman(
            "create",
            "--name", name,
            "--hostname", node.name,
            "--label", f"{pod.LABEL_LAB}={self.plan.site}",
            "--label", f"{pod.LABEL_NODE}={node.name}",
            "--label", f"{pod.LABEL_DIGEST}={digest}",
            "--network",
            f"{self.plan.network}:ip={node.address},mac={node.mac},interface_name=eth0",
            "--network", f"{self.plan.fabric_network}:interface_name=lab-fabric",
            "--no-hosts", "--dns", "none",
            "--restart", "always",
            "--privileged", "--cgroupns=private", "--systemd=false", "--env", "container=podman",
            # systemd ends on SIGRTMIN+3.
            "--stop-signal", "37",
            "--tmpfs", "/run:rw,exec,mode=755",
            "--tmpfs", "/run/lock",
            "--tmpfs", "/tmp:rw,exec,mode=1777",  # noqa: S108 - inside the container
            "--sysctl", "net.ipv4.ip_forward=1",
            # Limits that the machine can grant without CAP_SYS_RESOURCE.
            "--ulimit", "nofile=20000:20000",
            "--ulimit", "nproc=10000:10000",
            *mounts,
            image,
            "/lib/systemd/systemd",
        )  # fmt: skip
        podman("cp", "-", f"{name}:/", stdin=self._identity(node))

    def _identity(self, node: NodePlan) -> bytes:
        """A tar of the files that make this node different from the next."""
        public_key = access.ssh_key(self.plan.site).with_suffix(".pub").read_text()
        apt_key = (mirror.lab_mirror_dir(self.plan.site) / mirror.KEY_FILE).read_text()
        hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + "".join(
            f"{other.address} {other.name}\n" for other in self.plan.nodes
        )
        # Of its own: systemd would take the one that dbus left in the image.
        machine_id = uuid.uuid4().hex
        keyring = "/etc/apt/keyrings/railweld-lab.asc"
        source = f"deb [signed-by={keyring}] http://{self.plan.mirror.address}/debian /\n"
        gateway = "" if node.is_mirror else self.plan.mirror.address
        profile = {
            **node.hardware,
            "kernel": kernel.running_kernel(),
            "address": f"{node.address}/{self.plan.subnet.prefixlen}",
            # The way out of the management network ends at the mirror node.
            "gateway": gateway,
        }
        files: dict[str, tuple[str, int]] = {
            "/root/.ssh/authorized_keys": (public_key, 0o600),
            "/etc/hosts": (hosts, 0o644),
            # Sites have a resolver. The lab's refuses every question, so none waits for an answer.
            "/etc/resolv.conf": (f"nameserver {self.plan.mirror.address}\n", 0o644),
            "/etc/machine-id": (f"{machine_id}\n", 0o444),
            "/var/lib/dbus/machine-id": (f"{machine_id}\n", 0o444),
            keyring: (apt_key, 0o644),
            "/etc/apt/sources.list.d/railweld-lab.list": (source, 0o644),
            "/etc/railweld-lab": (f"{self.plan.site} {node.name} {profile['profile']}\n", 0o644),
            "/etc/default/grub": (self._boot_settings(node), 0o644),
            "/var/lib/railweld-lab/profile.json": (json.dumps(profile, indent=1) + "\n", 0o644),
            FABRIC: (json.dumps(self.plan.fabric) + "\n", 0o644),
        }
        return tar_of(files)

    @staticmethod
    def _boot_settings(node: NodePlan) -> str:
        parameters = " ".join(node.hardware["kernel_parameters"])
        return (
            "# Boot settings; update-grub reads them.\n"
            "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\n"
            f'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="{parameters}"\n'
        )

    def _write_known_hosts(self) -> None:
        keys = {
            node.name: (node.plan.address, node.read("/etc/ssh/ssh_host_ed25519_key.pub"))
            for node in self.nodes
        }
        access.write_known_hosts(self.plan.site, keys, switches.known_hosts(self.plan.site))

    def _each(
        self, nodes: Sequence[Node], action: Callable[[Node], None], word: str | None
    ) -> None:
        """Do something on every node, a few at a time; report all failures together."""
        failures: list[str] = []
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            futures = {pool.submit(action, node): node for node in nodes}
            for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
                node = futures[future]
                try:
                    future.result()
                except LabError as error:
                    failures.append(str(error))
                    continue
                if word:
                    self._report(f"{node.name} ({node.plan.address}) {word}, {count}/{len(nodes)}")
        if failures:
            raise LabError("\n".join(failures))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` of a lab at a time. The kernel drops the lock with the process."""
        waiting = f"lab {self.plan.site}: another up or down is at work, waiting for it"
        path = access.lab_state_dir(self.plan.site) / "lock"
        with held(path, lambda: self._report(waiting)):
            yield


def answers_ssh(address: str) -> bool:
    """True if an SSH server at this address sends its greeting."""
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            connection.settimeout(5)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def tar_of(files: Mapping[str, tuple[str, int]]) -> bytes:
    """A tar archive of text files owned by root; `.ssh` and its parents get sshd's modes."""
    buffer = io.BytesIO()
    folders: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (text, mode) in files.items():
            parent = os.path.dirname(path)  # noqa: PTH120 - a path in the archive
            if parent.endswith("/.ssh") and parent not in folders:
                folders.add(parent)
                entry = tarfile.TarInfo(parent.lstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(entry)
            content = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
