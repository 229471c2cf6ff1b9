"""The generated schema and reference page are current, and the schema agrees with the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from railweld.site import schema
from railweld.site.variables import fields

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def validator() -> Any:
    """A validator of variables files."""
    document = json.loads((REPOSITORY / schema.SCHEMA_FILE).read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


@pytest.mark.parametrize("file", [schema.SCHEMA_FILE, schema.REFERENCE_FILE])
def test_generated_file_is_current(file: Path) -> None:
    text = schema.generated(REPOSITORY)[REPOSITORY / file]
    assert (REPOSITORY / file).read_text() == text, "run `python -m railweld.site.schema`"


def test_stale_files_are_named(tmp_path: Path) -> None:
    assert {path.name for path in schema.stale(tmp_path)} == {"site.schema.json", "site.md"}


def test_every_variable_is_described() -> None:
    page = (REPOSITORY / schema.REFERENCE_FILE).read_text()
    for name, (_, field) in fields().items():
        assert f"`{name}`" in page
        assert field.description


@pytest.mark.parametrize("name", ["lab", "example-a100"])
def test_shipped_variables_fit_the_schema(validator: Any, name: str) -> None:
    for path in (REPOSITORY / "inventories" / name).rglob("group_vars/*.yml"):
        validator.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "values",
    [
        {"railweld_lossless_priority": 8},
        {"railweld_lossles_priority": 3},
        {"railweld_transport": "token ring"},
        {"railweld_rails": [{"rail": 1}]},
        {"railweld_mirrors": {"cuda": {"uri": "http://x"}}},
        {"railweld_host_mtu": 100},
    ],
)
def test_schema_refuses_what_the_check_refuses(validator: Any, values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"railweld_lossless_priority": "{{ priority }}"},
        {"ansible_user": "ops", "lab_profile": "a100x8"},
        {"railweld_memlock_kib": "unlimited"},
        {"railweld_serial": "20%"},
    ],
)
def test_schema_accepts_templates_and_foreign_names(validator: Any, values: dict[str, Any]) -> None:
    validator.validate(values)
