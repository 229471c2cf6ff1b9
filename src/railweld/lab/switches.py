"""The lab's switches: one process of virtual EOS in a network namespace on the lab's network.

The namespace gives every switch its own address and port 22, whatever the machine itself serves
there. What the switches can do and which faults they know is `railweld.lab.veos`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from railweld.lab import access
from railweld.lab.plan import LabPlan
from railweld.lab.podman import networks
from railweld.lab.process import LabError, Report, remove_tree, run

#: How long the process may take until every switch listens; it reads the inventory first.
READY_TIMEOUT_S = 120.0
POLL_S = 0.1


def control_folder(site: str) -> Path:
    """Where the process shows its state and reads its faults."""
    return access.lab_state_dir(site) / "switches"


def up(plan: LabPlan, report: Report) -> None:
    """Serve the inventory's switches; a second call changes nothing."""
    if not plan.switches:
        return
    if _pid(plan.site) is not None and _connected(plan):
        return
    _stop(plan.site)
    _remove_namespace(plan.site)
    # What an earlier life of the switches had saved goes with it, like the nodes' disks.
    remove_tree(control_folder(plan.site))
    _make_namespace(plan)
    control_folder(plan.site).mkdir(parents=True)
    log = control_folder(plan.site) / "log"
    inventory = [part for source in plan.sources for part in ("--inventory", source)]
    with log.open("w") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace(plan.site),
             sys.executable, "-m", "railweld.lab.veos", *inventory],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    _pid_file(plan.site).write_text(f"{process.pid}\n")
    known_hosts = control_folder(plan.site) / "known_hosts"
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not (control_folder(plan.site) / "fleet.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            _stop(plan.site)
            raise LabError(
                f"switches of lab {plan.site}: found none listening, expected "
                f"{', '.join(plan.switches)}\n{log.read_text()[-2000:]}\nsee: {log}"
            )
        time.sleep(POLL_S)
    if not known_hosts.exists():
        raise LabError(f"switches of lab {plan.site}: found no {known_hosts}; see: {log}")
    report(f"{', '.join(plan.switches)} answer as EOS")


def down(site: str) -> None:
    """Stop the switches and remove their namespace. Nothing there is no error."""
    _stop(site)
    _remove_namespace(site)
    remove_tree(control_folder(site))


def known_hosts(site: str) -> str:
    """The switches' lines of the lab's known_hosts file."""
    path = control_folder(site) / "known_hosts"
    return path.read_text() if path.exists() else ""


def is_up(site: str) -> bool:
    """True while the process lives."""
    return _pid(site) is not None


def active_faults(site: str) -> dict[str, list[str]]:
    """Names of the faults that each switch was asked to have."""
    path = control_folder(site) / "faults.json"
    if not path.exists():
        return {}
    wanted: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    return {name: [str(entry["fault"]) for entry in entries] for name, entries in wanted.items()}


def fault(site: str, name: str, switch: str, settings: Mapping[str, object]) -> None:
    """Make a fault on a switch; it acts from the next line on."""
    values = {key: _value(value) for key, value in settings.items()}
    _fleet().set_fault(control_folder(site), switch, name, values)


def clear(site: str, name: str, switch: str) -> None:
    """Take a fault of a switch away."""
    _fleet().clear_faults(control_folder(site), switch, name)


def _value(text: object) -> object:
    """A setting from the command line: JSON where it is JSON, text otherwise."""
    try:
        return json.loads(str(text))
    except json.JSONDecodeError:
        return text


def _fleet() -> ModuleType:
    # The virtual EOS brings an SSH server along; every other command starts without it.
    return importlib.import_module("railweld.lab.veos.fleet")


def namespace(site: str) -> str:
    """Name of the network namespace that the switches live in."""
    return f"railweld-{site}-switches"


def _link(site: str) -> str:
    """Name of the cable between bridge and namespace; an interface name has 15 characters."""
    return f"rwsw{hashlib.sha256(site.encode()).hexdigest()[:8]}"


def _pid_file(site: str) -> Path:
    return access.lab_state_dir(site) / "switches.pid"


def _pid(site: str) -> int | None:
    """The process, if it is still ours: a number may have gone to another one since."""
    try:
        pid = int(_pid_file(site).read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"railweld.lab.veos" in argv else None


def _stop(site: str) -> None:
    pid = _pid(site)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while _pid(site) is not None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if _pid(site) is not None:
            os.kill(pid, signal.SIGKILL)
    _pid_file(site).unlink(missing_ok=True)


def _bridge(plan: LabPlan) -> str:
    return str(networks()[plan.network]["network_interface"])


def _connected(plan: LabPlan) -> bool:
    """True if the cable hangs on the bridge: podman makes a new bridge after the last node went."""
    master = Path(f"/sys/class/net/{_link(plan.site)}/master")
    return master.exists() and master.resolve().name == _bridge(plan)


def _make_namespace(plan: LabPlan) -> None:
    space, link = namespace(plan.site), _link(plan.site)
    run(["ip", "netns", "add", space])
    run(["ip", "link", "add", link, "type", "veth", "peer", "name", "ma1", "netns", space])
    run(["ip", "link", "set", link, "master", _bridge(plan), "up"])
    for device in ("lo", "ma1"):
        run(["ip", "-n", space, "link", "set", device, "up"])
    for address in plan.switches.values():
        network = f"{address}/{plan.subnet.prefixlen}"
        run(["ip", "-n", space, "address", "add", network, "dev", "ma1"])


def _remove_namespace(site: str) -> None:
    # The cable goes with its end in the namespace, or alone when it never got there.
    run(["ip", "netns", "delete", namespace(site)], check=False)
    run(["ip", "link", "delete", _link(site)], check=False)
