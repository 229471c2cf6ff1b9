"""Stand-in packages: everything that the sets name, its relations, and the repositories' traps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from railweld.lab.debs import Deb
from railweld.lab.vendor import build, build_os, bundle, content_key, packages
from railweld.versions import load_set

SETS = ("a100-2023", "current")
VENDOR = ("driver", "fabric_manager", "cuda", "nccl", "dcgm", "doca")


def offered(repository: str = "ubuntu2204", sets: tuple[str, ...] = SETS) -> dict[str, list[Deb]]:
    return packages(sets, repository=repository)


@pytest.mark.parametrize("repository", ["ubuntu2204", "ubuntu2404", "debian12"])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("modules", ["open", "proprietary"])
def test_every_pinned_package_is_there(name: str, repository: str, modules: str) -> None:
    there = {
        (deb.name, deb.version) for debs in offered(repository, (name,)).values() for deb in debs
    }
    resolved = load_set(name).resolve()
    for component in VENDOR:
        if resolved.absent(component, repository):
            continue
        for package in resolved.packages(component, repository, modules=modules, compat=True):
            assert (package.name, package.version) in there


def test_no_two_packages_have_the_same_name_and_version() -> None:
    for debs in offered().values():
        keys = [(deb.name, deb.version) for deb in debs]
        assert len(keys) == len(set(keys))


def test_each_driver_family_has_a_newer_build() -> None:
    versions = {deb.version for deb in offered()["cuda"] if deb.name == "libnvidia-compute-515"}
    assert versions == {"515.86.01-0ubuntu1", "515.105.01-0ubuntu1"}
    versions = {deb.version for deb in offered()["cuda"] if deb.name == "nvidia-modprobe"}
    assert "580.178.04-1ubuntu1" in versions


def test_a_set_that_a_repository_never_had_gives_no_packages_of_it() -> None:
    names = {deb.name for deb in offered("debian12", ("a100-2023",))["cuda"]}
    assert names == {"dkms"}


def test_content_key_changes_with_the_arguments() -> None:
    assert content_key(SETS) == content_key(SETS[::-1])
    assert content_key(SETS) != content_key(SETS, repository="ubuntu2404")
    assert content_key(SETS) != content_key(SETS[:1])


def test_a_program_runs_as_one_file_and_is_the_same_every_time(tmp_path: Path) -> None:
    content = bundle.program("nvcc.main", {"release": "12.1", "nvcc": "12.1.105"})
    assert content == bundle.program("nvcc.main", {"nvcc": "12.1.105", "release": "12.1"})
    path = tmp_path / "nvcc"
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-I", path, "--version"], capture_output=True, text=True, check=True
    )
    assert "V12.1.105" in done.stdout


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_debs_are_written_per_repository(tmp_path: Path) -> None:
    result = build(tmp_path, sets=["a100-2023"])
    assert all(path.parent == tmp_path / "cuda" for path in result.cuda)
    path = next(path for path in result.cuda if path.name.startswith("nvidia-utils-515_515.86"))
    fields = subprocess.run(
        ["dpkg-deb", "--field", path, "Package", "Version", "Depends"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert fields == (
        "Package: nvidia-utils-515\nVersion: 515.86.01-0ubuntu1\n"
        "Depends: libnvidia-compute-515 (= 515.86.01-0ubuntu1)\n"
    )
    assert any(path.name.startswith("doca-ofed_2.9.1") for path in result.doca)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_stand_ins_of_the_distribution_sort_above_its_own(tmp_path: Path) -> None:
    names = {path.name.split("_", 1)[0] for path in build_os(tmp_path)}
    assert names == {"dkms", "mstflint"}
    assert all("railweld" in path.name for path in tmp_path.iterdir())


class Apt:
    """apt on a repository that is described, not built; it only simulates."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in ("repo", "lists/partial", "archives/partial", "etc"):
            (root / part).mkdir(parents=True)
        debs = [deb for debs in offered().values() for deb in debs]
        for name in ("libc6", "kmod"):
            debs.append(Deb(name=name, version="9", description=name))
        (root / "repo/Packages").write_text("".join(map(self.stanza, debs)))
        (root / "status").write_text("")
        (root / "sources.list").write_text(f"deb [trusted=yes] file:{root}/repo ./\n")
        (root / "apt.conf").write_text(
            f'Dir::Etc::SourceList "{root}/sources.list"; Dir::Etc::SourceParts "/dev/null";\n'
            f'Dir::Etc::Preferences "/dev/null"; Dir::Etc::PreferencesParts "{root}/etc";\n'
            f'Dir::State "{root}"; Dir::State::Lists "{root}/lists";\n'
            f'Dir::Etc::Parts "{root}/etc";\n'
            f'Dir::State::status "{root}/status"; Dir::Cache::Archives "{root}/archives";\n'
            f'Dir::State::extended_states "{root}/extended"; APT::Architecture "amd64";\n'
            'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache ""; Debug::NoLocking "true";\n'
            'APT::Sandbox::User "root"; Acquire::Languages "none";\n'
        )
        assert self.get("update")[0] == 0

    @staticmethod
    def stanza(deb: Deb) -> str:
        lines = {
            "Package": deb.name,
            "Version": deb.version,
            "Architecture": deb.architecture,
            "Maintainer": "lab <lab@railweld.invalid>",
            **deb.fields,
            "Filename": f"./{deb.name}_{deb.version}.deb",
            "Size": "1",
            "SHA256": "0" * 64,
            "Description": deb.description,
        }
        return "".join(f"{key}: {value}\n" for key, value in lines.items()) + "\n"

    def get(self, *argv: str) -> tuple[int, str]:
        done = subprocess.run(
            ["apt-get", *argv],
            env={**os.environ, "APT_CONFIG": str(self.root / "apt.conf"), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def simulate(self, *argv: str) -> dict[str, str]:
        """Package to version (empty for a removal) of a simulated transaction."""
        code, text = self.get("-s", "-y", "--allow-change-held-packages", *argv)
        assert code == 0, text
        changes = {}
        for line in text.splitlines():
            words = line.replace("(", " ").split()
            if words[:1] == ["Inst"]:
                changes[words[1]] = words[3] if words[2].startswith("[") else words[2]
            elif words[:1] == ["Remv"]:
                changes[words[1]] = ""
        return changes

    def installed(self, changes: dict[str, str], hold: tuple[str, ...] = ()) -> None:
        """Make a simulated transaction the state of the machine."""
        debs = {(deb.name, deb.version): deb for debs in offered().values() for deb in debs}
        text = ""
        for name, version in changes.items():
            deb = debs.get((name, version)) or Deb(name=name, version=version, description=name)
            want = "hold" if name in hold else "install"
            head, _, rest = self.stanza(deb).partition("\n")
            text += f"{head}\nStatus: {want} ok installed\n{rest}"
        (self.root / "status").write_text(text)


@pytest.fixture
def apt(tmp_path: Path) -> Apt:
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    return Apt(tmp_path)


def pins(name: str, *components: str) -> list[str]:
    resolved = load_set(name).resolve()
    return [
        str(package)
        for component in components
        for package in resolved.packages(component, "ubuntu2204")
    ]


REFERENCE = ("driver", "fabric_manager", "cuda", "nccl")


def test_pins_of_the_reference_set_install_together(apt: Apt) -> None:
    changes = apt.simulate("install", *pins("a100-2023", *REFERENCE))
    assert changes["nvidia-dkms-515-open"] == "515.86.01-0ubuntu1"
    assert changes["libnccl2"] == "2.14.3-1+cuda11.7"
    assert not any("580" in name for name in changes)


def test_without_holds_an_upgrade_moves_the_family_and_forwards_the_fabric_manager(
    apt: Apt,
) -> None:
    apt.installed(apt.simulate("install", *pins("a100-2023", *REFERENCE)))
    changes = apt.simulate("dist-upgrade")
    assert changes["libnvidia-compute-515"] == "515.105.01-0ubuntu1"
    assert "nvidia-fabricmanager-535" in changes
    assert changes["nvidia-modprobe"].startswith("580.")


def test_with_holds_an_upgrade_moves_nothing(apt: Apt) -> None:
    changes = apt.simulate("install", *pins("a100-2023", *REFERENCE))
    apt.installed(changes, hold=tuple(changes))
    code, text = apt.get("-s", "dist-upgrade")
    assert code == 0
    assert "0 upgraded, 0 newly installed, 0 to remove" in text


def test_holding_the_metapackage_alone_is_not_enough(apt: Apt) -> None:
    changes = apt.simulate(
        "install", *pins("a100-2023", "driver"), "nvidia-headless-515-open=515.86.01-0ubuntu1"
    )
    apt.installed(changes, hold=("nvidia-headless-515-open",))
    assert apt.simulate("dist-upgrade")["nvidia-modprobe"].startswith("580.")


def test_the_other_set_replaces_the_whole_branch_and_back(apt: Apt) -> None:
    old = apt.simulate("install", *pins("a100-2023", *REFERENCE))
    apt.installed(old)
    changes = apt.simulate("install", *pins("current", *REFERENCE))
    assert changes["nvidia-dkms-580-open"] == "580.173.02-1ubuntu1"
    assert changes["nvidia-dkms-515-open"] == ""
    assert changes["nvidia-fabricmanager-515"] == ""
    now = {name: version for name, version in (old | changes).items() if version}
    apt.installed(now)
    back = apt.simulate("install", "--allow-downgrades", *pins("a100-2023", *REFERENCE))
    assert back["nvidia-dkms-515-open"] == "515.86.01-0ubuntu1"
    assert back["nvidia-dkms-580-open"] == ""
    assert back["nvidia-persistenced"] == ""


def test_members_of_a_family_do_not_mix(apt: Apt) -> None:
    code, text = apt.get(
        "-s",
        "install",
        "nvidia-utils-515=515.86.01-0ubuntu1",
        "libnvidia-compute-515=515.105.01-0ubuntu1",
    )
    assert code != 0
    assert "Depends: libnvidia-compute-515 (= 515.86.01-0ubuntu1)" in text


def test_open_and_proprietary_modules_exclude_each_other(apt: Apt) -> None:
    code, _ = apt.get("-s", "install", "nvidia-dkms-515", "nvidia-dkms-515-open")
    assert code != 0


def test_an_ended_branchs_name_leads_to_another_branch(apt: Apt) -> None:
    changes = apt.simulate("install", "nvidia-driver-515-server")
    assert changes["nvidia-driver-515-server"].startswith("535.")
    assert "nvidia-driver-535-server" in changes


def test_the_package_cuda_drags_a_driver_over_the_pinned_one(apt: Apt) -> None:
    apt.installed(apt.simulate("install", *pins("a100-2023", *REFERENCE)))
    changes = apt.simulate("install", "cuda")
    assert changes["nvidia-driver-580"] == "580.178.04-1ubuntu1"
    assert changes["nvidia-dkms-515-open"] == ""


def test_doca_replaces_the_inbox_userspace_with_its_own(apt: Apt) -> None:
    changes = apt.simulate("install", *pins("current", "doca"))
    assert changes["rdma-core"].startswith("2510mlnx")
    assert changes["mlnx-ofed-kernel-dkms"] == "25.10.OFED.25.10.1.7.1.1-1"
