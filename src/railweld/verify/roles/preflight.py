"""What a node must be before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import nvidia_driver

ROLE: Final = "preflight"
#: Systems on which the roles are meant to run: (id, version).
SYSTEMS: Final = (("debian", "12"), ("ubuntu", "22.04"), ("ubuntu", "24.04"))
_GIB: Final = 1024**3
#: Free space that the base stage needs: toolkit and samples under /usr, archives under /var.
_NEEDED: Final = {"/": 2 * _GIB, "/usr": 8 * _GIB, "/var": 2 * _GIB}
#: On a node that has the packages already, room for logs and records is enough.
_NEEDED_LATER: Final = {"/": _GIB // 4, "/var": _GIB // 4}
_CLOCK_WARNING_S: Final = 5.0
_OF_THE_NODE: Final = frozenset(
    f"nvidia_driver.{what}"
    for what in (
        "pci_gpus",
        "kernel",
        "headers",
        "secure_boot",
        "secure_boot_key",
        "host_owned",
    )
)


def guard(ctx: Context) -> Iterator[Check]:
    """Judge the node as it is; warnings are things that a role repairs by itself."""
    yield from _system(ctx)
    yield from free_space(ctx)
    yield from _packages(ctx)
    yield from _clock(ctx)
    yield from _repositories(ctx)
    if ctx.wanted("is_gpu_node", False):
        # The driver role's guard also asks for its predecessors; what the node itself must be is
        # refused here already.
        yield from (check for check in nvidia_driver.guard(ctx) if check.id in _OF_THE_NODE)


def checks(ctx: Context) -> Iterator[Check]:  # noqa: ARG001 - the registry's signature
    """Preflight leaves nothing behind."""
    yield from ()


def _system(ctx: Context) -> Iterator[Check]:
    found = (ctx.seen("os.id"), ctx.seen("os.version_id"))
    yield ctx.judge(
        "preflight.system",
        ok=found in SYSTEMS,
        ran="cat /etc/os-release",
        found=" ".join(str(part) for part in found),
        expected="one of " + ", ".join(" ".join(system) for system in SYSTEMS),
        fix="install one of these systems on this host, or take it out of the inventory",
    )
    yield ctx.judge(
        "preflight.architecture",
        ok=ctx.seen("os.arch") == "x86_64",
        ran="uname -m",
        found=ctx.seen("os.arch"),
        expected="x86_64",
        fix="the version sets have packages for x86_64 only; take this host out of the inventory",
    )
    python = tuple(int(part) for part in str(ctx.seen("os.python", "0.0")).split(".")[:2])
    yield ctx.judge(
        "preflight.python",
        ok=python >= (3, 8),
        ran="python3 --version",
        found=ctx.seen("os.python"),
        expected="Python 3.8 or newer",
        fix="set ansible_python_interpreter for this host",
    )
    vendor = str(ctx.wanted("vendor_repository", ""))
    if vendor and found in SYSTEMS and vendor != "".join(found).replace(".", ""):
        yield ctx.warn(
            "preflight.vendor_repository",
            ran="cat /etc/os-release",
            found=f"{' '.join(found)} with packages for {vendor}",
            expected=f"railweld_vendor_repository: {''.join(found).replace('.', '')}",
            fix="nothing, if the mirror's packages are meant for this system",
        )


def free_space(ctx: Context) -> Iterator[Check]:
    """Room for packages where there are none yet, for logs and records where there are."""
    free = ctx.seen("disks.free", {})
    provisioned = "cuda" in ctx.seen("records", {}) or not ctx.wanted("is_gpu_node", False)
    for path, needed in sorted((_NEEDED_LATER if provisioned else _NEEDED).items()):
        if path not in free:
            continue
        yield ctx.judge(
            f"preflight.disk.{path}",
            ok=free[path] >= needed,
            ran=f"df -h {path}",
            found=f"{free[path] / _GIB:.1f} GiB free",
            expected=f"{needed / _GIB:.1f} GiB free in {path}",
            fix="free space there (`sudo apt-get clean`, logs) or grow the file system",
        )


def _packages(ctx: Context) -> Iterator[Check]:
    broken, interrupted = ctx.seen("dpkg.audit", []), ctx.seen("dpkg.interrupted", False)
    if broken or interrupted:
        yield ctx.warn(
            "preflight.dpkg",
            ran="dpkg --audit",
            found=f"an interrupted installation: {', '.join(broken) or 'dpkg journal'}",
            expected="every package configured",
            fix="nothing: the run finishes it with `dpkg --configure -a` first",
        )
    holder = ctx.seen("dpkg.lock_held_by")
    if holder:
        yield ctx.warn(
            "preflight.package_lock",
            ran="fuser -v /var/lib/dpkg/lock-frontend",
            found=f"the package lock held by {holder}",
            expected="the package lock free",
            fix=f"nothing: the run waits up to {ctx.setting('apt_lock_timeout_s')} s for it",
        )


def _clock(ctx: Context) -> Iterator[Check]:
    skew = ctx.seen("time.skew_to_controller_s")
    if skew is not None and abs(float(skew)) > _CLOCK_WARNING_S:
        yield ctx.warn(
            "preflight.clock",
            ran="date -u",
            found=f"a clock {float(skew):+.0f} s off the controller's",
            expected=f"within {_CLOCK_WARNING_S:.0f} s",
            fix="nothing: chrony comes first and corrects it; check the controller's clock too",
        )


def _repositories(ctx: Context) -> Iterator[Check]:
    for url, answer in sorted(ctx.seen("reach", {}).items()):
        yield ctx.judge(
            "preflight.repository",
            ok=bool(answer.get("ok")),
            ran=f"curl -I {url}",
            found=f"{url}: {answer.get('error') or 'answers'}",
            expected="the node can fetch it",
            fix="start the mirror, open the way to it (proxy, firewall), or correct "
            "railweld_mirrors",
        )
