"""What the daemon learns of a slurmctld that answers late."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from railweld import names
from railweld.bridge import config, daemon
from railweld.bridge.daemon import Bridge
from railweld.bridge.kube import Kube
from railweld.bridge.observed import Key
from railweld.bridge.slurm import Slurm, SlurmUnknownError
from railweld.errors import RailweldError


def bridge_config(tmp_path: Path) -> config.Config:
    """Of a cluster that nobody answers for."""
    kubeconfig = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
        "current-context": "c",
    }
    kubeconfig.write_text(json.dumps(content))
    return config.parse(
        {
            "cluster": "lab",
            "partitions": {"gpu": "gpu"},
            "kubeconfig": str(kubeconfig),
            "advertise": "127.0.0.1:6830",
        }
    )


@pytest.mark.parametrize(("name", "fits"), [("lab", True), ("other", False)])
def test_settings_are_read_as_soon_as_slurmctld_answers(
    tmp_path: Path, name: str, *, fits: bool
) -> None:
    settings = bridge_config(tmp_path)
    answers: list[str | None] = [None, f"ClusterName = {name}\nKillWait = 90 sec\n"]

    async def run(*_: str) -> str:
        answer = answers.pop(0)
        if answer is None:
            raise SlurmUnknownError("no answer")
        return answer

    async def start() -> None:
        async with Kube(settings.kubeconfig) as kube:
            bridge = Bridge(settings, kube=kube, slurm=Slurm(run))
            before = bridge.settings().kill_wait
            await bridge._prepare()
            assert bridge.settings().kill_wait == before != 90
            if not fits:
                with pytest.raises(RailweldError, match="found other in slurmctld"):
                    await bridge._prepare()
                return
            await bridge._prepare()
            assert bridge.settings().kill_wait == 90
            # Not asked at each look: nothing is left to answer with.
            await bridge._prepare()

    asyncio.run(start())


def test_a_killwait_that_a_reconfigure_has_changed_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods made with the old one would be killed before their grace is over."""
    monkeypatch.setattr(daemon, "SETTINGS_SECONDS", 0.0)
    settings = bridge_config(tmp_path)
    seconds = iter([60, None, 30])

    async def run(*_: str) -> str:
        found = next(seconds)
        if found is None:
            raise SlurmUnknownError("no answer")
        return f"ClusterName = lab\nKillWait = {found} sec\n"

    async def start() -> None:
        async with Kube(settings.kubeconfig) as kube:
            bridge = Bridge(settings, kube=kube, slurm=Slurm(run))
            seen = []
            for _ in range(3):
                await bridge._prepare()
                seen.append(bridge.settings().kill_wait)
            assert seen == [60, 60, 30]

    asyncio.run(start())


def test_runs_are_taken_up_as_soon_as_the_api_answers(tmp_path: Path) -> None:
    """After a restart: agents of pods in their grace do not wait for slurmctld."""
    settings = bridge_config(tmp_path)
    marks = {names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0"}
    job = {"metadata": {"name": "slurm-lab-7-r0", "uid": "u", "labels": marks}}

    async def start() -> None:
        async with Kube(settings.kubeconfig) as kube:
            bridge = Bridge(settings, kube=kube, slurm=Slurm())
            bridge.mirror._store("jobs", job, deleted=False)
            bridge.mirror._set_live("jobs", True)
            assert not bridge.runs
            bridge.mirror._set_live("pods", True)
            assert list(bridge.runs) == [Key(7, 0)]
            for task in bridge._drivers.values():
                task.cancel()

    asyncio.run(start())
