"""Slurm: the pinned release, one key, the described files in effect, nodes as described."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railweld.cluster.packages import in_place
from railweld.record import Check
from railweld.slurm import conf, stage
from railweld.verify.context import Context
from railweld.verify.roles import chrony

ROLE: Final = "slurm"
LAYER: Final = "slurm"
PLAYBOOK: Final = "playbooks/deploy-slurm.yml"

#: States in which a node takes no jobs because of its own configuration or silence.
_LOST: Final = frozenset({"down", "unknown", "fail", "failing", "inval", "invalid_reg"})


def guard(ctx: Context) -> Iterator[Check]:
    """What must be true before anything of Slurm is installed."""
    # munge refuses messages that are more than some minutes off, and jobs' times come from it.
    yield from chrony.gate(ctx)
    hostname = str(ctx.seen("os.hostname", "")).split(".")[0]
    yield ctx.judge(
        "slurm.hostname",
        ok=hostname == ctx.name,
        ran="hostname -s",
        found=hostname or "nothing",
        expected=f"{ctx.name}, as the inventory calls it: Slurm's daemons find themselves by it",
        fix=f"hostnamectl set-hostname {ctx.name}",
        layer=LAYER,
    )


def checks(ctx: Context) -> Iterator[Check]:
    """All that the role leaves observable on this host."""
    if not ctx.slurm:
        return
    yield from in_place(ctx, "slurm", role=ROLE, playbook=PLAYBOOK)
    yield from _munge(ctx)
    yield from _files(ctx)
    parts = ctx.slurm["host"]["parts"]
    if "accounting" in parts:
        yield from _accounting(ctx)
    if "controller" in parts:
        yield from _controller(ctx)
    yield from _daemons(ctx)
    if "controller" in parts and ctx.seen("slurm.controller.up"):
        yield from _nodes(ctx)


def _munge(ctx: Context) -> Iterator[Check]:
    munge = ctx.seen("slurm.munge", {})
    wanted = ctx.slurm["munge_key_id"]
    yield ctx.judge(
        "slurm.munge_key",
        ok=munge.get("key_id") == wanted,
        ran="sha256sum /etc/munge/munge.key",
        found=f"a key that begins with {munge['key_id']}" if munge.get("key_id") else "no key",
        expected=f"the key of railweld_munge_key, which begins with {wanted}",
        fix=f"run {PLAYBOOK} without --limit: all hosts change their key together",
        layer=LAYER,
    )
    yield ctx.judge(
        "slurm.munge_key_mode",
        ok=(munge.get("mode"), munge.get("owner")) == ("0400", "munge"),
        ran="stat -c '%a %U' /etc/munge/munge.key",
        found=f"{munge.get('mode')} {munge.get('owner')}",
        expected="0400 munge",
        fix=f"run {PLAYBOOK}; if others could read the key, rotate it",
        layer=LAYER,
    )
    works = bool(munge.get("works")) and not munge.get("stale")
    yield ctx.judge(
        "slurm.munge",
        ok=works,
        ran="munge -n | unmunge",
        found="works"
        if works
        else "munged runs with an older key than the file's"
        if munge.get("stale")
        else "munge does not answer",
        expected="munged answers, with the key of its file",
        fix="journalctl -u munge; systemctl restart munge",
        layer=LAYER,
    )


def _files(ctx: Context) -> Iterator[Check]:
    wanted = {name: _digest(text) for name, text in conf.files(ctx.slurm).items()}
    places = [("applied", "what the daemons were told")]
    if stage.needs_files(ctx.slurm):
        places.insert(0, ("files", conf.FOLDER))
    for place, words in places:
        found = ctx.seen(f"slurm.{place}", {})
        different = sorted(name for name, digest in wanted.items() if found.get(name) != digest)
        yield ctx.judge(
            f"slurm.{place}",
            ok=not different,
            ran=f"ls {conf.FOLDER}",
            found=f"{words}: {', '.join(different)} not as described" if different else "equal",
            expected=f"{words}: {', '.join(wanted)} as the description makes them",
            fix=f"run {PLAYBOOK}; it says what it changes with --check --diff",
            layer=LAYER,
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unit(ctx: Context, name: str) -> Check:
    unit = ctx.seen(f"slurm.units.{name}") or {}
    state = f"{unit.get('active', 'absent')}, {unit.get('enabled', 'absent')}"
    return ctx.judge(
        f"slurm.unit.{name}",
        ok=unit.get("active") == "active" and unit.get("enabled") == "enabled",
        ran=f"systemctl status {name}",
        found=state,
        expected="active, enabled",
        fix=f"journalctl -u {name} and {conf.LOGS} say why; then run {PLAYBOOK}",
        layer=LAYER,
    )


def _accounting(ctx: Context) -> Iterator[Check]:
    yield _unit(ctx, "mariadb")
    yield _unit(ctx, "slurmdbd")
    name = str(ctx.slurm["name"]).lower()
    answer = ctx.seen("slurm.accounting")
    clusters = (answer or {}).get("clusters", [])
    yield ctx.judge(
        "slurm.accounting",
        ok=name in clusters,
        ran="sacctmgr show cluster",
        found=f"clusters {', '.join(clusters) or 'none'}" if answer else "slurmdbd does not answer",
        expected=f"slurmdbd knows cluster {name}",
        fix=f"{conf.LOGS}/slurmdbd.log; then run {PLAYBOOK}",
        layer=LAYER,
    )


def _controller(ctx: Context) -> Iterator[Check]:
    yield _unit(ctx, "slurmctld")
    controller = ctx.seen("slurm.controller", {})
    running, wanted = controller.get("SLURM_VERSION"), ctx.slurm["version"]
    yield ctx.judge(
        "slurm.controller",
        ok=bool(controller.get("up")) and running == wanted,
        ran="scontrol ping; scontrol version",
        found=f"slurmctld {running} up" if controller.get("up") else "no answer from slurmctld",
        expected=f"slurmctld {wanted} up",
        fix=f"{conf.LOGS}/slurmctld.log says why; then run {PLAYBOOK}",
        layer=LAYER,
    )


def _daemons(ctx: Context) -> Iterator[Check]:
    """The slurmds of this host: one of its own, or one per virtual node."""
    host = ctx.slurm["host"]
    if host["daemons"] == [ctx.name]:
        yield _unit(ctx, "slurmd")
        yield _reached(ctx)
        return
    seen: Mapping[str, Mapping[str, Any]] = ctx.seen("slurm.daemons", {})
    wanted = host["daemons"]
    dead = [
        name
        for name in wanted
        if seen.get(name, {}).get("active") != "active" or not seen.get(name, {}).get("enabled")
    ]
    stray = sorted(
        name
        for name, unit in seen.items()
        if name not in wanted and (unit["active"] == "active" or unit["enabled"])
    )
    if not wanted and not stray:
        return
    found = [f"not running: {_some(dead)}"] if dead else []
    found += [f"not described: {_some(stray)}"] if stray else []
    yield ctx.judge(
        "slurm.virtual_nodes",
        ok=not found,
        ran="systemctl list-units 'slurmd@*'",
        found="; ".join(found) or f"{len(wanted)} running",
        expected=f"one slurmd for each of {len(wanted)} virtual nodes, started at boot",
        fix=f"journalctl -u slurmd@NODE and {conf.LOGS}/slurmd-NODE.log; then run {PLAYBOOK}",
        layer=LAYER,
    )


def _reached(ctx: Context) -> Check:
    """Whether a node with a slurmd of its own gets through to slurmctld, credentials and all."""
    controller = ctx.seen("slurm.controller", {})
    up = bool(controller.get("up"))
    return ctx.judge(
        "slurm.reached",
        ok=up,
        ran="scontrol show config",
        found="slurmctld answers" if up else controller.get("error") or "no answer from slurmctld",
        expected=f"slurmctld on {ctx.slurm['head']} answers this node",
        fix="an expired or rewound credential: the clocks of the two (chronyc tracking), then "
        "systemctl restart munge; an invalid one: the key; no answer: slurmctld and the way to "
        f"its port; {conf.LOGS}/slurmctld.log says which",
        layer=LAYER,
    )


def _nodes(ctx: Context) -> Iterator[Check]:
    """Whether slurmctld counts what is described, and which nodes it does not hear."""
    described: Mapping[str, Mapping[str, Any]] = ctx.slurm["nodes"]
    seen: Mapping[str, Mapping[str, Any]] = ctx.seen("slurm.nodes", {})
    different = []
    for name, node in described.items():
        gpu = node["gpu"]
        gres = f"gpu:{gpu['type']}:{gpu['count']}" if gpu else "(null)"
        found = seen.get(name, {})
        if (found.get("gres"), found.get("cpus")) != (gres, node["cpus"]):
            different.append(
                f"{name} {found.get('gres')}, {found.get('cpus')} CPUs instead of {gres}, "
                f"{node['cpus']}"
                if found
                else f"{name} missing"
            )
    stray = sorted(set(seen) - set(described))
    yield ctx.judge(
        "slurm.nodes",
        ok=not different and not stray,
        ran="sinfo --Node --format '%N %T %G %c'",
        found="; ".join([*different[:3], *([f"also {_some(stray)}"] if stray else [])])
        or f"{len(seen)} nodes as described",
        expected="the described nodes with the described GPUs and CPUs",
        fix=f"run {PLAYBOOK}",
        layer=LAYER,
    )
    lost = {
        name: found
        for name, found in seen.items()
        if name in described and (found["state"] in _LOST or not found["responds"])
    }
    if lost:
        said = ", ".join(
            f"{name} {found['state']} ({found['reason']})" for name, found in list(lost.items())[:3]
        )
        yield ctx.warn(
            "slurm.node_states",
            ran="sinfo --list-reasons",
            found=said + (f" and {len(lost) - 3} more" if len(lost) > 3 else ""),
            expected="every node in service or drained on purpose",
            fix="scontrol show node NODE; repair it, then scontrol update nodename=NODE "
            "state=resume",
            layer=LAYER,
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
