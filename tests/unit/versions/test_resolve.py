"""Loading, overrides and the errors that an operator reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from railweld.errors import ExitCode, UsageError
from railweld.versions import VersionsError, load_set, versions_directory

REPOSITORY = Path(__file__).resolve().parents[3] / "versions"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY, tmp_path / "versions"))


def test_override_is_visible_and_changes_the_packages() -> None:
    resolved = load_set("a100-2023").resolve({"kubernetes": "1.36.3"})
    assert resolved.changed == (("kubernetes", "1.26.0", "1.36.3"),)
    assert "kubeadm=1.36.3-1.1" in map(str, resolved.packages("kubernetes", "ubuntu2204"))


def test_packages_without_override_keep_the_odd_revision() -> None:
    resolved = load_set("a100-2023").resolve()
    assert "kubeadm=1.26.0-2.1" in map(str, resolved.packages("kubernetes", "ubuntu2204"))


def test_override_with_the_sets_own_version_changes_nothing() -> None:
    assert load_set("a100-2023").resolve({"kubernetes": "1.26.0"}).changed == ()


def test_fabric_manager_follows_an_overridden_driver() -> None:
    resolved = load_set("current").resolve({"driver": "580.178.04"})
    assert resolved.component("fabric_manager").version == "580.178.04"
    assert resolved.changed == (
        ("driver", "580.173.02", "580.178.04"),
        ("fabric_manager", "580.173.02", "580.178.04"),
    )


def test_nccl_override_takes_the_cuda_build_along() -> None:
    resolved = load_set("a100-2023").resolve({"nccl": "2.17.1+cuda12.1"})
    assert resolved.versions.nccl.cuda == "12.1"
    assert "libnccl2=2.17.1-1+cuda12.1" in map(str, resolved.packages("nccl", "ubuntu2204"))


def test_override_to_another_branch_is_refused_because_the_names_are_not_known() -> None:
    with pytest.raises(VersionsError, match=r"driver: found 535.183.01, expected a version like"):
        load_set("a100-2023").resolve({"driver": "535.183.01"})


def test_override_of_a_component_without_known_neighbours_is_refused() -> None:
    with pytest.raises(VersionsError, match=r"cuda: found 12.2.0, expected a version like 12.1.1"):
        load_set("a100-2023").resolve({"cuda": "12.2.0"})


def test_override_of_an_unknown_component_names_the_known_ones() -> None:
    with pytest.raises(VersionsError, match="found component 'drivers', expected one of driver"):
        load_set("a100-2023").resolve({"drivers": "1"})


def test_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="expected one of a100-2023, current") as caught:
        load_set("h100")
    assert caught.value.exit_code is ExitCode.USAGE


def test_folder_of_the_environment_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.yml").write_text(
        (folder / "current.yml").read_text().replace("name: current", "name: mine", 1)
    )
    monkeypatch.setenv("RAILWELD_VERSIONS", str(folder))
    assert versions_directory() == folder
    assert load_set("mine").resolve().name == "mine"


def test_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected one of none"):
        load_set("current", directory=tmp_path)


def test_missing_rules_are_named(folder: Path) -> None:
    (folder / "rules.yml").unlink()
    with pytest.raises(UsageError, match=r"rules.yml: not found"):
        load_set("current", directory=folder)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("  version: 515.86.01\n", "  version: 515.1\n  verzion: x\n", "driver.verzion"),
        ('  cuda: "11.7"\n', "  cuda: 11.7\n", "nccl.cuda: Input should be a valid string"),
        ("name: a100-2023", "name: other", "found 'other', expected 'a100-2023'"),
        ("  source: oke\n", "  source: nowhere\n", "sources named but not described"),
        ("sources:\n", "sources: [\n", "not YAML"),
        ("summary:", "summary: 2023-01-01\nsumary:", "JSON cannot carry"),
    ],
)
def test_faulty_set_is_refused_with_file_and_key(
    folder: Path, before: str, after: str, message: str
) -> None:
    path = folder / "a100-2023.yml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(VersionsError, match=message) as caught:
        load_set("a100-2023", directory=folder)
    assert str(path) in str(caught.value)


def test_packages_and_reason_for_none_exclude_each_other(folder: Path) -> None:
    path = folder / "a100-2023.yml"
    path.write_text(path.read_text().replace("packages: [{name: containerd}]", "packages: []", 1))
    with pytest.raises(VersionsError, match="either packages or the reason"):
        load_set("a100-2023", directory=folder)


def test_rule_that_stands_twice_is_refused(folder: Path) -> None:
    path = folder / "rules.yml"
    path.write_text(
        path.read_text().replace("id: cuda-12-driver-floor", "id: cuda-11-driver-floor")
    )
    with pytest.raises(VersionsError, match="stands twice"):
        load_set("current", directory=folder)
