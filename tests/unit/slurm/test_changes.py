"""What a change of the configuration needs, and what it must wait for."""

from __future__ import annotations

import pytest

from railweld.slurm import changes, conf, model
from railweld.slurm.changes import Effect, effect
from tests.unit.slurm.conftest import SiteMaker

GRES = "NodeName=gpu[1-3] Name=gpu Type=a100 File=/dev/nvidia[0-7]\n"
THREE = "gpu[1-3] NodeHostname=head1 Port=[17001-17003]"
BASE = """\
# Managed
ClusterName=tiny
KillWait=60
SchedulerType=sched/backfill
SelectType=select/cons_tres

NodeName=gpu[1-3] NodeHostname=head1 Port=[17001-17003] Sockets=2 RealMemory=100 Gres=gpu:a100:8
PartitionName=gpu Nodes=gpu[1-3] Default=YES
"""


def change(old: str, new: str, text: str = BASE) -> Effect:
    assert old in text
    return effect(
        {"slurm.conf": text, "gres.conf": GRES},
        {"slurm.conf": text.replace(old, new), "gres.conf": GRES},
    )


def test_no_change_needs_nothing() -> None:
    assert change("KillWait=60", "KillWait=60").is_empty


def test_a_comment_is_no_change() -> None:
    assert change("# Managed", "# Managed by another").is_empty


def test_unknown_past_restarts_everything_and_blocks_nothing() -> None:
    found = effect({}, {"slurm.conf": BASE})
    assert (found.controller, found.all_nodes, found.blocked) == (True, True, [])


@pytest.mark.parametrize(
    ("old", "new", "reconfigure", "controller", "all_nodes"),
    [
        ("KillWait=60", "KillWait=90", True, False, False),
        ("KillWait=60\n", "", True, False, False),
        ("Default=YES", "Default=YES MaxTime=60", True, False, False),
        ("sched/backfill", "sched/builtin", False, True, False),
        ("KillWait=60", "KillWait=60\nTaskPlugin=task/none", False, True, True),
        ("KillWait=60", "KillWait=60\nSlurmdParameters=config_overrides", True, False, True),
    ],
)
def test_the_key_decides(
    old: str, new: str, reconfigure: bool, controller: bool, all_nodes: bool
) -> None:
    found = change(old, new)
    assert (found.reconfigure, found.controller, found.all_nodes) == (
        reconfigure,
        controller,
        all_nodes,
    )
    assert found.blocked == []
    assert found.reasons


def test_a_new_node_restarts_all_since_each_passes_messages_on() -> None:
    found = change(
        "gpu[1-3] NodeHostname=head1 Port=[17001-17003]",
        "gpu[1-4] NodeHostname=head1 Port=[17001-17004]",
    )
    assert (found.controller, found.all_nodes, found.blocked) == (True, True, [])


def test_a_node_is_removed_only_without_jobs_on_it() -> None:
    found = change(
        "gpu[1-3] NodeHostname=head1 Port=[17001-17003]",
        "gpu[1-2] NodeHostname=head1 Port=[17001-17002]",
    )
    assert [each.nodes for each in found.blocked] == [("gpu3",)]


def test_a_nodes_port_restarts_its_slurmd_only() -> None:
    found = change("Port=[17001-17003]", "Port=[17001-17002,17009]")
    assert (found.controller, found.all_nodes, found.nodes) == (True, False, {"gpu3"})
    assert found.blocked == []


@pytest.mark.parametrize("new", ["Gres=gpu:a100:7", "Gres=gpu:h100:8"])
def test_fewer_or_other_gpus_wait_for_the_jobs_that_hold_them(new: str) -> None:
    found = change("Gres=gpu:a100:8", new)
    assert found.blocked[0].nodes == ("gpu1", "gpu2", "gpu3")


def test_a_partition_is_removed_only_without_jobs_in_it() -> None:
    found = change("PartitionName=gpu Nodes=gpu[1-3] Default=YES\n", "")
    assert [each.partition for each in found.blocked] == ["gpu"]


@pytest.mark.parametrize(
    "new", ["SelectType=select/linear", "SelectType=select/cons_tres\nStateSaveLocation=/elsewhere"]
)
def test_what_would_lose_all_jobs_waits_for_an_empty_cluster(new: str) -> None:
    found = change("SelectType=select/cons_tres", new)
    assert [(each.nodes, each.partition) for each in found.blocked] == [((), "")]


def test_other_gres_files_restart_every_slurmd() -> None:
    found = effect(
        {"slurm.conf": BASE, "gres.conf": GRES},
        {"slurm.conf": BASE, "gres.conf": GRES.replace("0-7", "0-3")},
    )
    assert (found.controller, found.all_nodes) == (False, True)


def test_every_parameter_of_the_data_stands_in_one_list_only() -> None:
    data = changes._data()
    names = [name for kind in ("controller", "node", "all", "empty") for name in data[kind]]
    assert len(names) == len(set(names))


def test_what_the_site_writes_is_read_back_whole(site: SiteMaker) -> None:
    slurm = model.fact(site())
    parsed = changes.parse(conf.slurm_conf(slurm))
    assert set(parsed.lines["NodeName"]) == {"gpu1", "gpu2", "gpu3"}
    assert parsed.lines["NodeName"]["gpu2"]["Port"] == "17002"
    assert parsed.values == conf.parameters(slurm)
