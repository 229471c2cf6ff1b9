"""Compatibility rules: each fires where it must, and says found, expected and fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from railweld.versions import Rule, RuleResult, VersionsError, load_set
from railweld.versions.rules import version_key

#: A site with the reference set that has nothing wrong with it.
LAB = {
    "vendor_repository": "ubuntu2204",
    "gpudirect": "dmabuf",
    "rdma_stack": "inbox",
    "transport": "roce",
    "network_mode": "host",
    "gpu_model": "A100-SXM4-80GB",
    "gpu_datacenter": True,
    "nvswitch": True,
    "kernel": "6.1.0-18-amd64",
    "headers": True,
    "secure_boot": "off",
    "rdma_core": "44.0",
    "cgroup": "v2",
}


def judge(
    name: str = "a100-2023", overrides: dict[str, str] | None = None, **facts: object
) -> dict[str, RuleResult]:
    results = load_set(name).resolve(overrides).judge(LAB | facts)
    return {result.rule: result for result in results}


def errors(results: dict[str, RuleResult]) -> set[str]:
    return {name for name, result in results.items() if result.severity == "error"}


def test_both_sets_stand_without_errors_as_they_are() -> None:
    assert errors(judge("a100-2023")) == set()
    assert judge("current") == {}


def test_cuda_12_1_on_driver_515_is_refused_without_cuda_compat() -> None:
    result = judge(cuda_compat=False)["cuda-12-driver-floor"]
    assert result.severity == "error"
    assert "driver 515.86.01 with CUDA 12.1.1" in result.found
    assert "525.60.13" in result.expected
    assert "railweld_cuda_compat" in result.fix
    assert "cuda-compat" in result.reason


def test_without_cuda_compat_only_nccl_of_the_drivers_cuda_runs() -> None:
    assert "nccl-build-runs" not in judge(cuda_compat=False)
    results = judge(overrides={"nccl": "2.17.1+cuda12.1"}, cuda_compat=False)
    assert "CUDA 11.7" in results["nccl-build-runs"].found
    assert "nccl-build-runs" not in judge(overrides={"nccl": "2.17.1+cuda12.1"})


def test_cuda_compat_is_refused_on_other_than_data_centre_gpus() -> None:
    results = judge(gpu_model="GeForce RTX 3090", gpu_datacenter=False)
    assert "GeForce RTX 3090" in results["cuda-compat-datacenter-only"].found


def test_cuda_compat_beside_a_driver_that_needs_none_is_named() -> None:
    assert judge("current", cuda_compat=True)["cuda-compat-without-need"].severity == "warning"


def test_fabric_manager_of_another_version_is_refused() -> None:
    results = judge(overrides={"driver": "515.105.01", "fabric_manager": "515.86.01"})
    assert "fabric manager 515.86.01 with driver 515.105.01" in (
        results["fabric-manager-equals-driver"].found
    )


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"modules": "proprietary"}, "dmabuf-open-modules"),
        ({"kernel": "5.4.0-150-generic"}, "dmabuf-kernel"),
        ({"cuda": "11.6.2"}, "dmabuf-versions"),
        ({"nccl": "2.12.12"}, "dmabuf-versions"),
        ({"gpudirect": "peermem"}, "peermem-needs-doca"),
        (
            {"gpudirect": "peermem", "rdma_stack": "doca", "ofed_before_driver": False},
            "peermem-ofed-first",
        ),
        ({"headers": False}, "kernel-headers"),
        ({"secure_boot": "on", "module_signer": False}, "secure-boot-signer"),
        ({"vendor_repository": "ubuntu2404"}, "package-absent"),
        ({"gpu_model": "H100 80GB HBM3"}, "hopper-driver-floor"),
        ({"gpu_model": "B200"}, "blackwell-driver-floor"),
        ({"kubernetes": "1.36.3", "cgroup": "hybrid"}, "kubernetes-cgroup-v1"),
        ({"containerd": "1.5.9"}, "kubernetes-containerd-floor"),
        ({"network_operator": "24.4.0"}, "network-operator-kubernetes"),
        (
            {"gpu_operator": "26.3.2", "network_operator": "26.4.0", "kubernetes": "1.36.4"},
            "operators-without-rdma",
        ),
        (
            {"nccl": "2.23.4", "nccl_cuda": "12.0", "network_mode": "macvlan"},
            "nccl-roce-gid-in-pods",
        ),
        ({"nccl_cuda": "12.1"}, "nccl-build-exists"),
        (
            {"driver": "620.10", "fabric_manager": "620.10", "modules": "proprietary"},
            "open-modules-only",
        ),
        ({"cuda": "10.2", "driver": "440.33", "cuda_compat": False}, "cuda-11-driver-floor"),
        ({"cuda": "13.0.2", "cuda_compat": False}, "cuda-13-driver-floor"),
        ({"cuda": "13.0.2"}, "dcgm-cuda-13"),
        ({"cuda": "13.0.2", "gpu_model": "Tesla V100-SXM2-32GB"}, "cuda-13-volta"),
    ],
)
def test_rule_refuses(facts: dict[str, object], rule: str) -> None:
    results = judge(**facts)
    assert results[rule].severity == "error"
    assert "{" not in results[rule].sentence()


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"rdma_core": "39.0"}, "dmabuf-rdma-core"),
        ({"kubernetes": "1.31.0", "cgroup": "v1"}, "kubernetes-cgroup-v1-maintenance"),
        ({"slurm_package": "own build"}, "slurm-cve-2023-41914"),
        ({"slurm_package": "own build"}, "slurm-cve-2023-49933"),
        ({"slurm_package": "own build"}, "slurm-cve-2025-43904"),
        ({}, "slurm-cve-2026-65107"),
        ({}, "container-toolkit-escape"),
        ({}, "cuda-image-requirement"),
        ({}, "driver-branch-ended"),
        ({}, "kubernetes-support-ended"),
        ({"network_mode": "macvlan"}, "nccl-gid-by-hand"),
        ({"nccl": "2.25.1", "nccl_cuda": "12.1"}, "nccl-numa-host-memory"),
        ({"kubernetes": "1.36.3"}, "kubernetes-containerd-2"),
    ],
)
def test_rule_warns(facts: dict[str, object], rule: str) -> None:
    results = judge(**facts)
    assert results[rule].severity == "warning"
    assert "{" not in results[rule].sentence()


@pytest.mark.parametrize(
    ("package", "open_"),
    [
        ("22.05.8-4", {"slurm-cve-2023-41914", "slurm-cve-2023-49933", "slurm-cve-2025-43904"}),
        ("22.05.8-4+deb12u1", {"slurm-cve-2023-49933", "slurm-cve-2025-43904"}),
        ("22.05.8-4+deb12u2", {"slurm-cve-2025-43904"}),
        ("22.05.8-4+deb12u3", set()),
        ("22.05.8-4+deb12u10", set()),
    ],
)
def test_debians_revision_decides_which_cves_of_slurm_remain(package: str, open_: set[str]) -> None:
    found = judge(slurm_package=package)
    assert {name for name in found if name.startswith("slurm-cve-202")} == {
        "slurm-cve-2026-65107",
        *open_,
    }
    assert package in found["slurm-cve-2026-65107"].found


def test_the_pinned_package_of_slurm_is_what_is_judged() -> None:
    assert load_set("a100-2023").resolve().facts()["slurm_package"] == "22.05.8-4+deb12u3"


def test_cgroup_v1_passes_when_the_kubelet_is_told_to_accept_it() -> None:
    results = judge(
        overrides={"kubernetes": "1.36.3"}, cgroup="hybrid", kubelet_fail_cgroup_v1=False
    )
    assert "kubernetes-cgroup-v1" not in results


def test_a_rule_about_something_unknown_is_silent() -> None:
    resolved = load_set("a100-2023").resolve()
    rules = {result.rule for result in resolved.judge({"gpudirect": "dmabuf", "kernel": None})}
    assert rules.isdisjoint({"dmabuf-kernel", "kernel-headers", "secure-boot-signer"})


def test_a_misspelt_fact_is_refused() -> None:
    with pytest.raises(VersionsError, match="gpudirekt"):
        load_set("a100-2023").resolve().judge({"gpudirekt": "dmabuf"})


def rule(**changes: object) -> Rule:
    return Rule.model_validate(
        {
            "id": "x",
            "severity": "error",
            "require": ("driver >= 1",),
            "found": "",
            "expected": "",
            "reason": "",
            "source": "",
            "fix": "",
        }
        | changes
    )


@pytest.mark.parametrize("line", ["driver", "driver => 5", "drivr >= 5", "driver == $nothing", ""])
def test_a_faulty_condition_is_refused_when_the_rules_are_loaded(line: str) -> None:
    with pytest.raises(ValidationError, match=r"is not a comparison|is not a known fact"):
        rule(require=(line,))


@pytest.mark.parametrize(
    ("condition", "facts", "holds"),
    [
        ("driver >= 525.60.13", {"driver": "525.60.13"}, True),
        ("driver >= 525.60.13", {"driver": "525.9"}, False),
        ("driver > 525", {"driver": "525.0.0"}, False),
        ("kernel >= 5.12", {"kernel": "5.4.0-150-generic"}, False),
        ("kernel >= 5.12", {"kernel": "6.1.0-18-amd64"}, True),
        ("cuda == 13.0", {"cuda": "13"}, True),
        ("driver.major in 470, 525", {"driver": "525.60.13"}, True),
        ("driver.major not in 470, 525", {"driver": "525.60.13"}, False),
        (
            "driver.major in $cuda_compat_branches",
            {"driver": "515.1", "cuda_compat_branches": ("515",)},
            True,
        ),
        ("gpu_model ~ ^H100", {"gpu_model": "H100 80GB HBM3"}, True),
        ("cuda_compat == true", {"cuda_compat": True}, True),
        ("modules != open", {"modules": "proprietary"}, True),
        (
            "slurm_origin == source and driver >= 1",
            {"slurm_origin": "source", "driver": "0.9"},
            False,
        ),
    ],
)
def test_conditions(
    condition: str, facts: dict[str, str | bool | tuple[str, ...]], holds: bool
) -> None:
    assert (rule(require=(condition,)).judge(facts) is None) is holds


@given(st.lists(st.integers(0, 999), min_size=1, max_size=5), st.integers(0, 3))
def test_trailing_zeros_do_not_change_a_version(numbers: list[int], zeros: int) -> None:
    text = ".".join(map(str, numbers))
    assert version_key(text) == version_key(text + ".0" * zeros)


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
def test_exactly_one_order_holds(one: list[int], other: list[int]) -> None:
    left, right = ".".join(map(str, one)), ".".join(map(str, other))
    answers = [
        rule(require=(f"driver {operator} {right}",)).judge({"driver": left}) is None
        for operator in ("<", "==", ">")
    ]
    assert answers.count(True) == 1
