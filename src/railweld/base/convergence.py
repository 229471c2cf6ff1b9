"""Decides which roles a host still needs: from its observation and what the roles would do now.

A role is converged when all its checks pass, the inputs that it last ran with are today's inputs,
and no file that it manages has changed since. The inputs are the role's own files, the site's
and the host's model, and the role's variables; their digest is recorded on the node by the role's
last step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from debian.debian_support import version_compare

from railweld.record import Check
from railweld.verify import registry
from railweld.verify.context import Context

#: Parts of a role folder that change nothing on a node.
_NOT_APPLIED: Final = ("molecule", "README.md", "__pycache__")


@dataclass(frozen=True)
class RoleState:
    """Whether one role is converged on one host, and if not, why."""

    role: str
    converged: bool
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class VersionChange:
    """A package that is installed in another version than the set asks for."""

    component: str
    name: str
    installed: str
    wanted: str

    @property
    def is_downgrade(self) -> bool:
        """True when the wanted version is older than the installed one."""
        return version_compare(self.wanted, self.installed) < 0

    def __str__(self) -> str:
        verb = "downgrade" if self.is_downgrade else "upgrade"
        return f"{verb} {self.name} {self.installed} -> {self.wanted}"


@cache
def role_digest(folder: Path) -> str:
    """Digest of everything in a role folder that can change a node."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not set(relative.parts) & set(_NOT_APPLIED):
            digest.update(f"{relative}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@cache
def knobs(folder: Path) -> tuple[str, ...]:
    """Names of a role's public variables: the keys of its defaults."""
    path = folder / "defaults" / "main.yml"
    if not path.is_file():
        return ()
    values = yaml.safe_load(path.read_text()) or {}
    return tuple(sorted(values))


def inputs_digest(
    folder: Path,
    site: Mapping[str, Any],
    host: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> str:
    """Digest of all that decides what a role does on a host.

    Args:
        folder: the role's folder.
        site: `railweld.site`.
        host: `railweld.hosts[NAME]`.
        variables: the role's public variables that the inventory or `-e` sets.
    """
    content = {
        "role": role_digest(folder),
        "site": site,
        "host": host,
        "variables": variables,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def role_state(ctx: Context, role: str, inputs: str) -> RoleState:
    """Judge one role on one host."""
    checks = tuple(registry.evaluate(ctx, [role]))
    reasons = [check.sentence() for check in checks if check.is_bad]
    record = (ctx.node.get("records") or {}).get(role)
    if record is None:
        reasons.append(f"{ctx.name}: {role} has not completed here yet")
    else:
        if record.get("inputs") != inputs:
            reasons.append(f"{ctx.name}: {role}: the description or the role changed since it ran")
        drifted = record.get("drifted") or []
        if drifted:
            reasons.append(f"{ctx.name}: {role}: changed by hand: {', '.join(drifted)}")
    return RoleState(role=role, converged=not reasons, reasons=tuple(reasons), checks=checks)


def plan(ctx: Context, inputs: Mapping[str, str], roles: Iterable[str]) -> list[RoleState]:
    """Judge the given roles on a host, in the given order."""
    return [role_state(ctx, role, inputs[role]) for role in roles]


def version_changes(ctx: Context, components: Iterable[str] | None = None) -> list[VersionChange]:
    """Packages of the set that are installed in another version: an upgrade or a way back."""
    packages = ctx.host.get("packages") or {}
    changes = []
    for component in components if components is not None else sorted(packages):
        for name, wanted in ctx.pins(component):
            installed = ctx.package(name).get("version")
            # A package that the distribution chooses has no version of its own in the set.
            if installed and wanted and str(installed) != wanted:
                changes.append(VersionChange(component, name, str(installed), wanted))
    return changes


def is_out_of_service(ctx: Context) -> bool:
    """True when an earlier run took the host out of service and was cut before it gave it back.

    The maintenance role keeps a record on the node from before it drains until after it returns it.
    """
    return "maintenance" in (ctx.node.get("records") or {})


def replaces_provisioned(ctx: Context) -> bool:
    """True when a host that railweld provisioned would move to other versions.

    A component whose package names carry the branch (driver 515 to 580) shows no installed pin to
    compare, so what runs is compared too.
    """
    if not (ctx.node.get("records") or {}):
        return False
    loaded, wanted = ctx.seen("driver.loaded"), ctx.wanted("driver.version")
    moved = ctx.wanted("is_gpu_node", False) and loaded and wanted and loaded != wanted
    return bool(moved or version_changes(ctx))
