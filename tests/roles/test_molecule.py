"""Every molecule scenario of every role, on SSH nodes of the lab.

The sequence of each is molecule's own (molecule.yml): check mode on an empty node first, then
converge, idempotence and verify. `default` scenarios belong to the gate, the others to
`make test-roles`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCENARIOS = sorted(REPOSITORY.glob("roles/*/molecule/*/molecule.yml"))


def parameters() -> list[object]:
    """One test per scenario, `deep` unless it is a role's default."""
    return [
        pytest.param(
            path.parents[2].name,
            path.parent.name,
            id=f"{path.parents[2].name}-{path.parent.name}",
            marks=[pytest.mark.lab] + ([] if path.parent.name == "default" else [pytest.mark.deep]),
        )
        for path in SCENARIOS
    ]


@pytest.mark.parametrize(("role", "scenario"), parameters())
def test_scenario(role: str, scenario: str) -> None:
    """The scenario passes from create to destroy."""
    run = subprocess.run(
        [sys.executable, "-m", "molecule", "test", "--scenario-name", scenario],
        cwd=REPOSITORY / "roles" / role,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1200,
    )
    assert run.returncode == 0, run.stdout[-12000:]


def test_every_role_has_a_default_and_an_alternative_scenario() -> None:
    """Roles without tasks of their own on a node (facts only) are named here, with the reason."""
    without = {"observe"}  # loads facts, changes nothing; every other role's scenario runs it
    roles = {path.parent.name for path in REPOSITORY.glob("roles/*/tasks")} - without
    found: dict[str, set[str]] = {role: set() for role in roles}
    for path in SCENARIOS:
        found.setdefault(path.parents[2].name, set()).add(path.parent.name)
    assert {role: {"default", "alternative"} - names for role, names in found.items()} == {
        role: set() for role in found
    }
