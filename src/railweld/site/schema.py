"""Generates what is derived from `variables`: the JSON Schema for editors and the reference page.

`python -m railweld.site.schema` writes both files; with `--check` it only says what is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticUndefined

from railweld import names
from railweld.errors import ExitCode
from railweld.site import variables
from railweld.site.variables import (
    FABRIC_VARIABLES,
    PATTERN_WORDS,
    SCOPES,
    Scope,
    SiteVariables,
)

PREFIX: Final = names.SITE_VARIABLE_PREFIX
SCHEMA_FILE: Final = Path("schemas/site.schema.json")
REFERENCE_FILE: Final = Path("docs/reference/site.md")

_TEMPLATE: Final = {"$ref": "#/$defs/Template"}
_SCOPE_TEXT: Final = {
    Scope.SITE: (
        "Site",
        (
            "One value for the whole site: set it in `group_vars/all.yml`. A value that differs "
            "between hosts, or that only some hosts have, is refused. Variables marked "
            "*switches* may also stand in the group variables of the switches."
        ),
    ),
    Scope.HOST: (
        "Nodes",
        "May differ per group or node: `group_vars/gpu_nodes.yml`, `host_vars/NODE.yml`.",
    ),
    Scope.SWITCH: (
        "Switches",
        "For hosts of the groups `leaves` and `spines`.",
    ),
}
_PARTS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("railweld_mirrors", variables.Mirror),
    ("railweld_rails", variables.Rail),
    ("railweld_hca_overrides", variables.HcaOverride),
    ("railweld_partitions", variables.Partition),
    ("railweld_uplinks", variables.Uplink),
)
_GROUP_TEXT: Final = (
    (names.GROUP_GPU_NODES, "nodes that run jobs"),
    (names.GROUP_CONTROL_PLANE, "nodes of the Kubernetes control plane"),
    (names.GROUP_SLURM_HEAD, "the node of slurmctld"),
    (names.GROUP_TIME_SERVERS, "nodes that the others take their time from"),
    (names.GROUP_LEAVES, "switches that nodes are cabled to"),
    (names.GROUP_SPINES, "switches between the leaves"),
)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a variables file (group_vars, host_vars).

    Every value may also be a Jinja template, and files may hold variables of Ansible and of the
    user; only names that begin with `railweld_` must be known.
    """
    _, combined = models_json_schema(
        [(model, "validation") for model in SCOPES.values()],
        ref_template="#/$defs/{model}",
    )
    definitions = dict(combined["$defs"])
    template = {"type": "string", "pattern": r"\{\{|\{%"}
    properties: dict[str, Any] = {}
    for scope, model in SCOPES.items():
        own = definitions.pop(model.__name__)["properties"]
        for name, schema in own.items():
            schema.pop("title", None)
            described = {
                "description": f"{schema.pop('description')} (scope: {scope})",
                **({"default": schema.pop("default")} if "default" in schema else {}),
                **({"examples": schema.pop("examples")} if "examples" in schema else {}),
            }
            options = _or_template(schema).get("anyOf", [schema])
            if _TEMPLATE not in options:
                options = [*options, _TEMPLATE]
            properties[PREFIX + name] = {**described, "anyOf": options}
    for part in definitions.values():
        part["properties"] = {k: _or_template(v) for k, v in part["properties"].items()}
    definitions["Template"] = template
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Variables of a railweld site",
        "description": "Generated from src/railweld/site/variables.py.",
        "type": "object",
        "properties": properties,
        "propertyNames": {
            "anyOf": [{"enum": sorted(properties)}, {"not": {"pattern": f"^{PREFIX}"}}]
        },
        "$defs": dict(sorted(definitions.items())),
    }


def _or_template(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, with a template allowed wherever it wants a plain value."""
    changed = dict(schema)
    if "anyOf" in changed:
        options = [_or_template(option) for option in changed["anyOf"]]
        flat = [part for option in options for part in option.get("anyOf", [option])]
        return {**changed, "anyOf": [part for n, part in enumerate(flat) if part not in flat[:n]]}
    for inner in ("items", "additionalProperties"):
        if isinstance(changed.get(inner), Mapping):
            changed[inner] = _or_template(changed[inner])
    if changed.get("type") in ("string", "integer", "number", "boolean") or "const" in changed:
        about: dict[str, Any] = {
            key: changed.pop(key) for key in ("title", "description", "default") if key in changed
        }
        return {**about, "anyOf": [changed, _TEMPLATE]}
    return changed


def reference() -> str:
    """The reference page, in Markdown."""
    return "\n".join(_reference_lines()) + "\n"


def _reference_lines() -> Iterator[str]:
    yield "# Site variables"
    yield ""
    yield "<!-- Generated by `python -m railweld.site.schema`; do not edit. -->"
    yield ""
    yield (
        "A site is an Ansible inventory: groups say what a host is, the variables below say the "
        "rest. `railweld check -i INVENTORY` refuses unknown names, wrong types and values that "
        "disagree. For editors: `schemas/site.schema.json`."
    )
    yield ""
    yield "## Groups"
    yield ""
    yield "| group | hosts |"
    yield "|---|---|"
    for group, text in _GROUP_TEXT:
        yield f"| `{group}` | {text} |"
    yield ""
    for scope, model in SCOPES.items():
        title, text = _SCOPE_TEXT[scope]
        yield f"## {title}"
        yield ""
        yield text
        yield ""
        yield from _table(model, PREFIX)
        yield ""
    yield "## Parts"
    yield ""
    for variable, part in _PARTS:
        yield f"### Entries of {variable}"
        yield ""
        yield f"{(part.__doc__ or '').strip()}"
        yield ""
        yield from _table(part, "")
        yield ""
    yield from _derived_lines()


def _derived_lines() -> Iterator[str]:
    yield "## What follows from it"
    yield ""
    yield "These are never written down, so they cannot disagree:"
    yield ""
    for line in (
        "`NCCL_IB_TC` = 4 * `railweld_lossless_dscp`",
        "`NCCL_IB_HCA` = the HCAs of `railweld_rails`, as exact names with ports",
        "Slurm's `Gres` = `gpu:` + the first word of `railweld_gpu_model` + `railweld_gpu_count`",
        "a node's rail address = the rail's subnet + `railweld_node_index`",
        "a switch's host ports = the rails of the nodes; its uplinks = those of either end",
        (
            "every package, its version and its repository = `railweld_version_set`, "
            "`railweld_version_overrides` and `railweld_vendor_repository`"
        ),
        "the time servers of all nodes = the addresses of the group `time_servers`",
    ):
        yield f"- {line}"


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    yield "| name | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        words = _type_words(schema["properties"][name], definitions)
        default = _default(model, name)
        if field.is_required():
            default = "**required**"
        meaning = field.description or ""
        if model is SiteVariables and name in FABRIC_VARIABLES:
            meaning += " *(switches)*"
        cells = (f"`{prefix}{name}`", words, default, meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(model: type[BaseModel], name: str) -> str:
    value = model.model_fields[name].default
    if value is PydanticUndefined or value is None:
        return ""
    if isinstance(value, tuple):
        items = [
            item.model_dump(exclude_defaults=True) if isinstance(item, BaseModel) else item
            for item in value
        ]
        return f"`{json.dumps(items)}`"
    return f"`{json.dumps(value)}`" if value not in ({}, "") else ""


def _type_words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"[{schema['$ref'].rpartition('/')[2]}](#parts)"
    if "anyOf" in schema:
        options = [_type_words(option, definitions) for option in schema["anyOf"]]
        return " or ".join(option for option in options if option != "null")
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return " or ".join(f"`{value}`" for value in choices)
    return _plain_type_words(schema, definitions)


def _plain_type_words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    kind = str(schema.get("type"))
    text = "secret text" if schema.get("format") == "password" else "text"
    words = {
        "boolean": "`true` or `false`",
        "integer": f"whole number{_limits(schema)}",
        "number": f"number{_limits(schema)}",
        "string": PATTERN_WORDS.get(schema.get("pattern", ""), text),
    }
    if kind == "array":
        return f"list of {_type_words(schema['items'], definitions)}"
    if kind == "object":
        patterned = schema.get("patternProperties", {"": schema.get("additionalProperties")})
        return f"mapping to {_type_words(next(iter(patterned.values())), definitions)}"
    return words.get(kind, kind)


def _limits(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    words = []
    if above is not None:
        words.append(f"above {above:g}")
    if low is not None and high is not None:
        words.append(f"{low:g} to {high:g}")
    elif low is not None:
        words.append(f"from {low:g}")
    elif high is not None:
        words.append(f"at most {high:g}")
    return f", {' and '.join(words)}" if words else ""


def generated(root: Path) -> dict[Path, str]:
    """Each generated file and its content."""
    return {
        root / SCHEMA_FILE: json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
        root / REFERENCE_FILE: reference(),
    }


def stale(root: Path) -> list[Path]:
    """Generated files that are missing or differ from what would be written."""
    return [
        path
        for path, text in generated(root).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """Write the files below the working directory, or check them."""
    root = Path.cwd()
    if arguments == ["--check"]:
        outdated = stale(root)
        for path in outdated:
            sys.stderr.write(f"{path}: stale; run `python -m railweld.site.schema`\n")
        return ExitCode.CHANGES if outdated else ExitCode.OK
    if arguments:
        sys.stderr.write("usage: python -m railweld.site.schema [--check]\n")
        return ExitCode.USAGE
    for path, text in generated(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
