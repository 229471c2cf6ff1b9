"""Exact packages of the cluster stage on one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from railweld.record import Check
from railweld.verify.context import Context, unheld


def exact(ctx: Context, component: str) -> list[dict[str, Any]]:
    """Packages of a component with the version to install.

    Where the version set leaves the version to the repository it is the installed one, so that
    nothing moves by itself, else what the repository offers; empty while nobody has asked.
    """
    found = []
    for name, version in ctx.pins(component):
        chosen = version or ctx.installed_version(name)
        if not chosen:
            chosen = (ctx.seen("apt.candidates", {}).get(name) or {}).get("candidate")
        found.append({"name": name, "version": chosen or ""})
    return found


def in_place(
    ctx: Context, component: str, *, role: str, playbook: str = "playbooks/deploy-cluster.yml"
) -> Iterator[Check]:
    """Judge that a component's packages are installed as pinned and held."""
    for name, version in ctx.pins(component):
        package = ctx.package(name)
        state = f"{name} {package.get('version')}" if package else f"{name} not installed"
        if package and package.get("status") != "ii":
            state += f" (dpkg state {package.get('status')})"
        yield ctx.judge(
            f"{role}.package.{name}",
            ok=package.get("status") == "ii" and version in ("", package.get("version")),
            ran=f"dpkg-query -W {name}",
            found=state,
            expected=f"{name} {version or 'from the repository'} installed",
            fix=f"run {playbook} on this host"
            + ("; another version is playbooks/upgrade-cluster.yml's" if role != "slurm" else ""),
        )
    loose = unheld(ctx, component)
    yield ctx.judge(
        f"{role}.held.{component}",
        ok=not loose,
        ran="apt-mark showhold",
        found=f"not held: {', '.join(loose)}" if loose else "all held",
        expected="every installed package of the family on hold",
        fix=f"sudo apt-mark hold {' '.join(loose)}; or rerun the {role} role",
    )
