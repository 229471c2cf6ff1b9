"""Programs of OFED: ofed_info, mlnx_qos, show_gids, ibdev2netdev, mst, mlxconfig, mlxfwmanager, …

Quality-of-service settings live in the NIC's driver and are gone after a reboot, so they are kept
in `/run/railweld-lab/qos/NETDEV.json`: trust, the eight PFC switches, the DSCP map.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from railweld.lab.vendor.programs.machine import Build, Machine, complain, say

LINK_TYPES = {"InfiniBand": "IB(1)", "Ethernet": "ETH(2)"}
FIRMWARE = "/var/lib/railweld-lab/firmware.json"


def ofed_info(argv: list[str], build: Build, _machine: Machine) -> int:
    """ofed_info: -s gives the version with a colon, -n the number."""
    if argv[:1] == ["-n"]:
        say(re.sub(r"^\D+", "", build["ofed"]))
        return 0
    say(f"{build['ofed']}:")
    return 0


def find(machine: Machine, *, netdev: str = "", name: str = "") -> dict[str, Any] | None:
    """One adapter by its network device or RDMA name."""
    for hca in machine.hcas():
        if (netdev and hca["netdev"] == netdev) or (name and hca["name"] == name):
            return hca
    return None


# --- mlnx_qos ----------------------------------------------------------------------------------


def qos_file(netdev: str) -> str:
    """Where a port's settings are kept."""
    return f"/run/railweld-lab/qos/{netdev}.json"


def qos(machine: Machine, netdev: str) -> dict[str, Any]:
    """Settings of a port: what the driver starts with, and what was changed since."""
    defaults: dict[str, Any] = {
        "dcbx": "firmware",
        "trust": "pcp",
        "pfc": [False] * 8,
        "dscp2prio": {},
    }
    return defaults | machine.load(qos_file(netdev))


def mlnx_qos(argv: list[str], _build: Build, machine: Machine) -> int:
    """mlnx_qos: -i NETDEV [--trust=…] [--pfc=…] [--dscp2prio=set,D,P] [--dcbx=…]."""
    options = _parse(argv, {"-i": "interface", "-f": "pfc", "-d": "dcbx"})
    netdev = options.get("interface", "")
    if not netdev:
        say("Usage:\nmlnx_qos -i <interface> [options]")
        return 1
    if find(machine, netdev=netdev) is None:
        say(f"Interface {netdev} is not found or does not support QoS operations")
        return 1
    state = qos(machine, netdev)
    if not _change(state, options):
        return 1
    if set(options) - {"interface"}:
        machine.store(qos_file(netdev), state)
    _print_qos(state)
    return 0


def _change(state: dict[str, Any], options: dict[str, str]) -> bool:
    if "dcbx" in options:
        state["dcbx"] = {"os": "os", "fw": "firmware"}.get(options["dcbx"], state["dcbx"])
    if "trust" in options:
        if options["trust"] not in ("pcp", "dscp"):
            say(f"{options['trust']} is not a valid trust state")
            return False
        state["trust"] = options["trust"]
        if state["trust"] == "pcp":
            state["dscp2prio"] = {}
    if "pfc" in options:
        bits = options["pfc"].split(",")
        if len(bits) != 8 or not set(bits) <= {"0", "1"}:
            say("Bad value for --pfc: eight comma separated values of 0 or 1")
            return False
        state["pfc"] = [bit == "1" for bit in bits]
    if "dscp2prio" in options:
        if state["trust"] != "dscp":
            say("Priority trust state is not dscp")
            return False
        word, dscp, priority = [*options["dscp2prio"].split(","), "", ""][:3]
        if word == "set":
            state["dscp2prio"][dscp] = int(priority)
        elif word == "del":
            state["dscp2prio"].pop(dscp, None)
        elif word == "flush":
            state["dscp2prio"] = {}
    return True


def _print_qos(state: dict[str, Any]) -> None:
    mode = "OS controlled" if state["dcbx"] == "os" else "Firmware controlled"
    say(f"DCBX mode: {mode}")
    say(f"Priority trust state: {state['trust']}")
    if state["trust"] == "dscp":
        say("dscp2prio mapping:")
        given = {int(code): int(priority) for code, priority in state["dscp2prio"].items()}
        for priority in range(8):
            codes = [code for code in range(64) if given.get(code, code // 8) == priority]
            for start in range(0, len(codes), 8):
                chunk = sorted(codes[start : start + 8], reverse=True)
                say(f"\tprio:{priority} dscp:" + "".join(f"{code:02d}," for code in chunk))
    say("default priority:")
    say("Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,total_size=1027728")
    say("Cable len: 7")
    say("PFC configuration:")
    say("\tpriority    " + "   ".join(str(priority) for priority in range(8)))
    bits = [str(int(bit)) for bit in state["pfc"]]
    say("\tenabled     " + "   ".join(bits) + "   ")
    say("\tbuffer      " + "   ".join(bits) + "   ")
    for priority in (1, 0, 2, 3, 4, 5, 6, 7):
        say(f"tc: {priority} ratelimit: unlimited, tsa: vendor")
        say(f"\t priority:  {priority}")


def _parse(argv: list[str], names: dict[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    words = list(argv)
    while words:
        word, equals, value = words.pop(0).partition("=")
        name = names.get(word, word.lstrip("-"))
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        options[name] = value
    return options


# --- addresses and names -----------------------------------------------------------------------


def show_gids(_argv: list[str], _build: Build, machine: Machine) -> int:
    """show_gids: the GID table from sysfs."""
    say("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV")
    say("---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---")
    count = 0
    for gid in sorted(
        machine.path("/sys/class/infiniband").glob("*/ports/*/gids/*"),
        key=lambda path: (path.parts[-5], path.parts[-3], int(path.name)),
    ):
        value = gid.read_text().strip()
        if value in (
            "",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "fe80:0000:0000:0000:0000:0000:0000:0000",
        ):
            continue
        port = gid.parent.parent
        kind = _text(port / "gid_attrs/types" / gid.name)
        netdev = _text(port / "gid_attrs/ndevs" / gid.name)
        version = "v2" if "v2" in kind else "v1"
        say(
            f"{gid.parts[-5]}\t{port.name}\t{gid.name}\t{value}\t{_ipv4(value):<15}\t{version}\t{netdev}"
        )
        count += 1
    say(f"n_gids_found={count}")
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _ipv4(gid: str) -> str:
    match = re.fullmatch(r"0000:0000:0000:0000:0000:ffff:([0-9a-f]{4}):([0-9a-f]{4})", gid)
    if match is None:
        return ""
    number = int(match[1] + match[2], 16)
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def ibdev2netdev(argv: list[str], _build: Build, machine: Machine) -> int:
    """ibdev2netdev: which network device an adapter has."""
    for hca in machine.hcas():
        state = "Up" if machine.hca_is_up(hca["name"]) else "Down"
        if argv[:1] == ["-v"]:
            say(
                f"{hca['bus_id']} {hca['name']} ({hca['part']} - {hca['board_id']}) {hca['model']} "
                f"fw {hca['fw_version']} port 1 ({'ACTIVE' if state == 'Up' else 'DOWN  '}) ==> "
                f"{hca['netdev']} ({state})"
            )
        else:
            say(f"{hca['name']} port 1 ==> {hca['netdev']} ({state})")
    return 0


def ibstat(argv: list[str], _build: Build, machine: Machine) -> int:
    """Ibstat: adapters and ports from sysfs; -l lists names."""
    root = machine.path("/sys/class/infiniband")
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    if argv[:1] == ["-l"]:
        for name in names:
            say(name)
        return 0
    wanted = [word for word in argv if not word.startswith("-")]
    if wanted and wanted[0] not in names:
        complain(
            f"ibpanic: [1] main: stat of IB device '{wanted[0]}' failed: "
            "(No such file or directory)"
        )
        return 255
    for name in wanted[:1] or names:
        base = root / name
        say(f"CA '{name}'")
        say(f"\tCA type: {_text(base / 'hca_type')}")
        say("\tNumber of ports: 1")
        say(f"\tFirmware version: {_text(base / 'fw_ver')}")
        say(f"\tHardware version: {_text(base / 'hw_rev') or '0'}")
        say(f"\tNode GUID: 0x{_text(base / 'node_guid').replace(':', '')}")
        say(f"\tSystem image GUID: 0x{_text(base / 'sys_image_guid').replace(':', '')}")
        for port in sorted((base / "ports").iterdir()):
            state = _text(port / "state").partition(":")[2].strip()
            physical = _text(port / "phys_state").partition(":")[2].strip()
            rate = _text(port / "rate").split(" ", 1)[0]
            say(f"\tPort {port.name}:")
            say(f"\t\tState: {state.capitalize()}")
            say(f"\t\tPhysical state: {physical}")
            say(f"\t\tRate: {rate}")
            say(f"\t\tBase lid: {int(_text(port / 'lid') or '0', 0)}")
            say("\t\tLMC: 0")
            say(f"\t\tSM lid: {int(_text(port / 'sm_lid') or '0', 0)}")
            say(f"\t\tCapability mask: {_text(port / 'cap_mask') or '0x00010000'}")
            say(f"\t\tPort GUID: 0x{_text(base / 'node_guid').replace(':', '')}")
            say(f"\t\tLink layer: {_text(port / 'link_layer')}")
    return 0


def cma_roce_tos(argv: list[str], _build: Build, machine: Machine) -> int:
    """cma_roce_tos: -d DEVICE [-p PORT] [-t TOS] for connections made through rdma_cm."""
    options = _parse(argv, {"-d": "device", "-p": "port", "-t": "tos"})
    name = options.get("device", "")
    if find(machine, name=name) is None:
        say(f"Failed to find {name}")
        return 1
    path = f"/sys/kernel/config/rdma_cm/{name}/ports/{options.get('port', '1')}/default_roce_tos"
    if "tos" in options:
        target = machine.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{options['tos']}\n")
    say(machine.read(path) or "0")
    return 0


# --- firmware ----------------------------------------------------------------------------------


def mst(argv: list[str], build: Build, machine: Machine) -> int:
    """Mst: start, stop, status [-v]."""
    action = argv[0] if argv else "status"
    flag = machine.path("/run/railweld-lab/mst")
    if action in ("start", "restart"):
        flag.parent.mkdir(parents=True, exist_ok=True)
        flag.touch()
        say("Starting MST (Mellanox Software Tools) driver set")
        say("Loading MST PCI module - Success\nLoading MST PCI configuration module - Success")
        say("Create devices")
        return 0
    if action == "stop":
        flag.unlink(missing_ok=True)
        say("Stopping MST (Mellanox Software Tools) driver set")
        return 0
    if action == "version":
        say(f"mst, mft {build['version']}")
        return 0
    say("MST modules:\n------------")
    loaded = "" if flag.exists() else "not "
    say(f"    MST PCI module is {loaded}loaded\n    MST PCI configuration module {loaded}loaded\n")
    say("PCI devices:\n------------")
    say(f"{'DEVICE_TYPE':<24}{'MST':<30}{'PCI':<10}{'RDMA':<16}{'NET':<26}NUMA")
    for number, hca in enumerate(machine.hcas()):
        device = (
            f"/dev/mst/mt{int(str(hca['device']), 16)}_pciconf{number}" if flag.exists() else "NA"
        )
        model = f"{str(hca['model']).replace('-', '')}(rev:0)"
        address = str(hca["bus_id"]).partition(":")[2]
        say(f"{model:<24}{device:<30}{address:<10}{hca['name']:<16}{'net-' + hca['netdev']:<26}0")
    return 0


def _device(machine: Machine, word: str) -> dict[str, Any] | None:
    for number, hca in enumerate(machine.hcas()):
        names = (
            hca["name"],
            hca["netdev"],
            hca["bus_id"],
            str(hca["bus_id"]).partition(":")[2],
            f"/dev/mst/mt{int(str(hca['device']), 16)}_pciconf{number}",
        )
        if word in names:
            return hca
    return None


def mlxconfig(argv: list[str], _build: Build, machine: Machine) -> int:
    """mlxconfig and mstconfig: -d DEVICE query [NAME…] | -y set NAME=VALUE…."""
    words = [word for word in argv if word not in ("-y", "--yes", "-e")]
    device = ""
    if "-d" in words:
        position = words.index("-d")
        device = words[position + 1] if position + 1 < len(words) else ""
        del words[position : position + 2]
    hca = _device(machine, device)
    if hca is None:
        say(f"-E- Failed to open the device: {device}")
        return 3
    stored = machine.load(FIRMWARE).get(str(hca["name"]), {})
    settings = {
        "LINK_TYPE_P1": LINK_TYPES[str(hca["link_layer"])],
        "SRIOV_EN": "False(0)",
        "NUM_OF_VFS": "0",
        "LLDP_NB_DCBX_P1": "False(0)",
        "LLDP_NB_RX_MODE_P1": "OFF(0)",
        "LLDP_NB_TX_MODE_P1": "OFF(0)",
        "ROCE_CC_PRIO_MASK_P1": "255",
    } | stored
    action = words[0] if words else ""
    if action in ("q", "query"):
        say(f"\nDevice #1:\n----------\n\nDevice type:    {str(hca['model']).replace('-', '')}")
        say(f"Name:           {hca['part']}_Ax\nDevice:         {device}\n")
        say(f"{'Configurations:':<50}{'Next Boot':>20}")
        wanted = words[1:] or sorted(settings)
        for name in wanted:
            if name not in settings:
                say(f"-E- The Device doesn't support {name} parameter")
                return 3
            say(f"{'        ' + name:<50}{settings[name]:>20}")
        return 0
    if action in ("s", "set"):
        everything = machine.load(FIRMWARE)
        for pair in words[1:]:
            name, _, value = pair.partition("=")
            if name == "LINK_TYPE_P1":
                value = {"1": "IB(1)", "2": "ETH(2)", "IB": "IB(1)", "ETH": "ETH(2)"}.get(
                    value, value
                )
            everything.setdefault(str(hca["name"]), {})[name] = value
        machine.store(FIRMWARE, everything)
        say("Applying... Done!\n-I- Please reboot machine to load new configurations.")
        return 0
    say("-E- No command was specified")
    return 3


def mlxfwmanager(argv: list[str], _build: Build, machine: Machine) -> int:
    """mlxfwmanager: --query of all adapters; updates nothing."""
    if any(word in ("-u", "--update") for word in argv):
        say("-E- railweld lab stand-in: firmware is not updated")
        return 1
    say("Querying Mellanox devices firmware ...\n")
    for number, hca in enumerate(machine.hcas(), 1):
        say(f"Device #{number}:\n----------\n")
        say(f"  Device Type:      {str(hca['model']).replace('-', '')}")
        say(f"  Part Number:      {hca['part']}_Ax")
        say(f"  PSID:             {hca['board_id']}")
        say(f"  PCI Device Name:  {hca['bus_id']}")
        say(f"  Base GUID:        {str(hca['guid']).replace(':', '')}")
        say("  Versions:         Current        Available")
        say(f"     FW             {hca['fw_version']}     N/A\n")
        say("  Status:           No matching image found\n")
    return 0


def flint(argv: list[str], _build: Build, machine: Machine) -> int:
    """Flint and mstflint: -d DEVICE q."""
    options = _parse(argv, {"-d": "device"})
    hca = _device(machine, options.get("device", ""))
    if hca is None:
        say(f"-E- Cannot open Device: {options.get('device', '')}. No such file or directory.")
        return 1
    guid = str(hca["guid"]).replace(":", "")
    say("Image type:            FS4")
    say(f"FW Version:            {hca['fw_version']}")
    say(f"Base GUID:             {guid}        4")
    say(f"Base MAC:              {str(hca['mac']).replace(':', '')}            4")
    say(f"PSID:                  {hca['board_id']}")
    say("Security Attributes:   N/A")
    return 0
