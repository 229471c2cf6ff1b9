# ruff: noqa: E501 - the real program's tables are wider than our lines
"""nvidia-smi: table, -L, --query-gpu, -q, -q -x, topo -m, nvlink -s, -pm, -e, -mig."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

from railweld.lab.vendor.programs.gpu import (
    SmiError,
    cuda_version,
    fabric,
    initialise,
    modes,
    set_mode,
)
from railweld.lab.vendor.programs.machine import Build, Machine, say

Gpu = dict[str, Any]
#: Long options to the short ones that the program handles.
ALIASES = {
    "--id": "-i",
    "--query": "-q",
    "--xml-format": "-x",
    "--list-gpus": "-L",
    "--persistence-mode": "-pm",
    "--ecc-config": "-e",
    "--multi-instance-gpu": "-mig",
    "--filename": "-f",
    "--display": "-d",
    "--help": "-h",
}
VALUED = ("-i", "-pm", "-e", "-mig", "-d", "-f", "--query-gpu", "--format")
POWER_LIMIT = {"Ampere": "400", "Hopper": "700"}
VBIOS = {"Ampere": "92.00.45.00.03", "Hopper": "96.00.A5.00.1A"}
COMPUTE = {"Ampere": "8.0", "Hopper": "9.0"}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""


class Smi:
    """One run of the program: the driver answers, these are its GPUs."""

    def __init__(self, machine: Machine, build: Build) -> None:
        self.machine = machine
        self.driver = initialise(machine)
        self.cuda = cuda_version(machine, build, self.driver)
        self.all = machine.gpus()
        self.gpus = self.all
        self.modes = modes(machine)
        self.branch = int(self.driver.split(".", 1)[0])

    def select(self, wanted: str) -> None:
        """Take the GPUs of `-i`: index, UUID or bus id, several with commas."""
        chosen = []
        for word in wanted.split(","):
            found = [
                gpu
                for gpu in self.all
                if word in (str(gpu["index"]), gpu["uuid"], gpu["bus_id"])
                or (gpu["bus_id"].lower().endswith(word.lower() or "-") and ":" in word)
            ]
            if not found:
                raise SmiError("No devices were found", 6)
            chosen += found
        self.gpus = chosen

    def mode(self, gpu: Gpu, name: str) -> str:
        """`Enabled` or `Disabled`; `[N/A]` where the GPU lacks it."""
        if name.startswith("mig") and str(gpu.get("architecture")) in ("Volta", "Turing"):
            return "[N/A]"
        return "Enabled" if self.modes[gpu["uuid"]][name] else "Disabled"

    def name(self, gpu: Gpu) -> str:
        """The product name; since 510 with the vendor's."""
        return f"NVIDIA {gpu['model']}"


def main(argv: list[str], build: Build, machine: Machine) -> int:
    """Run nvidia-smi."""
    if argv[:1] in (["--version"], ["-v"]):
        return _version(build, machine)
    if argv[:1] in (["-h"], ["--help"]):
        say("NVIDIA System Management Interface -- railweld lab stand-in")
        return 0
    try:
        smi = Smi(machine, build)
        if argv[:1] == ["topo"]:
            return _topo(smi, argv[1:])
        if argv[:1] == ["nvlink"]:
            return _nvlink(smi)
        return _options(smi, argv)
    except SmiError as error:
        say(str(error))
        return error.code


def _options(smi: Smi, argv: list[str]) -> int:
    options = _parse(argv)
    if "-i" in options:
        smi.select(options["-i"])
    for option, change in (("-pm", _persistence), ("-e", _ecc), ("-mig", _mig)):
        if option in options:
            return change(smi, options[option])
    if "--query-gpu" in options:
        return _query(smi, options["--query-gpu"], options.get("--format", "csv"))
    if "-L" in options:
        for gpu in smi.gpus:
            say(f"GPU {gpu['index']}: {smi.name(gpu)} (UUID: {gpu['uuid']})")
    elif "-x" in options:
        _xml(smi)
    elif "-q" in options:
        _report(smi)
    else:
        _table(smi)
    return 0


def _parse(argv: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    words = list(argv)
    while words:
        word, equals, value = words.pop(0).partition("=")
        word = ALIASES.get(word, word)
        if word in VALUED and not equals:
            if not words:
                raise SmiError(f"Option {word} requires an argument.", 2)
            value = words.pop(0)
        elif word not in (*VALUED, "-q", "-x", "-L"):
            raise SmiError(
                "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2
            )
        options[word] = value
    return options


def _version(build: Build, machine: Machine) -> int:
    try:
        driver = initialise(machine)
    except SmiError as error:
        say(str(error))
        return error.code
    say(f"NVIDIA-SMI version  : {driver}")
    say(f"NVML version        : {'.'.join(driver.split('.')[:2])}")
    say(f"DRIVER version      : {driver}")
    say(f"CUDA Version        : {cuda_version(machine, build, driver)}")
    return 0


# --- changes -----------------------------------------------------------------------------------


def _switch(value: str) -> bool:
    if value.upper() not in ("0", "1", "DISABLED", "ENABLED"):
        raise SmiError(f"Invalid argument: {value}", 2)
    return value.upper() in ("1", "ENABLED")


def _must_be_root(smi: Smi) -> None:
    if not os.access(smi.machine.path("/var/lib/railweld-lab"), os.W_OK):
        raise SmiError("Unable to set mode for GPU: Insufficient Permissions", 4)


def _persistence(smi: Smi, value: str) -> int:
    on = _switch(value)
    _must_be_root(smi)
    word = "Enabled" if on else "Disabled"
    for gpu in smi.gpus:
        if smi.modes[gpu["uuid"]]["persistence"] == on:
            say(f"Persistence mode is already {word} for GPU {gpu['bus_id']}.")
        else:
            set_mode(smi.machine, [gpu["uuid"]], "persistence", on=on, pending=False)
            say(f"{word} persistence mode for GPU {gpu['bus_id']}.")
    say("All done.")
    return 0


def _ecc(smi: Smi, value: str) -> int:
    on = _switch(value)
    _must_be_root(smi)
    word = "Enabled" if on else "Disabled"
    for gpu in smi.gpus:
        if smi.modes[gpu["uuid"]]["ecc_pending"] == on:
            say(f"ECC support is already {word} for GPU {gpu['bus_id']}.")
        else:
            set_mode(smi.machine, [gpu["uuid"]], "ecc", on=on, pending=True)
            say(f"{word} ECC support for GPU {gpu['bus_id']}.")
    say("All done.")
    say("Reboot required.")
    return 0


def _mig(smi: Smi, value: str) -> int:
    on = _switch(value)
    _must_be_root(smi)
    for gpu in smi.gpus:
        if smi.mode(gpu, "mig") == "[N/A]":
            say(f"Unable to enable MIG Mode for GPU {gpu['bus_id']}: Not Supported")
            return 3
        # The GPU is reset at once unless a client holds it, as the persistence daemon does.
        is_held = smi.modes[gpu["uuid"]]["persistence"]
        set_mode(smi.machine, [gpu["uuid"]], "mig", on=on, pending=is_held)
        if is_held and smi.modes[gpu["uuid"]]["mig"] != on:
            state = "enable" if on else "disable"
            say(
                f"Warning: MIG mode is in pending {state} state for GPU {gpu['bus_id']}:In use by "
                "another client"
            )
            say(
                f"{gpu['bus_id']} is currently being used by one or more other processes (e.g. "
                "CUDA application or a monitoring application such as another instance of "
                "nvidia-smi). Please first kill all processes using the device and retry the "
                "command or reboot the system to make MIG mode effective."
            )
        else:
            say(f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU {gpu['bus_id']}")
    say("All done.")
    return 0


# --- queries -----------------------------------------------------------------------------------

Reader = Callable[[Smi, Gpu], str]
QUERY: dict[str, tuple[str, Reader]] = {
    "index": ("", lambda _, gpu: str(gpu["index"])),
    "count": ("", lambda smi, _: str(len(smi.all))),
    "timestamp": ("", lambda *_: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "name": ("", lambda smi, gpu: smi.name(gpu)),
    "gpu_name": ("", lambda smi, gpu: smi.name(gpu)),
    "uuid": ("", lambda _, gpu: str(gpu["uuid"])),
    "gpu_uuid": ("", lambda _, gpu: str(gpu["uuid"])),
    "serial": ("", lambda _, gpu: str(gpu.get("serial", "[N/A]"))),
    "gpu_serial": ("", lambda _, gpu: str(gpu.get("serial", "[N/A]"))),
    "driver_version": ("", lambda smi, _: smi.driver),
    "vbios_version": ("", lambda _, gpu: VBIOS.get(str(gpu.get("architecture")), "[N/A]")),
    "pci.bus_id": ("", lambda _, gpu: str(gpu["bus_id"])),
    "gpu_bus_id": ("", lambda _, gpu: str(gpu["bus_id"])),
    "pci.device_id": ("", lambda _, gpu: f"0x{str(gpu.get('device', '')).upper()}10DE"),
    "persistence_mode": ("", lambda smi, gpu: smi.mode(gpu, "persistence")),
    "ecc.mode.current": ("", lambda smi, gpu: smi.mode(gpu, "ecc")),
    "ecc.mode.pending": ("", lambda smi, gpu: smi.mode(gpu, "ecc_pending")),
    "ecc.errors.uncorrected.volatile.total": ("", lambda *_: "0"),
    "ecc.errors.uncorrected.aggregate.total": ("", lambda *_: "0"),
    "mig.mode.current": ("", lambda smi, gpu: smi.mode(gpu, "mig")),
    "mig.mode.pending": ("", lambda smi, gpu: smi.mode(gpu, "mig_pending")),
    "compute_mode": ("", lambda *_: "Default"),
    "compute_cap": ("", lambda _, gpu: COMPUTE.get(str(gpu.get("architecture")), "[N/A]")),
    "pstate": ("", lambda *_: "P0"),
    "temperature.gpu": ("", lambda *_: "28"),
    "memory.total": ("MiB", lambda _, gpu: str(gpu["memory_mib"])),
    "memory.used": ("MiB", lambda *_: "0"),
    "memory.free": ("MiB", lambda _, gpu: str(gpu["memory_mib"])),
    "utilization.gpu": ("%", lambda *_: "0"),
    "utilization.memory": ("%", lambda *_: "0"),
    "power.draw": ("W", lambda *_: "60.12"),
    "power.limit": (
        "W",
        lambda _, gpu: POWER_LIMIT.get(str(gpu.get("architecture")), "300") + ".00",
    ),
    "pcie.link.gen.current": ("", lambda *_: "4"),
    "pcie.link.width.current": ("", lambda *_: "16"),
}


def _query(smi: Smi, fields: str, form: str) -> int:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if name not in QUERY:
            say(f'Field "{name}" is not a valid field to query.\n')
            return 2
    parts = form.split(",")
    if parts[0] != "csv":
        say('"--format=" switch is missing or has an invalid argument.')
        return 2
    has_units = "nounits" not in parts
    if "noheader" not in parts:
        say(
            ", ".join(
                f"{name} [{unit}]" if (unit := QUERY[name][0]) and has_units else name
                for name in names
            )
        )
    for gpu in smi.gpus:
        values = []
        for name in names:
            unit, reader = QUERY[name]
            value = reader(smi, gpu)
            values.append(f"{value} {unit}" if unit and has_units else value)
        say(", ".join(values))
    return 0


def _table(smi: Smi) -> None:
    say(time.strftime("%a %b %e %H:%M:%S %Y       "))
    (_table_new if smi.branch >= 530 else _table_old)(smi)


def _table_new(smi: Smi) -> None:
    edge = "+-----------------------------------------+------------------------+----------------------+"
    say("+" + "-" * 89 + "+")
    title = (
        f"| NVIDIA-SMI {smi.driver:<22} Driver Version: {smi.driver:<14} CUDA Version: {smi.cuda}"
    )
    say(f"{title:<90}|")
    say(edge)
    say(
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
    )
    say(
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
    )
    say(
        "|                                         |                        |               MIG M. |"
    )
    say(
        "|=========================================+========================+======================|"
    )
    for gpu in smi.gpus:
        on = "On" if smi.modes[gpu["uuid"]]["persistence"] else "Off"
        memory = f"0MiB / {gpu['memory_mib']:>6}MiB"
        limit = POWER_LIMIT.get(str(gpu.get("architecture")), "300")
        ecc = "0" if smi.modes[gpu["uuid"]]["ecc"] else "Off"
        say(
            f"| {gpu['index']:>3}  {smi.name(gpu)[:26]:<26}  {on:>5}  |   {gpu['bus_id']} Off "
            f"| {ecc:>20} |"
        )
        say(
            f"| N/A   28C    P0 {'60W /  ' + limit + 'W':>23} | {memory:>22} |      0%      Default |"
        )
        say(f"| {'':39} | {'':22} | {_mig_word(smi, gpu):>20} |")
        say(edge)
    _processes(
        (
            "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
            "|        ID   ID                                                               Usage      |",
        )
    )


def _table_old(smi: Smi) -> None:
    edge = "+-------------------------------+----------------------+----------------------+"
    say("+" + "-" * 77 + "+")
    title = (
        f"| NVIDIA-SMI {smi.driver:<12} Driver Version: {smi.driver:<12} CUDA Version: {smi.cuda}"
    )
    say(f"{title:<78}|")
    say("|-------------------------------+----------------------+----------------------+")
    say("| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |")
    say("| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |")
    say("|                               |                      |               MIG M. |")
    say("|===============================+======================+======================|")
    for gpu in smi.gpus:
        on = "On" if smi.modes[gpu["uuid"]]["persistence"] else "Off"
        name = smi.name(gpu)
        name = name if len(name) <= 18 else name[:15] + "..."
        limit = POWER_LIMIT.get(str(gpu.get("architecture")), "300")
        memory = f"0MiB / {gpu['memory_mib']:>5}MiB"
        ecc = "0" if smi.modes[gpu["uuid"]]["ecc"] else "Off"
        say(f"| {gpu['index']:>3}  {name:<18}  {on:<3}  | {gpu['bus_id']} Off | {ecc:>20} |")
        say(f"| N/A   28C    P0    60W / {limit}W | {memory:>20} |      0%      Default |")
        say(f"| {'':29} | {'':20} | {_mig_word(smi, gpu):>20} |")
        say(edge)
    _processes(
        (
            "|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |",
            "|        ID   ID                                                   Usage      |",
        )
    )


def _mig_word(smi: Smi, gpu: Gpu) -> str:
    now, then = smi.mode(gpu, "mig"), smi.mode(gpu, "mig_pending")
    return now.strip("[]") + ("*" if now != then else "")


def _processes(rows: tuple[str, str]) -> None:
    width = len(rows[0]) - 2
    edge = "+" + "-" * width + "+"
    say(f"\n{edge}")
    say(f"|{' Processes:':<{width}}|")
    for row in rows:
        say(row)
    say("|" + "=" * width + "|")
    say(f"|{'  No running processes found':<{width}}|")
    say(edge)


# --- reports -----------------------------------------------------------------------------------


def _report(smi: Smi) -> None:
    def line(depth: int, name: str, value: str = "") -> None:
        text = " " * (4 * depth) + name
        say(f"{text:<55}: {value}" if value else text)

    say("\n==============NVSMI LOG==============\n")
    line(0, "Timestamp", time.strftime("%a %b %e %H:%M:%S %Y"))
    line(0, "Driver Version", smi.driver)
    line(0, "CUDA Version", smi.cuda)
    say("")
    line(0, "Attached GPUs", str(len(smi.gpus)))
    for gpu in smi.gpus:
        architecture = str(gpu.get("architecture", "N/A"))
        limit = POWER_LIMIT.get(architecture, "300") + ".00 W"
        line(0, f"GPU {gpu['bus_id']}")
        for name, value in (
            ("Product Name", smi.name(gpu)),
            ("Product Brand", "NVIDIA"),
            ("Product Architecture", architecture),
            ("Persistence Mode", smi.mode(gpu, "persistence")),
        ):
            line(1, name, value)
        line(1, "MIG Mode")
        line(2, "Current", smi.mode(gpu, "mig").strip("[]"))
        line(2, "Pending", smi.mode(gpu, "mig_pending").strip("[]"))
        for name, value in (
            ("Serial Number", str(gpu.get("serial", "N/A"))),
            ("GPU UUID", str(gpu["uuid"])),
            ("Minor Number", str(gpu["index"])),
            ("VBIOS Version", VBIOS.get(architecture, "N/A")),
            ("GSP Firmware Version", smi.driver if smi.branch >= 525 else "N/A"),
        ):
            line(1, name, value)
        domain, bus, rest = str(gpu["bus_id"]).split(":")
        line(1, "PCI")
        line(2, "Bus", f"0x{bus}")
        line(2, "Device", f"0x{rest.split('.', 1)[0]}")
        line(2, "Domain", f"0x{domain[-4:]}")
        line(2, "Device Id", f"0x{str(gpu.get('device', '')).upper()}10DE")
        line(2, "Bus Id", str(gpu["bus_id"]))
        line(1, "Performance State", "P0")
        line(1, "FB Memory Usage")
        line(2, "Total", f"{gpu['memory_mib']} MiB")
        line(2, "Used", "0 MiB")
        line(2, "Free", f"{gpu['memory_mib']} MiB")
        line(1, "Compute Mode", "Default")
        # Branches before 510 spelled it "Ecc Mode".
        line(1, "ECC Mode" if smi.branch >= 510 else "Ecc Mode")
        line(2, "Current", smi.mode(gpu, "ecc"))
        line(2, "Pending", smi.mode(gpu, "ecc_pending"))
        line(1, "Temperature")
        line(2, "GPU Current Temp", "28 C")
        line(1, "GPU Power Readings" if smi.branch >= 530 else "Power Readings")
        line(2, "Current Power Limit" if smi.branch >= 530 else "Power Limit", limit)
        if smi.branch >= 525:
            state, status = fabric(smi.machine, gpu)
            line(1, "Fabric")
            line(2, "State", state)
            line(2, "Status", status)
        line(1, "Processes", "None")
        say("")


def _xml(smi: Smi) -> None:
    version = "13" if smi.branch >= 570 else "12" if smi.branch >= 525 else "11"
    say('<?xml version="1.0" ?>')
    say(f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{version}.dtd">')
    say("<nvidia_smi_log>")
    say(f"\t<timestamp>{time.strftime('%a %b %e %H:%M:%S %Y')}</timestamp>")
    say(f"\t<driver_version>{smi.driver}</driver_version>")
    say(f"\t<cuda_version>{smi.cuda}</cuda_version>")
    say(f"\t<attached_gpus>{len(smi.gpus)}</attached_gpus>")
    for gpu in smi.gpus:
        state, status = fabric(smi.machine, gpu)
        elements = [
            f"<product_name>{smi.name(gpu)}</product_name>",
            f"<product_architecture>{gpu.get('architecture', 'N/A')}</product_architecture>",
            f"<persistence_mode>{smi.mode(gpu, 'persistence')}</persistence_mode>",
            f"<mig_mode><current_mig>{smi.mode(gpu, 'mig').strip('[]')}</current_mig><pending_mig>{smi.mode(gpu, 'mig_pending').strip('[]')}</pending_mig></mig_mode>",
            f"<serial>{gpu.get('serial', 'N/A')}</serial>",
            f"<uuid>{gpu['uuid']}</uuid>",
            f"<minor_number>{gpu['index']}</minor_number>",
            f"<pci><pci_bus_id>{gpu['bus_id']}</pci_bus_id></pci>",
            f"<fb_memory_usage><total>{gpu['memory_mib']} MiB</total></fb_memory_usage>",
            f"<bar1_memory_usage><total>{_bar1_mib(gpu)} MiB</total></bar1_memory_usage>",
            f"<ecc_mode><current_ecc>{smi.mode(gpu, 'ecc')}</current_ecc><pending_ecc>{smi.mode(gpu, 'ecc_pending')}</pending_ecc></ecc_mode>",
        ]
        if smi.branch >= 525:
            elements.append(f"<fabric><state>{state}</state><status>{status}</status></fabric>")
        say(f'\t<gpu id="{gpu["bus_id"]}">')
        for element in elements:
            say(f"\t\t{element}")
        say("\t</gpu>")
    say("</nvidia_smi_log>")


def _bar1_mib(gpu: Gpu) -> int:
    """A window on the bus for all of the memory; its size is a power of two."""
    return 1 << (int(gpu["memory_mib"]) - 1).bit_length()


def _topo(smi: Smi, argv: list[str]) -> int:
    if argv[:1] not in (["-m"], ["--matrix"]):
        say("Option is not recognized. Please run 'nvidia-smi topo -h'.")
        return 2
    hcas = smi.machine.hcas()
    has_nic_names = smi.branch >= 525
    nics = [f"NIC{n}" if has_nic_names else str(hca["name"]) for n, hca in enumerate(hcas)]
    header = [f"GPU{gpu['index']}" for gpu in smi.all] + nics + ["CPU Affinity", "NUMA Affinity"]
    if has_nic_names:
        header.append("GPU NUMA ID")
    say("\t\x1b[4m" + "\t".join(header) + "\x1b[0m")
    count, total = len(smi.machine.profile.get("gpus", [])) or 1, len(hcas) or 1
    for gpu in smi.all:
        row = [_gpu_link(gpu, other, count) for other in smi.all]
        row += [_nic_link(gpu["index"], n, count, total) for n in range(len(hcas))]
        node = _numa(gpu["index"], count)
        row += [f"{node * 32}-{node * 32 + 31}", str(node)]
        say(f"GPU{gpu['index']}\t" + "\t".join(row) + ("\t\tN/A" if has_nic_names else ""))
    for n, nic in enumerate(nics):
        row = [_nic_link(gpu["index"], n, count, total) for gpu in smi.all]
        row += [" X " if n == m else _near(n, m, total) for m in range(len(hcas))]
        say(f"{nic}\t" + "\t".join(row) + "\t")
    say(LEGEND)
    if has_nic_names and hcas:
        say("\nNIC Legend:\n")
        for n, hca in enumerate(hcas):
            say(f"  NIC{n}: {hca['name']}")
    say("")
    return 0


def _numa(position: int, count: int) -> int:
    # Small machines have one NUMA node.
    return 0 if count <= 2 or position < count // 2 else 1


def _near(one: int, other: int, count: int) -> str:
    return "NODE" if _numa(one, count) == _numa(other, count) else "SYS"


def _gpu_link(gpu: Gpu, other: Gpu, count: int) -> str:
    if gpu["index"] == other["index"]:
        return " X "
    links = int(gpu.get("nvlinks", 0))
    return f"NV{links}" if links else _near(gpu["index"], other["index"], count)


def _nic_link(gpu: int, nic: int, gpus: int, nics: int) -> str:
    """A NIC and its GPUs share a PCIe switch; the rest of the NUMA node is behind the host."""
    if gpu * nics // gpus == nic:
        return "PXB"
    return "NODE" if _numa(gpu, gpus) == _numa(nic, nics) else "SYS"


def _nvlink(smi: Smi) -> int:
    for gpu in smi.gpus:
        speed = (
            "25 GB/s" if re.match("Ampere|Volta", str(gpu.get("architecture"))) else "26.562 GB/s"
        )
        say(f"GPU {gpu['index']}: {smi.name(gpu)} (UUID: {gpu['uuid']})")
        for link in range(int(gpu.get("nvlinks", 0))):
            say(f"\t Link {link}: {speed}")
    return 0
