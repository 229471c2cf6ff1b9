"""The lab's builds from source: what is built, what is kept, and what is said without Go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from railweld.lab import tools
from railweld.lab.process import LabError

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="needs Go on PATH")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tools' sources and an empty cache."""
    sources = tmp_path / "tools"
    shutil.copytree(tools.tools_directory(), sources)
    monkeypatch.setenv("RAILWELD_TOOLS", str(sources))
    monkeypatch.setenv("RAILWELD_CACHE", str(tmp_path / "cache"))
    return sources


def test_every_tool_has_a_module_with_its_hashes() -> None:
    for name, tool in tools.TOOLS.items():
        source = tools.tools_directory() / name
        assert (source / "go.mod").is_file(), name
        # A module with dependencies is only reproducible with their hashes.
        assert not tool.module or (source / "go.sum").is_file(), name


def test_version_comes_from_the_module() -> None:
    assert tools.tool_version("kubernetes") == "v1.36.3"
    assert tools.tool_version("etcd") == "v3.6.16"
    assert tools.tool_version("coredns") == "v1.14.2"
    assert not tools.tool_version("pause")


def test_unknown_tool_is_named_with_the_known_ones() -> None:
    with pytest.raises(LabError, match=r"found 'kubectl', expected one of kubernetes"):
        tools.ensure("kubectl")


def test_missing_go_is_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.is_dir()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(LabError, match=r"found no `go` on PATH, expected Go 1\.26.*go\.dev/dl"):
        tools.ensure("pause")


@needs_go
def test_second_call_builds_nothing(folder: Path) -> None:
    assert folder.is_dir()
    first: list[str] = []
    program = tools.ensure("pause", first.append) / "pause"
    assert program.stat().st_mode & 0o111
    second: list[str] = []
    assert tools.ensure("pause", second.append) == program.parent
    assert first
    assert not second


@needs_go
def test_changed_source_is_built_anew(folder: Path) -> None:
    before = tools.ensure("pause")
    source = folder / "pause" / "main.go"
    source.write_text(source.read_text() + "\n// changed\n")
    assert tools.ensure("pause") != before


@needs_go
def test_failed_build_shows_the_compiler_and_leaves_nothing(folder: Path) -> None:
    (folder / "pause" / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(LabError, match=r"(?s)`go build`.*nonsense"):
        tools.ensure("pause")
    left = [path.name for path in (folder.parent / "cache/tools/pause").iterdir()]
    assert not [name for name in left if not name.endswith(".partial")]
    (folder / "pause" / "main.go").write_text("package main\n\nfunc main() {}\n")
    assert (tools.ensure("pause") / "pause").is_file()
