"""What a site's Slurm files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld.errors import RailweldError
from railweld.site import SiteError
from railweld.slurm import conf, model, stage
from tests.unit.slurm.conftest import KEY, OWN, PLAIN, SiteMaker

ROLES = Path(__file__).parents[3] / "roles"
BOTH = [
    {"name": "gpu", "group": "gpu_nodes"},
    {"name": "plain", "group": "gpu_nodes", "bridge": False},
]
VIRTUAL = """\
NodeName=gpu[1-3] NodeHostname=head1 NodeAddr=10.0.0.10 Port=[17001-17003] Sockets=2 \
CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:a100:8
PartitionName=gpu Nodes=gpu[1-3] Default=YES MaxTime=UNLIMITED State=UP OverSubscribe=EXCLUSIVE
"""


def test_nodes_of_bridge_partitions_are_virtual_on_the_head(site: SiteMaker) -> None:
    slurm = model.fact(site())
    assert conf.slurm_conf(slurm).endswith(VIRTUAL)
    assert list(slurm["hosts"]) == ["head1"]
    assert slurm["hosts"]["head1"]["parts"] == ["controller", "accounting", "slurmd"]
    values = conf.parameters(slurm)
    assert values["SlurmdParameters"] == "config_overrides"
    assert values["ProctrackType"] == "proctrack/linuxproc"
    assert values["PropagateResourceLimitsExcept"] == "MEMLOCK"
    assert values["AccountingStorageTRES"] == "gres/gpu,gres/gpu:a100"
    assert "SlurmctldParameters" not in values
    assert "cgroup.conf" not in conf.files(slurm)


def test_nodes_of_other_partitions_run_a_slurmd_of_their_own(site: SiteMaker) -> None:
    slurm = model.fact(site(everywhere=PLAIN))
    assert list(slurm["hosts"]) == ["head1", "gpu1", "gpu2", "gpu3"]
    assert slurm["hosts"]["gpu1"]["parts"] == ["slurmd"]
    text = conf.slurm_conf(slurm)
    assert (
        "NodeName=gpu[1-3] NodeAddr=10.0.0.21,10.0.0.22,10.0.0.23 Sockets=2 CoresPerSocket=64"
    ) in text
    assert "PartitionName=plain Nodes=gpu[1-3] Default=NO MaxTime=UNLIMITED State=UP\n" in text
    assert "SlurmdParameters" not in text
    assert "SlurmctldParameters=enable_configless" in text
    assert conf.gres_conf(slurm).splitlines()[1:] == [
        "NodeName=gpu[1-3] Name=gpu Type=a100 File=/dev/nvidia[0-7]"
    ]
    assert "ConstrainDevices=yes" in conf.files(slurm)["cgroup.conf"]


def test_a_node_of_another_kind_gets_a_line_of_its_own(site: SiteMaker) -> None:
    described = site(
        everywhere={
            "railweld_mirrors": OWN,
            "railweld_partitions": [
                {"name": "gpu", "hosts": ["gpu1", "gpu2"]},
                {"name": "plain", "hosts": ["gpu3"], "bridge": False},
            ],
        },
        last={"railweld_cpus": 64},
    )
    slurm = model.fact(described)
    lines = [line for line in conf.slurm_conf(slurm).splitlines() if line.startswith("NodeName")]
    assert [line.split()[0] for line in lines] == ["NodeName=gpu[1-2]", "NodeName=gpu3"]
    assert "CoresPerSocket=32" in lines[1]
    assert conf.gres_conf(slurm).splitlines()[1:] == [
        "NodeName=gpu[1-2] Name=gpu Type=a100 File=/var/lib/railweld/slurm/gpu/[0-7]",
        "NodeName=gpu3 Name=gpu Type=a100 File=/dev/nvidia[0-7]",
    ]


def test_the_sites_parameters_replace_defaults(site: SiteMaker) -> None:
    slurm = model.fact(
        site(everywhere={"railweld_slurm_parameters": {"KillWait": "90", "MaxJobCount": "20000"}})
    )
    text = conf.slurm_conf(slurm)
    assert "KillWait=90\n" in text
    assert "KillWait=60" not in text
    assert "MaxJobCount=20000\n" in text


def test_without_accounting_there_is_no_database(site: SiteMaker) -> None:
    slurm = model.fact(site(everywhere={"railweld_slurm_accounting": False}))
    names = {pin["name"] for pin in slurm["hosts"]["head1"]["packages"]["slurm"]}
    assert names == {"munge", "slurm-client", "slurmctld", "slurmd"}
    assert "AccountingStorageType=accounting_storage/none" in conf.slurm_conf(slurm)


def test_the_key_is_in_no_fact(site: SiteMaker) -> None:
    assert KEY not in repr(model.fact(site()))
    assert KEY not in repr(site())


@pytest.mark.parametrize(
    ("everywhere", "gpus", "said"),
    [
        ({"railweld_munge_key": "not base64!"}, {}, "text that is not base64"),
        ({"railweld_munge_key": "c2hvcnQ="}, {}, "5 bytes, expected 32 to 1024"),
        ({"railweld_munge_key": None}, {}, "railweld_munge_key: found nothing"),
        ({}, {"railweld_cpus": None}, "railweld_cpus: found nothing for gpu1, gpu2, gpu3"),
        ({}, {"railweld_slurmd": "real"}, "vendor repository ubuntu2204, which has no Slurm"),
        ({}, {"railweld_slurmd": "real"}, "expected virtual nodes in bridge partitions only"),
        ({"railweld_partitions": BOTH}, {}, "gpu1, gpu2, gpu3: found in a bridge partition"),
    ],
)
def test_what_cannot_become_a_cluster_is_refused(
    site: SiteMaker, everywhere: dict[str, object], gpus: dict[str, object], said: str
) -> None:
    with pytest.raises((RailweldError, SiteError)) as refused:
        model.fact(site(everywhere=everywhere, gpus=gpus))
    assert said in str(refused.value)
    assert "Fix: " in str(refused.value)


def test_own_builds_have_debians_names_and_no_pinned_revision(site: SiteMaker) -> None:
    slurm = model.fact(site(everywhere=PLAIN))
    assert slurm["hosts"]["gpu1"]["packages"]["slurm"] == [
        {"name": "munge", "version": ""},
        {"name": "slurm-client", "version": ""},
        {"name": "slurmd", "version": ""},
    ]
    assert [each["url"] for each in slurm["hosts"]["gpu1"]["repositories"]] == [
        "http://mirror/slurm"
    ]
    # The head's own archive has the release.
    pins = {pin["name"]: pin["version"] for pin in slurm["hosts"]["head1"]["packages"]["slurm"]}
    assert pins["slurmctld"] == "22.05.8-4+deb12u3"
    assert slurm["hosts"]["head1"]["repositories"] == []


def test_two_heads_are_refused(site: SiteMaker) -> None:
    with pytest.raises(RailweldError, match="found 2 hosts in group slurm_head"):
        model.fact(site(heads=2))


def test_a_configless_node_does_not_depend_on_other_nodes(site: SiteMaker) -> None:
    """A node that is added later must not make every other node run the role again."""

    def digest(host: str, **more: object) -> str:
        nodes = int(str(more.pop("nodes", 3)))
        slurm = model.fact(site(nodes=nodes, everywhere={**PLAIN, **more}))
        return stage.inputs(ROLES, model.view(slurm, host), {})["slurm"]

    assert digest("gpu1") == digest("gpu1", nodes=4)
    assert digest("head1") != digest("head1", nodes=4)
    files = {"railweld_slurm_config": "files"}
    assert digest("gpu1", **files) != digest("gpu1", nodes=4, **files)
