"""What RDMA needs before it is set up, and what must be observable once it is.

The role works in two stages around the one reboot of a run: packages, boot modules and kernel
parameters before it, the RoCE host side after it. `guard` is the first stage's; the second has
its own (`rdma_host`), because it may ask for the driver and the first may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.record import Check, judge
from railweld.verify.context import Context, unheld

ROLE: Final = "rdma"

#: First kernel whose in-tree ib_uverbs registers DMA-BUF memory regions.
DMABUF_KERNEL: Final = (5, 12)
#: First CUDA release that exports device memory as DMA-BUF.
DMABUF_CUDA: Final = (11, 7)
#: First rdma-core with ibv_reg_dmabuf_mr in every provider that the sites use.
DMABUF_RDMA_CORE: Final = (41,)
#: NCCL up to this release looks for peermem only below /sys/kernel/mm/memory_peers.
MEMORY_PEERS_NCCL: Final = (2, 14)

#: Boot settings of the IOMMU per architecture. `keep` leaves the machine's own.
_IOMMU_PARAMETERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "x86_64": {"pt": ("iommu=pt",), "off": ("intel_iommu=off", "amd_iommu=off")},
    "aarch64": {"pt": ("iommu.passthrough=1",), "off": ("iommu.passthrough=1",)},
}

#: Where the kernel keeps the defaults of rdma_cm.
CONFIGFS: Final = "/sys/kernel/config"

_REF: Final = "docs/base.md"


def _numbers(text: object) -> tuple[int, ...]:
    """Leading dotted numbers of a version: '2.14.3-1+cuda11.7' -> (2, 14, 3)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", str(text or ""))
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def upstream_version(deb: object) -> str:
    """Upstream part of a Debian version: '1:41.0-1ubuntu2' -> '41.0'."""
    text = str(deb or "").partition(":")[2] or str(deb or "")
    return text.rsplit("-", 1)[0]


def _integer(value: object) -> int | None:
    """Kernel files hold "48", "0x30" or, with OFED, "Global tclass=104"."""
    match = re.search(r"(?:^|=)\s*(0x[0-9a-fA-F]+|\d+)", str(value))
    return int(match.group(1), 0) if match else None


def _module(name: str) -> str:
    """Kernel modules are spelled with either dash; the kernel lists them with underscores."""
    return name.replace("-", "_")


def kernel_parameters(kernel: Mapping[str, Any], arch: str) -> list[str]:
    """Kernel command line words that the site wants on a host, in a stable order."""
    iommu = _IOMMU_PARAMETERS.get(arch, {}).get(str(kernel.get("iommu", "keep")), ())
    extra = [str(word) for word in kernel.get("parameters") or []]
    return list(dict.fromkeys([*iommu, *extra]))


def boot_modules(site: Mapping[str, Any], kernel: Mapping[str, Any]) -> list[str]:
    """Modules to load at boot. nvidia_peermem only where the site chose it."""
    modules = [_module(str(name)) for name in kernel.get("modules") or []]
    if site.get("gpudirect") == "peermem":
        modules.append("nvidia_peermem")
    return list(dict.fromkeys(modules))


def component(site: Mapping[str, Any]) -> str:
    """Component of the version set that carries the RDMA stack that the site chose."""
    return "doca" if site.get("rdma_stack") == "doca" else "rdma"


def roce_config(site: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """What /etc/railweld/roce.json holds: the RoCE host side of one node."""
    lossless, cnp = site["lossless"], site["cnp"]
    return {
        "stack": site["rdma_stack"],
        "priority": lossless["priority"],
        "dscp": lossless["dscp"],
        "tos": lossless["traffic_class_byte"],
        "cnp_dscp": cnp["dscp"],
        "cnp_priority": cnp["priority"],
        "mtu": site["host_mtu"],
        "devices": [
            {"hca": hca["name"], "netdev": hca["netdev"], "port": 1} for hca in host["hcas"]
        ],
    }


def packages_in_place(ctx: Context) -> bool:
    """Tell whether the first stage's packages are installed, each in its pinned version."""
    pins = ctx.pins(component(ctx.site))
    return bool(pins) and all(_fits(ctx.installed_version(name), wanted) for name, wanted in pins)


def _fits(installed: str | None, wanted: str) -> bool:
    """An empty pin stands for the version of the node's own distribution release."""
    return installed is not None and wanted in ("", installed)


def exact_packages(ctx: Context) -> list[dict[str, str]]:
    """Pins with the distribution's own versions filled in: what is installed, else apt's candidate.

    A package of unknown version keeps an empty one: the node has no repository for it yet.
    """
    candidates = (ctx.node.get("apt") or {}).get("candidates") or {}
    return [
        {
            "name": name,
            "version": version
            or ctx.installed_version(name)
            or (candidates.get(name) or {}).get("candidate")
            or "",
        }
        for name, version in ctx.pins(component(ctx.site))
    ]


def guard(ctx: Context) -> Iterator[Check]:
    """Refuse what cannot work, before anything is touched."""
    if not ctx.host.get("hcas"):
        return
    target = str(ctx.host["name"])
    peermem = ctx.site["gpudirect"] == "peermem"
    pins = ctx.pins(component(ctx.site))
    stack = ctx.site["rdma_stack"]
    yield judge(
        id="rdma.packages_known",
        target=target,
        ok=bool(pins),
        ran="railweld check",
        found=f"{len(pins)} packages for stack {stack} in {ctx.host.get('vendor_repository')}",
        expected="at least one exact package",
        fix="choose a version set that has this stack for the host's railweld_vendor_repository, "
        "or set railweld_rdma_stack to the other one",
        ref=_REF,
    )
    adapters = (ctx.node.get("pci") or {}).get("hcas", 0)
    cards = len(ctx.host["hcas"])
    yield judge(
        id="rdma.adapters_on_bus",
        target=target,
        ok=adapters >= cards,
        ran="lspci -d 15b3:",
        found=f"{adapters} adapters on the PCI bus",
        expected=f"at least {cards}: {', '.join(hca['name'] for hca in ctx.host['hcas'])}",
        fix="reseat or replace the missing card, or correct railweld_rails for this host",
        ref=_REF,
    )
    if peermem:
        yield from _guard_peermem(ctx, target)
    else:
        yield from _guard_dmabuf(ctx, target, dict(pins))


def _guard_peermem(ctx: Context, target: str) -> Iterator[Check]:
    yield judge(
        id="rdma.peermem_stack",
        target=target,
        ok=ctx.site["rdma_stack"] == "doca",
        ran="railweld check",
        found=f"railweld_gpudirect peermem with railweld_rdma_stack {ctx.site['rdma_stack']}",
        expected="railweld_rdma_stack doca: mainline ib_core has no peer memory interface",
        fix="set railweld_rdma_stack: doca, or railweld_gpudirect: dmabuf",
        ref=_REF,
    )
    on_disk = (ctx.node.get("driver") or {}).get("on_disk")
    ofed = (ctx.node.get("rdma") or {}).get("ofed")
    yield judge(
        id="rdma.ofed_before_driver",
        target=target,
        ok=bool(ofed) or not on_disk,
        ran="ofed_info -s; modinfo -F version nvidia",
        found=f"driver {on_disk or 'absent'}, OFED {ofed or 'absent'}",
        expected="OFED installed before the NVIDIA driver is built, because nvidia-peermem takes "
        "its symbol versions from the ib_core it is built against",
        fix="remove the NVIDIA driver packages from this node, then run the playbook again: it "
        "installs OFED first in peermem mode",
        ref=_REF,
    )


def _guard_dmabuf(ctx: Context, target: str, pins: Mapping[str, str]) -> Iterator[Check]:
    yield from _dmabuf_kernel(ctx, target)
    if ctx.site["rdma_stack"] != "inbox":
        return
    pinned = pins.get("rdma-core") or pins.get("libibverbs1")
    if not pinned:
        return
    yield judge(
        id="rdma.dmabuf_rdma_core_pin",
        target=target,
        ok=_numbers(upstream_version(pinned)) >= DMABUF_RDMA_CORE,
        ran="railweld check",
        found=f"rdma-core {pinned} in the version set",
        expected="rdma-core 41 or newer for DMA-BUF",
        fix="set railweld_rdma_stack: doca, use a newer OS repository, or set "
        "railweld_gpudirect: peermem with DOCA",
        ref=_REF,
    )


def predecessors(ctx: Context) -> Iterator[Check]:
    """What the host side needs: the driver and CUDA are its predecessors."""
    target = ctx.name
    gpu = ctx.host.get("gpu")
    if not gpu or not gpu.get("count"):
        return
    driver = ctx.node.get("driver") or {}
    wanted = (ctx.host.get("driver") or {}).get("version")
    yield judge(
        id="rdma.driver_running",
        target=target,
        ok=bool(driver.get("loaded")) and driver.get("loaded") == wanted,
        ran="cat /sys/module/nvidia/version",
        found=f"loaded driver {driver.get('loaded') or 'none'}",
        expected=f"loaded driver {wanted}",
        fix="run the nvidia_driver role and let the node reboot, then run this one again",
        ref=_REF,
    )
    if ctx.site["gpudirect"] == "dmabuf":
        yield _dmabuf_flavour(ctx, target)
        yield _dmabuf_cuda(ctx, target)


def _dmabuf_kernel(ctx: Context, target: str) -> Iterator[Check]:
    kernel = ctx.node.get("kernel") or {}
    running = kernel.get("running")
    yield judge(
        id="rdma.dmabuf_kernel",
        target=target,
        ok=_numbers(running) >= DMABUF_KERNEL,
        ran="uname -r",
        found=f"kernel {running}",
        expected="kernel 5.12 or newer for DMA-BUF",
        fix="boot a newer kernel, or set railweld_gpudirect: peermem and railweld_rdma_stack: doca",
        ref=_REF,
    )
    p2pdma = kernel.get("p2pdma")
    yield judge(
        id="rdma.dmabuf_p2pdma",
        target=target,
        ok=p2pdma is True,
        ran="grep CONFIG_PCI_P2PDMA /boot/config-$(uname -r)",
        found="no readable configuration of the running kernel"
        if p2pdma is None
        else f"CONFIG_PCI_P2PDMA {'=y' if p2pdma else 'not set'}",
        expected="CONFIG_PCI_P2PDMA=y",
        fix="use a kernel built with CONFIG_PCI_P2PDMA (the distribution's generic kernels are), "
        "or set railweld_gpudirect: peermem with railweld_rdma_stack: doca",
        ref=_REF,
    )


def _dmabuf_flavour(ctx: Context, target: str) -> Check:
    flavour = (ctx.node.get("driver") or {}).get("kernel_flavour")
    return judge(
        id="rdma.dmabuf_open_modules",
        target=target,
        ok=flavour == "open",
        ran="cat /proc/driver/nvidia/version",
        found=f"{flavour or 'no'} kernel modules",
        expected="open kernel modules: the proprietary ones export no DMA-BUF",
        fix="set railweld_driver_modules: open and run the nvidia_driver role, or choose "
        "railweld_gpudirect: peermem with railweld_rdma_stack: doca",
        ref=_REF,
    )


def _dmabuf_cuda(ctx: Context, target: str) -> Check:
    release = (ctx.node.get("cuda") or {}).get("release")
    return judge(
        id="rdma.dmabuf_cuda",
        target=target,
        ok=_numbers(release) >= DMABUF_CUDA,
        ran="nvcc --version",
        found=f"CUDA {release or 'absent'}",
        expected="CUDA 11.7 or newer for DMA-BUF",
        fix="run the cuda role first; with an older CUDA choose railweld_gpudirect: peermem",
        ref=_REF,
    )


def checks(ctx: Context) -> Iterator[Check]:
    """RDMA as the site describes it, read back from the node."""
    if not ctx.host.get("hcas"):
        return
    target = str(ctx.host["name"])
    yield from _check_packages(ctx, target)
    yield from _check_kernel(ctx, target)
    yield from _check_adapters(ctx, target)
    if ctx.site["transport"] == "roce":
        yield from _check_roce(ctx, target)
    yield from _check_gpudirect(ctx, target)


def _check_packages(ctx: Context, target: str) -> Iterator[Check]:
    for name, version in ctx.pins(component(ctx.site)):
        seen = ctx.package(name)
        status = seen.get("status")
        yield judge(
            id=f"rdma.package.{name}",
            target=target,
            ok=status == "ii" and _fits(str(seen.get("version")), version),
            ran=f"dpkg-query -W {name}",
            found=f"{name} {seen.get('version')} (dpkg state {status})"
            if seen
            else f"{name} not installed",
            expected=f"{name} {version or '(the version of the distribution)'} installed",
            fix="run the rdma role on this host",
            ref=_REF,
        )
    loose = unheld(ctx, component(ctx.site))
    yield judge(
        id="rdma.held",
        target=target,
        ok=not loose,
        ran="apt-mark showhold",
        found=f"not held: {', '.join(loose)}" if loose else "all held",
        expected="every installed package of the RDMA stack on hold",
        fix=f"apt-mark hold {' '.join(loose)}; or run the rdma role on this host",
        ref=_REF,
    )
    if ctx.site["rdma_stack"] == "doca":
        ofed = (ctx.node.get("rdma") or {}).get("ofed")
        wanted = (ctx.host.get("doca") or {}).get("ofed")
        yield judge(
            id="rdma.ofed",
            target=target,
            ok=bool(ofed) and wanted in (None, ofed),
            ran="ofed_info -s",
            found=ofed or "no OFED",
            expected=wanted or "DOCA-OFED",
            fix="run the rdma role",
            ref=_REF,
        )


def _check_kernel(ctx: Context, target: str) -> Iterator[Check]:
    kernel = ctx.host.get("kernel") or {}
    loaded = {_module(str(name)) for name in ctx.node.get("modules") or []}
    wanted = boot_modules(ctx.site, kernel)
    missing = [name for name in wanted if name not in loaded]
    yield judge(
        id="rdma.modules",
        target=target,
        ok=not missing,
        ran="lsmod",
        found=f"not loaded: {', '.join(missing)}" if missing else "all loaded",
        expected=f"loaded: {', '.join(wanted)}",
        fix=f"modprobe {' '.join(missing)}; journalctl -k says why if that fails",
        ref=_REF,
    )
    stale = (ctx.node.get("rdma") or {}).get("stale_modules") or []
    yield judge(
        id="rdma.loaded_modules_are_installed_ones",
        target=target,
        ok=not stale,
        ran="cat /sys/module/mlx5_core/srcversion; modinfo -F srcversion mlx5_core",
        found=f"another build loaded than installed: {', '.join(stale)}" if stale else "same build",
        expected="the installed build of every RDMA module loaded",
        fix="reboot the node (a restart of openibd cuts the management network when it runs over "
        "one of these adapters)",
        ref=_REF,
    )
    words = (ctx.node.get("kernel") or {}).get("cmdline") or []
    arch = str((ctx.node.get("os") or {}).get("arch") or "x86_64")
    parameters = kernel_parameters(kernel, arch)
    absent = [word for word in parameters if word not in words]
    yield judge(
        id="rdma.kernel_parameters",
        target=target,
        ok=not absent,
        ran="cat /proc/cmdline",
        found=f"missing {' '.join(absent)}" if absent else "all there",
        expected=" ".join(parameters) or "nothing",
        fix="reboot the node; if they are still missing, the boot loader does not read "
        "/etc/default/grub.d: add them where it reads",
        ref=_REF,
    )
    if kernel.get("acs") == "off":
        enabled = (ctx.node.get("rdma") or {}).get("acs_enabled")
        yield judge(
            id="rdma.acs_off",
            target=target,
            ok=enabled == [],
            ran="lspci -vvv | grep ACSCtl",
            found=f"ACS on at {', '.join(enabled)}"
            if enabled
            else ("off" if enabled == [] else "not observed, lspci is missing"),
            expected="ACS off on every bridge",
            fix="systemctl restart railweld-acs; on a virtual machine set railweld_acs: keep",
            ref=_REF,
        )
    yield from _check_memlock(ctx, target)


def _check_memlock(ctx: Context, target: str) -> Iterator[Check]:
    """RDMA registers (locks) memory; the site says how much a session may lock."""
    seen = (ctx.node.get("limits") or {}).get("memlock")
    wanted = ctx.site.get("memlock_kib", "unlimited")
    ok = seen == "unlimited" or (
        wanted != "unlimited" and isinstance(seen, int) and seen >= int(wanted)
    )
    yield judge(
        id="rdma.memlock",
        target=target,
        ok=ok,
        ran="ulimit -l",
        found=f"{seen} KiB" if isinstance(seen, int) else f"{seen}",
        expected=f"{wanted}" if wanted == "unlimited" else f"at least {wanted} KiB",
        fix="run the rdma role and log in again; check for another file in "
        "/etc/security/limits.d that sorts later",
        ref=_REF,
    )


def _check_adapters(ctx: Context, target: str) -> Iterator[Check]:
    observed = {hca.get("name"): hca for hca in ctx.node.get("hcas") or []}
    link_layer = "Ethernet" if ctx.site["transport"] == "roce" else "InfiniBand"
    for hca in ctx.host["hcas"]:
        name = hca["name"]
        port = f"{target}/{name}"
        seen = observed.get(name)
        yield judge(
            id="rdma.adapter_present",
            target=port,
            ok=seen is not None,
            ran="ls /sys/class/infiniband",
            found=", ".join(sorted(str(key) for key in observed)) or "no RDMA device",
            expected=name,
            fix="load mlx5_ib; look at dmesg for the card; correct the name in railweld_rails "
            "if the kernel gives it another one",
            ref=_REF,
        )
        if seen is None:
            continue
        yield judge(
            id="rdma.link_layer",
            target=port,
            ok=seen.get("link_layer") == link_layer,
            ran=f"cat /sys/class/infiniband/{name}/ports/1/link_layer",
            found=seen.get("link_layer"),
            expected=link_layer,
            fix=f"mlxconfig -d {name} set LINK_TYPE_P1={2 if link_layer == 'Ethernet' else 1}, "
            "then power-cycle the node; or correct railweld_transport",
            ref=_REF,
        )
        if link_layer == "Ethernet":
            yield judge(
                id="rdma.netdev",
                target=port,
                ok=seen.get("netdev") == hca["netdev"],
                ran="rdma link show",
                found=seen.get("netdev"),
                expected=hca["netdev"],
                fix="correct netdev or hca of this rail in railweld_rails, or the cabling order",
                ref=_REF,
            )
        elif seen.get("link_layer") == link_layer:
            yield from _check_subnet(port, name, seen)
        yield judge(
            id="rdma.link",
            target=port,
            ok=seen.get("state") == "ACTIVE" and seen.get("phys_state") == "LinkUp",
            ran=f"ibstat {name}",
            found=f"{seen.get('state')}/{seen.get('phys_state')}",
            expected="ACTIVE/LinkUp",
            fix="check cable and optic, then the switch port"
            + (f" ({hca['switch']} {hca.get('port')})" if hca.get("switch") else ""),
            ref=_REF,
        )
        yield judge(
            id="rdma.rate",
            target=port,
            ok=seen.get("rate_gbps") == hca["rate_gbps"],
            ran=f"cat /sys/class/infiniband/{name}/ports/1/rate",
            found=f"{seen.get('rate_gbps')} Gb/s",
            expected=f"{hca['rate_gbps']} Gb/s",
            fix="check cable, optic, FEC and the switch port's speed; or correct rate_gbps",
            ref=_REF,
        )
    yield from _check_firmware(ctx, target, observed)


def _check_subnet(target: str, name: str, seen: Mapping[str, Any]) -> Iterator[Check]:
    """What makes an InfiniBand port usable: a subnet manager that knows it, and a partition."""
    folder = f"/sys/class/infiniband/{name}/ports/1"
    lids = [_integer(seen.get(key)) or 0 for key in ("lid", "sm_lid")]
    yield judge(
        id="rdma.subnet_manager",
        target=target,
        ok=all(lids),
        ran=f"cat {folder}/lid {folder}/sm_lid; sminfo",
        found=f"LID {lids[0] or 'none'}, subnet manager at {lids[1] or 'none'}",
        expected="a LID, and that of the subnet manager",
        fix="start opensm, or the subnet manager of the switches; iblinkinfo shows the cables "
        "between switches",
        ref=_REF,
    )
    keys = [_integer(key) or 0 for key in seen.get("pkeys") or ()]
    # The top bit tells a full member; two limited members of a partition cannot talk.
    full = [key for key in keys if key & 0x8000 and key & 0x7FFF]
    yield judge(
        id="rdma.partition",
        target=target,
        ok=bool(full),
        ran=f"cat {folder}/pkeys/*",
        found=", ".join(f"{key:#06x}" for key in keys if key) or "no partition key",
        expected="full membership of a partition (0xffff is the default one)",
        fix="give the port full membership in the subnet manager's partitions.conf",
        ref=_REF,
    )


def _check_firmware(
    ctx: Context, target: str, observed: Mapping[Any, Mapping[str, Any]]
) -> Iterator[Check]:
    """Cards of one board must run one firmware; a mix shows as one slow rail."""
    per_board: dict[str, dict[str, list[str]]] = {}
    unread: list[str] = []
    for hca in ctx.host["hcas"]:
        seen = observed.get(hca["name"])
        if seen is None:
            continue
        if not seen.get("fw_version"):
            unread.append(hca["name"])
            continue
        board = str(seen.get("board_id") or "unknown board")
        per_board.setdefault(board, {}).setdefault(str(seen["fw_version"]), []).append(hca["name"])
    mixed = {board: by for board, by in per_board.items() if len(by) > 1}
    found = (
        "; ".join(
            f"{board}: " + ", ".join(f"{fw} on {'/'.join(names)}" for fw, names in by.items())
            for board, by in (mixed or per_board).items()
        )
        or "nothing"
    )
    if unread:
        found += f"; no version from {', '.join(unread)}"
    yield judge(
        id="rdma.firmware",
        target=target,
        ok=bool(per_board) and not mixed and not unread,
        ran="cat /sys/class/infiniband/*/fw_ver /sys/class/infiniband/*/board_id",
        found=found,
        expected="one firmware version per board",
        fix="bring all cards of the board to one version (mlxfwmanager or mstflint), then reboot",
        ref=_REF,
    )


def _check_roce(ctx: Context, target: str) -> Iterator[Check]:
    observed = (ctx.node.get("rdma") or {}).get("roce") or {}
    adapters = {hca.get("name"): hca for hca in ctx.node.get("hcas") or []}
    wanted = roce_config(ctx.site, ctx.host)
    doca = wanted["stack"] == "doca"
    pfc = [number == wanted["priority"] for number in range(8)]
    has_configfs = bool((ctx.node.get("rdma") or {}).get("configfs"))
    if not has_configfs:
        yield ctx.warn(
            "rdma.default_tos",
            ran=f"ls {CONFIGFS}",
            found="a kernel without configfs",
            expected=f"a default type of service of {wanted['tos']} for rdma_cm",
            fix="use a kernel with CONFIG_CONFIGFS_FS; NCCL is not affected, it marks its own "
            "traffic (NCCL_IB_TC)",
        )
    for device in wanted["devices"]:
        netdev = device["netdev"]
        port = f"{target}/{netdev}"
        seen = observed.get(netdev) or {}
        show = f"mlnx_qos -i {netdev}" if doca else f"dcb app show dev {netdev}"
        fix = "systemctl restart railweld-roce; journalctl -u railweld-roce says what failed"
        yield judge(
            id="rdma.trust",
            target=port,
            ok=seen.get("trust") == "dscp",
            ran=show,
            found=seen.get("trust") or "not observed",
            expected="dscp",
            fix=fix,
            ref=_REF,
        )
        mapped = (seen.get("dscp_prio") or {}).get(str(wanted["dscp"]))
        yield judge(
            id="rdma.dscp_priority",
            target=port,
            ok=mapped == wanted["priority"],
            ran=show,
            found=f"DSCP {wanted['dscp']} in priority {mapped}",
            expected=f"DSCP {wanted['dscp']} in priority {wanted['priority']}",
            fix=fix,
            ref=_REF,
        )
        lossless = [number for number, on in enumerate(seen.get("pfc") or []) if on]
        yield judge(
            id="rdma.pfc",
            target=port,
            ok=list(seen.get("pfc") or []) == pfc,
            ran=show if doca else f"dcb pfc show dev {netdev} prio-pfc",
            found=", ".join(f"priority {number}" for number in lossless) or "no priority",
            expected=f"priority {wanted['priority']} and no other",
            fix=fix,
            ref=_REF,
        )
        yield judge(
            id="rdma.cnp_dscp",
            target=port,
            ok=_integer(seen.get("cnp_dscp")) == wanted["cnp_dscp"],
            ran=f"cat /sys/class/net/{netdev}/ecn/roce_np/cnp_dscp "
            "(mainline: /sys/kernel/debug/mlx5/*/cc_params/np_cnp_dscp)",
            found=_integer(seen.get("cnp_dscp")),
            expected=wanted["cnp_dscp"],
            fix=fix,
            ref=_REF,
        )
        if has_configfs:
            tos = _integer((adapters.get(device["hca"]) or {}).get("tos"))
            yield judge(
                id="rdma.default_tos",
                target=port,
                ok=tos == wanted["tos"],
                ran=f"cat {CONFIGFS}/rdma_cm/{device['hca']}/ports/1/default_roce_tos",
                found=tos,
                expected=wanted["tos"],
                fix=fix,
                ref=_REF,
            )
        mtu = ((ctx.node.get("net") or {}).get(netdev) or {}).get("mtu")
        yield judge(
            id="rdma.mtu",
            target=port,
            ok=mtu == wanted["mtu"],
            ran=f"ip link show {netdev}",
            found=mtu,
            expected=wanted["mtu"],
            fix=f"{fix}; look for another tool that sets the MTU of {netdev}",
            ref=_REF,
        )


def _check_gpudirect(ctx: Context, target: str) -> Iterator[Check]:
    gpu = ctx.host.get("gpu")
    if not gpu or not gpu.get("count"):
        return
    if ctx.site["gpudirect"] == "dmabuf":
        yield from _dmabuf_kernel(ctx, target)
        # That no driver is loaded has a check of its own; it is no matter of flavours.
        if (ctx.node.get("driver") or {}).get("loaded"):
            yield _dmabuf_flavour(ctx, target)
        yield _dmabuf_cuda(ctx, target)
        installed = ctx.node.get("packages") or {}
        core = (installed.get("rdma-core") or installed.get("libibverbs1") or {}).get("version")
        yield judge(
            id="rdma.dmabuf_rdma_core",
            target=target,
            ok=_numbers(upstream_version(core)) >= DMABUF_RDMA_CORE,
            ran="dpkg-query -W rdma-core",
            found=f"rdma-core {core or 'absent'}",
            expected="rdma-core 41 or newer for DMA-BUF",
            fix="set railweld_rdma_stack: doca, or use a newer OS repository",
            ref=_REF,
        )
        return
    loaded = {_module(str(name)) for name in ctx.node.get("modules") or []}
    yield judge(
        id="rdma.peermem_module",
        target=target,
        ok="nvidia_peermem" in loaded,
        ran="lsmod | grep nvidia_peermem",
        found="loaded" if "nvidia_peermem" in loaded else "not loaded",
        expected="nvidia_peermem loaded",
        fix="modprobe nvidia_peermem; 'Invalid argument' means that the driver was built against "
        "another OFED: reinstall the driver packages now that OFED is in place",
        ref=_REF,
    )
    nccl = _numbers((ctx.node.get("nccl") or {}).get("version"))
    if nccl and nccl[:2] <= MEMORY_PEERS_NCCL:
        peers = (ctx.node.get("rdma") or {}).get("memory_peers") or []
        yield judge(
            id="rdma.peermem_registered",
            target=target,
            ok=any(_module(str(peer)) in {"nvidia_peermem", "nv_mem"} for peer in peers),
            ran="ls /sys/kernel/mm/memory_peers",
            found=", ".join(peers) or "nothing registered",
            expected="nvidia-peermem registered: this NCCL looks only there",
            fix="check that mlx5_ib and ib_core are OFED's (modinfo -n ib_core), reload "
            "nvidia_peermem",
            ref=_REF,
        )
