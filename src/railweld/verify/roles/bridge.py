"""The bridge on the Slurm head: its files, its daemon, its way into the cluster."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from railweld import names
from railweld.bridge import access, bundle, client, hook
from railweld.record import Check
from railweld.slurm.conf import USER
from railweld.verify.context import Context

ROLE: Final = "bridge"
LAYER: Final = "slurm"
PLAYBOOK: Final = "playbooks/deploy-slurm.yml"
#: asyncio.TaskGroup and the like.
PYTHON: Final = (3, 11)
#: Debian's, and not pinned: the site's patching brings their fixes.
PACKAGES: Final = ("python3-aiohttp", "python3-yaml")
PROBE: Final = {"package_patterns": PACKAGES}


def guard(ctx: Context) -> Iterator[Check]:
    """What must be true of the head before anything of the bridge is put there."""
    if not ctx.slurm.get("bridge"):
        return
    found = str(ctx.seen("os.python", ""))
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
    yield ctx.judge(
        "bridge.python",
        ok=numbers >= PYTHON,
        ran="python3 --version",
        found=f"Python {found or 'nothing'}",
        expected="Python 3.11 or newer, which the daemon runs on",
        fix="a Slurm head of Debian 12 or newer",
        layer=LAYER,
    )


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable; where no bridge is described: that nothing is left."""
    seen = ctx.seen("slurm.bridge", {})
    if not ctx.slurm.get("bridge"):
        yield ctx.judge(
            "bridge.absent",
            ok=not seen.get("present"),
            ran=f"systemctl status {names.BRIDGE_UNIT}; ls {names.BRIDGE_PROGRAMS}",
            found="something of the bridge" if seen.get("present") else "nothing of it",
            expected="nothing of the bridge: no partition of the description needs one",
            fix=f"run {PLAYBOOK}",
            layer=LAYER,
        )
        return
    missing = [name for name in PACKAGES if not ctx.installed_version(name)]
    yield ctx.judge(
        "bridge.packages",
        ok=not missing,
        ran=f"dpkg-query -W {' '.join(PACKAGES)}",
        found=f"not installed: {', '.join(missing)}" if missing else "installed",
        expected=f"{', '.join(PACKAGES)} of the distribution",
        fix=f"run {PLAYBOOK}",
        layer=LAYER,
    )
    yield _files(ctx)
    yield from _access(ctx)
    unit = seen.get("unit") or {}
    yield ctx.judge(
        "bridge.unit",
        ok=(unit.get("active"), unit.get("enabled")) == ("active", "enabled"),
        ran=f"systemctl status {names.BRIDGE_UNIT}",
        found=f"{unit.get('active', 'absent')}, {unit.get('enabled', 'absent')}",
        expected="active, enabled",
        fix=f"journalctl -u {names.BRIDGE_UNIT} says why; then run {PLAYBOOK}",
        layer=LAYER,
    )
    yield ctx.judge(
        "bridge.current",
        ok=not seen.get("stale"),
        ran=f"systemctl show -p ActiveEnterTimestamp {names.BRIDGE_UNIT}",
        found="a daemon that is older than its files" if seen.get("stale") else "as its files",
        expected="a daemon that was started after its files were written",
        fix=f"systemctl restart {names.BRIDGE_UNIT}; jobs live on",
        layer=LAYER,
    )
    # A site may have switched its monitor off: then there is no word of the daemon's.
    ready = seen.get("ready") if unit.get("active") == "active" else "no daemon"
    yield ctx.judge(
        "bridge.ready",
        ok=ready in ("ok", None),
        ran=f"curl http://{names.BRIDGE_MONITOR}/readyz",
        found=ready or "no monitor that could be asked",
        expected="ok: it follows slurmctld and the Kubernetes API",
        fix=f"journalctl -u {names.BRIDGE_UNIT}",
        layer=LAYER,
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def expected_digests(bridge: dict[str, Any]) -> dict[str, str]:
    """Digest of the client and the epilog by path."""
    epilog = hook.epilog(list(bridge["config"]["partitions"]))
    return {
        names.BRIDGE_CLIENT: _digest(Path(client.__file__).read_bytes()),
        names.BRIDGE_EPILOG: _digest(epilog.encode()),
    }


def _files(ctx: Context) -> Check:
    seen = ctx.seen("slurm.bridge", {})
    digests = seen.get("digests") or {}
    wanted = expected_digests(dict(ctx.slurm["bridge"]))
    wrong = [path for path, digest in wanted.items() if digests.get(path) != digest]
    program = bundle.build().path
    if seen.get("programs") != [program.rpartition("/")[2]]:
        wrong.append(program)
    return ctx.judge(
        "bridge.files",
        ok=not wrong,
        ran=f"ls {' '.join(wanted)} {names.BRIDGE_PROGRAMS}",
        found=f"not this release's: {', '.join(wrong)}" if wrong else "this release's",
        expected="client, epilog and daemon of this release, and no other daemon",
        fix=f"run {PLAYBOOK}",
        layer=LAYER,
    )


def _access(ctx: Context) -> Iterator[Check]:
    seen = ctx.seen("slurm.bridge", {})
    for name, path in (("kubeconfig", names.BRIDGE_KUBECONFIG), ("token", names.BRIDGE_TOKEN)):
        found = seen.get(name) or {}
        state = (found.get("mode"), found.get("owner"))
        yield ctx.judge(
            f"bridge.{name}_mode",
            ok=state == ("0600", USER),
            ran=f"stat -c '%a %U' {path}",
            found=f"{state[0]} {state[1]}" if state[0] else "no file",
            expected=f"0600 {USER}",
            fix=f"run {PLAYBOOK}; if others could read it, see docs/bridge.md, Credentials",
            layer=LAYER,
        )
    why = access.needs_token(seen, float(ctx.seen("now", 0.0)))
    yield ctx.judge(
        "bridge.token",
        ok=not why,
        ran=f"kubectl --kubeconfig {names.BRIDGE_KUBECONFIG} auth whoami",
        found=why or "a token that the API server takes",
        expected="a token that is not about to end and that the API server takes",
        fix=f"run {PLAYBOOK}",
        layer=LAYER,
    )
    api = str(seen.get("api") or "")
    if api.startswith("no answer"):
        yield ctx.warn(
            "bridge.api",
            ran=f"kubectl --kubeconfig {names.BRIDGE_KUBECONFIG} get --raw /readyz",
            found=f"the API server as seen from the head: {api}",
            expected="an answer: until there is one, jobs wait and keep their nodes",
            fix="kubectl get --raw /readyz from elsewhere; firewall between head and API server",
            layer=LAYER,
        )
