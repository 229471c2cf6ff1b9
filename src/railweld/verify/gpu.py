"""Stage `gpu`: driver, CUDA and NCCL as described, and the health of every GPU.

Health is what the driver itself reports (`nvidia-smi -q -x`, `nvlink -s`, `topo -m`, the kernel
log); a value that a GPU does not have is passed over, a node that gives no answer is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.gpus import APPLICATION_XIDS, architecture, nvlink
from railweld.record import Check
from railweld.verify import hosts
from railweld.verify.context import Context
from railweld.verify.stages import Request, Verified

ROLES: Final = frozenset({"nvidia_driver", "fabric_manager", "cuda", "nccl"})
#: Distances of NIC and GPU that do not go through a CPU.
_NEAR: Final = ("PIX", "PXB")
_LAYER: Final = "gpu"


def verify_site(request: Request) -> Verified:
    """Judge software and health of the GPU nodes; name GPUs whose firmware differs."""
    nodes, silent = hosts.contexts(request)
    nodes = [ctx for ctx in nodes if ctx.host.get("gpu")]
    checks = hosts.judge_roles(nodes, ROLES, health)
    vbios: dict[str, dict[str, object]] = {}
    for ctx in nodes:
        for address, gpu in (ctx.seen("health.gpus") or {}).items():
            vbios.setdefault(gpu["name"], {})[f"{ctx.name}/{address}"] = gpu["vbios"]
    for values in vbios.values():
        checks += hosts.outliers(
            "gpu.same_vbios", values, what="VBIOS", ran="nvidia-smi -q", layer=_LAYER
        )
    asked = {name for name, host in request.site.hosts.items() if host.gpu}
    return Verified([*checks, *(check for check in silent if check.target in asked)])


def health(ctx: Context) -> Iterator[Check]:
    """Health of the GPUs of one node."""
    gpus: Mapping[str, Mapping[str, Any]] | None = ctx.seen("health.gpus")
    if not gpus:
        yield ctx.could_not_look(
            "gpu.health",
            ran="nvidia-smi -q -x",
            found="no answer",
            expected="the state of every GPU",
            fix="the driver has to run first: playbooks/deploy-base.yml",
            layer=_LAYER,
        )
        return
    for address, gpu in gpus.items():
        yield from _memory(ctx, address, gpu)
        yield from _pcie(ctx, address, gpu)
        yield from _bar(ctx, address, gpu)
    yield from _nvlinks(ctx)
    yield from _near_nics(ctx)
    yield from _kernel_log(ctx)


def _memory(ctx: Context, address: str, gpu: Mapping[str, Any]) -> Iterator[Check]:
    action = gpu.get("recovery_action")
    if action is not None:
        yield ctx.judge(
            f"gpu.recovery.{address}",
            ok=action == "None",
            ran="nvidia-smi -q",
            found=f"recovery action {action}",
            expected="recovery action None",
            fix="drain the node and do what the driver asks for",
            layer=_LAYER,
        )
    errors = gpu.get("uncorrected")
    if errors is not None:
        yield ctx.judge(
            f"gpu.ecc.{address}",
            ok=errors == 0,
            ran="nvidia-smi -q -d ECC",
            found=f"{errors} uncorrectable memory errors since the last reset",
            expected="none",
            fix="drain the node and reset the GPU (nvidia-smi -r, or reboot); if they return, "
            "replace it",
            layer=_LAYER,
        )
    for key, text, fix in (
        ("remap_failure", "row remapping failed", "replace the GPU: it has no spare rows left"),
        ("remap_pending", "a row remapping waits for a reset", "drain the node and reset the GPU"),
        ("pages_pending", "a page retirement waits for a reset", "drain the node and reboot it"),
    ):
        if gpu.get(key) is not None:
            yield ctx.judge(
                f"gpu.{key}.{address}",
                ok=not gpu[key],
                ran="nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
                found=text if gpu[key] else "nothing pending",
                expected="nothing pending",
                fix=fix,
                layer=_LAYER,
            )


def _pcie(ctx: Context, address: str, gpu: Mapping[str, Any]) -> Iterator[Check]:
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    if width and most:
        yield ctx.judge(
            f"gpu.pcie_width.{address}",
            ok=width >= most,
            ran="nvidia-smi -q -d PCIE; lspci -vv -s ADDRESS",
            found=f"x{width}",
            expected=f"x{most}",
            fix="reseat the GPU or its riser; a narrow link is a bad contact until shown otherwise",
            layer=_LAYER,
        )
    generation, best = gpu.get("pcie_gen"), gpu.get("pcie_gen_max")
    if generation and best and generation < best:
        # An idle GPU may lower its link's speed, so this alone is no fault.
        yield ctx.warn(
            f"gpu.pcie_gen.{address}",
            ran="nvidia-smi -q -d PCIE, under load",
            found=f"PCIe generation {generation}",
            expected=f"generation {best} under load",
            fix="look again while a job runs; if it stays, check the riser and the BIOS",
            layer=_LAYER,
        )


def _bar(ctx: Context, address: str, gpu: Mapping[str, Any]) -> Iterator[Check]:
    """An adapter reaches GPU memory through BAR1. Models that we do not know may have a small one.

    Every model that is known shows all of its memory there, unless the firmware found no room.
    """
    window, memory = gpu.get("bar1_mib"), gpu.get("memory_mib")
    if window and memory and architecture(str(gpu.get("name", ""))):
        yield ctx.judge(
            f"gpu.bar.{address}",
            ok=window >= memory,
            ran="nvidia-smi -q -d MEMORY; lspci -vv -s ADDRESS",
            found=f"a BAR1 of {window} MiB",
            expected=f"one for all of the GPU's memory, {memory} MiB",
            fix="switch on Above 4G Decoding in the firmware's setup, then power-cycle the node; "
            "on a virtual machine give it a larger MMIO window",
            layer=_LAYER,
        )


def _nvlinks(ctx: Context) -> Iterator[Check]:
    expected = nvlink(str(ctx.wanted("gpu.model", "")))
    if expected is None or int(ctx.wanted("gpu.count", 0)) < 2:
        return
    seen: Mapping[str, Mapping[str, float | None]] = ctx.seen("health.nvlink") or {}
    for index in range(int(ctx.wanted("gpu.count", 0))):
        links = seen.get(str(index), {})
        active = [speed for speed in links.values() if speed]
        down = [number for number, speed in links.items() if not speed]
        slow = [number for number, speed in links.items() if speed and speed < expected.gb_per_s]
        words = f"{len(active)} active links"
        if down:
            words += f"; inactive: {', '.join(down)}"
        if slow:
            words += f"; slow: {', '.join(slow)}"
        yield ctx.judge(
            f"gpu.nvlink.{index}",
            ok=len(active) >= expected.links and not slow,
            ran=f"nvidia-smi nvlink -s -i {index}",
            found=words,
            expected=f"{expected.links} links of at least {expected.gb_per_s:g} GB/s",
            fix="see the fabric manager's log and nvidia-smi nvlink -e; reboot the node once, then "
            "have the baseboard looked at",
            layer=_LAYER,
        )


def _near_nics(ctx: Context) -> Iterator[Check]:
    """Each GPU needs a rail that it reaches without a CPU in between, or GPUDirect is slow."""
    wanted = {str(hca["name"]) for hca in ctx.host.get("hcas") or []}
    topology: Mapping[str, Mapping[str, str]] = ctx.seen("health.topology") or {}
    for index, distances in topology.items():
        known = {nic: distance for nic, distance in distances.items() if nic in wanted}
        if not known:
            continue
        yield ctx.judge(
            f"gpu.near_rail.{index}",
            ok=any(distance in _NEAR for distance in known.values()),
            ran="nvidia-smi topo -m",
            found=", ".join(f"{nic} {distance}" for nic, distance in sorted(known.items())),
            expected=f"at least one rail at {' or '.join(_NEAR)}",
            fix="move the card to the GPU's PCIe switch, or describe the rails that are there; "
            "behind a CPU, GPUDirect RDMA is slow or off",
            layer=_LAYER,
        )


def _kernel_log(ctx: Context) -> Iterator[Check]:
    if not ctx.seen("health.kernel_log", False):
        yield ctx.could_not_look(
            "gpu.xid",
            ran="dmesg; journalctl -k -b",
            found="no readable kernel log",
            expected="the kernel log of this boot",
            fix="let the inventory's user become root",
            layer=_LAYER,
        )
        return
    events = ctx.seen("health.xids", [])
    for event in events:
        words = f"Xid {event['xid']} of {event['gpu']}, {event['count']} times: {event['text']}"
        if event["xid"] in APPLICATION_XIDS:
            yield ctx.warn(
                f"gpu.xid.{event['gpu']}.{event['xid']}",
                ran="dmesg | grep Xid",
                found=words,
                expected="none; this one is mostly a program's fault",
                fix="see which job it was; the GPU itself is rarely the cause",
                layer=_LAYER,
            )
        else:
            yield ctx.judge(
                f"gpu.xid.{event['gpu']}.{event['xid']}",
                ok=False,
                ran="dmesg | grep Xid",
                found=words,
                expected="none since boot",
                fix="drain the node; railweld doctor explains the number; reboot, and replace the "
                "GPU if it returns",
                layer=_LAYER,
            )
    if not events:
        yield ctx.judge(
            "gpu.xid",
            ok=True,
            ran="dmesg | grep Xid",
            found="none",
            expected="none since boot",
            fix="",
            layer=_LAYER,
        )
