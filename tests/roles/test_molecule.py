"""Every molecule scenario of every role, on SSH nodes of the lab.

The sequence of each is molecule's own (`.config/molecule/config.yml`): check mode first, then
converge, idempotence and verify. The `default` scenarios belong to the gate and share one lab: they
run in the order of the base stage, so that what a role has to find before it is there already. An
`alternative` scenario begins on bare nodes of its own and belongs to `make test-roles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from _pytest.mark import ParameterSet

from railweld.base.order import ORDER as BASE_ORDER
from tests.labs import REPOSITORY, command

SCENARIOS = sorted(REPOSITORY.glob("roles/*/molecule/*/molecule.yml"))
INVENTORY = REPOSITORY / "molecule/inventory"
ORDER = (
    *("preflight", *BASE_ORDER, "reboot", "maintenance", "verify_base"),
    *("containerd", "kubernetes", "cni"),
)
#: Roles whose proof is elsewhere, and where.
ELSEWHERE = {
    "observe": "loads facts; every other role's scenario runs it",
    "observe_cluster": "loads facts; the cluster suite runs it",
    "bridge": "needs Slurm and a cluster: tests/integration/bridge",
}


#: Default scenarios of the deep suite alone: they need Kubernetes built from source, for which a
#: machine without caches takes minutes that the gate has not.
NOT_IN_GATE = {"kubernetes", "cni"}


def gated(role: str) -> ParameterSet:
    """A role's default scenario as a case of the gate, or of the deep suite only."""
    return pytest.param(role, marks=[pytest.mark.deep] if role in NOT_IN_GATE else [])


def roles_with(scenario: str) -> list[str]:
    """Names of the roles that have a scenario, in the order of the base stage."""
    found = {path.parents[2].name for path in SCENARIOS if path.parent.name == scenario}
    return [*(role for role in ORDER if role in found), *sorted(found - set(ORDER))]


def molecule(role: str, scenario: str, memory: Path, *arguments: str) -> None:
    """Run one scenario's whole sequence and fail with the end of what it printed.

    `memory` is where molecule remembers what it did before: nothing, or it would skip steps.
    """
    run = command(
        [
            "env",
            f"MOLECULE_EPHEMERAL_DIRECTORY={memory}",
            "molecule",
            "test",
            "--scenario-name",
            scenario,
            *arguments,
        ],
        cwd=REPOSITORY / "roles" / role,
        timeout=1500,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-12000:]


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Path]:
    """The lab of the default scenarios, from bare nodes."""
    command(["railweld", "lab", "down", "-i", str(INVENTORY)])
    command(["railweld", "lab", "up", "-i", str(INVENTORY)])
    yield INVENTORY
    command(["railweld", "lab", "down", "-i", str(INVENTORY)], check=False)


@pytest.mark.lab
@pytest.mark.parametrize("role", [gated(role) for role in roles_with("default")])
def test_default(role: str, shared_lab: Path, tmp_path: Path) -> None:
    assert shared_lab.is_dir()
    molecule(role, "default", tmp_path, "--destroy=never")


@pytest.mark.lab
@pytest.mark.deep
@pytest.mark.parametrize("role", roles_with("alternative"))
def test_alternative(role: str, tmp_path: Path) -> None:
    molecule(role, "alternative", tmp_path, "--destroy=always")


def test_every_role_has_a_default_and_an_alternative_scenario() -> None:
    roles = {path.parent.name for path in REPOSITORY.glob("roles/*/tasks")} - set(ELSEWHERE)
    assert set(roles_with("default")) >= roles
    assert set(roles_with("alternative")) >= roles


def test_every_role_is_planned_first_and_run_twice() -> None:
    """Check mode comes before each first converge; a second converge has to change nothing.

    Where a scenario's converge is an act and not a state, the role's other one runs twice.
    """
    shared = yaml.safe_load((REPOSITORY / ".config/molecule/config.yml").read_text())
    twice = set()
    for path in SCENARIOS:
        settings = {**shared, **(yaml.safe_load(path.read_text()) or {})}
        steps = settings.get("scenario", shared["scenario"])["test_sequence"]
        assert steps.index("check") < steps.index("converge") < steps.index("verify"), path
        if "idempotence" in steps:
            twice.add(path.parents[2].name)
    assert twice == {path.parents[2].name for path in SCENARIOS}


def test_no_scenario_verifies_nothing() -> None:
    """Each has a verify.yml that compares something; molecule passes without one."""
    for path in SCENARIOS:
        verify = path.parent / "verify.yml"
        text = verify.read_text() if verify.is_file() else ""
        assert "ansible.builtin.assert" in text, f"{verify}: found no assert"
