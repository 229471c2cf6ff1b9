"""Initramfs images and the boot loader's configuration: what a boot reads from the disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from railweld.lab.node import modules, state

GRUB_CONFIG = "/boot/grub/grub.cfg"
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/usr/lib/modprobe.d")


# --- cpio, format newc -----------------------------------------------------------------------


def pack(files: dict[str, bytes]) -> bytes:
    """A cpio archive as the kernel unpacks it."""
    out = bytearray()
    for number, (name, content) in enumerate([*sorted(files.items()), ("TRAILER!!!", b"")], 1):
        encoded = name.encode() + b"\0"
        fields = (number, 0o100644, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        out += b"070701" + "".join(f"{field:08X}" for field in fields).encode() + encoded
        out += b"\0" * (-len(out) % 4)
        out += content
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def unpack(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a cpio archive.

    Raises:
        ValueError: it is none, or it ends early.
    """
    position = 0
    while True:
        header = data[position : position + 110]
        if len(header) < 110 or not header.startswith(b"070701"):
            raise ValueError("not a newc cpio archive, or cut short")
        size, name_size = int(header[54:62], 16), int(header[94:102], 16)
        start = position + 110
        name = data[start : start + name_size - 1].decode()
        start = (start + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return
        yield name, data[start : start + size]
        position = (start + size + 3) // 4 * 4


# --- initramfs -------------------------------------------------------------------------------


def installed_kernels() -> list[str]:
    """Releases with a kernel in /boot."""
    found = state.path("/boot").glob("vmlinuz-*")
    return sorted(file.name.removeprefix("vmlinuz-") for file in found)


def initramfs(release: str) -> Path:
    """The image of a kernel."""
    return state.path(f"/boot/initrd.img-{release}")


def build_initramfs(release: str) -> Path:
    """Pack modprobe.d as it is now, with markers for the modules that early boot could load."""
    files: dict[str, bytes] = {}
    for folder in MODPROBE_FOLDERS:
        for file in state.path(folder).glob("*.conf"):
            files[f"{folder.lstrip('/')}/{file.name}"] = file.read_bytes()
    for name in ("nouveau", "nova_core"):
        place = modules.IN_TREE[name][0]
        files[f"usr/lib/modules/{release}/kernel/{place}/{name}.ko"] = b""
    files["init"] = b"#!/bin/sh\n"
    target = initramfs(release)
    # First beside it, then in its place, as the real program does: a full disk keeps the old one.
    fresh = target.with_name(f"{target.name}.new")
    try:
        fresh.write_bytes(pack(files))
        with fresh.open("rb") as handle:
            os.fsync(handle.fileno())
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(target)
    return target


def initramfs_modprobe(release: str) -> str:
    """The modprobe.d lines that are in a kernel's image; none without an image."""
    try:
        entries = dict(unpack(initramfs(release).read_bytes()))
    except (FileNotFoundError, ValueError):
        return ""
    return "\n".join(
        content.decode() for name, content in sorted(entries.items()) if "modprobe.d/" in name
    )


# --- boot loader -----------------------------------------------------------------------------


def configured_parameters() -> str:
    """What /etc/default/grub and grub.d ask for, read by a shell as grub-mkconfig does."""
    files = [state.path("/etc/default/grub")]
    files += sorted(state.path("/etc/default/grub.d").glob("*.cfg"))
    script = "".join(f". '{file}'\n" for file in files if file.exists())
    script += 'printf "%s %s" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    done = subprocess.run(["/bin/sh", "-ec", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip() or "/etc/default/grub: not a shell file")
    return " ".join(done.stdout.split())


def write_grub_config() -> Path:
    """/boot/grub/grub.cfg with one entry for each installed kernel, newest first."""
    parameters = configured_parameters()
    entries = [
        f"menuentry 'Debian GNU/Linux, with Linux {release}' {{\n"
        f"\tlinux\t/boot/vmlinuz-{release} root=UUID=2c1f0c52-5e1a-4b7e-9c55-7a11 ro {parameters}\n"
        f"\tinitrd\t/boot/initrd.img-{release}\n}}\n"
        for release in reversed(installed_kernels())
    ]
    file = state.path(GRUB_CONFIG)
    state.write_file(file, "# Written by update-grub; do not edit.\n" + "".join(entries))
    return file


def command_line(release: str) -> str:
    """What the boot loader hands to a kernel, from grub.cfg and not from the settings."""
    file = state.path(GRUB_CONFIG)
    if file.exists():
        for line in file.read_text().splitlines():
            words = line.split()
            if words[:1] == ["linux"] and words[1] == f"/boot/vmlinuz-{release}":
                return " ".join([f"BOOT_IMAGE={words[1]}", *words[2:]])
    return f"BOOT_IMAGE=/boot/vmlinuz-{release} ro"
