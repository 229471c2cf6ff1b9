"""What the mirror serves, and what it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from railweld.files import write_atomically
from railweld.lab import kernel
from railweld.lab.debs import hide_packages
from railweld.lab.faults import parse_settings
from railweld.lab.node.mirror_server import find
from railweld.lab.process import LabError, require_machine, run

PACKAGES = """\
Package: libnccl2
Version: 2.14.3-1+cuda11.7

Package: libnccl2
Version: 2.28.9-1+cuda13.0

Package: libnccl-dev
Version: 2.14.3-1+cuda11.7
"""


@pytest.mark.parametrize(
    ("hide", "left"),
    [
        (["libnccl2"], ["2.14.3-1+cuda11.7 libnccl-dev"]),
        (["libnccl2=2.14.3*"], ["2.14.3-1+cuda11.7 libnccl-dev", "2.28.9-1+cuda13.0 libnccl2"]),
        (["libnccl*=2.14.3*"], ["2.28.9-1+cuda13.0 libnccl2"]),
        (["nothing"], ["2.14.3-1+cuda11.7 libnccl-dev", "2.14.3-1+cuda11.7 libnccl2",
                       "2.28.9-1+cuda13.0 libnccl2"]),
    ],
)  # fmt: skip
def test_hidden_packages_leave_the_index(hide: list[str], left: list[str]) -> None:
    stanzas = [stanza for stanza in hide_packages(PACKAGES, hide).split("\n\n") if stanza.strip()]
    found = []
    for stanza in stanzas:
        fields = dict(line.split(": ", 1) for line in stanza.strip().splitlines())
        found.append(f"{fields['Version']} {fields['Package']}")
    assert sorted(found) == left


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Path]:
    builds, lab = tmp_path / "builds", tmp_path / "lab"
    (builds / "os/abc").mkdir(parents=True)
    lab.mkdir()
    (lab / "served.json").write_text(json.dumps({"os": "os/abc"}))
    return builds, lab


def test_the_server_finds_the_build_that_the_lab_points_to(served: tuple[Path, Path]) -> None:
    builds, lab = served
    assert find("/os/Packages", builds, lab) == builds / "os/abc/Packages"
    assert find("/os/./Packages?x", builds, lab) == builds / "os/abc/Packages"
    assert find("/railweld-lab.asc", builds, lab) == lab / "railweld-lab.asc"
    assert find("/other/Packages", builds, lab) is None
    assert find("/", builds, lab) is None


def test_the_server_does_not_leave_its_folders(served: tuple[Path, Path]) -> None:
    builds, lab = served
    for path in ("/os/../../../etc/passwd", "/os/%2e%2e/%2e%2e/etc/passwd", "/../etc/passwd"):
        found = find(path, builds, lab)
        assert found is None or found.is_relative_to(builds)


def test_what_a_fault_put_there_comes_first(served: tuple[Path, Path]) -> None:
    builds, lab = served
    changed = lab / "override/os/Packages"
    changed.parent.mkdir(parents=True)
    changed.touch()
    assert find("/os/Packages", builds, lab) == changed
    assert find("/os/a.deb", builds, lab) == builds / "os/abc/a.deb"


@pytest.mark.parametrize(
    ("release", "version", "newer"),
    [
        ("6.1.0-20-amd64", "6.1.0-1", "6.1.1-railweld"),
        ("6.18.44-fc-v669", "6.18.44-1", "6.18.45-railweld"),
    ],
)
def test_kernel_packages_have_versions_that_sort(release: str, version: str, newer: str) -> None:
    assert kernel.package_version(release) == version
    assert kernel.newer_kernel(release) == newer


def test_a_missing_tool_is_named_with_its_package() -> None:
    with pytest.raises(LabError) as caught:
        require_machine({"no-such-tool": "its-package"}, uid=0)
    assert "found no no-such-tool" in str(caught.value)
    assert "apt-get install -y its-package" in str(caught.value)


def test_an_ordinary_user_is_told_to_use_sudo() -> None:
    with pytest.raises(LabError, match="expected root"):
        require_machine({}, uid=1000)


def test_a_failing_program_shows_its_last_words() -> None:
    with pytest.raises(LabError, match=r"(?s)exit 3, expected 0.*the reason"):
        run(["sh", "-c", "echo the reason >&2; exit 3"])


def test_settings_of_a_fault() -> None:
    assert parse_settings(["seconds=5", "hide=a=b"]) == {"seconds": "5", "hide": "a=b"}
    with pytest.raises(LabError, match="--set seconds: expected key=value"):
        parse_settings(["seconds"])


def test_files_are_replaced_in_one_step_with_their_mode(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("old")
    write_atomically(file, "new")
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


ONE_LAB = """\
import sys
from pathlib import Path
from railweld.lab.debs import signing_key

folder = Path(sys.argv[1])
folder.mkdir()
(folder / "Release").write_text("Origin: railweld lab\\n")
key = signing_key()
key.sign(folder)
print(key.fingerprint)
"""


def test_labs_that_start_together_make_one_key_and_sign_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_CACHE", str(tmp_path / "cache"))
    labs = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_LAB, str(tmp_path / f"lab{number}")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    answers = [lab.communicate(timeout=120)[0].strip() for lab in labs]
    assert [lab.returncode for lab in labs] == [0] * len(labs)
    assert len(set(answers)) == 1
    assert all((tmp_path / f"lab{number}/InRelease").stat().st_size for number in range(4))
