"""Images: which, under which names, laid out how. Nothing is built here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railweld.errors import RailweldError
from railweld.images.catalog import Entry, catalog
from railweld.images.make import push, save
from railweld.site import load_site
from railweld.stack.graph import stack_for

ROOT = Path(__file__).resolve().parents[3]
LAB = str(ROOT / "inventories" / "lab")


def archive(folder: Path, content: str = "x") -> Path:
    path = folder / "archive.tar"
    path.write_text(content)
    return path


def entry(name: str = "clock_guard", ref: str = "r.example.com/clock-guard:1") -> Entry:
    return Entry(name=name, ref=ref)


def test_a_real_site_gets_what_no_registry_has_and_no_stand_in() -> None:
    assert [each.name for each in catalog(load_site([LAB]))] == ["clock_guard"]


def test_the_lab_has_every_image_that_its_stack_runs() -> None:
    site = load_site([LAB])
    made = {each.ref for each in catalog(site, stand_ins=True)}
    used = {
        container["image"]
        for manifest in stack_for(site).manifests()
        for container in (
            manifest.get("template") or manifest.get("spec", {}).get("template") or {"spec": {}}
        )["spec"].get("containers", ())
    }
    assert used <= made


def test_images_go_by_the_sites_registry() -> None:
    site = load_site([LAB], {"railweld_image_registry": "r.example.com:5000/mirror"})
    assert [each.ref for each in catalog(site)] == ["r.example.com:5000/mirror/clock-guard:1"]


def test_saving_keeps_what_others_put_there_and_repeats_without_a_change(tmp_path: Path) -> None:
    target = tmp_path / "images"
    target.mkdir()
    other = {"file": "pause.tar", "images": ["p:1"], "nodes": "node", "sha256": "0"}
    (target / "index.json").write_text(json.dumps([other]))
    save([entry()], [archive(tmp_path)], target)
    listed = json.loads((target / "index.json").read_text())
    assert [each["file"] for each in listed] == ["clock-guard.tar", "pause.tar"]
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    save([entry()], [archive(tmp_path)], target)
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == before
    save([entry()], [archive(tmp_path, "y")], target)
    assert (target / "clock-guard.tar").read_text() == "y"


def test_pushing_needs_a_registry_and_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "podman").write_text("#!/bin/sh\necho refused >&2; exit 1\n")
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin")
    with pytest.raises(RailweldError, match="set railweld_image_registry"):
        push([entry(ref="railweld.local/clock-guard:1")], [archive(tmp_path)])
    with pytest.raises(RailweldError, match="refused"):
        push([entry()], [archive(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RailweldError, match="neither podman nor docker"):
        push([entry()], [archive(tmp_path)])
