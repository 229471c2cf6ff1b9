"""What the daemon learns of a slurmctld that answers late."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from railweld import names
from railweld.bridge import config, daemon
from railweld.bridge.daemon import Bridge
from railweld.bridge.kube import Kube
from railweld.bridge.observed import Key, Outcome
from railweld.bridge.slurm import Slurm, SlurmUnknownError
from railweld.errors import RailweldError

SQUEUE = "7|{state}|2001|2001|{restart}|2026-11-30T03:04:41|gpu1|1|gpu|7|N/A|1|UNLIMITED|gpu1|\n"


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


SINFO = "gpu1|IDLE|none|\ngpu2|IDLE+DRAIN|railweld: cordoned|\n"


def programs(folder: Path, sinfo: str) -> Path:
    """Slurm's commands: `sinfo` as given, and a `scontrol` that writes down what it is told."""
    said = folder / "said"
    for name, text in (
        ("sinfo", sinfo),
        ("scontrol", f'echo "$*" >> {said}'),
    ):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    said.touch()
    return said


def node(name: str, cordoned: object) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def run_of(key: Key) -> Any:
    return SimpleNamespace(
        key=key, session=None, put_back=False, requeues=0, note_once=lambda _text: None
    )


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        # Silent twice, then it does it.
        pytest.param([None, None, "RUNNING|0", ""], 1, id="answers-late"),
        # It was done, and the answer got lost.
        pytest.param(["RUNNING|0", None, "COMPLETING|0"], 1, id="answer-lost"),
        pytest.param(["RUNNING|0", None, None, "PENDING|1"], 1, id="answer-lost-and-silent"),
        pytest.param(["CANCELLED|0"], 0, id="ended-meanwhile"),
        pytest.param(["RUNNING|0", None] * daemon.REFUSALS, daemon.REFUSALS, id="refused"),
    ],
)
def test_a_requeue_is_asked_for_until_slurmctld_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str | None], asked: int
) -> None:
    monkeypatch.setattr(daemon, "REQUEUE_PAUSES", (0.0,))
    settings, left, requeues = bridge_config(tmp_path), list(answers), []

    async def run(*argv: str) -> str:
        if argv[:2] == ("scontrol", "requeue"):
            requeues.append(argv[2])
        answer = left.pop(0)
        if answer is None:
            raise SlurmUnknownError("no answer")
        state, _, restart = answer.partition("|")
        return SQUEUE.format(state=state, restart=restart) if answer else ""

    async def put_back() -> None:
        async with Kube(settings.kubeconfig) as kube:
            bridge = Bridge(settings, kube=kube, slurm=Slurm(run))
            outcome = Outcome(1, "evicted", infrastructure=True, again=True)
            await asyncio.wait_for(bridge._until_put_back(run_of(Key(7, 0)), outcome), 20)

    asyncio.run(put_back())
    assert requeues == ["7"] * asked
    assert left == []


@pytest.mark.parametrize(
    ("sinfo", "told"),
    [
        pytest.param(
            f"printf '{SINFO}'",
            [
                "update nodename=gpu1 state=DRAIN reason=railweld: cordoned",
                "update nodename=gpu2 state=RESUME",
            ],
            id="answers",
        ),
        pytest.param("exit 1", [], id="fails"),
        pytest.param(f"printf '{SINFO}'; exit 1", [], id="fails-at-the-end"),
        pytest.param("echo 'Unable to contact slurm controller' >&2", [], id="no-output"),
        pytest.param("true", [], id="no-nodes"),
        pytest.param(f"printf '{SINFO}'; echo gpu3", [], id="cut-line"),
        pytest.param("rm -f $0.x; exec $0.x", [], id="not-there"),
    ],
)
def test_nodes_are_drained_and_resumed_by_a_sure_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str, told: list[str]
) -> None:
    settings = bridge_config(tmp_path)
    said = programs(tmp_path, sinfo)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async def look() -> str:
        """What keeps the states of nodes from being carried over."""
        async with Kube(settings.kubeconfig) as kube:
            bridge = Bridge(settings, kube=kube, slurm=Slurm())
            bridge._jobs = {}
            cordoned = {"gpu1": True, "gpu2": False}
            bridge.mirror._replace("nodes", [node(name, at) for name, at in cordoned.items()])
            for kind in ("jobs", "pods", "nodes"):
                bridge.mirror._set_live(kind, True)
            try:
                await bridge._look_at_nodes()
            except SlurmUnknownError as error:
                return str(error)
            return ""

    trouble = asyncio.run(look())
    assert said.read_text().splitlines() == told
    assert bool(trouble) == (sinfo not in (f"printf '{SINFO}'", "true"))
