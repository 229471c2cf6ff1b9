from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railweld.base import convergence
from railweld.base.inputs import host_inputs
from railweld.record import Check
from railweld.verify import registry
from railweld.verify.context import Context

SITE = {"name": "x", "gpudirect": "dmabuf"}
HOST = {
    "name": "gpu1",
    "is_gpu_node": True,
    "driver": {"version": "580.95.05"},
    "packages": {"nccl": [{"name": "libnccl2", "version": "2.28.3-1+cuda13.0"}]},
}
INPUTS = "a" * 64


def node(**changes: Any) -> dict[str, Any]:
    return {"records": {"fake": {"inputs": INPUTS, "drifted": []}}, "good": True, **changes}


@pytest.fixture
def fake_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role whose only check reads `good` of the observation."""

    def checks(ctx: Context) -> Iterator[Check]:
        yield ctx.judge(
            "fake.good",
            ok=ctx.node["good"],
            ran="look",
            found=ctx.node["good"],
            expected=True,
            fix="repair",
        )

    role = registry.RoleChecks("fake", checks, checks, {})
    monkeypatch.setattr(registry, "find", lambda: {"fake": role})


def state(observed: dict[str, Any]) -> convergence.RoleState:
    return convergence.role_state(Context(SITE, HOST, observed), "fake", INPUTS)


@pytest.mark.usefixtures("fake_role")
def test_a_role_is_converged_when_checks_inputs_and_files_agree() -> None:
    assert state(node()).converged


@pytest.mark.usefixtures("fake_role")
@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (node(good=False), "expected True"),
        (node(records={}), "has not completed here yet"),
        (node(records={"fake": {"inputs": "b" * 64}}), "changed since it ran"),
        (
            node(records={"fake": {"inputs": INPUTS, "drifted": ["/etc/x.conf"]}}),
            "changed by hand: /etc/x.conf",
        ),
    ],
)
def test_a_role_runs_again_and_says_why(observed: dict[str, Any], reason: str) -> None:
    found = state(observed)
    assert not found.converged
    assert any(reason in text for text in found.reasons)


@pytest.mark.usefixtures("fake_role")
def test_an_observation_that_cannot_be_read_counts_as_not_converged() -> None:
    observed = node()
    del observed["good"]
    found = state(observed)
    assert not found.converged
    assert [str(check.status) for check in found.checks] == ["unknown"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "chrony/tasks/main.yml": "---\n",
        "chrony/defaults/main.yml": "chrony_poll: 4\n",
        "chrony/molecule/default/converge.yml": "---\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    convergence.role_digest.cache_clear()
    convergence.knobs.cache_clear()
    return tmp_path


def digest(folder: Path, variables: dict[str, Any] | None = None, **host: Any) -> str:
    convergence.role_digest.cache_clear()
    return host_inputs(folder, ["chrony"], SITE, {**HOST, **host}, variables or {})["chrony"]


def test_inputs_change_with_the_role_the_model_and_the_roles_own_variables(folder: Path) -> None:
    before = digest(folder)
    assert digest(folder) == before
    assert digest(folder, {"chrony_poll": 6}) != before
    assert digest(folder, index=7) != before
    (folder / "chrony/tasks/main.yml").write_text("---\n# another\n")
    assert digest(folder) != before


def test_inputs_do_not_change_with_results_facts_or_scenarios(folder: Path) -> None:
    before = digest(folder)
    assert digest(folder, {"chrony_registered": {"rc": 0}, "nccl_x": 1}) == before
    (folder / "chrony/molecule/default/converge.yml").write_text("---\n# another\n")
    assert digest(folder) == before


def observed_packages(version: str, *, loaded: str, records: bool = True) -> dict[str, Any]:
    return {
        "packages": {"libnccl2": {"version": version, "status": "ii", "hold": True}},
        "driver": {"loaded": loaded},
        "records": {"nccl": {}} if records else {},
    }


def test_changes_of_versions_are_told_with_their_direction() -> None:
    older = Context(SITE, HOST, observed_packages("2.14.3-1+cuda11.7", loaded="580.95.05"))
    newer = Context(SITE, HOST, observed_packages("2.30.7-1+cuda13.0", loaded="580.95.05"))
    assert [str(each) for each in convergence.version_changes(older)] == [
        "upgrade libnccl2 2.14.3-1+cuda11.7 -> 2.28.3-1+cuda13.0"
    ]
    assert [each.is_downgrade for each in convergence.version_changes(newer)] == [True]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (observed_packages("2.28.3-1+cuda13.0", loaded="580.95.05"), False),
        (observed_packages("2.28.3-1+cuda13.0", loaded="515.86.01"), True),
        (observed_packages("2.14.3-1+cuda11.7", loaded="580.95.05"), True),
        (observed_packages("2.14.3-1+cuda11.7", loaded="515.86.01", records=False), False),
    ],
    ids=["same", "driver branch moves", "package moves", "never provisioned"],
)
def test_only_provisioned_nodes_that_change_versions_go_in_batches(
    observed: dict[str, Any], expected: bool
) -> None:
    assert convergence.replaces_provisioned(Context(SITE, HOST, observed)) is expected


def test_a_package_without_a_pinned_version_is_no_change() -> None:
    host = {**HOST, "packages": {"rdma": [{"name": "rdma-core", "version": ""}]}}
    observed = {
        "packages": {"rdma-core": {"version": "44.0-2", "status": "ii", "hold": True}},
        "driver": {"loaded": None},
        "records": {"chrony": {}},
    }
    assert not convergence.replaces_provisioned(Context(SITE, host, observed))


def test_a_node_that_a_cut_run_left_out_of_service_is_known_by_its_record() -> None:
    observed = observed_packages("2.28.3-1+cuda13.0", loaded="580.95.05")
    assert not convergence.is_out_of_service(Context(SITE, HOST, observed))
    observed["records"]["maintenance"] = {"slurm": True, "kubernetes": False}
    assert convergence.is_out_of_service(Context(SITE, HOST, observed))
