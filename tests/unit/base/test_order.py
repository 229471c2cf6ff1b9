from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.base.order import ALL_ROLES, ORDER, host_roles, predecessors
from railweld.verify import registry
from tests.labs import REPOSITORY

GPU = {"is_gpu_node": True, "gpu": {"count": 8}, "hcas": [{"name": "mlx5_0"}]}


def test_time_comes_before_the_driver_and_the_driver_before_what_uses_it() -> None:
    for role in ("fabric_manager", "cuda", "nccl", "rdma"):
        assert {"chrony", "nvidia_driver"} <= set(predecessors(role))
    assert ORDER.index("fabric_manager") < ORDER.index("cuda") < ORDER.index("nccl")


def test_a_node_without_gpus_gets_time_and_order_but_no_driver() -> None:
    roles = host_roles({"is_gpu_node": False, "hcas": []})
    assert roles == ("package_lock", "chrony", "lldp")


def test_a_gpu_node_without_rails_gets_no_rdma() -> None:
    roles = host_roles({**GPU, "hcas": []})
    assert "nvidia_driver" in roles
    assert not {"rdma", "rail_network"} & set(roles)


@pytest.mark.parametrize(("device", "expected"), [("/dev/nvme0n1", True), (None, False)])
def test_the_cache_disk_is_set_up_only_where_one_is_described(
    device: str | None, expected: bool
) -> None:
    assert ("nvme_cache" in host_roles({**GPU, "cache": {"device": device}})) is expected


def test_every_role_of_the_order_has_checks() -> None:
    assert set(registry.find()) >= ALL_ROLES


def included(repository_root: Path) -> list[tuple[str, str, str]]:
    """Role, tasks_from and condition of each include of the playbook, in order."""
    plays = yaml.safe_load((repository_root / "playbooks" / "deploy-base.yml").read_text())
    tasks = [task for play in plays for task in play["tasks"]]
    return [
        (
            task["ansible.builtin.include_role"]["name"],
            task["ansible.builtin.include_role"].get("tasks_from", "main"),
            str(task.get("when", "")),
        )
        for task in tasks
        if "ansible.builtin.include_role" in task
    ]


def test_the_playbook_includes_the_roles_in_the_order_of_the_guards(repository_root: Path) -> None:
    names = [
        name
        for name, tasks_from, _ in included(repository_root)
        if name in ALL_ROLES and tasks_from == "main"
    ]
    assert tuple(dict.fromkeys(names)) == ORDER


@pytest.mark.parametrize(("gpudirect", "before"), [("== 'peermem'", True), ("!= 'peermem'", False)])
def test_the_rdma_stack_goes_in_before_the_driver_only_where_a_module_is_built_against_it(
    repository_root: Path, gpudirect: str, before: bool
) -> None:
    steps = included(repository_root)
    driver = next(place for place, step in enumerate(steps) if step[0] == "nvidia_driver")
    (stack,) = [
        place
        for place, (name, tasks_from, when) in enumerate(steps)
        if (name, tasks_from) == ("rdma", "install") and gpudirect in when
    ]
    assert (stack < driver) is before


def test_no_list_loses_its_order() -> None:
    """Ansible's set filters return lists in no order: batches, or daemons to stop, need theirs."""
    filters = re.compile(r"\|\s*(intersect|difference|union|symmetric_difference)\(")
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for folder in ("playbooks", "roles", "molecule")
        for path in sorted((REPOSITORY / folder).rglob("*.yml"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if filters.search(line)
    ]
    assert found == [], "use select('in', …) or reject('in', …)"


def tasks_of(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every task, also those within blocks."""
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part) or [])


def test_no_block_asks_again_for_what_its_tasks_change() -> None:
    """A block's condition is evaluated at each task: after a new observation it may not hold.

    So an upgraded node was never returned to service. An included file asks once.
    """
    found = []
    for path in sorted((REPOSITORY / "roles").glob("*/tasks/*.yml")):
        for task in tasks_of(yaml.safe_load(path.read_text()) or []):
            if "block" not in task or "railweld_node" not in str(task.get("when", "")):
                continue
            inner = [
                each
                for part in ("block", "rescue", "always")
                for each in tasks_of(task.get(part) or [])
            ]
            probes = [place for place, each in enumerate(inner) if "railweld_probe" in each]
            if probes and probes[0] < len(inner) - 1:
                found.append(f"{path.relative_to(REPOSITORY)}: {task.get('name')}")
    assert found == []
