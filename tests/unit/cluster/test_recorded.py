"""Stage `cluster` on what a real API server answered, whole and under each fault of the suite.

`answers/` was recorded on the lab of tests/integration/cluster: one control-plane node and two
nodes with eight GPUs and four HCAs, Kubernetes 1.36.3. Only fields that nobody reads were left out.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from railweld.cluster.live import Answers, judge_answers
from railweld.record import Check, Status
from railweld.site import Site, load_site
from railweld.stack.graph import stack_for
from tests.labs import write_inventory

FOLDER = Path(__file__).parent / "answers"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("recorded")
    inventory = write_inventory(folder, site="cluster", third_octet=20, gpu_nodes=2)
    return load_site([str(inventory)])


def judged(site: Site, name: str) -> list[Check]:
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    answers = Answers(
        nodes={each["metadata"]["name"]: each for each in recorded["nodes"]},
        agents=recorded["agents"],
        findings=(),
        now=datetime.fromisoformat(recorded["asked"]),
    )
    return judge_answers(site, stack_for(site), answers, lambda _name: True)


def test_whole_cluster_passes_every_check(site: Site) -> None:
    checks = judged(site, "whole")
    assert {each.status for each in checks} == {Status.PASS}
    assert {"cluster.gpus", "cluster.rdma", "cluster.clock", "stack.agent"} <= {
        each.id for each in checks
    }


@pytest.mark.parametrize(
    ("name", "check", "target", "found"),
    [
        ("gpu-missing", "cluster.gpus", "gpu1", "7 nvidia.com/gpu of 8 that the kubelet knows"),
        ("gpu-unhealthy", "cluster.gpus", "gpu1", "6 nvidia.com/gpu of 8 that the kubelet knows"),
        ("gpu-plugin-gone", "cluster.gpus", "gpu1", "0 nvidia.com/gpu of 8 that the kubelet knows"),
        ("rdma-plugin-gone", "cluster.rdma", "gpu2", "0 rdma/hca of 4 that the kubelet knows"),
        ("clock-off", "cluster.clock", "gpu2", "off: "),
        ("image-absent", "stack.agent", "", "dcgm-exporter: ImagePullBackOff: "),
    ],
)
def test_fault_fails_its_own_check_alone(
    site: Site, name: str, check: str, target: str, found: str
) -> None:
    bad = [each for each in judged(site, name) if each.status is not Status.PASS]
    assert [each.id for each in bad] == [check]
    assert target in bad[0].target
    assert bad[0].found.startswith(found)
    assert bad[0].status is Status.FAIL
    assert bad[0].fix
