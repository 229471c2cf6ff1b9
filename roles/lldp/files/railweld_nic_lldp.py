#!/usr/bin/env python3
# Managed by railweld: role lldp.
"""Switch off the LLDP agents in the firmware of network adapters, or show which are on.

usage: railweld-nic-lldp [--config FILE] {apply,status}

Such an agent swallows the frames that lldpd should see, and can take priorities and flow control
from the switch behind the host's back. The driver flags of Intel adapters are gone after a reboot;
the unit railweld-nic-lldp.service sets them at boot. The settings of NVIDIA adapters are kept in
their flash and hold from the next reboot on.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFIG = "/etc/railweld/nic-lldp.json"


class DeviceError(Exception):
    """One adapter could not be read or set; the others still are."""


def run(*argv):
    """Run a tool and return its output; an error names the command and its last line."""
    done = subprocess.run(
        argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise DeviceError(f"{' '.join(argv)}: exit {done.returncode}: {last}")
    return done.stdout


def adapters(root):
    """Yield (network device, driver, PCI address) of every physical network device."""
    for link in sorted(Path(root).glob("sys/class/net/*/device/driver")):
        device = link.parent
        yield device.parent.name, link.resolve().name, device.resolve().name


def flag_differences(flags, netdev, driver):
    """Driver flags (ethtool) that differ, as (what, found, wanted, setter)."""
    for name, wanted in sorted(flags.get(driver, {}).items()):
        text = run("ethtool", "--show-priv-flags", netdev)
        found = re.search(rf"^{re.escape(name)}\s*:\s*(on|off)", text, re.MULTILINE)
        # A flag that this firmware does not know stands for an agent that it does not have.
        if found and found.group(1) != wanted:
            yield (
                name,
                found.group(1),
                wanted,
                lambda name=name, wanted=wanted: run(
                    "ethtool", "--set-priv-flags", netdev, name, wanted
                ),
            )


def flash_differences(settings, tool, address):
    """Settings in the adapter's flash that differ, as (what, found, wanted, setter)."""
    for name, wanted in sorted(settings.items()):
        try:
            text = run(tool, "-d", address, "query", name)
        except DeviceError:
            continue  # not a setting of this adapter
        found = re.search(
            rf"^\s*\*?\s*{re.escape(name)}\s+(?:.*\()?(\d+)\)?\s*$", text, re.MULTILINE
        )
        if found and int(found.group(1)) != int(wanted):
            yield (
                name,
                int(found.group(1)),
                int(wanted),
                lambda name=name, wanted=wanted: run(
                    tool, "-y", "-d", address, "set", f"{name}={wanted}"
                ),
            )


def differences(config, tool, adapter):
    """All that differs on one adapter."""
    netdev, driver, address = adapter
    yield from flag_differences(config["flags"], netdev, driver)
    if driver == "mlx5_core" and config["mlx5"] and tool:
        yield from flash_differences(config["mlx5"], tool, address)


def main(argv=None, root="/"):
    """Run one command over all adapters."""
    parser = argparse.ArgumentParser(prog="railweld-nic-lldp", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("apply", "status"))
    parser.add_argument("--config", default=CONFIG)
    options = parser.parse_args(argv)
    config = json.loads(Path(options.config).read_text())
    tool = next((name for name in ("mlxconfig", "mstconfig") if shutil.which(name)), None)
    failed = differing = False
    for adapter in adapters(root):
        try:
            for what, found, wanted, setter in differences(config, tool, adapter):
                differing = True
                sys.stdout.write(f"{adapter[0]}: {what}: {found} -> {wanted}\n")
                if options.command == "apply":
                    setter()
        except DeviceError as error:
            failed = True
            sys.stderr.write(f"railweld-nic-lldp: {adapter[0]}: {error}\n")
    return 1 if failed or (differing and options.command == "status") else 0


if __name__ == "__main__":
    sys.exit(main())
