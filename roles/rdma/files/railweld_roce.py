#!/usr/bin/env python3
# Managed by railweld: role rdma.
"""Set and show the RoCE host side of this node.

usage: railweld-roce [--config FILE] {apply,status}

  apply   change what differs from the configuration, one line per change
  status  say what differs and exit 1, or exit 0

These settings live in the drivers and are gone after a reboot or a driver reload; the unit
railweld-roce.service runs `apply` at boot. The values come from the site description and are the
same that the switches carry.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

CONFIG = "/etc/railweld/roce.json"


class DeviceError(Exception):
    """One device could not be read or set; the others still are."""


def run(*argv):
    """Run a tool and return its output; an error names the command and its last line."""
    try:
        done = subprocess.run(
            argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise DeviceError(f"{argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise DeviceError(f"{' '.join(argv)}: exit {done.returncode}: {last}")
    return done.stdout


def read(path):
    """Return the text of a kernel file."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise DeviceError(f"{path}: cannot read: {error.strerror}") from error


def write(path, value):
    """Write a kernel file; the kernel answers a bad value with an errno."""
    try:
        path.write_text(f"{value}\n")
    except OSError as error:
        raise DeviceError(f"{path}: cannot write {value}: {error.strerror}") from error


def number(text):
    """Return the number in a kernel file: "48", "0x30", or with OFED "Global tclass=104"."""
    found = re.search(r"(?:^|=)\s*(0x[0-9a-fA-F]+|\d+)", text)
    return int(found.group(1), 0) if found else None


class Mlnx:
    """Trust, DSCP map and PFC through OFED's mlnx_qos."""

    program = "mlnx_qos"

    def __init__(self, netdev):
        self.netdev = netdev
        self.text = run("mlnx_qos", "-i", netdev)

    def _set(self, option):
        run("mlnx_qos", "-i", self.netdev, option)

    def host_dcbx(self):
        """True when the host decides, False when the firmware negotiates, None when unknown."""
        found = re.search(r"DCBX mode:\s*(\S+)", self.text)
        return found.group(1).lower() == "os" if found else None

    def set_host_dcbx(self):
        """Take the decision from the firmware."""
        self._set("--dcbx=os")

    def trust(self):
        """Which field the port sorts by."""
        found = re.search(r"Priority trust state:\s*(\S+)", self.text)
        return found.group(1) if found else None

    def set_trust(self):
        """Sort by DSCP."""
        self._set("--trust=dscp")

    def priority_of(self, dscp):
        """Priority of a code point."""
        for priority, codes in re.findall(r"prio:(\d+)\s+dscp:([\d,]*)", self.text):
            if dscp in [int(code) for code in codes.split(",") if code]:
                return int(priority)
        return None

    def set_priority(self, dscp, priority):
        """Put a code point into a priority."""
        self._set(f"--dscp2prio=set,{dscp},{priority}")

    def pfc(self):
        """The eight PFC switches."""
        found = re.search(r"^\s*enabled\s+((?:[01]\s+){7}[01])", self.text, re.MULTILINE)
        return [bit == "1" for bit in found.group(1).split()] if found else None

    def set_pfc(self, wanted):
        """Set all eight."""
        self._set("--pfc=" + ",".join("1" if on else "0" for on in wanted))


class Dcb:
    """The same through iproute2's dcb and the mainline driver.

    The mainline driver sorts by DSCP as soon as one DSCP entry is in the APP table.
    """

    program = "dcb"

    def __init__(self, netdev):
        self.netdev = netdev
        app = run("dcb", "-N", "app", "show", "dev", netdev, "dscp-prio")
        self.map = {int(code): int(prio) for code, prio in re.findall(r"(\d+):(\d)", app)}
        self.prio_pfc = run("dcb", "pfc", "show", "dev", netdev, "prio-pfc")

    def host_dcbx(self):
        """True when the host decides, False when the firmware negotiates, None when unknown."""
        try:
            words = run("dcb", "dcbx", "show", "dev", self.netdev).split()
        except DeviceError:
            return None  # the driver has no DCBX object: nothing negotiates
        if not {"cee", "ieee", "host", "lld-managed"} & set(words):
            return None
        return "host" in words

    def set_host_dcbx(self):
        """Take the decision from the firmware."""
        run("dcb", "dcbx", "set", "dev", self.netdev, "host", "ieee")

    def trust(self):
        """Which field the port sorts by."""
        return "dscp" if self.map else "pcp"

    def set_trust(self):
        """Nothing to do: the first DSCP entry, set next, switches the port over."""

    def priority_of(self, dscp):
        """Priority of a code point."""
        return self.map.get(dscp)

    def set_priority(self, dscp, priority):
        """Put a code point into a priority."""
        run("dcb", "app", "replace", "dev", self.netdev, "dscp-prio", f"{dscp}:{priority}")

    def pfc(self):
        """The eight PFC switches."""
        found = re.findall(r"([0-7]):(on|off)", self.prio_pfc)
        return [state == "on" for _, state in sorted(found)] if len(found) == 8 else None

    def set_pfc(self, wanted):
        """Set all eight."""
        on = [f"{priority}:on" for priority, state in enumerate(wanted) if state]
        run("dcb", "pfc", "set", "dev", self.netdev, "prio-pfc", "all:off", *on)


TOOLS = {"doca": Mlnx, "inbox": Dcb}


def congestion_files(config, device, root):
    """Congestion control of one port as {file: value}: where OFED or mainline keeps it."""
    ofed = root / "sys/class/net" / device["netdev"] / "ecn"
    if ofed.is_dir():
        priority = str(config["priority"])
        return {
            ofed / "roce_np/cnp_dscp": config["cnp_dscp"],
            ofed / "roce_np/cnp_802p_prio": config["cnp_priority"],
            ofed / "roce_np/enable" / priority: 1,
            ofed / "roce_rp/enable" / priority: 1,
        }
    # The name of the adapter's PCI device; mainline keeps its settings under that in debugfs.
    address = (root / "sys/class/infiniband" / device["hca"] / "device").resolve().name
    mainline = root / "sys/kernel/debug/mlx5" / address / "cc_params"
    if mainline.is_dir():
        return {
            mainline / "np_cnp_dscp": config["cnp_dscp"],
            mainline / "np_cnp_prio_mode": 0,
            mainline / "np_cnp_prio": config["cnp_priority"],
        }
    raise DeviceError(
        f"found no setting for congestion notifications, expected {ofed} or {mainline}; "
        "load mlx5_ib, and mount debugfs for the mainline driver"
    )


def class_files(device, root, *, create=False):
    """Default traffic class as (what, file): of plain verbs where OFED is, of rdma_cm."""
    hca, port = device["hca"], str(device["port"])
    verbs = root / "sys/class/infiniband" / hca / "tc" / port / "traffic_class"
    if verbs.exists():
        yield "traffic_class", verbs
    base = root / "sys/kernel/config/rdma_cm"
    if not base.parent.is_dir():
        return  # a kernel without configfs has no such default: programs mark what they send
    if not base.is_dir():
        raise DeviceError(f"{base}: not there; load rdma_cm, and mount configfs")
    if create and not (base / hca).is_dir():
        try:
            (base / hca).mkdir()  # makes the kernel export the settings of this device
        except OSError as error:
            raise DeviceError(f"{base / hca}: {error.strerror}") from error
    yield "default_roce_tos", base / hca / "ports" / port / "default_roce_tos"


def set_class(config, device, root, what):
    """Write one of the default traffic classes."""
    for name, path in class_files(device, root, create=True):
        if name == what:
            write(path, config["tos"])


def differences(config, device, root):
    """Yield (what, found, wanted, setter) for all that differs on one device.

    Lazily: a setter runs before the next thing is read, as trust comes before the map.
    """
    netdev = device["netdev"]
    link = root / "sys/class/net" / netdev
    if not link.is_dir():
        raise DeviceError("no such network device")
    mtu = int(read(link / "mtu"))
    if mtu != config["mtu"]:
        argv = ("ip", "link", "set", "dev", netdev, "mtu", str(config["mtu"]))
        yield "mtu", mtu, config["mtu"], lambda: run(*argv)
    tool = TOOLS[config["stack"]](netdev)
    if tool.host_dcbx() is False:
        yield "dcbx", "firmware", "host", tool.set_host_dcbx
    if tool.trust() != "dscp":
        yield "trust", tool.trust(), "dscp", tool.set_trust
    codes = {config["dscp"]: config["priority"], config["cnp_dscp"]: config["cnp_priority"]}
    for dscp, priority in codes.items():
        if tool.priority_of(dscp) != priority:
            yield (
                f"priority of dscp {dscp}",
                tool.priority_of(dscp),
                priority,
                lambda dscp=dscp, priority=priority: tool.set_priority(dscp, priority),
            )
    wanted = [each == config["priority"] for each in range(8)]
    if tool.pfc() != wanted:
        yield "pfc", tool.pfc(), wanted, lambda: tool.set_pfc(wanted)
    for path, value in congestion_files(config, device, root).items():
        # What this driver or firmware lacks has nothing to say; the marking itself must be there.
        if not path.exists() and not path.name.endswith("cnp_dscp"):
            continue
        if number(read(path)) != value:
            yield path.name, read(path), value, lambda path=path, value=value: write(path, value)
    for what, path in class_files(device, root):
        found = number(read(path)) if path.exists() else None
        if found != config["tos"]:
            yield (
                what,
                found,
                config["tos"],
                lambda what=what: set_class(config, device, root, what),
            )


def wait_for(devices, seconds, root):
    """At boot, wait until udev has named the ports; return at once when they are there."""
    deadline = time.monotonic() + seconds
    while not all((root / "sys/class/net" / each["netdev"]).is_dir() for each in devices):
        if time.monotonic() >= deadline:
            return
        time.sleep(0.5)


def main(argv=None, root="/"):
    """Run one command over all devices; one that fails does not keep the others from theirs."""
    parser = argparse.ArgumentParser(prog="railweld-roce", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("apply", "status"))
    parser.add_argument("--config", default=CONFIG)
    options = parser.parse_args(argv)
    root = Path(root)
    config = json.loads(Path(options.config).read_text())
    program = TOOLS[config["stack"]].program
    if shutil.which(program) is None:
        sys.stderr.write(
            f"railweld-roce: found no {program}, expected it with RDMA stack {config['stack']}; "
            "run the rdma role to install it\n"
        )
        return 1
    if options.command == "apply":
        wait_for(config["devices"], config.get("wait_s", 0), root)
    failed = differing = False
    for device in config["devices"]:
        try:
            for what, found, wanted, setter in differences(config, device, root):
                differing = True
                sys.stdout.write(f"{device['netdev']}: {what}: {found} -> {wanted}\n")
                sys.stdout.flush()  # in the journal, before what the setter may complain about
                if options.command == "apply":
                    setter()
        except DeviceError as error:
            failed = True
            sys.stderr.write(f"railweld-roce: {device['netdev']}: {error}\n")
    return 1 if failed or (differing and options.command == "status") else 0


if __name__ == "__main__":
    sys.exit(main())
