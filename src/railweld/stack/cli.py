"""`railweld stack`: the cluster's add-ons as plain YAML, and what a cluster has against them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from railweld import names
from railweld.access import Access, given
from railweld.errors import ExitCode, UsageError
from railweld.options import AsJson, grouped
from railweld.stack import gpu_operator
from railweld.stack.api import Cluster
from railweld.stack.diff import Finding, compare
from railweld.stack.graph import Stack, stack_for
from railweld.stack.objects import Manifest, in_order
from railweld.stack.preflight import adopt_command, refuse_other_cluster
from railweld.state import site_state_dir


def register(app: typer.Typer) -> None:
    """Add the commands of this stage."""
    stack = typer.Typer(no_args_is_help=True, help="Cluster add-ons: render, diff.")
    stack.command("render")(render)
    stack.command("diff")(diff)
    app.add_typer(stack, name="stack")


@grouped(access=given)
def render(
    *,
    access: Access,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for one file per object; default: stdout."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the objects that `pulumi up` makes, as YAML; needs no cluster and no Pulumi."""
    stack = stack_for(access.site())
    for warning in stack.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    if output is not None:
        typer.echo(f"{_write(stack, output)} files in {output}", err=True)
    elif as_json:
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": stack.manifests()}))
    else:
        for addon in stack.addons():
            typer.echo(f"# {addon.name}")
            for manifest in addon.manifests:
                typer.echo(f"---\n{_yaml(manifest)}", nl=False)
    if stack.gpu_operator:
        typer.echo(f"# {gpu_operator.command(stack.gpu_operator)}", err=output is not None)
    return ExitCode.OK


@grouped(access=given)
def diff(
    *,
    access: Access,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Default: the site's, from its state.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Default: railweld-SITE.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for the API server.")
    ] = 20.0,
    as_json: AsJson = False,
) -> int:
    """Compare a cluster with the description; changes nothing. Exit code 2 on differences."""
    stack = stack_for(access.site())
    path = kubeconfig or site_state_dir(stack.site) / names.KUBECONFIG
    chosen = context or names.kube_context(stack.site)
    cluster = Cluster.connect(path, chosen, patience=timeout)
    try:
        refuse_other_cluster(cluster, stack.site)
        findings = compare(cluster, stack.site, stack.manifests())
    finally:
        cluster.close()
    if as_json:
        typer.echo(json.dumps([_data(each) for each in findings], indent=2))
    else:
        for each in findings:
            _print(each, stack.site)
        if not findings:
            typer.echo(f"{stack.site}: every object is as described")
    return ExitCode.CHANGES if findings else ExitCode.OK


def _write(stack: Stack, folder: Path) -> int:
    """One file per object in a folder per add-on, numbered in order; old ones are removed."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {folder}: found a file, expected a folder")
    written: set[Path] = set()
    for number, addon in enumerate(stack.addons()):
        place = folder / f"{number:02}-{addon.name}"
        place.mkdir(parents=True, exist_ok=True)
        for position, manifest in enumerate(in_order(addon.manifests)):
            file = place / f"{position:02}-{_file_name(manifest)}.yaml"
            file.write_text(_yaml(manifest), encoding="utf-8")
            written.add(file)
    for stale in set(folder.glob("[0-9][0-9]-*/[0-9][0-9]-*.yaml")) - written:
        stale.unlink()
    return len(written)


def _file_name(manifest: Manifest) -> str:
    return f"{manifest['kind'].lower()}-{manifest['metadata']['name'].replace(':', '-')}"


_NUMERIC = frozenset("0123456789+-.")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, numbers in quotes, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML's versions differ about 0680, 1e3, 0o7 and the like: whatever could be a number to one
    # of them is quoted.
    style = "|" if "\n" in text else "'" if text[:1] in _NUMERIC else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(manifest: Manifest) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=1000)


def _data(finding: Finding) -> dict[str, Any]:
    return {
        "object": finding.key._asdict(),
        "finding": finding.kind,
        "differences": [
            {"path": each.path, "found": each.found, "expected": each.expected}
            for each in finding.differences
        ],
    }


def _print(finding: Finding, site: str) -> None:
    words = {
        "missing": "missing",
        "differs": "differs",
        "foreign": f"not this stack's; to hand it over: {adopt_command(finding.key, site)}",
        "extra": "no longer described",
    }
    colors = {"missing": "red", "differs": "yellow", "foreign": "red", "extra": "yellow"}
    typer.secho(f"{finding.key}: {words[finding.kind]}", fg=colors[finding.kind])
    for line in _lines(finding):
        typer.echo(f"  {line}")


def _lines(finding: Finding) -> Iterable[str]:
    return (each.sentence() for each in finding.differences)
