"""The program that removes the scratch folders of jobs that have ended."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.loading import load_file
from tests.unit.bridge.test_render import FACTS

PROGRAM = Path(__file__).parents[3] / "roles/nvme_cache/files/railweld_scratch.py"
GONE, USED, YOUNG = "slurm-lab-7-r0", "slurm-lab-8-r1", "slurm-lab-9-r0"


@pytest.fixture
def installed() -> ModuleType:
    """The program as it is."""
    return load_file(PROGRAM)


@pytest.fixture
def program(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program on a node with mounts of its own."""
    # Tests make the folders, and need not be root.
    monkeypatch.setattr(installed, "OWNER", os.getuid())
    monkeypatch.setattr(installed, "mounted", lambda: {"", "local", USED})
    return installed


@pytest.fixture
def folder(tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of three runs, of which the last has only just been made."""
    jobs = tmp_path / "jobs"
    for name in (GONE, USED):
        (jobs / name / "data").mkdir(parents=True)
    made = max((jobs / name).stat().st_ctime for name in (GONE, USED))
    later = made + program.YOUNG_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    return jobs


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_only_what_no_pod_has_is_removed(program: ModuleType, folder: Path) -> None:
    assert program.main([str(folder)]) == 0
    assert names(folder) == {USED}


def test_a_folder_that_may_not_be_mounted_yet_stays(
    program: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = (folder / GONE).stat().st_ctime + program.YOUNG_SECONDS - 1
    monkeypatch.setattr(time, "time", lambda: now)
    assert program.main([str(folder)]) == 0
    assert names(folder) == {GONE, USED}


@pytest.mark.parametrize("name", ["other", "slurm-lab-7", "slurm-lab-7-r0 ", "..slurm-lab-7-r0"])
def test_what_no_kubelet_made_is_left_and_said(
    program: ModuleType, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).mkdir()
    assert program.main([str(folder)]) == 1
    assert (folder / name).is_dir()
    assert f"{name}: no folder of a job's" in capsys.readouterr().err


@pytest.mark.parametrize("cluster", ["lab", "A100-2"])
def test_names_that_the_bridge_gives_are_those_of_jobs(installed: ModuleType, cluster: str) -> None:
    assert installed.NAME.fullmatch(replace(FACTS, cluster=cluster).name)


def test_links_are_not_followed(program: ModuleType, folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (folder / GONE / "link").symlink_to(kept)
    (folder / YOUNG).symlink_to(kept)
    assert program.main([str(folder)]) == 1
    assert (kept / "inner").is_dir()
    assert (folder / YOUNG).is_symlink()
    assert not (folder / GONE).exists()


def test_folders_of_others_are_left(
    program: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "OWNER", os.getuid() + 1)
    assert program.main([str(folder)]) == 1
    assert names(folder) == {GONE, USED}


def test_every_mount_namespace_counts_and_the_dead_do_not(
    installed: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(installed.ScratchError, match="no mounts at all"):
        installed.mounted(tmp_path)
    for number, namespace, root in ((1, "a", "/"), (2, "a", "/"), (3, "b", f"/scratch/{USED}")):
        (tmp_path / str(number) / "ns").mkdir(parents=True)
        (tmp_path / str(number) / "ns" / "mnt").symlink_to(f"mnt:[{namespace}]")
        line = f"36 35 98:0 {root} /local/scratch rw,noatime master:1 - ext4 /dev/root rw\n"
        (tmp_path / str(number) / "mountinfo").write_text(line)
    # One that ended between being listed and being read.
    (tmp_path / "4").mkdir()
    assert installed.mounted(tmp_path) == {"", USED}
