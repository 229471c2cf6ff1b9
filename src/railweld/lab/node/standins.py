"""The programs that stand in for those that need a kernel, firmware or a boot loader of their own.

Each knows the options that installers, this product and its operators use, and prints what the
real one prints. `standin` calls `main` with the name that it was called by.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from railweld.lab.node import bootfiles, modules, state

Program = Callable[[Sequence[str]], int]


def say(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")


def main(name: str, arguments: Sequence[str]) -> int:
    """Run the program of that name."""
    if name in VERBS_PROGRAMS:
        other = Path(f"/usr/bin/{name}.distrib")
        if other.is_file() and not _is_compiled(other):
            # A package brought a stand-in of its own.
            os.execv(other, [name, *arguments])
        if not state.path("/var/lib/dpkg/info/ibverbs-utils.list").exists():
            complain(f"{name}: command not found")
            return 127
    return PROGRAMS[name](arguments)


#: Programs that are there only if this package is installed: ibverbs-utils.
VERBS_PROGRAMS = ("ibv_devices", "ibv_devinfo")


def _is_compiled(file: Path) -> bool:
    with file.open("rb") as handle:
        return handle.read(4) == b"\x7fELF"


# --- kernel modules --------------------------------------------------------------------------


def lsmod(_arguments: Sequence[str]) -> int:
    """Loaded modules, the last one first."""
    say(f"{'Module':<19} {'Size':>8}  Used by")
    for name in reversed(list(state.loaded_modules())):
        holders = modules.holders_of(name)
        say(f"{name:<19} {16384:>8}  {len(holders)} {','.join(holders)}".rstrip())
    return 0


def _flags(arguments: Sequence[str], with_value: str) -> tuple[set[str], list[str], dict[str, str]]:
    """Split options from words: letters and long names, the words, values of `with_value`."""
    flags: set[str] = set()
    words: list[str] = []
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            if key in with_value.split():
                values[key] = value if equals else (rest.pop(0) if rest else "")
            else:
                flags.add(key)
        elif word.startswith("-") and len(word) > 1:
            for position, letter in enumerate(word[1:], 1):
                if letter in with_value.split():
                    values[letter] = word[position + 1 :] or (rest.pop(0) if rest else "")
                    break
                flags.add(letter)
        else:
            words.append(word)
    return flags, words, values


def modprobe(arguments: Sequence[str]) -> int:
    """Load or, with -r, unload."""
    flags, words, _ = _flags(arguments, "C d S config dirname set-version")
    quiet = bool(flags & {"q", "quiet"})
    if flags & {"c", "showconfig"}:
        found = modules.rules()
        for name in sorted(found.blacklist):
            say(f"blacklist {name}")
        return 0
    if not words:
        complain("modprobe: ERROR: missing parameters. See -h.")
        return 1
    every = bool(flags & {"a", "all", "r", "remove"})
    names, options = (words, "") if every else (words[:1], " ".join(words[1:]))
    code = 0
    for name in names:
        try:
            _modprobe_one(name, options, flags)
        except modules.ModuleError as error:
            code = 1
            if not quiet:
                complain(f"modprobe: {error}")
    return code


def _modprobe_one(name: str, options: str, flags: set[str]) -> None:
    name = modules.canonical(name)
    if flags & {"r", "remove"}:
        modules.unload(name)
        return
    module = modules.find(name)
    dry = flags & {"n", "dry-run", "show", "D", "show-depends"}
    if flags & {"b", "use-blacklist"} and name in modules.rules().blacklist:
        return
    if dry:
        if module is None:
            if modules.is_builtin(name):
                return
            raise modules.ModuleError(
                f"FATAL: Module {name} not found in directory /lib/modules/{state.kernel()}"
            )
        if flags & {"D", "show-depends", "v", "verbose"}:
            for need in [*reversed(module.needs), name]:
                found = modules.find(need)
                say(f"insmod {found.file if found else need} ")
        return
    modules.load(name, options)


def insmod(arguments: Sequence[str]) -> int:
    """Load one file; here only a file that is a module of this node."""
    if not arguments:
        complain("insmod: ERROR: missing filename.")
        return 1
    name = modules.canonical(Path(arguments[0]).name.split(".ko")[0])
    try:
        modules.load(name, " ".join(arguments[1:]), use_install=False)
    except modules.ModuleError as error:
        complain(f"insmod: {error}")
        return 1
    return 0


def rmmod(arguments: Sequence[str]) -> int:
    """Take modules out."""
    _, words, _ = _flags(arguments, "")
    code = 0
    for name in words:
        try:
            modules.unload(name)
        except modules.ModuleError as error:
            complain(f"rmmod: {error}")
            code = 1
    return code


def depmod(_arguments: Sequence[str]) -> int:
    """Nothing to index: modprobe's stand-in looks at the disk itself."""
    return 0


def modinfo(arguments: Sequence[str]) -> int:
    """Fields of a module on disk."""
    flags, words, values = _flags(arguments, "F field k set-version b basedir")
    field = values.get("F") or values.get("field")
    for letter, name in (
        ("a", "author"),
        ("l", "license"),
        ("n", "filename"),
        ("d", "description"),
    ):
        if letter in flags:
            field = name
    code = 0
    for word in words:
        name = modules.canonical(Path(word).name.split(".ko")[0])
        module = modules.find(name)
        if module is None:
            if modules.is_builtin(name):
                say(f"name:           {name}\nfilename:       (builtin)")
                continue
            complain(f"modinfo: ERROR: Module {word} not found.")
            code = 1
            continue
        for key, value in _modinfo_fields(module):
            if field is None:
                say(f"{key + ':':<15} {value}")
            elif key == field:
                say(value)
    return code


def _modinfo_fields(module: modules.Module) -> list[tuple[str, str]]:
    fields = [("filename", module.file), ("license", module.license)]
    if module.version:
        fields.append(("version", module.version))
    fields.append(("srcversion", module.srcversion))
    fields.append(("depends", ",".join(module.needs)))
    if module.in_tree:
        fields.append(("intree", "Y"))
    fields.append(("name", module.name))
    fields.append(("vermagic", f"{state.kernel()} SMP preempt mod_unload modversions "))
    if module.signer:
        fields += [("sig_id", "PKCS#7"), ("signer", module.signer), ("sig_hashalgo", "sha256")]
    return fields


# --- boot ------------------------------------------------------------------------------------


def update_initramfs(arguments: Sequence[str]) -> int:
    """Build, update or delete the image of one kernel or of all."""
    flags, _, values = _flags(arguments, "k b")
    wanted = values.get("k", state.kernel())
    known = bootfiles.installed_kernels()
    releases = known if wanted == "all" else [wanted]
    for release in releases:
        if release not in known:
            complain(f"update-initramfs: {release} has no kernel in /boot")
            return 1
        if "d" in flags:
            say(f"update-initramfs: Deleting /boot/initrd.img-{release}")
            bootfiles.initramfs(release).unlink(missing_ok=True)
            continue
        say(f"update-initramfs: Generating /boot/initrd.img-{release}")
        try:
            bootfiles.build_initramfs(release)
        except OSError as error:
            complain(f"cpio: write error: {error.strerror}")
            complain(f"update-initramfs: failed for /boot/initrd.img-{release} with 1.")
            return 1
    return 0


def lsinitramfs(arguments: Sequence[str]) -> int:
    """Names in an image."""
    _, words, _ = _flags(arguments, "")
    code = 0
    for word in words:
        try:
            for name, _content in bootfiles.unpack(Path(word).read_bytes()):
                say(name)
        except (OSError, ValueError) as error:
            complain(f"lsinitramfs: {word}: {error}")
            code = 1
    return code


def update_grub(_arguments: Sequence[str]) -> int:
    """Write grub.cfg from /etc/default/grub."""
    complain("Generating grub configuration file ...")
    try:
        bootfiles.write_grub_config()
    except (OSError, ValueError) as error:
        complain(f"/usr/sbin/grub-mkconfig: {error}")
        return 1
    for release in reversed(bootfiles.installed_kernels()):
        complain(f"Found linux image: /boot/vmlinuz-{release}")
    complain("done")
    return 0


def mokutil(arguments: Sequence[str]) -> int:
    """Secure Boot state and enrolled keys."""
    secure_boot = state.secure_boot()
    if secure_boot == "unsupported":
        complain("EFI variables are not supported on this system")
        return 1
    if "--sb-state" in arguments:
        say("SecureBoot enabled" if secure_boot == "on" else "SecureBoot disabled")
        return 0
    if any(word in arguments for word in ("--list-enrolled", "-l")):
        for number, name in enumerate(state.enrolled_keys(), 1):
            say(f"[key {number}]\nCertificate:\n    Data:\n        Subject: CN={name}\n")
        return 0
    complain("mokutil: the lab's stand-in knows --sb-state and --list-enrolled")
    return 1


# --- data center bridging --------------------------------------------------------------------

#: What an adapter has after power-on. The file is shared with mlnx_qos: both set one hardware.
DCB_DEFAULT: dict[str, Any] = {
    "pfc": [False] * 8,
    "dscp2prio": {},
    "trust": "pcp",
    "dcbx": "firmware",
    "prio_tc": [0] * 8,
    "tc_tsa": ["strict"] * 8,
    "tc_bw": [0] * 8,
}


def dcb(arguments: Sequence[str]) -> int:
    """`dcb` of iproute2 6.1: the objects app, pfc and ets, kept per adapter until a power cycle."""
    as_json = False
    words = list(arguments)
    while words and words[0].startswith("-"):
        as_json = as_json or "j" in words[0]
        words.pop(0)
    try:
        return _dcb(words, as_json=as_json)
    except _DcbError as error:
        complain(str(error))
        return 255 if error.is_usage else 2


class _DcbError(Exception):
    """A refusal of dcb."""

    def __init__(self, text: str, *, is_usage: bool = True) -> None:
        self.is_usage = is_usage
        super().__init__(text)


def _dcb(words: list[str], *, as_json: bool) -> int:
    if not words or words[0] not in ("app", "pfc", "ets", "dcbx"):
        raise _DcbError(f'Object "{words[0] if words else ""}" is unknown, try "dcb help".')
    thing, verb, *rest = [*words, "show"] if len(words) == 1 else words
    if rest[:1] != ["dev"] or len(rest) < 2:
        raise _DcbError("Need to specify a device name")
    device, rest = rest[1], rest[2:]
    known = [hca["netdev"] for hca in state.profile().get("hcas", [])]
    if device not in known:
        raise _DcbError("dcb: Operation not supported", is_usage=False)
    file = state.run_dir() / "qos" / f"{device}.json"
    found: dict[str, Any] = {**DCB_DEFAULT, **state.read_json(file, {})}
    if verb == "show":
        _dcb_show(thing, found, as_json=as_json)
        return 0
    change = {"pfc": _dcb_pfc, "app": _dcb_app, "ets": _dcb_ets, "dcbx": _dcb_dcbx}.get(thing)
    if change is None:
        raise _DcbError("dcb: Operation not supported", is_usage=False)
    state.write_file(file, json.dumps(change(verb, json.loads(json.dumps(found)), rest)))
    return 0


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        key, colon, value = word.partition(":")
        if not colon:
            raise _DcbError(f'What is "{word}"?')
        pairs.append((key, value))
    return pairs


def _indexes(key: str) -> list[int]:
    return list(range(8)) if key == "all" else [int(key)]


def _dcb_pfc(_verb: str, found: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    if rest[:1] == ["prio-pfc"]:
        for key, value in _pairs(rest[1:]):
            for index in _indexes(key):
                found["pfc"][index] = value == "on"
    return found


def _dcb_app(verb: str, found: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    if verb != "flush" and rest[:1] != ["dscp-prio"]:
        raise _DcbError(f'What is "{rest[0] if rest else ""}"?')
    codes: dict[str, int] = {} if verb == "flush" else dict(found["dscp2prio"])
    for key, value in _pairs(rest[1:]):
        code, priority = str(_dscp(key)), int(value)
        if verb in ("add", "replace"):
            codes[code] = priority
        elif codes.get(code) == priority:
            del codes[code]
        else:
            raise _DcbError("Deleting nonexistent APP entry", is_usage=False)
    # The kernel's driver takes the first DSCP entry as the order to trust the packet's DSCP.
    return {**found, "dscp2prio": codes, "trust": "dscp" if codes else "pcp"}


#: Names that iproute2 takes for a DSCP.
DSCP_NAMES = {"EF": 46, "AF31": 26, "AF32": 28, "AF33": 30, **{f"CS{n}": n * 8 for n in range(8)}}


def _dscp(text: str) -> int:
    return DSCP_NAMES[text.upper()] if text.upper() in DSCP_NAMES else int(text)


def _dcb_ets(_verb: str, found: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    target: str | None = None
    for word in rest:
        if ":" not in word:
            target = {"prio-tc": "prio_tc", "tc-tsa": "tc_tsa", "tc-bw": "tc_bw"}.get(word)
            continue
        if target is None:
            raise _DcbError(f'What is "{word}"?')
        key, value = word.split(":")
        for index in _indexes(key):
            found[target][index] = value if target == "tc_tsa" else int(value)
    return found


def _dcb_dcbx(_verb: str, found: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    return {**found, "dcbx": "os" if "host" in rest else "firmware"}


def _dcb_show(thing: str, found: dict[str, Any], *, as_json: bool) -> None:
    if thing == "pfc":
        answer: dict[str, Any] = {
            "pfc_cap": 8,
            "macsec_bypass": False,
            "delay": 0,
            "prio_pfc": found["pfc"],
        }
        text = "pfc-cap 8 macsec-bypass off delay 0 \nprio-pfc " + " ".join(
            f"{index}:{'on' if bit else 'off'}" for index, bit in enumerate(found["pfc"])
        )
    elif thing == "app":
        entries = sorted((int(code), priority) for code, priority in found["dscp2prio"].items())
        answer = {"dscp_prio": entries} if entries else {}
        text = " ".join(["dscp-prio", *(f"{code}:{priority}" for code, priority in entries)])
        text = text if entries else ""
    elif thing == "dcbx":
        words = ["host" if found["dcbx"] == "os" else "lld-managed", "ieee"]
        answer = dict.fromkeys(words, True)
        text = " ".join(words)
    else:
        answer = {"ets_cap": 8, **{key: found[key] for key in ("prio_tc", "tc_tsa", "tc_bw")}}
        text = "ets-cap 8 \n" + "\n".join(
            f"{key.replace('_', '-')} " + " ".join(f"{i}:{v}" for i, v in enumerate(found[key]))
            for key in ("tc_bw", "tc_tsa", "prio_tc")
        )
    if as_json:
        say(json.dumps(answer))
    elif text:
        say(text)


# --- RDMA ------------------------------------------------------------------------------------


def rdma(arguments: Sequence[str]) -> int:
    """`rdma` of iproute2: links and devices."""
    words = [word for word in arguments if not word.startswith("-")]
    as_json = any(re.fullmatch(r"-\w*j\w*|--json", word) for word in arguments)
    folder = state.path("/sys/class/infiniband")
    hcas = state.hcas() if folder.is_dir() else []
    if words[:1] in (["link"], ["l"]):
        rows = [
            {
                "ifindex": number,
                "ifname": hca["name"],
                "port": 1,
                "state": "ACTIVE" if hca["is_up"] else "DOWN",
                "physical_state": "LINK_UP" if hca["is_up"] else "DISABLED",
                "netdev": hca["netdev"],
            }
            for number, hca in enumerate(hcas)
        ]
        for row in [] if as_json else rows:
            say(
                f"link {row['ifname']}/1 state {row['state']} physical_state "
                f"{row['physical_state']} netdev {row['netdev']} "
            )
    elif words[:1] in (["dev"], ["d"]):
        rows = [
            {
                "ifindex": number,
                "ifname": hca["name"],
                "node_type": "ca",
                "fw": hca["fw_version"],
                "node_guid": hca["guid"],
                "sys_image_guid": hca["guid"],
            }
            for number, hca in enumerate(hcas)
        ]
        for row in [] if as_json else rows:
            say(
                f"{row['ifindex']}: {row['ifname']}: node_type ca fw {row['fw']} "
                f"node_guid {row['node_guid']} sys_image_guid {row['sys_image_guid']} "
            )
    else:
        complain("rdma: the lab's stand-in knows the objects link and dev")
        return 1
    if as_json:
        say(json.dumps(rows))
    return 0


def ibv_devices(_arguments: Sequence[str]) -> int:
    """Adapters with their GUIDs."""
    say("    device          \t   node GUID")
    say("    ------          \t----------------")
    for hca in _verbs_hcas():
        say(f"    {hca['name']:<16}\t{hca['guid'].replace(':', '')}")
    return 0


def ibv_devinfo(arguments: Sequence[str]) -> int:
    """Adapters and their ports as libibverbs tells them."""
    _, _, values = _flags(arguments, "d i ib-dev ib-port")
    wanted = values.get("d") or values.get("ib-dev")
    found = [hca for hca in _verbs_hcas() if wanted in (None, hca["name"])]
    if not found:
        complain("No IB devices found" if wanted is None else f"IB device '{wanted}' wasn't found")
        return 255
    for hca in found:
        mtu = active_mtu(hca["netdev"])
        ethernet = hca["link_layer"] == "Ethernet"
        say(
            f"hca_id:\t{hca['name']}\n"
            f"\ttransport:\t\t\tInfiniBand (0)\n"
            f"\tfw_ver:\t\t\t\t{hca['fw_version']}\n"
            f"\tnode_guid:\t\t\t{hca['guid']}\n"
            f"\tsys_image_guid:\t\t\t{hca['guid']}\n"
            f"\tvendor_id:\t\t\t0x02c9\n"
            f"\tvendor_part_id:\t\t\t{int(hca['device'], 16)}\n"
            f"\thw_ver:\t\t\t\t0x0\n"
            f"\tboard_id:\t\t\t{hca['board_id']}\n"
            f"\tphys_port_cnt:\t\t\t1\n"
            f"\t\tport:\t1\n"
            f"\t\t\tstate:\t\t\t{'PORT_ACTIVE (4)' if hca['is_up'] else 'PORT_DOWN (1)'}\n"
            f"\t\t\tmax_mtu:\t\t4096 (5)\n"
            f"\t\t\tactive_mtu:\t\t{mtu} ({mtu.bit_length() - 8})\n"
            f"\t\t\tsm_lid:\t\t\t{0 if ethernet else 1}\n"
            f"\t\t\tport_lid:\t\t{0 if ethernet else 1}\n"
            f"\t\t\tport_lmc:\t\t0x00\n"
            f"\t\t\tlink_layer:\t\t{hca['link_layer']}\n"
        )
    return 0


def active_mtu(netdev: str) -> int:
    """The RDMA MTU that fits into the network interface's: a power of two from 256 to 4096."""
    try:
        room = int(state.path(f"/sys/class/net/{netdev}/mtu").read_text()) - 64
    except FileNotFoundError:
        room = 1436
    return max(size for size in (256, 512, 1024, 2048, 4096) if size <= max(room, 256))


def _verbs_hcas() -> list[dict[str, Any]]:
    """Adapters that verbs can open: both kernel modules are there."""
    loaded = state.loaded_modules()
    return state.hcas() if {"mlx5_ib", "ib_uverbs"} <= set(loaded) else []


PROGRAMS: dict[str, Program] = {
    "dcb": dcb,
    "depmod": depmod,
    "ibv_devices": ibv_devices,
    "ibv_devinfo": ibv_devinfo,
    "insmod": insmod,
    "lsinitramfs": lsinitramfs,
    "lsmod": lsmod,
    "modinfo": modinfo,
    "modprobe": modprobe,
    "mokutil": mokutil,
    "rdma": rdma,
    "rmmod": rmmod,
    "update-grub": update_grub,
    "update-initramfs": update_initramfs,
}
