"""What slurmctld says, through Slurm's own commands. An answer that is not sure is an error.

`squeue -O` and not `--json`: the JSON of 22.05 lists every core of every allocated node, 270 KB for
a job of 16 nodes with 128 cores and so more than 20 MB for one of 1,280, every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from railweld.bridge.pod.hostlist import HostlistError, expand

#: A command that takes longer is not answered.
SECONDS: Final = 30.0
#: Between two questions; who asks meanwhile shares the next answer.
PAUSE_SECONDS: Final = 0.25

#: States in which a job holds its nodes and its batch script may run.
ACTIVE: Final = frozenset(
    {"RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"}
)
#: Slurm tears the job down; its nodes are not free yet.
COMPLETING: Final = "COMPLETING"


class SlurmUnknownError(Exception):
    """slurmctld was not reached, or what it said cannot be trusted: nothing follows from it."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job of `squeue`. Free text that users choose is not read."""

    job_id: int
    state: str
    uid: int
    gid: int
    restart: int
    submitted: str
    batch_host: str
    requeue: bool
    partition: str
    array_job: int
    array_task: str
    batch: bool
    time_limit: float | None
    node_text: str

    @property
    def active(self) -> bool:
        """Whether its batch step may be running."""
        return self.state in ACTIVE

    def nodes(self) -> tuple[str, ...]:
        """Allocated nodes in the order of their ranks."""
        try:
            return tuple(expand(self.node_text))
        except HostlistError as error:
            raise SlurmUnknownError(f"squeue: job {self.job_id}: {error}") from error


FIELDS: Final = (
    "JobID", "State", "UserID", "GroupID", "RestartCnt", "SubmitTime", "BatchHost", "Requeue",
    "Partition", "ArrayJobID", "ArrayTaskID", "BatchFlag", "TimeLimit", "NodeList",
)  # fmt: skip
#: The first of a name counts; what users write comes later in the line, but for the job's name.
_WORDS: Final = re.compile(r"(?:^|\s)([A-Z]\w+)=(\S*)")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\Z")


def parse_jobs(text: str) -> dict[int, SlurmJob]:
    """Read `squeue -O`; raises SlurmUnknownError for any line that is not as expected."""
    jobs = {}
    for line in text.splitlines():
        parts = [each.strip() for each in line.split("|")]
        if len(parts) != len(FIELDS) + 1 or parts[-1]:
            raise SlurmUnknownError(
                f"squeue: found the line {line!r}, expected {len(FIELDS)} fields"
            )
        try:
            job = SlurmJob(
                job_id=int(parts[0]),
                state=parts[1],
                uid=int(parts[2]),
                gid=int(parts[3]),
                restart=int(parts[4]),
                submitted=parts[5],
                batch_host=parts[6],
                requeue=parts[7] == "1",
                partition=parts[8],
                array_job=int(parts[9]),
                array_task=parts[10],
                # Of a batch script that was lost with its node Slurm counts the starts here.
                batch=int(parts[11]) > 0,
                time_limit=limit_seconds(parts[12]),
                node_text=parts[13],
            )
        except ValueError as error:
            raise SlurmUnknownError(f"squeue: found the line {line!r}: {error}") from error
        jobs[job.job_id] = job
    return jobs


def limit_seconds(text: str) -> float | None:
    """A time limit in seconds; None for UNLIMITED."""
    if text in ("UNLIMITED", "NOT_SET", "N/A", "INVALID"):
        return None
    match = _LIMIT.match(text)
    if match is None:
        raise ValueError(f"found the time limit {text!r}, expected [days-]hours:minutes:seconds")
    days, hours, minutes, seconds = (int(each or 0) for each in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node of `sinfo`."""

    name: str
    state: str
    reason: str

    @property
    def down(self) -> bool:
        """Whether jobs on it have been ended."""
        return self.state.partition("+")[0] in ("down", "error")

    @property
    def drained(self) -> bool:
        """Whether it gets no new jobs; those that are there may still run."""
        return "drain" in self.state.split("+") or self.state.startswith("drain")


Runner = Callable[..., Awaitable[str]]


async def call(*argv: str, seconds: float = SECONDS) -> str:
    """Run a command of Slurm and return what it printed.

    Raises:
        SlurmUnknownError: it failed, hung, or is not there.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    for name in ("SLURM_CONF", "HOME"):
        if name in os.environ:
            environment[name] = os.environ[name]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        raise SlurmUnknownError(f"{argv[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise SlurmUnknownError(f"{argv[0]}: no answer within {seconds:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    errors = err.decode(errors="replace").strip()
    if process.returncode != 0:
        raise SlurmUnknownError(f"{argv[0]}: exit {process.returncode}: {errors}")
    text = out.decode(errors="replace")
    if not text.strip() and errors:
        raise SlurmUnknownError(f"{argv[0]}: no output, and the error: {errors}")
    return text


class Slurm:
    """Asks slurmctld, a few times a second at most, for all jobs together."""

    def __init__(self, run: Runner = call) -> None:
        self._run = run
        self._jobs: dict[int, SlurmJob] = {}
        self._asked = float("-inf")
        self._asking: asyncio.Task[dict[int, SlurmJob]] | None = None
        #: Answers so far; two looks differ in this number.
        self.looks = 0

    async def jobs(self, *, newer_than: float | None = None) -> dict[int, SlurmJob]:
        """Every job that slurmctld knows, finished ones for MinJobAge too.

        Args:
            newer_than: on the monotonic clock; an answer asked for before then is not good enough.

        Raises:
            SlurmUnknownError: no trustworthy answer.
        """
        wanted = time.monotonic() if newer_than is None else newer_than
        while self._asked < wanted:
            if self._asking is None:
                pause = self._asked + PAUSE_SECONDS - time.monotonic()
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                self._asking = asyncio.ensure_future(self._ask())
            task = self._asking
            try:
                await asyncio.shield(task)
            finally:
                if task.done() and self._asking is task:
                    self._asking = None
        return self._jobs

    async def _ask(self) -> dict[int, SlurmJob]:
        asked = time.monotonic()
        text = await self._run(
            "squeue", "--noheader", "--all", "--states=all",
            "-O", ",".join(f"{name}:|" for name in FIELDS),
        )  # fmt: skip
        self._jobs = parse_jobs(text)
        self._asked = asked
        self.looks += 1
        return self._jobs

    async def nodes(self, partition: str) -> dict[str, SlurmNode]:
        """State and reason of every node of a partition."""
        # The reason is free text, so it stands last. A partition that is named is shown though it
        # be hidden; sinfo refuses --all beside a name.
        text = await self._run(
            "sinfo", "--noheader", "--Node", f"--partition={partition}",
            "-O", "NodeList:|,StateComplete:|,Reason:|",
        )  # fmt: skip
        found = {}
        for line in text.splitlines():
            parts = line.rstrip().removesuffix("|").split("|", 2)
            if len(parts) != 3 or not parts[0] or not parts[1]:
                raise SlurmUnknownError(f"sinfo: found the line {line!r}, expected three fields")
            name, state, reason = (each.strip() for each in parts)
            found[name] = SlurmNode(name, state.lower(), "" if reason == "none" else reason)
        return found

    async def settings(self) -> Mapping[str, str]:
        """`scontrol show config`, as far as it is name = value."""
        text = await self._run("scontrol", "show", "config")
        return dict(_pairs(text))

    async def describe(self, job: int) -> Mapping[str, str]:
        """What `scontrol show job` says in single words; for people only, users write into it."""
        text = await self._run("scontrol", "--oneliner", "show", "job", str(job))
        return dict(reversed(_WORDS.findall(text)))

    async def update_node(self, node: str, state: str, reason: str | None = None) -> None:
        """Set a node's state."""
        extra = [] if reason is None else [f"reason={reason}"]
        await self._run("scontrol", "update", f"nodename={node}", f"state={state}", *extra)

    async def requeue(self, job: int) -> None:
        """Put a job back into the queue; slurmctld refuses one that must not be."""
        await self._run("scontrol", "requeue", str(job))

    async def admin_comment(self, job: int, text: str) -> None:
        """Say in AdminComment what the job is waiting for; users cannot write there."""
        await self._run("scontrol", "update", f"jobid={job}", f"admincomment={text}")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip()
