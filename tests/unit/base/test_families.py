from __future__ import annotations

import pytest

from railweld.base.families import host_components, in_family


@pytest.mark.parametrize(
    "name",
    ["nvidia-driver-515", "libnvidia-compute-580-server", "nvidia-dkms-515-open", "cuda-drivers"],
)
def test_all_parts_of_a_driver_belong_to_its_family(name: str) -> None:
    assert in_family("driver", name)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-container-toolkit",
        "libnvidia-container1",
        "nvidia-fabricmanager-515",
        "cuda-toolkit-12-1",
        # The distribution's own, in versions of its own; hwloc and so Open MPI pull it in.
        "libxnvctrl0",
    ],
)
def test_packages_of_other_components_are_not_the_drivers(name: str) -> None:
    assert not in_family("driver", name)


def test_the_compatibility_driver_belongs_to_cuda() -> None:
    assert in_family("cuda", "cuda-compat-12-1")
    assert in_family("cuda", "cuda-toolkit-12-1")
    assert not in_family("cuda", "cuda-drivers-515")


def test_an_unknown_component_has_no_family() -> None:
    assert not in_family("chrony", "chrony")


@pytest.mark.parametrize(("stack", "expected"), [("inbox", "rdma"), ("doca", "doca")])
def test_a_host_keeps_one_rdma_stack(stack: str, expected: str) -> None:
    components = host_components({"rdma_stack": stack}, {"is_gpu_node": True})
    assert {"rdma", "doca"} & set(components) == {expected}


def test_a_host_without_gpus_keeps_no_gpu_family() -> None:
    assert host_components({"rdma_stack": "inbox"}, {"is_gpu_node": False}) == ()
