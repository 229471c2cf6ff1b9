"""The version sets in the repository: exact names, their sources, and what is not there."""

from __future__ import annotations

import pytest

from railweld.base.families import in_family
from railweld.versions import (
    FACTS,
    VersionsError,
    available_sets,
    load_rules,
    load_set,
)
from railweld.versions.rules import parse

SETS = ("a100-2023", "current")
REPOSITORIES = ("ubuntu2204", "ubuntu2404", "debian12")


def names(packages: list[object]) -> set[str]:
    return {str(package) for package in packages}


def test_the_repository_has_both_sets() -> None:
    assert available_sets() == list(SETS)


def test_a100_2023_has_the_pins_of_the_reference_build() -> None:
    resolved = load_set("a100-2023").resolve()
    assert {
        name: resolved.component(name).version
        for name in ("driver", "fabric_manager", "cuda", "nccl", "kubernetes", "slurm")
    } == {
        "driver": "515.86.01",
        "fabric_manager": "515.86.01",
        "cuda": "12.1.1",
        "nccl": "2.14.3",
        "kubernetes": "1.26.0",
        "slurm": "22.05.8",
    }
    assert resolved.versions.cuda.release == "12.1"
    assert resolved.versions.nccl.cuda == "11.7"
    assert resolved.versions.driver.branch == "515"


def test_a100_2023_names_exact_vendor_packages() -> None:
    resolved = load_set("a100-2023").resolve()
    assert {
        "nvidia-dkms-515-open=515.86.01-0ubuntu1",
        "libnvidia-compute-515=515.86.01-0ubuntu1",
    } <= names(resolved.packages("driver", "ubuntu2204"))
    assert "nvidia-fabricmanager-515=515.86.01-1" in names(
        resolved.packages("fabric_manager", "ubuntu2204")
    )
    assert {"cuda-toolkit-12-1=12.1.1-1", "cuda-compat-12-1=530.30.02-1"} <= names(
        resolved.packages("cuda", "ubuntu2204")
    )
    assert names(resolved.packages("nccl", "ubuntu2204")) == {
        "libnccl2=2.14.3-1+cuda11.7",
        "libnccl-dev=2.14.3-1+cuda11.7",
    }


def test_current_has_no_branch_in_the_fabric_managers_name() -> None:
    resolved = load_set("current").resolve()
    assert "nvidia-fabricmanager=580.173.02-1ubuntu1" in names(
        resolved.packages("fabric_manager", "ubuntu2404")
    )


def test_modules_choose_the_dkms_package() -> None:
    resolved = load_set("a100-2023").resolve()
    proprietary = names(resolved.packages("driver", "ubuntu2204", modules="proprietary"))
    assert "nvidia-dkms-515=515.86.01-0ubuntu1" in proprietary
    assert not any("-open=" in package for package in proprietary)


def test_compat_can_be_left_out() -> None:
    resolved = load_set("a100-2023").resolve()
    assert not any(
        "compat" in package
        for package in names(resolved.packages("cuda", "ubuntu2204", compat=False))
    )


@pytest.mark.parametrize("name", SETS)
def test_no_list_ever_has_the_toolkit_package_that_pulls_a_driver(name: str) -> None:
    resolved = load_set(name).resolve()
    for component in resolved.versions.components():
        for repository in REPOSITORIES:
            if resolved.absent(component, repository) is None:
                found = {package.name for package in resolved.packages(component, repository)}
                assert found.isdisjoint({"cuda", "cuda-drivers", "nvidia-open"})


@pytest.mark.parametrize("component", ["driver", "fabric_manager", "cuda", "nccl"])
@pytest.mark.parametrize("repository", ["ubuntu2404", "debian12"])
def test_what_a_repository_never_had_is_absent_with_a_reason(
    component: str, repository: str
) -> None:
    resolved = load_set("a100-2023").resolve()
    assert "never published" in str(resolved.absent(component, repository))
    with pytest.raises(VersionsError, match=f"not in the vendor repository {repository}"):
        resolved.packages(component, repository)


@pytest.mark.parametrize("name", SETS)
def test_every_vendor_package_has_an_exact_version_and_a_source(name: str) -> None:
    resolved = load_set(name).resolve()
    for component_name in ("driver", "fabric_manager", "cuda", "nccl", "dcgm", "doca"):
        component = resolved.component(component_name)
        for repository, listing in component.packages.items():
            assert listing.source, f"{component_name} {repository}"
            if not listing.absent:
                for package in resolved.packages(component_name, repository):
                    assert package.version, package


@pytest.mark.parametrize("name", SETS)
def test_every_package_of_a_list_belongs_to_the_family_that_is_held(name: str) -> None:
    resolved = load_set(name).resolve()
    for component_name, component in resolved.versions.components().items():
        for repository in component.packages:
            if resolved.absent(component_name, repository) is None:
                for package in resolved.packages(component_name, repository, compat=True):
                    assert in_family(component_name, package.name), package


def test_families_do_not_claim_each_others_packages() -> None:
    for name in SETS:
        components = load_set(name).resolve().versions.components()
        for one in ("driver", "fabric_manager", "container_toolkit", "nccl", "dcgm"):
            for other in ("driver", "fabric_manager", "container_toolkit", "nccl", "dcgm"):
                if one == other:
                    continue
                claimed = [
                    package.name
                    for listing in components[other].packages.values()
                    for package in listing.packages
                    if in_family(one, package.name)
                ]
                assert claimed == [], f"{name}: family of {one} claims {other}'s"


def test_repository_urls_follow_the_resolved_versions() -> None:
    resolved = load_set("a100-2023").resolve({"kubernetes": "1.36.3"})
    kubernetes = resolved.repository("ubuntu2204", "kubernetes")
    assert kubernetes is not None
    assert kubernetes.url == "https://pkgs.k8s.io/core:/stable:/v1.36/deb"
    cuda = resolved.repository("ubuntu2204", "cuda")
    assert cuda is not None
    assert cuda.url.endswith("/compute/cuda/repos/ubuntu2204/x86_64")
    assert cuda.suite == ""
    assert resolved.repository("ubuntu2204", "os") is None
    assert resolved.repository("debian12", "doca") is None


def test_rules_ask_only_for_facts_that_are_described() -> None:
    rules = load_rules()
    assert len(rules.rules) > 30
    for rule in rules.rules:
        assert rule.reason, rule.id
        assert rule.source, rule.id
        assert rule.fix, rule.id
        for line in (*rule.when, *rule.require):
            for condition in parse(line):
                assert condition.left.removesuffix(".major") in FACTS
