"""What slurmctld says, and above all what does not count as an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from railweld.bridge import slurm
from railweld.bridge.slurm import Slurm, SlurmUnknownError, limit_seconds, parse_jobs

#: Printed by squeue of Slurm 22.05.8.
PRINTED = """\
1|COMPLETED|2001|2001|0|2026-11-30T03:04:41|gpu1|1|gpu|1|N/A|1|UNLIMITED|gpu1|
2|RUNNING|2001|2001|1|2026-11-30T03:04:41|gpu1|1|gpu|2|N/A|1|3-00:00:00|gpu[1-16]|
3|PENDING|2002|2002|0|2026-11-30T03:04:42|n/a|0|gpu|3|1-7%2|1|10:00||
"""


def test_jobs_are_read() -> None:
    jobs = parse_jobs(PRINTED)
    assert jobs.keys() == {1, 2, 3}
    assert jobs[2].active
    assert (jobs[2].uid, jobs[2].restart, jobs[2].time_limit) == (2001, 1, 259200.0)
    assert jobs[2].nodes() == tuple(f"gpu{n}" for n in range(1, 17))
    assert not jobs[1].active
    assert jobs[3].nodes() == ()


def test_a_batch_job_that_starts_again_after_its_node_was_lost_is_still_one() -> None:
    """Slurm 22.05.8 printed 2 as its BatchFlag after `Batch JobId=2 missing from batch node`."""
    again = "2|RUNNING|1001|1001|1|2026-11-30T22:37:05|gpu1|1|gpu|2|N/A|2|UNLIMITED|gpu1|"
    assert parse_jobs(again)[2].batch
    interactive = again.replace("|N/A|2|", "|N/A|0|")
    assert not parse_jobs(interactive)[2].batch


def test_no_jobs_are_an_answer() -> None:
    assert parse_jobs("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller",
        "2|RUNNING|2001\n",
        PRINTED.replace("|2001|2001|0|", "|root|2001|0|"),
        PRINTED.replace("3-00:00:00", "soon"),
        PRINTED.replace("gpu1|\n", "gpu1|x\n"),
        "2|RUNNING|2001|2001|1|2026-11-30T03:04:41|gpu1|1|gpu|2|N/A|1|3-00:00:00|gpu[1-|",
    ],
)
def test_a_line_that_is_not_as_expected_is_no_answer(text: str) -> None:
    with pytest.raises(SlurmUnknownError):
        _ = [job.nodes() for job in parse_jobs(text).values()]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10:00", 600), ("1:00:00", 3600), ("2-01:00:00", 176400), ("UNLIMITED", None), ("0:30", 30)],
)
def test_time_limits_are_read(text: str, seconds: float | None) -> None:
    assert limit_seconds(text) == seconds


def script(folder: Path, text: str) -> str:
    path = folder / "squeue"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 1", "exit 1"),
        ("echo 'slurm_load_jobs error' >&2; exit 1", "slurm_load_jobs"),
        ("echo 'Invalid user' >&2", "no output"),
        ("sleep 30", "no answer"),
    ],
)
def test_a_failing_squeue_is_no_answer(tmp_path: Path, text: str, said: str) -> None:
    async def ask() -> None:
        with pytest.raises(SlurmUnknownError, match=said):
            await slurm.call(script(tmp_path, text), seconds=1.0)

    asyncio.run(ask())


def test_a_missing_squeue_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnknownError, match="No such file"):
        asyncio.run(slurm.call(str(tmp_path / "none")))


def test_many_questions_at_a_time_are_one_call() -> None:
    calls = []

    async def run(*argv: str) -> str:
        calls.append(argv)
        await asyncio.sleep(0.05)
        return PRINTED

    async def ask() -> None:
        client = Slurm(run)
        answers = await asyncio.gather(*(client.jobs() for _ in range(50)))
        assert all(each.keys() == {1, 2, 3} for each in answers)
        assert client.looks == len(calls) <= 2

    asyncio.run(ask())


def test_an_old_answer_is_not_given_for_a_new_question() -> None:
    texts = iter(["", PRINTED])

    async def run(*_argv: str) -> str:
        return next(texts)

    async def ask() -> None:
        client = Slurm(run)
        assert await client.jobs() == {}
        assert (await client.jobs()).keys() == {1, 2, 3}

    asyncio.run(ask())


def test_nodes_are_asked_for_as_sinfo_takes_it() -> None:
    """Slurm 22.05: `sinfo: error: Conflicting options, -a and -p, specified`."""
    calls: list[tuple[str, ...]] = []

    async def run(*argv: str) -> str:
        calls.append(argv)
        return "gpu1|IDLE+DRAIN|railweld: cordoned|\ngpu2|DOWN|fan | two|\ngpu3|IDLE|none|\n"

    nodes = asyncio.run(Slurm(run).nodes("gpu"))
    assert not {"-a", "--all"} & set(calls[0])
    assert "--partition=gpu" in calls[0]
    assert (nodes["gpu1"].drained, nodes["gpu1"].reason) == (True, "railweld: cordoned")
    assert (nodes["gpu2"].down, nodes["gpu2"].reason) == (True, "fan | two")
    assert (nodes["gpu3"].drained, nodes["gpu3"].reason) == (False, "")
