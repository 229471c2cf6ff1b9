from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from railweld.base.order import ALL_ROLES, host_roles, predecessors, site_order
from railweld.verify import registry

GPU = {"is_gpu_node": True, "gpu": {"count": 8}, "hcas": [{"name": "mlx5_0"}]}
DMABUF = {"gpudirect": "dmabuf"}
PEERMEM = {"gpudirect": "peermem"}


def test_time_comes_before_the_driver_and_the_driver_before_what_uses_it() -> None:
    order = site_order(DMABUF)
    for role in ("fabric_manager", "cuda", "nccl", "rdma"):
        assert order.index("chrony") < order.index("nvidia_driver") < order.index(role)
    assert order.index("fabric_manager") < order.index("cuda") < order.index("nccl")


def test_peermem_puts_the_rdma_stack_before_the_driver_that_is_built_against_it() -> None:
    assert "rdma" in predecessors(PEERMEM, "nvidia_driver")
    assert "rdma" not in predecessors(DMABUF, "nvidia_driver")


def test_a_node_without_gpus_gets_time_and_order_but_no_driver() -> None:
    roles = host_roles(DMABUF, {"is_gpu_node": False, "hcas": []})
    assert roles == ("package_lock", "chrony", "lldp")


def test_a_gpu_node_without_rails_gets_no_rdma() -> None:
    roles = host_roles(DMABUF, {**GPU, "hcas": []})
    assert "nvidia_driver" in roles
    assert not {"rdma", "rail_network"} & set(roles)


@pytest.mark.parametrize(("device", "expected"), [("/dev/nvme0n1", True), (None, False)])
def test_the_cache_disk_is_set_up_only_where_one_is_described(
    device: str | None, expected: bool
) -> None:
    assert ("nvme_cache" in host_roles(DMABUF, {**GPU, "cache": {"device": device}})) is expected


def test_every_role_of_the_order_has_checks() -> None:
    assert set(registry.find()) >= ALL_ROLES


def included(path: Path) -> list[tuple[str, str]]:
    plays = yaml.safe_load(path.read_text())
    tasks = [task for play in plays for task in play["tasks"]]
    return [
        (task["ansible.builtin.include_role"]["name"], str(task.get("when", "")))
        for task in tasks
        if "ansible.builtin.include_role" in task
        and task["ansible.builtin.include_role"].get("tasks_from", "main") == "main"
    ]


@pytest.mark.parametrize("gpudirect", ["dmabuf", "peermem"])
def test_the_playbook_includes_the_roles_in_the_order_of_the_guards(
    repository_root: Path, gpudirect: str
) -> None:
    other = {"dmabuf": "== 'peermem'", "peermem": "!= 'peermem'"}[gpudirect]
    names = [
        name
        for name, when in included(repository_root / "playbooks" / "deploy-base.yml")
        if name in ALL_ROLES and other not in when
    ]
    first = list(dict.fromkeys(names))
    assert first == list(site_order({"gpudirect": gpudirect}))
