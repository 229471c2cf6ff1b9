"""The package transaction against a fake dpkg and apt that keep state as the real ones do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DRIVER = {"name": "nvidia-driver-515", "version": "515.86.01-1"}


class Machine:
    """dpkg's database and a repository; answers the commands that the module runs."""

    def __init__(self) -> None:
        self.installed: dict[str, list[str]] = {}  # name → [version, abbreviation]
        self.offered: dict[str, list[str]] = {"nvidia-driver-515": ["515.65.01-1", "515.86.01-1"]}
        self.pulls: list[str] = []
        self.removes: list[str] = []
        self.install_fails = ""
        self.half: list[str] = []
        self.configure_fails = False
        self.needs: dict[str, str] = {}  # "name=version" → its Depends line
        self.ran: list[list[str]] = []

    def run(self, argv: list[str], text: str | None = None) -> tuple[int, str, str]:
        self.ran.append(argv)
        handler: Callable[..., tuple[int, str, str]] = {
            "dpkg-query": self.query,
            "dpkg": self.dpkg,
            "apt-get": self.apt_get,
            "apt-cache": self.apt_cache,
            "apt-mark": lambda *_: (0, "", ""),
        }[argv[0]]
        return handler(argv, text)

    def query(self, *_: Any) -> tuple[int, str, str]:
        lines = [f"{name}\t{v}\t{a}" for name, (v, a) in sorted(self.installed.items())]
        return 0, "\n".join(lines), ""

    def dpkg(self, argv: list[str], text: str | None) -> tuple[int, str, str]:
        if argv[1] == "--audit":
            return 0, "".join(f" {name} a package\n" for name in self.half), ""
        if argv[1] == "--configure":
            if not self.configure_fails:
                states = {each: self.installed[each][1] for each in self.half}
                # As the real one: neither what is to go nor what is half unpacked.
                for name in [n for n, s in states.items() if s[0] != "r" and s[1] in "UF"]:
                    self.installed[name][1] = "ii "
                    self.half.remove(name)
            return int(self.configure_fails), "", "dpkg: error processing package"
        if argv[1] == "--remove":
            for name in [word for word in argv[2:] if not word.startswith("--")]:
                self.installed.pop(name)
                self.half.remove(name)
            return 0, "", ""
        if argv[1] == "--set-selections":
            for line in (text or "").splitlines():
                name, _, want = line.partition(" ")
                if name in self.installed and want == "hold":
                    self.installed[name][1] = "h" + self.installed[name][1][1:]
            return 0, "", ""
        done = subprocess.run(argv, check=False)
        return done.returncode, "", ""

    def apt_cache(self, argv: list[str], _: str | None) -> tuple[int, str, str]:
        text = ""
        if argv[1] == "show":
            for word in argv[2:]:
                text += (
                    f"Package: {word.split('=')[0]}\nDepends: {self.needs.get(word, 'libc6')}\n\n"
                )
            return 0, text, ""
        for name in argv[2:]:
            text += f"{name}:\n  Installed: (none)\n  Candidate: x\n  Version table:\n"
            for version in self.offered.get(name, []):
                text += f"     {version} 600\n        600 http://mirror/cuda  Packages\n"
        return 0, text, ""

    def apt_get(self, argv: list[str], _: str | None) -> tuple[int, str, str]:
        if argv[1] == "update":
            return 0, "", ""
        if "--fix-broken" in argv:
            return int(self.configure_fails), "", "E: broken"
        wanted = [word for word in argv if "=" in word and not word.startswith(("DPkg", "Dpkg"))]
        wanted = [word for word in wanted if not word.startswith("--")]
        leaving = [word[:-1] for word in argv[2:] if word.endswith("-")] + self.removes
        names = [word.split("=")[0] for word in wanted] + self.pulls
        if "--simulate" in argv:
            text = "".join(f"Inst {name} (1)\n" for name in names)
            return 0, text + "".join(f"Remv {name} [1]\n" for name in leaving), ""
        if self.install_fails:
            name, _, version = wanted[0].partition("=")
            self.installed[name] = [version, "iU "]
            self.half = [name]
            return 100, "", self.install_fails
        for word in wanted:
            name, _, version = word.partition("=")
            self.installed[name] = [version, "ii "]
            self.half = [each for each in self.half if each != name]
        for name in self.pulls:
            self.installed[name] = ["1", "ii "]
        for name in leaving:
            self.installed.pop(name, None)
        return 0, "", ""

    def held(self) -> set[str]:
        return {name for name, (_, a) in self.installed.items() if a[0] == "h"}


@pytest.fixture
def module(plugin: Callable[[str, str], ModuleType]) -> ModuleType:
    return plugin("modules", "railweld_packages")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def transaction(module: ModuleType, machine: Machine, tmp_path: Path) -> Callable[..., Any]:
    def make(*packages: dict[str, str], **given: Any) -> Any:
        arguments = {
            "component": "driver",
            "packages": list(packages) or [DRIVER],
            "remove": [],
            "family": ["nvidia-*", "libnvidia-*"],
            "not_family": ["nvidia-container-*"],
            "refuse": ["linux-image-*"],
            "allow_downgrade": False,
            "pins": {},
            "update": True,
            **given,
        }
        return module.Transaction(module.Apt(60, machine.run), arguments, tmp_path / "holds.json")

    return make


def test_the_pinned_version_is_installed_and_the_family_held(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.pulls = ["libnvidia-compute-515"]
    first = transaction()
    first.present()
    assert machine.installed["nvidia-driver-515"] == ["515.86.01-1", "hi "]
    assert machine.held() == {"nvidia-driver-515", "libnvidia-compute-515"}
    assert first.result["changed"]


def test_what_a_pin_demands_in_one_version_is_asked_for_in_that_version(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    """Through every level; a repository with two releases of DOCA-OFED could not be solved."""
    machine.offered["ofed"] = ["24-1", "25-1"]
    machine.offered["rdma-core"] = ["24-1", "25-1"]
    machine.offered["libibverbs1"] = ["24-1", "25-1"]
    machine.needs["ofed=24-1"] = "rdma-core (= 24-1), perftest, mft (= 4) | flint, virtual (= 1)"
    machine.needs["rdma-core=24-1"] = "libc6 (>= 2), libibverbs1:amd64 (= 24-1), ofed (= 24-1)"
    transaction({"name": "ofed", "version": "24-1"}).present()
    assert {name: version for name, (version, _) in machine.installed.items()} == {
        "ofed": "24-1",
        "rdma-core": "24-1",
        "libibverbs1": "24-1",
    }
    assert ["apt-mark", "auto", "libibverbs1", "rdma-core"] in machine.ran


def test_an_unsolvable_transaction_names_the_dependency(module: ModuleType) -> None:
    out = (
        "Reading package lists...\nThe following packages have unmet dependencies:\n"
        " doca-ofed : Depends: mft (= 4.30.1-113) but 4.33.0-169 is to be installed\n"
    )
    said = module.last_lines(out, "E: Unable to correct problems, you have held broken packages.")
    assert said == "doca-ofed : Depends: mft (= 4.30.1-113) but 4.33.0-169 is to be installed"


def test_dpkg_says_what_went_wrong_before_apt_does(module: ModuleType) -> None:
    out = (
        "Preparing to unpack .../3-cuda-nvcc-12-1_12.1.105-1_amd64.deb ...\n"
        "Unpacking cuda-nvcc-12-1 (12.1.105-1) ...\n"
        "dpkg: error processing archive /var/cache/apt/archives/a.deb (--unpack):\n"
        " cannot copy extracted data for './usr/local/cuda-12.1/bin/nvcc' to "
        "'/usr/local/cuda-12.1/bin/nvcc.dpkg-new': failed to write (No space left on device)\n"
        "Errors were encountered while processing:\n"
        " /var/cache/apt/archives/a.deb\n"
    )
    said = module.last_lines(out, "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
    assert said.startswith("dpkg: error processing archive /var/cache/apt/archives/a.deb")
    assert "(No space left on device) | E: Sub-process" in said


def test_a_second_transaction_changes_nothing(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    transaction().present()
    machine.ran.clear()
    second = transaction()
    second.present()
    assert not second.result["changed"]
    assert not [argv for argv in machine.ran if argv[0] == "apt-get"]


def test_a_version_that_no_repository_offers_is_refused_naming_what_is_there(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.offered["nvidia-driver-515"] = ["515.105.01-1"]
    with pytest.raises(module.RefusedError) as error:
        transaction().present()
    assert "version not in repository" in str(error.value)
    assert "found 515.105.01-1 of nvidia-driver-515, expected 515.86.01-1" in str(error.value)
    assert machine.installed == {}


def test_a_downgrade_is_refused_until_it_is_meant(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["nvidia-driver-515"] = ["515.105.01-1", "hi "]
    with pytest.raises(module.RefusedError, match="a downgrade is not done silently"):
        transaction().present()
    assert machine.installed["nvidia-driver-515"] == ["515.105.01-1", "hi "]
    transaction(allow_downgrade=True).present()
    assert machine.installed["nvidia-driver-515"] == ["515.86.01-1", "hi "]


def test_a_transaction_that_pulls_a_kernel_is_refused(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.pulls = ["linux-image-6.8.0-50-generic"]
    with pytest.raises(module.RefusedError, match=r"would install linux-image-6\.8\.0-50-generic"):
        transaction().present()
    assert machine.installed == {}


def test_a_foreign_hold_is_not_touched(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["dkms"] = ["3", "hi "]
    machine.pulls = ["dkms"]
    with pytest.raises(module.RefusedError, match="would change dkms, which somebody else"):
        transaction().present()


def test_a_package_outside_of_the_family_is_not_removed(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["slurmd"] = ["22", "ii "]
    machine.removes = ["slurmd"]
    with pytest.raises(module.RefusedError, match="would remove slurmd"):
        transaction().present()
    assert "slurmd" in machine.installed


def test_the_older_branch_makes_way_in_the_same_transaction(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["nvidia-driver-510"] = ["510.1-1", "hi "]
    transaction(remove=["nvidia-*-510", "nvidia-driver-510"]).present()
    assert sorted(machine.installed) == ["nvidia-driver-515"]


def test_an_installation_that_fails_leaves_the_family_held(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["libnvidia-cfg1-515"] = ["515.65.01-1", "ii "]
    machine.install_fails = "E: Sub-process /usr/bin/dpkg returned an error code (1)"
    with pytest.raises(module.RefusedError) as error:
        transaction().present()
    assert "half installed: nvidia-driver-515" in str(error.value)
    assert "Sub-process" in str(error.value)
    assert "libnvidia-cfg1-515" in machine.held()


def test_the_run_after_a_power_cut_finishes_dpkg_and_says_so(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["nvidia-driver-515"] = ["515.86.01-1", "iU "]
    machine.half = ["nvidia-driver-515"]
    after = transaction()
    after.heal()
    after.hold()
    assert after.result["repaired"] == ["nvidia-driver-515"]
    assert machine.installed["nvidia-driver-515"] == ["515.86.01-1", "hi "]


@pytest.mark.parametrize("version", ["", "515.65.01-1", "580.1-1"])
def test_a_package_cut_while_it_was_unpacked_is_unpacked_again_as_pinned(
    machine: Machine, transaction: Callable[..., Any], version: str
) -> None:
    machine.installed["libnccl2"] = [version, "iHR"]
    machine.half = ["libnccl2"]
    after = transaction(family=["libnccl*"], pins={"libnccl2": "2.14.3-1"})
    after.heal()
    after.hold()
    assert after.result["repaired"] == ["libnccl2"]
    assert machine.installed["libnccl2"] == ["2.14.3-1", "hi "]


@pytest.mark.parametrize(
    ("version", "status"), [("510.1-1", "rH "), ("510.1-1", "rF "), ("", "iHR")]
)
def test_a_removal_that_was_cut_and_a_rest_without_version_are_removed(
    machine: Machine, transaction: Callable[..., Any], version: str, status: str
) -> None:
    machine.installed["nvidia-driver-510"] = [version, status]
    machine.half = ["nvidia-driver-510"]
    transaction().heal()
    assert machine.installed == {}


def test_a_dpkg_that_cannot_be_finished_is_an_error_with_its_reason(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["nvidia-driver-515"] = ["515.86.01-1", "iF "]
    machine.half = ["nvidia-driver-515"]
    machine.configure_fails = True
    with pytest.raises(module.RefusedError, match="dpkg interrupted"):
        transaction().heal()


def test_holds_are_recorded_before_anything_is_installed(
    module: ModuleType, machine: Machine, transaction: Callable[..., Any], tmp_path: Path
) -> None:
    machine.install_fails = "E: power"
    with pytest.raises(module.RefusedError):
        transaction().present()
    assert json.loads((tmp_path / "holds.json").read_text()) == {"driver": ["nvidia-driver-515"]}


def test_a_hold_that_somebody_released_is_put_back(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    transaction().present()
    machine.installed["nvidia-driver-515"][1] = "ii "
    again = transaction()
    again.hold()
    assert again.result["held"] == ["nvidia-driver-515"]
    assert machine.held() == {"nvidia-driver-515"}


def test_the_container_toolkit_is_not_held_with_the_driver(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.installed["nvidia-container-toolkit"] = ["1.13", "ii "]
    transaction().present()
    assert "nvidia-container-toolkit" not in machine.held()


def test_check_mode_plans_on_a_node_without_repositories(
    machine: Machine, transaction: Callable[..., Any]
) -> None:
    machine.offered = {}
    planned = transaction()
    planned.plan()
    assert planned.result["changed"]
    assert planned.result["diff"]["after"] == (
        "nvidia-driver-515 on hold\nnvidia-driver-515=515.86.01-1\n"
    )
    assert machine.installed == {}


def test_a_version_that_only_the_node_itself_has_is_not_offered(module: ModuleType) -> None:
    text = (
        "libnccl2:\n  Installed: 2.14.3\n  Candidate: 2.14.3\n  Version table:\n"
        " *** 2.14.3 100\n        100 /var/lib/dpkg/status\n"
        "     2.12.1 600\n        600 http://mirror/cuda  Packages\n"
    )
    assert module.parse_policy(text) == {"libnccl2": ["2.12.1"]}
