"""Every role's argument_specs is its documentation, so it has to agree with the role's defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
SPECS = sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml"))
#: What a description has to say so that a bare number means something.
UNITS = re.compile(
    r"\b(seconds?|minutes?|days?|bytes?|MiB|GiB|ms|stratum|priority|how many|MTU|packets)\b",
    re.IGNORECASE,
)


def options(spec: Path) -> dict[str, dict[str, Any]]:
    """Options of all entry points of a role."""
    entries = yaml.safe_load(spec.read_text())["argument_specs"].values()
    return {name: option for entry in entries for name, option in entry["options"].items()}


def defaults(spec: Path) -> dict[str, Any]:
    """A role's defaults; a role without variables has no such file."""
    path = spec.parents[1] / "defaults/main.yml"
    found: dict[str, Any] | None = yaml.safe_load(path.read_text()) if path.is_file() else None
    return found or {}


def test_every_role_has_one() -> None:
    assert {spec.parents[1] for spec in SPECS} == set((REPOSITORY / "roles").iterdir())


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.parents[1].name)
def test_the_documented_defaults_are_the_roles_own(spec: Path) -> None:
    described = options(spec)
    required = {name for name, option in described.items() if option.get("required")}
    assert {
        name: option["default"] for name, option in described.items() if name not in required
    } == defaults(spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.parents[1].name)
def test_every_option_says_type_meaning_and_unit(spec: Path) -> None:
    for name, option in options(spec).items():
        assert name.startswith(f"{spec.parents[1].name}_")
        assert option["type"], name
        said = option["description"]
        text = said if isinstance(said, str) else " ".join(said)
        assert text.strip().endswith("."), f"{name}: found {text!r}, expected a sentence"
        if option["type"] in ("int", "float"):
            assert UNITS.search(text), f"{name}: found {text!r}, expected its unit"
        if option["type"] == "list":
            assert option["elements"], name
        if name.endswith("_s"):
            assert re.search("seconds", text, re.IGNORECASE), f"{name}: {text!r}"
        if "choices" in option and "default" in option:
            assert option["default"] in option["choices"], name


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.parents[1].name)
def test_every_option_is_used(spec: Path) -> None:
    role = spec.parents[1]
    text = "".join(
        path.read_text()
        for path in [*role.rglob("*.yml"), *role.rglob("*.j2"), *role.rglob("*.py")]
        if path.is_file()
        and "molecule" not in path.parts
        and path.parent.name != "defaults"
        and path != spec
    )
    plugins = "".join(path.read_text() for path in (REPOSITORY / "plugins").rglob("*.py"))
    for name in options(spec):
        assert re.search(rf"\b{name}\b", text + plugins), f"{name} is documented and never used"
