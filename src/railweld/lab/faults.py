"""Every fault of the lab by name: what it does, its settings, and where it is made."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from railweld.lab import mirror
from railweld.lab.process import LabError
from railweld.lab.vendor.programs.nccl_tests import SLOW_LINKS
from railweld.names import GROUP_SLURM_HEAD

if TYPE_CHECKING:
    from railweld.lab.lab import Lab, Node


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        text: one line of help.
        settings: settings with their defaults, as the operator writes them.
        on: makes it on the lab's side; None if the node does it itself.
        off: takes it away on the lab's side.
    """

    text: str
    settings: Mapping[str, str] = field(default_factory=dict)
    on: Callable[[Lab, Node, Mapping[str, str]], None] | None = None
    off: Callable[[Lab, Node], None] | None = None


def make(lab: Lab, name: str, node: str, settings: Mapping[str, str]) -> None:
    """Make a fault on a node.

    Raises:
        LabError: unknown fault or setting, or the node cannot have it as it is.
    """
    fault = _known(name)
    unknown = sorted(set(settings) - set(fault.settings))
    if unknown:
        expected = ", ".join(f"{key}={value}" for key, value in fault.settings.items()) or "none"
        raise LabError(f"{name}: found settings {', '.join(unknown)}, expected {expected}")
    handle = lab.node(node)
    if fault.on is not None:
        fault.on(lab, handle, {**fault.settings, **settings})
        return
    given = {key: value for key, value in {**fault.settings, **settings}.items() if value}
    handle.exec([NODE_PROGRAM, "on", name, *(f"{key}={value}" for key, value in given.items())])


def clear(lab: Lab, name: str, node: str) -> None:
    """Take a fault away.

    Raises:
        LabError: unknown fault, or what it took cannot be brought back.
    """
    fault = _known(name)
    handle = lab.node(node)
    if fault.off is not None:
        fault.off(lab, handle)
    elif fault.on is None:
        handle.exec([NODE_PROGRAM, "off", name])


def _known(name: str) -> Fault:
    if name not in FAULTS:
        raise LabError(f"{name}: no such fault, expected one of {', '.join(FAULTS)}")
    return FAULTS[name]


def _power_cut(_lab: Lab, node: Node, settings: Mapping[str, str]) -> None:
    seconds = float(settings["seconds"])
    node.cut_power()
    if seconds >= 0:
        time.sleep(seconds)
        node.start()


def _power_back(_lab: Lab, node: Node) -> None:
    if node.state() != "running":
        node.start()


def _other_versions(lab: Lab, _node: Node, settings: Mapping[str, str]) -> None:
    hide = [word for word in settings["hide"].split(",") if word]
    if not hide:
        raise LabError(
            "repository-version: found no package to hide; give --set hide=NAME or NAME=VERSION, "
            "more separated by commas; a * stands for anything"
        )
    mirror.override(lab.plan.site, settings["repository"], hide)


def _same_versions(lab: Lab, _node: Node) -> None:
    mirror.clear_overrides(lab.plan.site)


def faults_of_mirror(site: str) -> tuple[str, ...]:
    """Active faults of the mirror that are not kept in a node."""
    return ("repository-version",) if mirror.is_overridden(site) else ()


def parse_settings(options: list[str]) -> dict[str, str]:
    """`key=value` options of the command line.

    Raises:
        LabError: an option without `=`.
    """
    wrong = [option for option in options if not re.match(r"[a-z_]+=", option)]
    if wrong:
        raise LabError(f"--set {wrong[0]}: expected key=value")
    return dict(option.split("=", 1) for option in options)


#: Folders in which the stand-in device plugin looks: as a pod for RDMA it sees only /dev.
DEVICE_PLUGIN_FOLDERS = ("/var/lib/railweld-lab", "/dev/railweld-lab")
DEVICE_RESOURCES = ("gpu", "rdma")


def _change_device_plugin(node: Node, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the stand-in device plugins of a node are told, in every place they look."""
    path = f"{DEVICE_PLUGIN_FOLDERS[0]}/device-plugin.json"
    done = node.exec(["cat", path], check=False)
    told: dict[str, Any] = json.loads(done.stdout) if done.ok and done.stdout.strip() else {}
    change(told)
    for folder in DEVICE_PLUGIN_FOLDERS:
        node.exec(["mkdir", "-p", folder])
        node.exec(
            ["dd", f"of={folder}/device-plugin.json", "status=none"],
            stdin=json.dumps(told).encode(),
        )


def _plugin_gone(_lab: Lab, node: Node, settings: Mapping[str, str]) -> None:
    chosen = DEVICE_RESOURCES if settings["resource"] == "all" else (settings["resource"],)
    unknown = set(chosen) - set(DEVICE_RESOURCES)
    if unknown:
        raise LabError(
            f"device-plugin-gone: found resource={unknown.pop()}, expected gpu, rdma or all"
        )
    _change_device_plugin(node, lambda told: told.update(gone=list(chosen)))


def _plugin_back(_lab: Lab, node: Node) -> None:
    _change_device_plugin(node, lambda told: told.update(gone=[]))


def _gpus_unhealthy(_lab: Lab, node: Node, settings: Mapping[str, str]) -> None:
    count = int(settings["count"])
    _change_device_plugin(node, lambda told: told.update(unhealthy={"gpu": count}))


def _gpus_healthy(_lab: Lab, node: Node) -> None:
    _change_device_plugin(node, lambda told: told.update(unhealthy={}))


def _slow_links(lab: Lab) -> dict[str, float]:
    """Planted slow links; every GPU node knows them all, so any of them can tell."""
    for name in lab.plan.fabric:
        done = lab.node(name).exec(["cat", SLOW_LINKS], check=False)
        if done.ok and done.stdout.strip():
            found: dict[str, float] = json.loads(done.stdout)
            return found
    return {}


def _write_slow_links(lab: Lab, links: Mapping[str, float]) -> None:
    for name in lab.plan.fabric:
        lab.node(name).exec(
            ["dd", f"of={SLOW_LINKS}", "status=none"], stdin=json.dumps(links).encode()
        )


def _link_slow(lab: Lab, node: Node, settings: Mapping[str, str]) -> None:
    others = [name for name in lab.plan.fabric if name != node.name]
    chosen = [settings["peer"]] if settings["peer"] else others
    unknown = sorted({node.name, *chosen} - set(lab.plan.fabric))
    if unknown or node.name in chosen:
        raise LabError(
            f"slow-link: found {node.name} and {', '.join(chosen)}, expected two of the nodes with "
            f"GPUs: {', '.join(lab.plan.fabric)}"
        )
    share = float(settings["share"])
    planted = {" ".join(sorted([node.name, peer])): share for peer in chosen}
    _write_slow_links(lab, {**_slow_links(lab), **planted})


def _links_fast(lab: Lab, node: Node) -> None:
    kept = {
        pair: share for pair, share in _slow_links(lab).items() if node.name not in pair.split()
    }
    _write_slow_links(lab, kept)


def _scontrol(lab: Lab, *words: str) -> None:
    heads = [each.name for each in lab.plan.nodes if GROUP_SLURM_HEAD in each.groups]
    if not heads:
        raise LabError(f"found no host in group {GROUP_SLURM_HEAD}, expected the one of slurmctld")
    lab.node(heads[0]).exec(["scontrol", "update", *words])


def _drained(lab: Lab, node: Node, settings: Mapping[str, str]) -> None:
    _scontrol(lab, f"NodeName={node.name}", "State=DRAIN", f"Reason={settings['reason']}")


def _in_service(lab: Lab, node: Node) -> None:
    _scontrol(lab, f"NodeName={node.name}", "State=RESUME")


NODE_PROGRAM = "/usr/lib/railweld-lab/fault"

FAULTS: dict[str, Fault] = {
    "api-stopped": Fault("a control-plane node runs no API server"),
    "apt-lock": Fault("a process holds dpkg's frontend lock", {"seconds": "60"}),
    "build-fails": Fault("no kernel module can be built"),
    "cable-moved": Fault(
        "an adapter's cable leads to another switch port", {"hca": "", "switch": "", "port": ""}
    ),
    "chrony-stopped": Fault("the time daemon is stopped"),
    "clock-offset": Fault(
        "the clock is behind the time server; on the time server: for every node",
        {"ms": "800", "server": ""},
    ),
    "device-plugin-gone": Fault(
        "a device plugin is gone; resource: gpu, rdma or all",
        {"resource": "gpu"},
        _plugin_gone,
        _plugin_back,
    ),
    "disk-full": Fault("a folder lies on a disk that is full", {"path": "/var", "free_kib": "64"}),
    "driver-mismatch": Fault(
        "another driver is loaded than the one on disk, until the reboot", {"version": ""}
    ),
    "gpu-missing": Fault("GPUs are off the bus", {"count": "1"}),
    "gpu-unhealthy": Fault(
        "the device plugin calls GPUs unhealthy", {"count": "1"}, _gpus_unhealthy, _gpus_healthy
    ),
    "hca-down": Fault("an adapter's port has no link", {"hca": ""}),
    "headers-missing": Fault("headers of the running kernel can be had nowhere"),
    "image-missing": Fault(
        "the image of a container is gone from the node, and the container has to start anew",
        {"container": "exporter"},
    ),
    "kubelet-stopped": Fault("the kubelet does not run; the node is NotReady after a while"),
    "link-rate": Fault("an adapter's port runs slower", {"hca": "", "gbps": "25"}),
    "munge-skew": Fault("munge sees another time than the other nodes", {"seconds": "-600"}),
    "no-time-source": Fault("no time server answers the node"),
    "node-drained": Fault(
        "an administrator takes a node out of Slurm",
        {"reason": "maintenance"},
        _drained,
        _in_service,
    ),
    "nouveau-loaded": Fault("nouveau has the GPUs, until the reboot"),
    "power-cut": Fault(
        "every process dies at once; power comes back after some seconds, never if negative",
        {"seconds": "1"},
        _power_cut,
        _power_back,
    ),
    "repository-down": Fault(
        "the mirror refuses the node (mode=silent: does not answer); on the mirror node: everybody",
        {"mode": "refuse"},
    ),
    "repository-version": Fault(
        "a repository of the mirror has other versions than those hidden",
        {"repository": "cuda", "hide": ""},
        _other_versions,
        _same_versions,
    ),
    "secure-boot": Fault(
        "the firmware enforces signatures; enrolled: names of accepted keys",
        {"state": "on", "enrolled": ""},
    ),
    "slow-build": Fault("building a kernel module takes so many seconds", {"seconds": "30"}),
    "slow-link": Fault(
        "nccl-tests between the node and a peer reach a share of their rate; no peer: all",
        {"peer": "", "share": "0.4"},
        _link_slow,
        _links_fast,
    ),
    "slurmctld-restart": Fault("somebody restarts slurmctld; on the Slurm head"),
    "slow-unpack": Fault(
        "unpacking a package takes so many seconds",
        {"package": "nvidia-utils-*", "seconds": "30"},
    ),
    "ssh-cut": Fault(
        "SSH sessions break and new ones are refused (mode=silent: packets vanish)",
        {"seconds": "20", "mode": "reset"},
    ),
    "unattended-upgrade": Fault(
        "unattended-upgrades is in the middle of an upgrade", {"seconds": "60"}
    ),
}


def table() -> str:
    """The faults as JSON, for `railweld lab fault --json` and the documentation."""
    return json.dumps(
        {name: {"text": f.text, "settings": dict(f.settings)} for name, f in FAULTS.items()},
        indent=1,
    )
