"""Finds the checks of each role: one module per role in `railweld.verify.roles`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from railweld.errors import RailweldError
from railweld.record import Check, Status
from railweld.verify import roles as role_modules
from railweld.verify.context import Context

CheckFunction = Callable[[Context], Iterator[Check]]


@dataclass(frozen=True)
class RoleChecks:
    """What one role expects before it runs and what it leaves behind."""

    role: str
    guard: CheckFunction
    checks: CheckFunction
    #: What the probe has to look at for these checks beyond its own areas: lists of
    #: `package_patterns`, `files`, `contents`, `units`. A module sets it as `PROBE`.
    probe: Mapping[str, Sequence[str]]


def _nothing(_: Context) -> Iterator[Check]:
    yield from ()


@cache
def find() -> dict[str, RoleChecks]:
    """Import every module of `railweld.verify.roles` and return its checks by role name."""
    found: dict[str, RoleChecks] = {}
    for info in pkgutil.iter_modules(role_modules.__path__):
        module = importlib.import_module(f"{role_modules.__name__}.{info.name}")
        role = getattr(module, "ROLE", info.name)
        found[role] = RoleChecks(
            role=role,
            guard=getattr(module, "guard", _nothing),
            checks=getattr(module, "checks", _nothing),
            probe=getattr(module, "PROBE", {}),
        )
    return found


def probe_arguments() -> list[Mapping[str, Sequence[str]]]:
    """Return what the checks of all roles ask the probe to look at."""
    return [each.probe for each in find().values()]


def role_checks(role: str) -> RoleChecks:
    """Return the checks of a role.

    Raises:
        RailweldError: no module describes that role.
    """
    known = find()
    if role not in known:
        raise RailweldError(
            f"role {role}: found no checks, expected one of {', '.join(sorted(known))}; "
            "add a module of that name to railweld.verify.roles"
        )
    return known[role]


def evaluate(ctx: Context, role_names: Iterable[str]) -> list[Check]:
    """Run the checks of the named roles on one host, in the given order."""
    return [check for role in role_names for check in run(role_checks(role).checks, ctx, role)]


def evaluate_guard(ctx: Context, role: str) -> list[Check]:
    """Run what a role asks of its predecessors."""
    return run(role_checks(role).guard, ctx, role)


def run(function: CheckFunction, ctx: Context, role: str) -> list[Check]:
    """Collect a function's checks; an observation it cannot read becomes `unknown`, not a crash.

    A probe result may lack what a check reads (an older node, a tool that answered nonsense).
    One host's odd answer must not end the run for the others, and must not count as a pass.
    """
    results: list[Check] = []
    try:
        results.extend(function(ctx))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        results.append(
            Check(
                id=f"{role}.observation",
                layer="host",
                target=ctx.name,
                status=Status.UNKNOWN,
                ran="the railweld_probe module",
                found=f"an observation that it cannot read ({type(error).__name__}: {error})",
                expected="readable observations",
                fix="run with -vvv and report the probe's output",
            )
        )
    return results
