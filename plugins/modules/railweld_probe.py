#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Reads the state of a node in one round trip. The only reader that roles, verify and doctor use.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railweld_cluster_probe import read_cluster
from ansible.module_utils.railweld_gpu_health import read_health
from ansible.module_utils.railweld_locks import any_lock_holder
from ansible.module_utils.railweld_slurm_probe import read_slurm

DOCUMENTATION = r"""
module: railweld_probe
short_description: Observe everything the railweld roles need to know about a node
description:
  - Reads the operating system, kernel, driver, GPUs, HCAs, network, packages, time and the records
    that earlier role runs left, in one round trip. Changes nothing.
  - Needs nothing but Python 3.8 and what the node has. A tool that is absent makes its part of
    the answer null, never an error.
options:
  package_patterns:
    description: Shell patterns of package names to report.
    type: list
    elements: str
    default: []
  files:
    description: Files whose SHA-256 is reported under C(files).
    type: list
    elements: path
    default: []
  contents:
    description: Files whose text (at most 64 KiB) is reported beside their SHA-256.
    type: list
    elements: path
    default: []
  units:
    description: Further systemd units to report.
    type: list
    elements: str
    default: []
  candidates:
    description: Packages for which apt's candidate and available versions are reported.
    type: list
    elements: str
    default: []
  carry:
    description:
      - Areas that were observed earlier in this run and that the caller cannot have changed since
        (C(hcas) with C(rdma); the driver's areas); they are returned as given.
    type: dict
    default: {}
  urls:
    description: Addresses whose reachability from the node is reported.
    type: list
    elements: str
    default: []
  url_timeout:
    description: Seconds to wait for each address.
    type: int
    default: 10
  cluster:
    description: Whether to look at container runtime, kubelet and pod network too.
    type: bool
    default: false
  health:
    description: Whether to read the GPUs' health too. Takes a second or two more.
    type: bool
    default: false
  slurm:
    description: Whether to look at munge and Slurm's daemons too.
    type: bool
    default: false
  await_member:
    description:
      - With C(cluster), look at the node until it is a member of its cluster as told
        here. When time is up, what there is is reported.
    type: dict
    suboptions:
      seconds:
        description: How long to wait at most.
        type: int
        required: true
      ready:
        description: Wait until the node is Ready and Services and cluster DNS run on it.
        type: bool
        default: false
      kubelet_version:
        description: Wait until the kubelet registered with this version.
        type: str
      steady:
        description: For how many seconds in a row it has to be so.
        type: int
        default: 0
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Observe the node
  railweld_probe:
"""

RETURN = r"""
node:
  description: The observation, one key per area; each area is a function of the module.
  type: dict
  returned: always
"""

COMMAND_TIMEOUT_S = 30
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
CONTENT_LIMIT = 64 * 1024
PATH = ":".join(
    (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/usr/local/cuda/bin:/opt/mellanox/iproute2/sbin:/opt/nvidia/bin",
    )
)
#: Units that decide about the roles. Those that a role adds are given by the caller.
UNITS = (
    "NetworkManager.service",
    "apt-daily.service",
    "apt-daily.timer",
    "apt-daily-upgrade.service",
    "apt-daily-upgrade.timer",
    "chrony.service",
    "containerd.service",
    "kubelet.service",
    "lldpd.service",
    "networking.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "ntp.service",
    "ntpsec.service",
    "openibd.service",
    "openntpd.service",
    "slurmd.service",
    "systemd-networkd.service",
    "systemd-timesyncd.service",
    "unattended-upgrades.service",
)
APT_UNITS = (
    "apt-daily.service",
    "apt-daily.timer",
    "apt-daily-upgrade.service",
    "apt-daily-upgrade.timer",
    "unattended-upgrades.service",
)
TIME_COMPETITORS = (
    "ntp.service",
    "ntpsec.service",
    "openntpd.service",
    "systemd-timesyncd.service",
)
#: In-tree drivers that take the GPU before NVIDIA's can.
RIVAL_DRIVERS = ("nouveau", "nova", "nova_core", "nova_drm")
#: A pending reboot that concerns the base stage, by the package that asked for it.
REBOOT_PACKAGES = ("linux-image*", "linux-modules*", "nvidia*", "libnvidia*", "doca*", "mlnx*")


class Node:
    """Access to the machine: files below a root, and commands. Tests give both of their own."""

    def __init__(self, root="/", run=None, release=None):
        self.root = Path(root)
        self.run = run or run_command
        self.release = release or os.uname().release

    def path(self, name):
        """Return a path of the node as a path that this process can open."""
        return self.root / str(name).lstrip("/")

    def read(self, name, default=None):
        """Return a file's text without the final newline, or the default when unreadable."""
        try:
            return self.path(name).read_text(errors="replace").rstrip("\n")
        except OSError:
            return default

    def sha256(self, name):
        """Return the SHA-256 of a file, None when it cannot be read."""
        digest = hashlib.sha256()
        try:
            with self.path(name).open("rb") as handle:
                for block in iter(lambda: handle.read(1 << 20), b""):
                    digest.update(block)
        except OSError:
            return None
        return digest.hexdigest()

    def glob(self, pattern):
        """Return the node's paths that match a pattern, sorted."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def names(self, folder):
        """Return the sorted entries of a folder, empty when there is none."""
        try:
            return sorted(path.name for path in self.path(folder).iterdir())
        except OSError:
            return []

    def exists(self, name):
        """Tell whether the path is there."""
        return self.path(name).exists()

    def output(self, *argv):
        """Return a command's output when it ended well, else None."""
        code, out, _ = self.run(argv)
        return out if code == 0 else None

    def json(self, *argv):
        """Return a command's JSON output, None when it failed or printed something else."""
        text = self.output(*argv)
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None


def run_command(argv):
    """Run a command in the C locale and return (code, stdout, stderr); 127 when it is absent."""
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C", PATH=PATH)
    if shutil.which(argv[0], path=PATH) is None:
        return 127, "", f"{argv[0]}: not installed"
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"{argv[0]}: no answer within {COMMAND_TIMEOUT_S} s"
    except OSError as error:
        return 126, "", f"{argv[0]}: {error}"
    return (
        done.returncode,
        done.stdout.decode(errors="replace").rstrip("\n"),
        done.stderr.decode(errors="replace").rstrip("\n"),
    )


# --- operating system and kernel -------------------------------------------------------------


def parse_assignments(text):
    """Parse shell-style NAME=value lines, as in os-release and /etc/default files."""
    values = {}
    for line in (text or "").splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        try:
            words = shlex.split(value, comments=True)
        except ValueError:
            continue
        values[name.strip()] = " ".join(words)
    return values


def read_os(node):
    """Distribution, architecture, names and the Python that runs this."""
    release = parse_assignments(node.read("/etc/os-release"))
    return {
        "id": release.get("ID"),
        "version_id": release.get("VERSION_ID"),
        "codename": release.get("VERSION_CODENAME"),
        "arch": os.uname().machine,
        "hostname": os.uname().nodename,
        "machine_id": node.read("/etc/machine-id"),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
    }


def version_key(text):
    """Sort key that orders kernel releases: numbers as numbers."""
    parts = re.findall(r"\d+|[a-z]+", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def secure_boot(node):
    """on, off or unsupported, from mokutil or else from the firmware's own variable."""
    code, out, err = node.run(("mokutil", "--sb-state"))
    text = out + err
    if "SecureBoot enabled" in text:
        return "on"
    if "SecureBoot disabled" in text:
        return "off"
    if code not in (0, 127):
        return "unsupported"
    for name in node.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        try:
            # Four bytes of attributes, then the value.
            return "on" if node.path(name).read_bytes()[4:5] == b"\x01" else "off"
        except OSError:
            return "unsupported"
    return "unsupported"


def secure_boot_keys(node):
    """Names of the keys that the firmware accepts modules from; null when it cannot say."""
    text = node.output("mokutil", "--list-enrolled")
    if text is None:
        return None
    names = re.findall(r"Subject:.*?CN ?= ?([^,/\n]+)", text)
    return sorted({name.strip() for name in names})


def configured_parameters(node, files):
    """Kernel parameters that boot loader settings ask for at the next boot."""
    values = {}
    for name in files:
        for line in (node.read(name) or "").splitlines():
            match = re.match(r"\s*(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?)=(.*)", line)
            if not match:
                continue
            variable, plus, value = match.groups()
            try:
                text = " ".join(shlex.split(value, comments=True))
            except ValueError:
                continue
            for other in ("GRUB_CMDLINE_LINUX_DEFAULT", "GRUB_CMDLINE_LINUX"):
                for spelling in ("${" + other + "}", "$" + other):
                    text = text.replace(spelling, values.get(other, ""))
            values[variable] = (values.get(variable, "") + " " + text if plus else text).strip()
    words = (
        values.get("GRUB_CMDLINE_LINUX", "") + " " + values.get("GRUB_CMDLINE_LINUX_DEFAULT", "")
    ).split()
    return sorted(set(words))


def kernel_option(node, name):
    """True or False for a build option of the running kernel, None when nothing tells."""
    for path in (f"/boot/config-{node.release}", f"/lib/modules/{node.release}/config"):
        text = node.read(path)
        if text is not None:
            return re.search(rf"^{name}=[ym]$", text, re.MULTILINE) is not None
    try:
        text = gzip.decompress(node.path("/proc/config.gz").read_bytes()).decode(errors="replace")
    except OSError:
        return None
    return re.search(rf"^{name}=[ym]$", text, re.MULTILINE) is not None


def cgroup_version(node):
    """v1, v2 or hybrid."""
    if node.exists("/sys/fs/cgroup/cgroup.controllers"):
        return "v2"
    return "hybrid" if node.exists("/sys/fs/cgroup/unified/cgroup.controllers") else "v1"


def huge_pages(node):
    """Pages of each size that are reserved, by size in KiB; and when the kernel makes its own."""
    found = {}
    for name in node.names("/sys/kernel/mm/hugepages"):
        size = re.match(r"hugepages-(\d+)kB$", name)
        count = _int(node.read(f"/sys/kernel/mm/hugepages/{name}/nr_hugepages"))
        if size and count is not None:
            found[size.group(1)] = count
    modes = node.read("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", modes)
    return {"reserved": found, "transparent": chosen.group(1) if chosen else None}


def boot_identity(node):
    """A text that changes with every boot, in containers too, which share the kernel's boot id."""
    init = (node.read("/proc/1/stat") or "").rpartition(")")[2].split()
    started = init[19] if len(init) > 19 else "?"
    return "{}/{}".format(node.read("/proc/sys/kernel/random/boot_id", "?"), started)


def read_kernel(node, packages):
    """The running kernel, the newest installed one, its headers, boot parameters, Secure Boot."""
    images = {name[len("/boot/vmlinuz-") :] for name in node.glob("/boot/vmlinuz-[0-9]*")}
    installed = sorted(images, key=version_key)
    headers = "linux-headers-" + node.release
    has_headers = packages.get(headers, {}).get("status") == "ii" or node.exists(
        f"/lib/modules/{node.release}/build/Makefile"
    )
    try:
        boot_time = int(node.path("/proc/1").stat().st_mtime)
    except OSError:
        boot_time = None
    state = secure_boot(node)
    return {
        "running": node.release,
        "installed": installed,
        "newest_installed": installed[-1] if installed else None,
        "cmdline": (node.read("/proc/cmdline") or "").split(),
        "configured": configured_parameters(node, node.glob("/etc/default/grub.d/*railweld*.cfg")),
        "headers_installed": has_headers,
        "headers_package": headers,
        "secure_boot": state,
        "p2pdma": kernel_option(node, "CONFIG_PCI_P2PDMA"),
        "secure_boot_keys": secure_boot_keys(node) if state == "on" else None,
        "cgroup": cgroup_version(node),
        "huge_pages": huge_pages(node),
        "boot_time": boot_time,
        "boot": boot_identity(node),
    }


def read_modules(node):
    """Names of the loaded kernel modules, as lsmod prints them."""
    lines = (node.output("lsmod") or "").splitlines()[1:]
    return sorted(line.split()[0] for line in lines if line.strip())


def modprobe_rules(node):
    """Names that a modprobe.d file blacklists, and those whose install line is a refusal."""
    refused = set()
    for folder in ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"):
        for name in node.glob(folder + "/*.conf"):
            for line in (node.read(name) or "").splitlines():
                words = line.split()
                if len(words) >= 2 and words[0] == "blacklist":
                    refused.add(words[1].replace("-", "_"))
    return sorted(refused)


# --- GPUs ------------------------------------------------------------------------------------


def parse_modinfo(text):
    """First value of each field that modinfo prints."""
    fields = {}
    for line in (text or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def flavour(text):
    """open or proprietary, from /proc/driver/nvidia/version or modinfo's license."""
    if not text:
        return None
    return "open" if "Open Kernel Module" in text or "Dual MIT/GPL" in text else "proprietary"


def read_driver(node, units):
    """The loaded driver, the one on disk, its signer, and what nvidia-smi says to an operator."""
    on_disk = parse_modinfo(node.output("modinfo", "nvidia"))
    loaded_text = node.read("/proc/driver/nvidia/version")
    loaded = node.read("/sys/module/nvidia/version")
    dkms = [line for line in (node.output("dkms", "status") or "").splitlines() if "nvidia" in line]
    persistence = units.get("nvidia-persistenced.service", {})
    peermem = parse_modinfo(node.output("modinfo", "nvidia_peermem")) if on_disk else {}
    return {
        "loaded": loaded,
        "on_disk": on_disk.get("version"),
        "kernel_flavour": flavour(loaded_text),
        "disk_flavour": flavour(on_disk.get("license")) if on_disk else None,
        "signer": on_disk.get("signer") or None,
        "peermem_on_disk": peermem.get("version"),
        "dkms": dkms,
        # The GPU operator's driver container mounts its root file system here.
        "container": node.exists("/run/nvidia/driver/etc"),
        "persistence_unit": persistence.get("active") == "active",
    }


GPU_FIELDS = (
    ("index", "index"),
    ("name", "name"),
    ("uuid", "uuid"),
    ("pci.bus_id", "bus_id"),
    ("driver_version", "driver_version"),
    ("persistence_mode", "persistence"),
    ("ecc.mode.current", "ecc"),
    ("ecc.mode.pending", "ecc_pending"),
    ("mig.mode.current", "mig"),
    ("mig.mode.pending", "mig_pending"),
)
_SMI_SWITCHES = {"Enabled": True, "Disabled": False}


def parse_gpus(text):
    """Parse nvidia-smi's CSV of GPU_FIELDS. N/A becomes null, Enabled and Disabled booleans."""
    gpus = []
    for line in (text or "").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(GPU_FIELDS):
            continue
        gpu = {}
        for position, (_, key) in enumerate(GPU_FIELDS):
            value = values[position]
            if value in ("[N/A]", "N/A", "[Not Supported]"):
                gpu[key] = None
            else:
                gpu[key] = _SMI_SWITCHES.get(value, value)
        gpu["index"] = int(values[0]) if values[0].isdecimal() else None
        gpu["name"] = re.sub(r"^NVIDIA ", "", values[1])
        gpus.append(gpu)
    return gpus


def read_gpus(node):
    """What nvidia-smi lists, and its error when it cannot."""
    query = ",".join(field for field, _ in GPU_FIELDS)
    code, out, err = node.run(("nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"))
    if code == 127:
        return [], {"ok": False, "installed": False, "error": "nvidia-smi is not installed"}
    if code != 0:
        text = (out + "\n" + err).strip()
        return [], {"ok": False, "installed": True, "error": text or f"exit code {code}"}
    return parse_gpus(out), {"ok": True, "installed": True, "error": ""}


def read_pci(node):
    """Counts on the PCI bus, which is there before any driver is."""
    counts = {"gpus": 0, "nvswitches": 0, "hcas": 0}
    gpu_ids, hca_ids = [], []
    for name in node.names("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + name
        vendor = node.read(base + "/vendor", "")
        kind = node.read(base + "/class", "")
        if vendor == "0x10de" and kind.startswith("0x03"):
            counts["gpus"] += 1
            gpu_ids.append(name)
        elif vendor == "0x10de" and kind.startswith("0x0680"):
            counts["nvswitches"] += 1
        elif vendor == "0x15b3" and kind.startswith("0x02"):
            counts["hcas"] += 1
            hca_ids.append(name)
    counts["gpu_addresses"] = gpu_ids
    counts["hca_addresses"] = hca_ids
    return counts


def read_fabric_manager(node, units, nvswitches):
    """Version and state of the fabric manager; the GPUs' fabric state where there is a switch."""
    version = None
    for argv in (("nv-fabricmanager", "--version"), ("nv-fabricmanager", "-v")):
        match = re.search(r"(\d+\.\d+(?:\.\d+)*)", node.output(*argv) or "")
        if match:
            version = match.group(1)
            break
    state = None
    if nvswitches:
        state = parse_fabric_state(node.output("nvidia-smi", "-q"))
    unit = units.get("nvidia-fabricmanager.service", {})
    return {
        "version": version,
        "active": unit.get("active") == "active",
        "enabled": unit.get("enabled") == "enabled",
        "fabric_state": state,
    }


def parse_fabric_state(text):
    """`State/Status` of the first GPU's Fabric section, None when it is absent or N/A."""
    lines = (text or "").splitlines()
    for number, line in enumerate(lines):
        if line.strip() == "Fabric":
            values = {}
            for follower in lines[number + 1 : number + 6]:
                name, colon, value = follower.partition(":")
                if colon:
                    values.setdefault(name.strip(), value.strip())
            parts = [values.get("State", "N/A"), values.get("Status", "N/A")]
            return None if parts[0] == "N/A" else "/".join(parts)
    return None


def read_cuda(node):
    """The toolkit that nvcc belongs to, and the compatibility driver if one is installed."""
    text = node.output("nvcc", "--version") or ""
    release = re.search(r"release (\d+\.\d+)", text)
    build = re.search(r"V(\d+\.\d+\.\d+)", text)
    compat = None
    for name in node.glob("/usr/local/cuda*/compat/libcuda.so.*"):
        match = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)$", name)
        if match:
            compat = match.group(1)
    link = node.path("/usr/local/cuda")
    return {
        "nvcc": build.group(1) if build else None,
        "release": release.group(1) if release else None,
        "compat": compat,
        "path": str(link.resolve()) if link.exists() else None,
        "toolkits": [
            name for name in node.glob("/usr/local/cuda-*") if re.search(r"-\d+\.\d+$", name)
        ],
    }


def read_nccl(node):
    """NCCL's version from the library itself, and from its header; not from dpkg."""
    version = None
    for folder in LIBRARY_FOLDERS:
        for name in node.glob(folder + "/libnccl.so.*"):
            match = re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)$", name)
            if match:
                version = match.group(1)
    header = node.read("/usr/include/nccl.h") or ""
    numbers = [
        re.search(rf"#define\s+NCCL_{part}\s+(\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return {
        "version": version,
        "header": ".".join(each.group(1) for each in numbers) if all(numbers) else None,
    }


# --- packages --------------------------------------------------------------------------------


def parse_packages(text, patterns):
    """Parse dpkg-query lines into `{name: {version, status, hold}}` for matching names."""
    packages = {}
    match = pattern_matcher(patterns)
    for line in (text or "").splitlines():
        name, _, rest = line.partition("\t")
        version, _, abbreviation = rest.partition("\t")
        wanted, state = abbreviation[:1], abbreviation[1:2]
        if state in ("n", "") or not match(name):
            continue
        # `ii` means completely installed, held or not; anything else is said as dpkg says it.
        complete = state == "i" and wanted in ("i", "h") and abbreviation[2:3].strip() == ""
        packages[name] = {
            "version": version,
            "status": "ii" if complete else abbreviation.strip(),
            "hold": wanted == "h",
        }
    return packages


def pattern_matcher(patterns):
    """Return a predicate that tells whether a name matches one of the shell patterns."""
    if not patterns:
        return lambda _: False
    matcher = re.compile("|".join(fnmatch.translate(each) for each in patterns))
    return lambda name: matcher.match(name) is not None


def read_dpkg(node):
    """Packages that dpkg calls broken, and who holds a package lock right now."""
    audit = []
    text = node.output("dpkg", "--audit") or ""
    for line in text.splitlines():
        match = re.match(r"^ (\S+)\s", line + " ")
        if match:
            audit.append(match.group(1))
    journal = [name for name in node.names("/var/lib/dpkg/updates") if name.isdecimal()]
    holder = any_lock_holder(node.root)
    return {"audit": sorted(set(audit)), "interrupted": bool(journal), "lock_held_by": holder}


def read_apt(node, units, candidates):
    """Automatic updates, sources, and on request what the repositories offer."""
    periodic = {}
    for line in (node.output("apt-config", "dump", "APT::Periodic") or "").splitlines():
        match = re.match(r'APT::Periodic::(\S+) "(.*)";', line)
        if match:
            periodic[match.group(1)] = match.group(2)
    answer = {
        "units": {name: units.get(name) for name in APT_UNITS},
        "periodic": periodic,
        "sources": node.glob("/etc/apt/sources.list.d/*"),
    }
    if candidates:
        answer["candidates"] = parse_policy(node.output("apt-cache", "policy", *candidates))
    return answer


def parse_policy(text):
    """Parse `apt-cache policy` into `{name: {installed, candidate, versions}}`."""
    found, name = {}, None
    for line in (text or "").splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1]
            found[name] = {"installed": None, "candidate": None, "versions": []}
            continue
        if name is None:
            continue
        match = re.match(r"  (Installed|Candidate): (\S+)", line)
        if match:
            value = match.group(2)
            found[name][match.group(1).lower()] = None if value == "(none)" else value
            continue
        match = re.match(r" (?:\*\*\*|   ) (\S+) -?\d+$", line)
        if match:
            found[name]["versions"].append(match.group(1))
    return found


# --- services and time -----------------------------------------------------------------------


def read_units(node, names):
    """State of systemd units: `{unit: {load, active, sub, enabled}}`; absent units are null."""
    wanted = sorted(set(names))
    text = node.output(
        "systemctl", "show", "--property=Id,LoadState,ActiveState,SubState,UnitFileState", *wanted
    )
    units = dict.fromkeys(wanted)
    for block in (text or "").split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if fields.get("LoadState") not in (None, "not-found"):
            units[fields.get("Id")] = {
                "load": fields.get("LoadState"),
                "active": fields.get("ActiveState"),
                "sub": fields.get("SubState"),
                "enabled": fields.get("UnitFileState"),
            }
    return {name: state for name, state in units.items() if state is not None}


def parse_tracking(text):
    """Parse `chronyc -c tracking`."""
    values = (text or "").split(",")
    if len(values) < 14:
        return None
    try:
        return {
            "refid": values[0],
            "source": values[1],
            "stratum": int(values[2]),
            "offset_s": float(values[4]),
            "root_delay": float(values[10]),
            "root_dispersion": float(values[11]),
            "leap": values[13].strip(),
        }
    except ValueError:
        return None


def read_time(node, units):
    """The time daemon and what it measures. Without a source the offset means nothing: null."""
    unit = units.get("chrony.service")
    state = "absent" if unit is None else ("active" if unit["active"] == "active" else "inactive")
    tracking = (
        parse_tracking(node.output("chronyc", "-c", "tracking")) if state == "active" else None
    )
    answer = {
        "daemon": state,
        "enabled": bool(unit and unit["enabled"] == "enabled"),
        "synced": False,
        "offset_s": None,
        "stratum": None,
        "refid": None,
        "source": None,
        "leap": None,
        "root_delay": None,
        "root_dispersion": None,
        "sources": [],
        "competitors": [
            name for name in TIME_COMPETITORS if units.get(name, {}).get("active") == "active"
        ],
    }
    if tracking:
        answer.update(tracking)
        answer["synced"] = tracking["leap"] != "Not synchronised" and tracking["stratum"] > 0
        if not answer["synced"]:
            answer["offset_s"] = None
        for line in (node.output("chronyc", "-c", "-n", "sources") or "").splitlines():
            fields = line.split(",")
            if len(fields) >= 5:
                answer["sources"].append(
                    {
                        "mode": fields[0],
                        "state": fields[1],
                        "address": fields[2],
                        "reach": fields[5],
                    }
                )
    return answer


# --- HCAs and network ------------------------------------------------------------------------


def after_colon(text):
    """`4: ACTIVE` → `ACTIVE`."""
    return (text or "").partition(":")[2].strip() or None


def parse_rate(text):
    """`100 Gb/sec (4X EDR)` → 100."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb", text or "")
    return int(float(match.group(1))) if match else None


def parse_active_mtu(text):
    """`{hca: active_mtu}` from ibv_devinfo."""
    found, hca = {}, None
    for line in (text or "").splitlines():
        match = re.match(r"hca_id:\s*(\S+)", line)
        if match:
            hca = match.group(1)
        match = re.match(r"\s+active_mtu:\s+(\d+)", line)
        if match and hca:
            found.setdefault(hca, int(match.group(1)))
    return found


def subnet_of(node, folder):
    """InfiniBand: who this port is, who manages its subnet, and whom it may talk to."""
    if node.read(folder + "/link_layer") != "InfiniBand":
        return {}
    keys = (node.read(f"{folder}/pkeys/{row}") for row in node.names(folder + "/pkeys"))
    return {
        "lid": node.read(folder + "/lid"),
        "sm_lid": node.read(folder + "/sm_lid"),
        # The table has 128 rows, most of them empty.
        "pkeys": sorted({key for key in keys if key and int(key, 16)}),
    }


def read_hcas(node):
    """Every RDMA device port: firmware, link, rate, link layer and its network device."""
    hcas = []
    names = node.names("/sys/class/infiniband")
    mtu = parse_active_mtu(node.output("ibv_devinfo")) if names else {}
    for name in names:
        base = "/sys/class/infiniband/" + name
        for port in node.names(base + "/ports"):
            folder = f"{base}/ports/{port}"
            netdevs = node.names(base + "/device/net")
            netdev = node.read(folder + "/gid_attrs/ndevs/0") or (netdevs[0] if netdevs else None)
            hcas.append(
                {
                    "name": name,
                    "port": int(port) if port.isdecimal() else port,
                    "node_guid": node.read(base + "/node_guid"),
                    "fw_version": node.read(base + "/fw_ver"),
                    "board_id": node.read(base + "/board_id"),
                    "hca_type": node.read(base + "/hca_type"),
                    "netdev": netdev,
                    "state": after_colon(node.read(folder + "/state")),
                    "phys_state": after_colon(node.read(folder + "/phys_state")),
                    "rate_gbps": parse_rate(node.read(folder + "/rate")),
                    "link_layer": node.read(folder + "/link_layer"),
                    **subnet_of(node, folder),
                    "active_mtu": mtu.get(name),
                    "tos": node.read(
                        f"/sys/kernel/config/rdma_cm/{name}/ports/{port}/default_roce_tos"
                    ),
                    "traffic_class": node.read(f"{base}/tc/{port}/traffic_class"),
                }
            )
    return hcas


def parse_mlnx_qos(text):
    """Trust mode and the eight PFC bits from mlnx_qos."""
    if not text:
        return {"trust": None, "pfc": None, "dscp_prio": None}
    trust = re.search(r"[Tt]rust state:\s*(\S+)", text)
    enabled = re.search(r"^\s*enabled\s+((?:\d\s+){7}\d)", text, re.MULTILINE)
    codes = {}
    for priority, listed in re.findall(r"prio:(\d+)\s+dscp:([\d,]*)", text):
        for code in listed.split(","):
            if code:
                codes[str(int(code))] = int(priority)
    return {
        "trust": trust.group(1) if trust else None,
        "pfc": [bit == "1" for bit in enabled.group(1).split()] if enabled else None,
        "dscp_prio": codes or None,
    }


def parse_dcb_pfc(answer):
    """The eight PFC bits from `dcb -j pfc show`, which knows two shapes."""
    answer = answer or {}
    bits = answer.get("prio_pfc", answer.get("prio-pfc"))
    if isinstance(bits, dict):
        return [bits.get(str(priority)) in (True, "on") for priority in range(8)]
    if isinstance(bits, list) and len(bits) == 8:
        return [bit in (True, "on") for bit in bits]
    return None


def parse_dcb_app(answer):
    """DSCP to priority as {"26": 3}, from `dcb -j -N app show`; None when dcb did not answer."""
    if answer is None:
        return None
    entries = answer.get("dscp_prio", answer.get("dscp-prio")) or []
    if isinstance(entries, dict):
        entries = entries.items()
    codes = {}
    for entry in entries:
        # iproute2 prints pairs; a plain "26:3" is what its text output has.
        pair = entry.split(":") if isinstance(entry, str) else list(entry)
        codes[str(int(pair[0]))] = int(pair[1])
    return codes


def congestion_marking(node, netdev, address):
    """DSCP and priority of congestion notifications: where OFED keeps them, or mainline."""
    ofed = f"/sys/class/net/{netdev}/ecn/roce_np/"
    if node.exists(ofed):
        return node.read(ofed + "cnp_dscp"), node.read(ofed + "cnp_802p_prio")
    mainline = f"/sys/kernel/debug/mlx5/{address}/cc_params/"
    return node.read(mainline + "np_cnp_dscp"), node.read(mainline + "np_cnp_prio")


def pci_address(node, hca):
    """PCI address of an RDMA device."""
    return node.path(f"/sys/class/infiniband/{hca}/device").resolve().name


def stale_modules(node):
    """RDMA modules of which another build is loaded than the one that modprobe would load."""
    stale = []
    for name in ("ib_core", "mlx5_core", "mlx5_ib"):
        loaded = node.read(f"/sys/module/{name}/srcversion")
        if not loaded:
            continue
        on_disk = (node.output("modinfo", "-F", "srcversion", name) or "").strip()
        if on_disk and on_disk != loaded:
            stale.append(name)
    return stale


def read_roce(node, netdevs, addresses=None):
    """Trust, PFC and CNP marking of the rails, by mlnx_qos where OFED is, else by dcb."""
    found = {}
    for name in netdevs:
        values = parse_mlnx_qos(node.output("mlnx_qos", "-i", name))
        tool = "mlnx_qos"
        if values["pfc"] is None:
            tool = "dcb"
            values["pfc"] = parse_dcb_pfc(node.json("dcb", "-j", "pfc", "show", "dev", name))
            values["dscp_prio"] = parse_dcb_app(
                node.json("dcb", "-j", "-N", "app", "show", "dev", name, "dscp-prio")
            )
            trust = node.json("dcb", "-j", "apptrust", "show", "dev", name) or {}
            order = trust.get("order") or trust.get("apptrust") or []
            if order:
                values["trust"] = order[0]
            elif values["dscp_prio"] is not None:
                # Without an apptrust object, the first DSCP entry switches the port over.
                values["trust"] = "dscp" if values["dscp_prio"] else "pcp"
        dscp, priority = congestion_marking(node, name, (addresses or {}).get(name))
        values.update(
            {
                "tool": tool if values["pfc"] is not None else None,
                "cnp_dscp": dscp,
                "cnp_priority": priority,
            }
        )
        found[name] = values
    return found


def read_rdma(node, hcas, netdevs):
    """The RDMA stack: OFED's version if any, memory peers, RoCE settings of each rail."""
    addresses = {hca["netdev"]: pci_address(node, hca["name"]) for hca in hcas if hca["netdev"]}
    ofed = (node.output("ofed_info", "-s") or "").strip().rstrip(":")
    return {
        "ofed": ofed or None,
        "memory_peers": node.names("/sys/kernel/mm/memory_peers"),
        "acs_enabled": parse_acs(node.output("lspci", "-vvv")) if netdevs else None,
        "roce": read_roce(node, netdevs, addresses),
        "stale_modules": stale_modules(node),
        "configfs": node.exists("/sys/kernel/config"),
    }


def parse_acs(text):
    """PCI bridges whose ACS control redirects peer-to-peer traffic through the root complex."""
    if text is None:
        return None
    enabled, device = [], None
    for line in text.splitlines():
        if line and not line[0].isspace():
            device = line.split()[0]
        elif "ACSCtl:" in line and "ReqRedir+" in line and device:
            enabled.append(device)
    return enabled


#: Devices that container runtimes make by the hundred; none of them is ever a rail.
CONTAINER_DEVICES = re.compile(r"^(veth|cali|lxc|cni|cilium|flannel|docker|br-|virbr|tunl|kube-)")


def lower_devices(node, name, seen=()):
    """The device and all that it runs over: members of a bond or bridge, the base of a VLAN."""
    found = [name]
    for entry in node.names(f"/sys/class/net/{name}"):
        lower = entry[len("lower_") :]
        if entry.startswith("lower_") and lower not in seen:
            found += lower_devices(node, lower, (*seen, name))
    return found


def network_tools(node, units):
    """What could keep addresses on this node, and which of it does at boot."""

    def enabled(unit):
        return units.get(unit, {}).get("enabled") in ("enabled", "enabled-runtime")

    sources = r"^\s*source(-directory)?\s+(/etc/network/)?interfaces\.d"
    interfaces = node.read("/etc/network/interfaces") or ""
    return {
        "netplan": node.exists("/usr/sbin/netplan") and bool(node.glob("/etc/netplan/*.yaml")),
        "networkd_enabled": enabled("systemd-networkd.service"),
        "networkd_files": [
            name
            for folder in ("/etc/systemd/network", "/run/systemd/network")
            for name in node.glob(folder + "/*.network")
            if not Path(name).name.startswith("05-railweld-")
        ],
        "ifupdown": node.exists("/usr/sbin/ifup") or node.exists("/sbin/ifup"),
        "ifupdown_enabled": enabled("networking.service"),
        "ifupdown_sources": bool(re.search(sources, interfaces, re.MULTILINE)),
        "networkmanager_active": units.get("NetworkManager.service", {}).get("active") == "active",
    }


def read_net(node, units):
    """The machine's own interfaces, what keeps their addresses, rules and routes."""
    default = node.json("ip", "-j", "route", "show", "default") or []
    default_dev = default[0].get("dev") if default else None
    answer = {}
    for link in node.json("ip", "-j", "address", "show") or []:
        name = link.get("ifname") or ""
        if name == "lo" or CONTAINER_DEVICES.match(name):
            continue
        conf = f"/proc/sys/net/ipv4/conf/{name}/"
        driver = node.path(f"/sys/class/net/{name}/device/driver")
        answer[name] = {
            "mtu": link.get("mtu"),
            "mac": link.get("address"),
            "operstate": link.get("operstate"),
            "master": link.get("master"),
            "addresses": [
                "{}/{}".format(each.get("local"), each.get("prefixlen"))
                for each in link.get("addr_info", [])
                if each.get("family") == "inet"
            ],
            "sysctls": {
                key: _int(node.read(conf + key))
                for key in ("arp_ignore", "arp_announce", "rp_filter")
            },
            "driver": driver.resolve().name if driver.exists() else None,
        }
    devices = {route["dev"] for route in default if route.get("dev")}
    answer["default_route_dev"] = default_dev
    answer["default_route_devs"] = sorted(
        {lower for name in devices for lower in lower_devices(node, name)}
    )
    answer["tools"] = network_tools(node, units)
    answer["rules"] = node.json("ip", "-j", "rule", "show") or []
    answer["routes"] = [
        route
        for route in node.json("ip", "-j", "-4", "route", "show", "table", "all") or []
        if route.get("table") not in ("local", "255")
    ]
    return answer


def _int(text):
    return int(text) if text and text.strip().lstrip("-").isdecimal() else None


#: Drivers whose firmware runs an LLDP agent, with the flag that says so and its meaning when on.
FIRMWARE_AGENTS = {"i40e": ("disable-fw-lldp", False), "ice": ("fw-lldp-agent", True)}


def firmware_agents(node, net):
    """{device: "on" or "off"} for devices whose firmware could answer LLDP in the host's place."""
    found = {}
    for name, link in net.items():
        if not isinstance(link, dict) or link.get("driver") not in FIRMWARE_AGENTS:
            continue
        flag, meaning = FIRMWARE_AGENTS[link["driver"]]
        text = node.output("ethtool", "--show-priv-flags", name) or ""
        value = re.search(rf"^{flag}\s*:\s*(on|off)", text, re.MULTILINE)
        if value:
            found[name] = "on" if (value.group(1) == "on") == meaning else "off"
    return found


def read_lldp(node, units, net):
    """Whether lldpd runs, and what it heard on which interface.

    More than one on an interface: an entry that has not lapsed yet, or a device between that lets
    LLDP through.
    """
    if units.get("lldpd.service", {}).get("active") != "active":
        return {"active": False, "neighbours": {}, "firmware_agents": firmware_agents(node, net)}
    answer = node.json("lldpcli", "show", "neighbors", "-f", "json0") or {}
    neighbours = {}
    for lldp in answer.get("lldp", []):
        for interface in lldp.get("interface", []):
            neighbours.setdefault(interface.get("name"), []).append(
                {
                    "chassis": _first(interface, "chassis", "name"),
                    "chassis_id": _first(interface, "chassis", "id"),
                    "port": _first(interface, "port", "id"),
                    "port_description": _first(interface, "port", "descr"),
                }
            )
    return {
        "active": True,
        "neighbours": neighbours,
        "firmware_agents": firmware_agents(node, net),
    }


def _first(tree, *keys):
    """Follow lldpcli's json0, where everything is a list of objects with a `value`."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
        if isinstance(tree, list):
            tree = tree[0] if tree else None
    return tree.get("value") if isinstance(tree, dict) else tree


# --- disks, limits, files --------------------------------------------------------------------


def parse_blkid(text):
    """`{device: {UUID: ..., TYPE: ...}}` from `blkid -o export`."""
    found = {}
    for block in (text or "").split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "DEVNAME" in fields:
            found[fields.pop("DEVNAME")] = fields
    return found


def fill_signatures(devices, signatures):
    """Complete what lsblk could not say, in place."""
    for device in devices:
        found = signatures.get(device.get("path"), {})
        for key, name in (("uuid", "UUID"), ("fstype", "TYPE"), ("label", "LABEL")):
            device[key] = device.get(key) or found.get(name)
        fill_signatures(device.get("children") or [], signatures)


def read_disks(node):
    """Block devices, mounts, and free bytes where packages land."""
    devices = node.json(
        "lsblk",
        "--json",
        "--bytes",
        "--output",
        "NAME,PATH,TYPE,SIZE,FSTYPE,LABEL,UUID,MOUNTPOINT,PKNAME,MODEL,RO",
    )
    mounts = {}
    for line in (node.read("/proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) >= 4 and not fields[1].startswith(("/proc/", "/sys/", "/dev/", "/run/")):
            mounts[fields[1].replace("\\040", " ")] = {
                "source": fields[0],
                "fstype": fields[2],
                "options": fields[3],
            }
    free = {}
    for path in ("/", "/var", "/usr", "/boot"):
        try:
            stat = os.statvfs(node.path(path))
        except OSError:
            continue
        free[path] = stat.f_bavail * stat.f_frsize
    devices = (devices or {}).get("blockdevices", [])
    udev = node.exists("/run/udev/control")
    if not udev:
        # lsblk takes signatures from udev's database; without one, blkid reads the disks.
        text = node.output("blkid", "-c", "/dev/null", "-o", "export")
        fill_signatures(devices, parse_blkid(text))
    return {
        "blockdevices": devices,
        "mounts": mounts,
        "free": free,
        "udev": udev,
    }


def read_folders(node):
    """Mode of every folder that a railweld file in tmpfiles.d keeps; null for a missing one."""
    folders = {}
    for name in node.glob("/etc/tmpfiles.d/railweld-*.conf"):
        for line in (node.read(name) or "").splitlines():
            words = line.split()
            if len(words) < 2 or words[0] not in ("d", "D", "q", "Q"):
                continue
            try:
                mode = node.path(words[1]).stat().st_mode & 0o7777
                folders[words[1]] = {"mode": f"{mode:o}"}
            except OSError:
                folders[words[1]] = None
    return folders


def read_limits(node):
    """memlock and nofile: of this login session, and what systemd gives to services."""
    text = node.output("systemctl", "show", "--property=DefaultLimitMEMLOCK,DefaultLimitNOFILE")
    defaults = dict(line.split("=", 1) for line in (text or "").splitlines() if "=" in line)
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return {
        "memlock": "unlimited" if memlock == resource.RLIM_INFINITY else memlock // 1024,
        "nofile": "unlimited" if nofile == resource.RLIM_INFINITY else nofile,
        "service_memlock": _limit_kib(defaults.get("DefaultLimitMEMLOCK")),
        "service_nofile": _int(defaults.get("DefaultLimitNOFILE")),
    }


def _limit_kib(text):
    if text == "infinity":
        return "unlimited"
    return int(text) // 1024 if text and text.isdecimal() else None


def read_rivals(node, modules):
    """In-tree drivers that would take the GPU: loaded now, refused later, and in the initramfs."""
    refused = modprobe_rules(node)
    image = "/boot/initrd.img-" + node.release
    in_initramfs = None
    if "nouveau" in refused and node.exists(image):
        listing = node.output("lsinitramfs", node.path(image))
        if listing is not None:
            # What counts is that the early boot reads the refusal, not which modules it carries.
            in_initramfs = any(
                re.search(r"etc/modprobe\.d/.*(nvidia|nouveau|railweld)", line)
                for line in listing.splitlines()
            )
    return {
        "loaded": "nouveau" in modules,
        "rivals_loaded": [name for name in RIVAL_DRIVERS if name in modules],
        "blacklisted": "nouveau" in refused,
        "rivals_blacklisted": [name for name in RIVAL_DRIVERS if name in refused],
        "in_initramfs": in_initramfs,
    }


def read_files(node, files, contents):
    """SHA-256, mode and, for those asked, text of files; null for a file that is not there."""
    found = {}
    for name in sorted(set(files) | set(contents)):
        try:
            status = node.path(name).stat()
        except OSError:
            found[name] = None
            continue
        found[name] = {
            "sha256": node.sha256(name),
            "mode": f"{status.st_mode & 0o7777:04o}",
        }
        if name in contents:
            found[name]["content"] = (node.read(name) or "")[:CONTENT_LIMIT]
    return found


def read_records(node):
    """What earlier role runs recorded, and which of the files they manage differ since."""
    records = {}
    for path in node.glob("/var/lib/railweld/roles/*.json"):
        try:
            record = json.loads(node.read(path) or "")
        except ValueError:
            # A power cut can leave half a file: no record, so the role simply runs again.
            continue
        if not isinstance(record, dict):
            continue
        files = record.get("files") or {}
        record["drifted"] = sorted(
            name for name, digest in files.items() if node.sha256(name) != digest
        )
        records[Path(path).stem] = record
    return records


def read_reachable(urls, timeout):
    """Whether each address can be fetched from this node, and why not."""
    found = {}
    for url in urls:
        if not url.startswith(("http://", "https://")):
            found[url] = {"ok": False, "status": None, "error": "not an http or https address"}
            continue
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - scheme checked above
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310 - as above
                found[url] = {"ok": True, "status": response.status, "error": ""}
        except urllib.error.HTTPError as error:
            found[url] = {"ok": False, "status": error.code, "error": f"HTTP {error.code}"}
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            found[url] = {"ok": False, "status": None, "error": str(reason)}
    return found


# --- reboot ----------------------------------------------------------------------------------


def mode_reasons(gpus):
    """GPUs whose ECC or MIG mode was changed and waits for the next reset."""
    reasons = []
    for mode in ("ecc", "mig"):
        waiting = [
            str(gpu["index"])
            for gpu in gpus
            if gpu.get(mode + "_pending") is not None and gpu[mode + "_pending"] != gpu.get(mode)
        ]
        if waiting:
            reasons.append("{} changed on GPU {}".format(mode.upper(), ", ".join(waiting)))
    return reasons


def reboot_reasons(node, kernel, driver, rivals, gpus=(), *, rdma=None):
    """Reasons that only a reboot can remove, each as found / expected."""
    reasons = mode_reasons(gpus)
    loaded, on_disk = driver["loaded"], driver["on_disk"]
    if loaded and on_disk and loaded != on_disk:
        reasons.append(f"driver {loaded} is loaded, {on_disk} is installed")
    if rivals["rivals_loaded"] and on_disk and not loaded:
        reasons.append(
            "{} holds the GPUs, so the installed driver {} is not loaded".format(
                ", ".join(rivals["rivals_loaded"]), on_disk
            )
        )
    missing = [word for word in kernel["configured"] if word not in kernel["cmdline"]]
    if missing:
        reasons.append("kernel parameters configured but not active: " + " ".join(missing))
    if rdma and rdma["stale_modules"]:
        reasons.append(
            "another build of {} is loaded than installed".format(", ".join(rdma["stale_modules"]))
        )
    for name in (node.read("/run/reboot-required.pkgs") or "").split():
        if any(fnmatch.fnmatch(name, pattern) for pattern in REBOOT_PACKAGES):
            reasons.append(f"package {name} asks for a reboot")
    return sorted(set(reasons))


def read_last_reboot(node):
    """What the reboot role wrote before its last reboot here: reasons and boot identity."""
    try:
        record = json.loads(node.read("/var/lib/railweld/reboot.json") or "")
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


#: Areas that need the driver's tools, and that are carried together or not at all.
GPU_AREAS = ("driver", "gpus", "fabric_manager", "cuda", "nccl")


def read_gpu_areas(node, units, pci):
    """Driver, GPUs and what is built on them."""
    driver = read_driver(node, units)
    gpus, driver["smi"] = read_gpus(node)
    return {
        "driver": driver,
        "gpus": gpus,
        "fabric_manager": read_fabric_manager(node, units, pci["nvswitches"]),
        "cuda": read_cuda(node),
        "nccl": read_nccl(node),
    }


def observe(node, arguments):
    """Read all areas. Each is a function of its own; the order only follows what they need."""
    match_names = list(arguments.get("package_patterns") or [])
    packages = parse_packages(
        node.output(
            "dpkg-query", "--show", "--showformat=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n"
        ),
        [*match_names, "linux-image-*", "linux-headers-*"],
    )
    units = read_units(node, UNITS + tuple(arguments.get("units") or ()))
    kernel = read_kernel(node, packages)
    modules = read_modules(node)
    carry = arguments.get("carry") or {}
    pci = read_pci(node)
    gpu = {key: carry[key] for key in GPU_AREAS if key in carry}
    if len(gpu) < len(GPU_AREAS):
        gpu = read_gpu_areas(node, units, pci)
    driver, gpus = gpu["driver"], gpu["gpus"]
    rivals = read_rivals(node, modules)
    if "hcas" in carry and "rdma" in carry:
        hcas, rdma = carry["hcas"], carry["rdma"]
    else:
        hcas = read_hcas(node)
        ethernet = [hca for hca in hcas if hca["netdev"] and hca["link_layer"] == "Ethernet"]
        rdma = read_rdma(node, hcas, sorted({hca["netdev"] for hca in ethernet}))
    net = read_net(node, units)
    # Whether a restart of the RDMA drivers would take the way to this node with it.
    adapters = {hca["netdev"] for hca in hcas} | {
        name
        for name, link in net.items()
        if isinstance(link, dict) and link.get("driver") == "mlx5_core"
    }
    rdma["default_route_on_hca"] = bool(adapters & set(net["default_route_devs"]))
    result = {
        "os": read_os(node),
        "kernel": kernel,
        "modules": modules,
        **gpu,
        "pci": pci,
        "packages": packages,
        "dpkg": read_dpkg(node),
        "apt": read_apt(node, units, list(arguments.get("candidates") or [])),
        "units": units,
        "time": read_time(node, units),
        "hcas": hcas,
        "rdma": rdma,
        "net": net,
        "lldp": read_lldp(node, units, net),
        "disks": read_disks(node),
        "folders": read_folders(node),
        "limits": read_limits(node),
        "nouveau": rivals,
        "reboot": {"reasons": reboot_reasons(node, kernel, driver, rivals, gpus, rdma=rdma)},
        "records": read_records(node),
        "now": time.time(),
        "last_reboot": read_last_reboot(node),
        "files": read_files(
            node, list(arguments.get("files") or []), list(arguments.get("contents") or [])
        ),
    }
    if arguments.get("cluster"):
        result["cluster"] = read_cluster(node, units, arguments.get("await_member"))
    if arguments.get("health"):
        result["health"] = read_health(node.output) if pci["gpus"] else None
    if arguments.get("slurm"):
        result["slurm"] = read_slurm(node)
    if arguments.get("urls"):
        result["reach"] = read_reachable(arguments["urls"], arguments["url_timeout"])
    return result


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "package_patterns": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "contents": {"type": "list", "elements": "path", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "candidates": {"type": "list", "elements": "str", "default": []},
            "carry": {"type": "dict", "default": {}},
            "urls": {"type": "list", "elements": "str", "default": []},
            "url_timeout": {"type": "int", "default": 10},
            "cluster": {"type": "bool", "default": False},
            "health": {"type": "bool", "default": False},
            "slurm": {"type": "bool", "default": False},
            "await_member": {
                "type": "dict",
                "options": {
                    "seconds": {"type": "int", "required": True},
                    "ready": {"type": "bool", "default": False},
                    "kubelet_version": {"type": "str"},
                    "steady": {"type": "int", "default": 0},
                },
            },
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, node=observe(Node(), module.params))


if __name__ == "__main__":
    main()
