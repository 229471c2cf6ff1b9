"""What the state of a Kubernetes node means for Slurm, and whose reasons stay."""

from __future__ import annotations

from typing import Any

import pytest

from railweld.bridge.nodes import Change, plan
from railweld.bridge.observed import NodeView
from railweld.bridge.slurm import SlurmNode

EXPECTED = {"nvidia.com/gpu": 8}
OURS = "railweld: "


def kube(**changes: Any) -> NodeView:
    values: dict[str, Any] = {
        "name": "gpu1",
        "hostname": "gpu1",
        "ready": True,
        "reason": "KubeletReady",
        "cordoned": False,
        "devices": {"nvidia.com/gpu": 8},
        "address": "10.0.0.1",
    }
    return NodeView(**{**values, **changes})


def changes(
    state: str,
    reason: str = "",
    view: NodeView | None = None,
    *,
    away: bool = False,
    occupied: bool = False,
) -> list[Change]:
    return list(
        plan(
            {"gpu1": SlurmNode("gpu1", state, reason)},
            {} if view is None else {"gpu1": view},
            {},
            {"gpu1": EXPECTED},
            away={"gpu1"} if away else set(),
            occupied={"gpu1"} if occupied else set(),
        )
    )


UNREADY = kube(ready=False, reason="NodeStatusUnknown")


def test_a_good_node_is_left_alone() -> None:
    assert changes("idle", view=kube()) == []
    assert changes("allocated", view=kube()) == []


def test_a_cordon_drains_and_its_end_resumes() -> None:
    drained = f"{OURS}cordoned"
    assert changes("idle", view=kube(cordoned=True)) == [Change("gpu1", "DRAIN", drained)]
    assert changes("idle+drain", drained, kube(cordoned=True)) == []
    assert changes("allocated+drain", drained, kube()) == [Change("gpu1", "RESUME", None)]


def test_missing_devices_drain_with_numbers() -> None:
    found = changes("idle", view=kube(devices={"nvidia.com/gpu": 7}))
    assert found == [Change("gpu1", "DRAIN", f"{OURS}7 of 8 nvidia.com/gpu allocatable")]
    assert changes("idle", view=kube(devices={}))[0].reason == (
        f"{OURS}0 of 8 nvidia.com/gpu allocatable"
    )


def test_a_node_that_stays_unready_goes_down() -> None:
    assert changes("allocated", view=UNREADY) == []
    found = changes("allocated", view=UNREADY, away=True)
    assert found == [Change("gpu1", "DOWN", f"{OURS}NotReady: NodeStatusUnknown")]


def test_a_node_that_kubernetes_does_not_have_is_down() -> None:
    assert changes("idle") == [Change("gpu1", "DOWN", f"{OURS}no such node in Kubernetes")]


@pytest.mark.parametrize("state", ["idle+drain", "allocated+drain", "down", "down+drain"])
@pytest.mark.parametrize("reason", ["bad fan, bob", "Not responding", "", "not railweld: x"])
@pytest.mark.parametrize(
    "view", [kube(), kube(cordoned=True), UNREADY, None], ids=["ok", "cordon", "away", "none"]
)
def test_a_reason_of_someone_else_is_never_touched(
    state: str, reason: str, view: NodeView | None
) -> None:
    assert changes(state, reason, view, away=view is UNREADY) == []


def test_a_node_comes_back_only_when_no_old_pod_can_run_there() -> None:
    down = f"{OURS}NotReady: NodeStatusUnknown"
    assert changes("down", down, kube(), occupied=True) == []
    assert changes("down", down, kube()) == [Change("gpu1", "RESUME", None)]
    assert changes("down", down, UNREADY) == []


def test_a_node_that_comes_back_cordoned_is_resumed_and_then_drained() -> None:
    down = f"{OURS}NotReady: x"
    assert changes("down", down, kube(cordoned=True)) == [Change("gpu1", "RESUME", None)]
    assert changes("down", down, kube(cordoned=True), occupied=True) == []
