"""Judges nodes with the roles' own checks: one rule for deploying and for looking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from railweld.base.order import host_roles
from railweld.record import Check, Status
from railweld.verify import registry
from railweld.verify.context import Context
from railweld.verify.stages import PAGE, Request

#: Id of the record about a host of which there is no observation, whichever stage looked.
REACHED: Final = "node.reached"
#: Judges one node beyond its roles.
More = Callable[[Context], Iterable[Check]]


def contexts(request: Request) -> tuple[list[Context], list[Check]]:
    """Observe the nodes that the command is about.

    Returns:
        A context for each node that answered, and an `unknown` record for each that did not.
    """
    names = [name for name in request.site.hosts if request.selects(name)]
    fact = request.site.fact()
    found: list[Context] = []
    silent: list[Check] = []
    for name, seen in request.nodes(names).items():
        if seen.node is None:
            silent.append(not_reached(name, seen.reason))
        else:
            found.append(Context(site=fact["site"], host=fact["hosts"][name], node=seen.node))
    return found, silent


def not_reached(name: str, reason: str) -> Check:
    """What every stage says of a host that it could not observe: the same record."""
    return Check(
        id=REACHED,
        layer="host",
        target=name,
        status=Status.UNKNOWN,
        ran=f"ansible {name} -m railweld_probe",
        found=reason,
        expected="an answer",
        fix=f"ssh to {name} with the inventory's user and key; see its console if not",
        ref=PAGE,
    )


def judge_roles(
    nodes: Iterable[Context], roles: frozenset[str], more: More | None = None
) -> list[Check]:
    """What these roles must have left on each node that has them, and what `more` looks at."""
    checks: list[Check] = []
    for ctx in nodes:
        mine = [role for role in host_roles(ctx.host) if role in roles]
        checks += registry.evaluate(ctx, mine)
        if more is not None:
            checks += registry.run(lambda node: iter(more(node)), ctx, "node")
    return checks


def outliers(
    check: str, values: Mapping[str, object], *, what: str, ran: str, layer: str = "host"
) -> Iterator[Check]:
    """Name whoever differs from the majority; silent where all agree or there is no majority.

    Args:
        check: id of the records.
        values: what each target has; None where it could not be read.
        what: what the values are, for the operator.
        ran: how to see one.
    """
    known = {target: value for target, value in values.items() if value is not None}
    counts = Counter(known.values()).most_common(2)
    if len(counts) < 2 or counts[0][1] == counts[1][1]:
        return
    usual, times = counts[0]
    for target, value in known.items():
        if value != usual:
            yield Check(
                id=check,
                layer=layer,
                target=target,
                status=Status.WARN,
                ran=ran,
                found=f"{what} {value}",
                expected=f"{what} {usual}, as {times} of {len(known)} have",
                fix="bring it to the others' version, or all to this one",
            )
