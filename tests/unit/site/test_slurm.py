"""What a site must not say about its Slurm, found before any machine is touched."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ClusterName", "other", "railweld_site"),
        ("Clustername", "other", "railweld_site"),
        ("GresTypes", "nvidia-gpu", "railweld_gpu_count"),
        ("StateSaveLocation", "/tmp/state", "backs it up"),
        ("PropagateResourceLimitsExcept", "NONE", "memlock"),
    ],
)
def test_a_derived_parameter_is_refused(draft: Any, name: str, value: str, said: str) -> None:
    draft.group_vars["all"]["railweld_slurm_parameters"] = {name: value}
    problem = draft.only_error()
    assert problem.id == "slurm.derived"
    assert said in problem.expected
    assert problem.file == draft.line("group_vars/all.yml", name)


@pytest.mark.parametrize("resource", ["gres/nvidia-gpu", "gres/gpu:a100", "GRES/rdma"])
def test_a_resource_that_no_node_has_is_refused(draft: Any, resource: str) -> None:
    weights = {"TRESBillingWeights": f"CPU=1.0,{resource}=16.0"}
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "gpu", "group": "gpu_nodes", "parameters": weights}
    ]
    problem = draft.only_error()
    assert problem.id == "slurm.gres"
    assert resource in problem.found
    assert "gres/gpu:h100" in problem.expected
    assert "nvidia.com/gpu" in problem.expected


def test_the_sites_own_resource_may_be_weighed(draft: Any) -> None:
    draft.group_vars["all"]["railweld_slurm_parameters"] = {
        "PriorityWeightTRES": "CPU=100,gres/gpu:h100=1000",
        "AccountingStorageEnforce": "limits",
    }
    assert [p.sentence() for p in draft.check() if p.is_error] == []


@pytest.mark.parametrize("key", ["Nodes", "Default", "MaxTime", "PartitionName"])
def test_a_partitions_own_entries_have_one_place(draft: Any, key: str) -> None:
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "gpu", "group": "gpu_nodes", "parameters": {key: "gpu1"}}
    ]
    assert draft.only_error().id == "slurm.derived"


def partitions(draft: Any, *, bridge: bool = True, **parameters: str) -> None:
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "gpu", "group": "gpu_nodes", "bridge": bridge, "parameters": parameters}
    ]


@pytest.mark.parametrize("value", ["FORCE:2", "yes", "NO"])
def test_a_bridge_partitions_nodes_are_one_jobs_each(draft: Any, value: str) -> None:
    partitions(draft, OverSubscribe=value)
    problem = draft.only_error()
    assert problem.id == "slurm.whole_nodes"
    assert value in problem.found
    partitions(draft, OverSubscribe="Exclusive")
    assert [p.sentence() for p in draft.check() if p.is_error] == []


@pytest.mark.parametrize("value", ["SUSPEND,GANG", "Gang", "SUSPEND"])
def test_jobs_of_a_bridge_partition_are_not_suspended(draft: Any, value: str) -> None:
    partitions(draft, PreemptMode=value)
    assert draft.only_error().id == "slurm.suspends"
    partitions(draft)
    draft.group_vars["all"]["railweld_slurm_parameters"] = {"PreemptMode": value}
    assert draft.only_error().id == "slurm.suspends"
    # The partition's own is what counts for its jobs.
    partitions(draft, PreemptMode="REQUEUE")
    assert [p.sentence() for p in draft.check() if p.is_error] == []
    partitions(draft, bridge=False, PreemptMode=value)
    assert [p.id for p in draft.check() if p.id == "slurm.suspends"] == []


@pytest.mark.parametrize("value", ["x # rest", "a\nNodeName=evil", "", " x"])
def test_a_value_cannot_begin_another_parameter(draft: Any, value: str) -> None:
    draft.group_vars["all"]["railweld_slurm_parameters"] = {"KillWait": value}
    assert draft.only_error().id == "variable.type"


def test_cpus_that_no_machine_has_are_refused(draft: Any) -> None:
    draft.group_vars["gpu_nodes"].update({"railweld_cpus": 127, "railweld_threads_per_core": 2})
    problem = draft.only_error()
    assert problem.id == "slurm.cpus"
    assert problem.expected == "a multiple of 4"


def test_missing_hardware_is_said_before_the_deployment_asks_for_it(draft: Any) -> None:
    del draft.group_vars["gpu_nodes"]["railweld_cpus"]
    problem = next(p for p in draft.check() if p.id == "slurm.hardware")
    assert (problem.severity, problem.hosts) == ("warning", ("gpu1", "gpu2"))


def test_ports_of_virtual_nodes_end_at_the_last_one(draft: Any) -> None:
    draft.group_vars["all"]["railweld_slurm_virtual_port"] = 60000
    assert [p.sentence() for p in draft.check() if p.is_error] == []


@pytest.mark.parametrize("time", ["1-00:00:00", "UNLIMITED", "90", "3-12", "12:30:00"])
def test_times_as_slurm_writes_them(draft: Any, time: str) -> None:
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "gpu", "group": "gpu_nodes", "max_time": time}
    ]
    assert draft.site().partitions[0].max_time == time


@pytest.mark.parametrize("time", ["forever", "1d", 60, "1-2-3"])
def test_other_times_are_refused(draft: Any, time: object) -> None:
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "gpu", "group": "gpu_nodes", "max_time": time}
    ]
    assert draft.only_error().id == "variable.type"


def test_own_builds_are_judged_without_debians_fixes(draft: Any) -> None:
    """The set's release is what Debian fixed; another build of it has no fix that shows."""
    draft.group_vars["all"].update(
        {
            "railweld_version_set": "a100-2023",
            "railweld_vendor_repository": "ubuntu2204",
            "railweld_mirrors": {
                "slurm": {"url": "http://mirror/slurm", "key_file": "/etc/keys/slurm.asc"}
            },
        }
    )
    draft.group_vars["gpu_nodes"]["railweld_slurmd"] = "real"
    draft.group_vars["gpu_nodes"]["railweld_gpu_model"] = "A100-SXM4-80GB"
    found = {p.id: p for p in draft.check()}
    assert (
        "the site's own builds on head1, gpu1, gpu2" in found["versions.slurm-cve-2023-41914"].found
    )
