"""What runs leave, and which of them a report shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railweld import runs

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))


def host(*todo: str, failure: str = "", **numbers: int) -> dict[str, Any]:
    reasons = {role: [f"HOST: {role} has not completed here yet", "HOST: more"] for role in todo}
    failed = {"role": todo[0], "task": "Install", "reason": failure} if failure else None
    return {
        "ok": 3, "changed": 0, "failures": int(bool(failure)), "unreachable": 0, **numbers,
        "plan": {"todo": list(todo), "reasons": reasons, "version_changes": []},
        "failure": failed, "checks": [{"id": "x.y"}],
    }  # fmt: skip


def leave(second: int, hosts: dict[str, Any], **more: Any) -> str:
    """Write a run of a playbook as the callback does."""
    name = f"20261130T1200{second:02}Z-7"
    text = json.dumps(
        {
            "run": name, "stage": "base", "playbook": "deploy-base.yml", "site": "lab",
            "check_mode": False, "began": f"2026-11-30T12:00:{second:02}+00:00", "seconds": 3.25,
            "hosts": hosts, **more,
        }
    )  # fmt: skip
    for each in hosts:
        text = text.replace("HOST", each, 2 * len(hosts[each]["plan"]["todo"]))
    (runs.folder("lab") / f"{name}.json").write_text(text)
    return name


def test_every_playbook_belongs_to_a_stage() -> None:
    assert set(runs.STAGES) == {path.stem for path in REPOSITORY.glob("playbooks/*.yml")}
    assert runs.stage_of("playbooks/deploy-cluster.yml") == "cluster"
    assert runs.stage_of("our-own.yml") == "our-own"


def test_of_each_stage_the_last_run_and_the_last_with_work_are_shown() -> None:
    leave(1, {"gpu1": host("chrony")})
    work = leave(2, {"gpu1": host("chrony", changed=4)})
    leave(3, {"gpu1": host()})
    last = leave(4, {"gpu1": host()})
    leave(5, {"gpu1": host("cuda")}, check_mode=True)
    other = leave(6, {"gpu1": host("cni")}, stage="cluster")
    (runs.folder("lab") / "20261130T120007Z-7.json").write_text("{")
    found = runs.last("lab")
    assert [run.run for run in found] == [work, last, other]
    assert [run.changed for run in found] == [4, 0, 0]


def test_hosts_with_the_same_work_and_the_same_end_are_told_together() -> None:
    bad = "found this, expected that. Fix: do it"
    leave(
        1,
        {
            "gpu1": host("chrony", "cuda"),
            "gpu2": host("chrony", "cuda"),
            "gpu3": host("chrony", "cuda", failure=f"gpu3: {bad}"),
            "gpu4": host(),
            "gpu5": host(unreachable=1),
        },
    )
    (run,) = runs.last("lab")
    why = "; ".join(f"{r} has not completed here yet and 1 more of {r}" for r in ("chrony", "cuda"))
    assert run.work == [
        runs.Work(("gpu1", "gpu2"), "chrony, cuda", why, ""),
        runs.Work(("gpu3",), "chrony, cuda", why, f"chrony: {bad}"),
        runs.Work(("gpu5",), "", "", "unreachable"),
    ]
    assert run.failed == ["gpu3", "gpu5"]


def test_a_site_without_runs_has_none() -> None:
    assert runs.last("lab") == []
