# SPDX-License-Identifier: Apache-2.0
"""Reads what tells a healthy GPU from a sick one. Runs on the node: standard library, Python 3.8.

Changes nothing and resets no counter.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

#: In the kernel log: `NVRM: Xid (PCI:0000:c7:00): 79, pid=..., GPU has fallen off the bus.`
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),?\s*(.*)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: So many of the last Xid lines are enough to tell what happened.
_XID_LINES = 50


def read_health(output):
    """Return the health of all GPUs.

    Args:
        output: callable that runs a program and returns its standard output, or None.
    """
    xml = output("nvidia-smi", "-q", "-x")
    log = output("dmesg", "--notime") or output("journalctl", "-k", "-b", "-o", "cat", "--no-pager")
    return {
        "gpus": parse_gpus(xml),
        "nvlink": parse_nvlink(output("nvidia-smi", "nvlink", "-s")),
        "topology": parse_topology(output("nvidia-smi", "topo", "-m")),
        "kernel_log": log is not None,
        "xids": parse_xids(log),
    }


def parse_gpus(xml):
    """Health of each GPU by PCI address from `nvidia-smi -q -x`; None where that gave nothing."""
    if not xml:
        return None
    try:
        # Newer drivers put a DOCTYPE in front; nothing is fetched for it.
        root = ET.fromstring(xml)  # noqa: S314 - the answer of this node's own nvidia-smi
    except ET.ParseError:
        return None
    return {address(gpu.get("id", "")): _gpu(gpu) for gpu in root.iter("gpu")}


def address(text):
    """`00000000:C7:00.0` and `0000:c7:00` are the same GPU: `0000:c7:00`."""
    parts = text.lower().split(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) > 1 else text.lower()


def _gpu(gpu):
    ecc = gpu.find("ecc_errors")
    return {
        "name": re.sub(r"^NVIDIA ", "", _text(gpu, "product_name") or ""),
        "vbios": _text(gpu, "vbios_version"),
        "memory_mib": _number(gpu, "fb_memory_usage/total"),
        "bar1_mib": _number(gpu, "bar1_memory_usage/total"),
        "recovery_action": _text(gpu, "gpu_recovery_action"),
        "uncorrected": _uncorrected(ecc, "volatile"),
        "uncorrected_ever": _uncorrected(ecc, "aggregate"),
        "remap_pending": _yes(gpu, "remapped_rows/remapped_row_pending"),
        "remap_failure": _yes(gpu, "remapped_rows/remapped_row_failure"),
        "pages_pending": _yes(gpu, "retired_pages/pending_retirement"),
        "pcie_width": _number(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        "pcie_width_max": _number(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        "pcie_gen": _number(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        "pcie_gen_max": _number(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
    }


def _text(gpu, path):
    text = (gpu.findtext(path) or "").strip()
    return text if text and text not in ("N/A", "[N/A]") else None


def _number(gpu, path):
    match = re.match(r"\d+", _text(gpu, path) or "")
    return int(match.group()) if match else None


def _yes(gpu, path):
    text = _text(gpu, path)
    return None if text is None else text == "Yes"


def _uncorrected(ecc, kind):
    """Uncorrectable errors of SRAM and DRAM together; names differ between driver branches."""
    counts = [
        int(child.text)
        for child in (ecc.iter() if ecc is not None else ())
        if "uncorrectable" in child.tag
        and (child.text or "").strip().isdecimal()
        and _inside(ecc, kind, child)
    ]
    return sum(counts) if counts else None


def _inside(ecc, kind, child):
    group = ecc.find(kind)
    return group is not None and child in list(group)


def parse_nvlink(text):
    """Links of each GPU by index: GB/s of each link, None for an inactive one."""
    found = {}
    index = None
    for line in (text or "").splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        link = re.match(r"\s+Link (\d+): (?:([\d.]+) GB/s|<inactive>)", line)
        if gpu:
            index = gpu.group(1)
            found[index] = {}
        elif link and index is not None:
            found[index][link.group(1)] = float(link.group(2)) if link.group(2) else None
    return found


def parse_topology(text):
    """Distance of each GPU to each NIC by device name: PIX, PXB, PHB, NODE or SYS."""
    lines = [_ANSI.sub("", line) for line in (text or "").splitlines()]
    header = next((line for line in lines if line.strip().startswith("GPU0")), None)
    if header is None:
        return {}
    columns = [word.strip() for word in header.split("\t")][1:]
    names = dict(re.findall(r"(NIC\d+): (\S+)", "\n".join(lines)))
    found = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not re.fullmatch(r"GPU\d+", cells[0]) or len(cells) < 2:
            continue
        found[cells[0][3:]] = {
            names.get(column, column): cell
            for column, cell in zip(columns, cells[1:])  # noqa: B905 - Python 3.8 has no strict
            if column.startswith(("NIC", "mlx5_"))
        }
    return found


def parse_xids(log):
    """The last Xid events of this boot: PCI address, number, text, and how often each came."""
    seen = {}
    for line in (log or "").splitlines():
        match = _XID.search(line)
        if match:
            key = (address(match.group(1)), int(match.group(2)))
            count = seen.pop(key, {}).get("count", 0)
            seen[key] = {
                "gpu": key[0],
                "xid": key[1],
                "text": match.group(3)[:200],
                "count": count + 1,
            }
    return list(seen.values())[-_XID_LINES:]
