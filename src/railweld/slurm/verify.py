"""Stage `slurm` of `railweld verify`: key, packages, files, daemons and nodes."""

from __future__ import annotations

from typing import Final

from railweld.errors import RailweldError
from railweld.record import Check, Status
from railweld.slurm import model
from railweld.slurm.stage import ROLE, roles
from railweld.verify import registry
from railweld.verify.context import Context
from railweld.verify.hosts import not_reached
from railweld.verify.stages import Request, Verified

_LAYER: Final = "slurm"


def verify_site(request: Request) -> Verified:
    """Judge the Slurm head and every node with a slurmd of its own."""
    site = request.site
    if not model.heads(site):
        return Verified([_note(Status.SKIPPED, site.name, "no host in group slurm_head", fix="")])
    try:
        slurm = model.fact(site)
    except RailweldError as error:
        return Verified(
            [_note(Status.FAIL, site.name, line, fix="see above") for line in _lines(error)]
        )
    names = [name for name in slurm["hosts"] if request.selects(name)]
    seen = request.nodes(names)
    fact = site.fact()
    checks: list[Check] = []
    for name in names:
        node = seen[name].node
        if node is None:
            checks.append(not_reached(name, seen[name].reason))
            continue
        if name == slurm["head"] and ROLE not in node["records"] and not node["slurm"]["version"]:
            return Verified([_note(Status.SKIPPED, name, "nothing of Slurm here yet", fix="")])
        ctx = Context(
            site=fact["site"],
            host=fact["hosts"][name],
            node=node,
            slurm=model.view(slurm, name),
        )
        checks += registry.evaluate(ctx, roles(ctx))
    return Verified(checks)


def _lines(error: RailweldError) -> list[str]:
    return [line for line in str(error).splitlines() if line]


def _note(status: Status, target: str, found: str, *, fix: str) -> Check:
    return Check(
        id="slurm.described",
        layer=_LAYER,
        target=target,
        status=status,
        ran="railweld check",
        found=found,
        expected="a description that playbooks/deploy-slurm.yml takes",
        fix=fix,
    )
