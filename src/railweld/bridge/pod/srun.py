"""`srun` and `scontrol` inside a job's pods.

`srun` starts tasks on the nodes of this job through the agents; it asks for no other allocation.
Options that only choose or share hardware are taken and mean nothing: the job has whole nodes.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from railweld.bridge.pod import hostlist, wire

#: Long name to (short name, whether it takes a value). Others are refused by name.
OPTIONS: dict[str, tuple[str, bool]] = {
    "nodes": ("N", True),
    "ntasks": ("n", True),
    "ntasks-per-node": ("", True),
    "cpus-per-task": ("c", True),
    "gpus-per-task": ("", True),
    "label": ("l", False),
    "kill-on-bad-exit": ("K", False),
    "output": ("o", True),
    "error": ("e", True),
    "export": ("", True),
    "nodelist": ("w", True),
    "exclude": ("x", True),
    "relative": ("r", True),
    "chdir": ("D", True),
    "distribution": ("m", True),
    "mpi": ("", True),
    "input": ("i", True),
}
#: Taken for compatibility; the job has whole nodes, and its limits are the batch job's.
IGNORED: dict[str, tuple[str, bool]] = {
    "unbuffered": ("u", False),
    "job-name": ("J", True),
    "exclusive": ("", False),
    "overlap": ("", False),
    "exact": ("", False),
    "whole": ("", False),
    "mem": ("", True),
    "mem-per-cpu": ("", True),
    "mem-per-gpu": ("", True),
    "gpus": ("G", True),
    "gpus-per-node": ("", True),
    "gres": ("", True),
    "cpu-bind": ("", True),
    "cpu_bind": ("", True),
    "gpu-bind": ("", True),
    "mem-bind": ("", True),
    "mem_bind": ("", True),
    "hint": ("", True),
    "threads-per-core": ("", True),
    "ntasks-per-socket": ("", True),
    "ntasks-per-core": ("", True),
    "time": ("t", True),
    "wait": ("W", True),
    "no-kill": ("k", False),
    "overcommit": ("O", False),
    "oversubscribe": ("s", False),
    "quiet": ("Q", False),
    "verbose": ("v", False),
    "immediate": ("I", False),
    "jobid": ("", True),
    "external-launcher": ("", False),
    "resv-ports": ("", False),
    "network": ("", True),
    "propagate": ("", False),
    "task-prolog": ("", True),
    "accel-bind": ("", True),
    "comment": ("", True),
}
#: Whose options these are, as Slurm's own programs say it; Open MPI 5 asks first of all.
VERSION = "slurm 23.11.0-railweld"
RELAYED = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "ALRM")


class StepError(Exception):
    """The step cannot be; the text is for the user."""


@dataclass
class Step:
    """Tasks to start: which of them where.

    Attributes:
        argv: command of every task.
        directory: to start in.
        environment: of the caller, with what `--export` says.
        nodes: ranks of the job's nodes, in the order of the step's own node numbers.
        tasks: task numbers of each of these nodes.
        label: whether lines are marked with the task that wrote them.
        kill: whether the first task that fails ends the others.
        output: file pattern, `error` likewise; None for the caller's own.
        cpus_per_task: of the option, for the tasks' environment.
        gpus_per_task: devices that each task sees; 0 for all of the node.
        stdin: whether input is passed on.
    """

    argv: list[str]
    directory: str
    environment: dict[str, str]
    nodes: list[int]
    tasks: list[list[int]]
    label: bool = False
    kill: bool = False
    output: str | None = None
    error: str | None = None
    cpus_per_task: str = ""
    gpus_per_task: int = 0
    stdin: bool = False
    node_names: list[str] = field(default_factory=list)

    def to_words(self) -> dict[str, Any]:
        """As it is sent."""
        return asdict(self)

    @classmethod
    def of(cls, words: dict[str, Any]) -> Step:
        """As it was sent."""
        return cls(**words)

    @property
    def count(self) -> int:
        """Number of tasks."""
        return sum(map(len, self.tasks))


# -- options -----------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options and the command of an srun command line."""
    known = {**OPTIONS, **IGNORED}
    short = {name: (long, takes) for long, (name, takes) in known.items() if name}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if word.startswith("--"):
            rest.pop(0)
            name, equals, value = word[2:].partition("=")
            if name not in known:
                raise StepError(f"srun: found the option --{name}, which has no meaning in a pod")
            if known[name][1] and not equals:
                value = _next(rest, word)
            found[name] = value
        elif word.startswith("-") and len(word) > 1:
            rest.pop(0)
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter not in short:
                    raise StepError(
                        f"srun: found the option -{letter}, which has no meaning in a pod"
                    )
                name, takes = short[letter]
                if takes:
                    found[name] = letters or _next(rest, f"-{letter}")
                    break
                found[name] = ""
        else:
            break
    if not rest:
        raise StepError("srun: found no command, expected one after the options")
    return found, rest


def _next(rest: list[str], option: str) -> str:
    if not rest:
        raise StepError(f"srun: found {option} without a value")
    return rest.pop(0)


def _number(options: dict[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    # `-N 2-2` and `-N 2` are the same; a range is an allocation's matter.
    text = text.partition("-")[0] if name == "nodes" else text
    if not text.isdecimal() or (int(text) == 0 and name != "relative"):
        raise StepError(f"srun: found --{name} {options[name]!r}, expected a number")
    return int(text)


def plan(
    arguments: Sequence[str], environment: dict[str, str], directory: str, hosts: Sequence[str]
) -> Step:
    """Lay out the tasks of a command line on the nodes of the job.

    Args:
        arguments: of srun.
        environment: of its process.
        directory: of its process.
        hosts: nodes of the job by rank.
    """
    options, argv = parse(arguments)
    if options.get("mpi", "none") not in ("none", "list"):
        raise StepError(
            f"srun: found --mpi={options['mpi']}, which needs Slurm's own daemons on the nodes; "
            "start MPI programs with mpirun, or PyTorch with torchrun"
        )
    ranks = _ranks(options, hosts)
    per_node = _number(options, "ntasks-per-node")
    count = _number(options, "ntasks")
    given = environment.get("SLURM_NTASKS", "")
    if count is None and per_node is None and given.isdecimal() and "nodes" not in options:
        count = int(given)
    if count is None:
        count = len(ranks) * (per_node or 1)
    if per_node and count > per_node * len(ranks):
        raise StepError(
            f"srun: found {count} tasks with {per_node} per node, expected at most "
            f"{per_node * len(ranks)} on {len(ranks)} nodes"
        )
    if count < len(ranks):
        ranks = ranks[:count]
    kill = options.get("kill-on-bad-exit", environment.get("SLURM_KILL_BAD_EXIT", "0"))
    exported = _exported(options.get("export", "ALL"), environment)
    # Of the job, and so in every step, also when the caller has taken them out of its own.
    exported.setdefault("SLURM_JOB_NODELIST", hostlist.compress(hosts))
    exported.setdefault("SLURM_JOB_NUM_NODES", str(len(hosts)))
    gpus = options.get("gpus-per-task", "0").rpartition(":")[2]
    return Step(
        argv=argv,
        directory=str(Path(directory, options.get("chdir", "."))),
        environment=exported,
        nodes=ranks,
        tasks=layout(count, len(ranks), options.get("distribution", "block")),
        label="label" in options,
        kill=kill != "0",
        output=options.get("output"),
        error=options.get("error"),
        cpus_per_task=options.get("cpus-per-task", ""),
        gpus_per_task=int(gpus) if gpus.isdecimal() else 0,
        stdin=options.get("input", "all") != "none",
        node_names=[hosts[rank] for rank in ranks],
    )


def _ranks(options: dict[str, str], hosts: Sequence[str]) -> list[int]:
    by_name = {name: rank for rank, name in enumerate(hosts)}
    ranks = list(range(len(hosts)))
    if "nodelist" in options:
        wanted = hostlist.expand(options["nodelist"])
        foreign = [name for name in wanted if name not in by_name]
        if foreign:
            raise StepError(f"srun: found {foreign[0]}, which is not a node of this job")
        ranks = sorted(by_name[name] for name in wanted)
    if "exclude" in options:
        without = set(hostlist.expand(options["exclude"]))
        ranks = [rank for rank in ranks if hosts[rank] not in without]
    ranks = ranks[_number(options, "relative") or 0 :]
    count = _number(options, "nodes")
    if count is not None:
        if count > len(ranks):
            raise StepError(f"srun: found {count} nodes wanted, expected at most {len(ranks)}")
        ranks = ranks[:count]
    if not ranks:
        raise StepError("srun: found no node left for the step")
    return ranks


def layout(count: int, nodes: int, distribution: str = "block") -> list[list[int]]:
    """Task numbers of each node: in blocks as even as possible, or dealt out one by one."""
    if distribution.partition(":")[0] in ("cyclic", "c"):
        return [list(range(node, count, nodes)) for node in range(nodes)]
    base, extra = divmod(count, nodes)
    found, first = [], 0
    for node in range(nodes):
        size = base + (1 if node < extra else 0)
        found.append(list(range(first, first + size)))
        first += size
    return found


def _exported(text: str, environment: dict[str, str]) -> dict[str, str]:
    words = [word for word in text.split(",") if word]
    everything = "ALL" in words or words == []
    found = dict(environment) if everything else {}
    if not everything:
        for name, value in environment.items():
            if name.startswith(("SLURM", "MASTER_", "PATH", "HOME", "USER")):
                found[name] = value
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("ALL", "NONE"):
            continue
        if equals:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
    return found


def task_environment(step: Step, number: int, position: int) -> dict[str, str]:
    """What one task sees beside its caller's variables.

    Args:
        step: the step.
        number: of the step in the job.
        position: of the node in the step, and the task's position on it follow from its number.
    """
    node = next(n for n, tasks in enumerate(step.tasks) if position in tasks)
    local = step.tasks[node].index(position)
    per_node = compact([len(tasks) for tasks in step.tasks])
    nodes = hostlist.compress(step.node_names)
    found = {
        "SLURM_PROCID": str(position),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": ",".join(map(str, step.tasks[node])),
        "SLURM_STEP_ID": str(number),
        "SLURM_STEPID": str(number),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": str(len(step.nodes)),
        "SLURM_STEP_NUM_TASKS": str(step.count),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_NTASKS": str(step.count),
        "SLURM_NPROCS": str(step.count),
        "SLURM_NNODES": str(len(step.nodes)),
        "SLURM_NODELIST": nodes,
        "SLURMD_NODENAME": step.node_names[node],
    }
    if step.cpus_per_task:
        found["SLURM_CPUS_PER_TASK"] = step.cpus_per_task
    if step.gpus_per_task:
        first = local * step.gpus_per_task
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + step.gpus_per_task)))
    return found


def compact(counts: Sequence[int]) -> str:
    """Numbers of tasks as Slurm writes them: `8(x16)`, `3(x2),2`."""
    found: list[list[int]] = []
    for count in counts:
        if found and found[-1][0] == count:
            found[-1][1] += 1
        else:
            found.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in found)


# -- the command -------------------------------------------------------------------------------


class Files:
    """Where the tasks' output goes: the caller's own, or files by pattern."""

    def __init__(self, step: Step, number: int, job: str) -> None:
        self._step = step
        self._number = number
        self._job = job
        self._open: dict[str, int] = {}

    def write(self, piece: wire.Output) -> None:
        """Write a task's output; `piece.node` is the task's number."""
        _write_all(self._descriptor(piece), piece.data)

    def _descriptor(self, piece: wire.Output) -> int:
        pattern = self._step.output
        if piece.stream == 2 and self._step.error is not None:
            pattern = self._step.error
        elif piece.stream == 2 and pattern is None:
            return 2
        if pattern is None:
            return 1
        path = self._expand(pattern, piece.node)
        if path not in self._open:
            self._open[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        return self._open[path]

    def _expand(self, pattern: str, task: int) -> str:
        node = next(n for n, tasks in enumerate(self._step.tasks) if task in tasks)
        values = {
            "%": "%", "j": self._job, "J": f"{self._job}.{self._number}", "s": str(self._number),
            "t": str(task), "n": str(node), "N": self._step.node_names[node],
            "u": os.environ.get("USER", ""), "x": os.environ.get("SLURM_JOB_NAME", ""),
            "A": os.environ.get("SLURM_ARRAY_JOB_ID", self._job),
            "a": os.environ.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        }  # fmt: skip

        def one(match: re.Match[str]) -> str:
            value = values.get(match.group(2))
            if value is None:
                return match.group(0)
            return value.zfill(int(match.group(1) or 0)) if value.isdecimal() else value

        return os.path.join(self._step.directory, re.sub(r"%(\d*)(.)", one, pattern))  # noqa: PTH118 - an absolute pattern wins


class Labels:
    """Marks whole lines with the task that wrote them."""

    def __init__(self, count: int) -> None:
        self._width = len(str(max(count - 1, 0)))
        self._parts: dict[tuple[int, int], bytes] = {}

    def take(self, piece: wire.Output) -> wire.Output:
        """The lines that are whole now."""
        key = (piece.node, piece.stream)
        text = self._parts.pop(key, b"") + piece.data
        end = text.rfind(b"\n") + 1
        if text[end:]:
            self._parts[key] = text[end:]
        return piece._replace(data=self._marked(piece.node, text[:end]))

    def rest(self) -> Iterator[wire.Output]:
        """Last lines without an end."""
        for (task, stream), text in self._parts.items():
            yield wire.Output(task, stream, 0, self._marked(task, text + b"\n"))

    def _marked(self, task: int, text: bytes) -> bytes:
        mark = f"{task:{self._width}d}: ".encode()
        return b"".join(mark + line for line in text.splitlines(keepends=True))


def srun(arguments: Sequence[str]) -> int:
    """Run a step and return the highest exit status of its tasks."""
    if any(each in ("--help", "--usage", "-h") for each in arguments):
        _say("srun: starts tasks on the nodes of this job; see docs/bridge.md")
        return 0
    if _asks_version(arguments):
        return 0
    if os.environ.get("RAILWELD_MODE") != "leader":
        raise StepError(
            "srun: this script runs on every node already (mode spmd), so srun would start the "
            "tasks once per node; say `#BRIDGE mode=leader` to run it on the first node only"
        )
    # Open MPI's newest takes Slurm's variables of the allocation from its srun.
    names = os.environ.get("RAILWELD_NODES") or os.environ.get("SLURM_JOB_NODELIST", "")
    hosts = hostlist.expand(names)
    step = plan(arguments, dict(os.environ), str(Path.cwd()), hosts)
    with _agent() as link:
        link.sendall(wire.control(step=step.to_words()))
        return _Call(link, step).follow()


def _asks_version(arguments: Sequence[str]) -> bool:
    """Whether the first word asks for the release, which is said then."""
    if list(arguments[:1]) not in (["--version"], ["-V"]):
        return False
    sys.stdout.write(f"{VERSION}\n")
    return True


class _Call:
    """One srun process: signals and input out, output and the end in."""

    def __init__(self, link: socket.socket, step: Step) -> None:
        self._link = link
        self._step = step
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._files = Files(step, 0, self._job)
        self._labels = Labels(step.count) if step.label else None
        self._decoder = wire.Decoder()
        self._status: int | None = None

    def follow(self) -> int:
        """Return the step's exit status."""
        wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for name in RELAYED:
            signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
        watched: list[Any] = [self._link, wakeup]
        if self._step.stdin:
            watched.append(0)
        while self._status is None:
            ready = select.select(watched, [], [])[0]
            if wakeup in ready:
                for number in os.read(wakeup, 64):
                    self._link.sendall(wire.control(signal=signal.Signals(number).name[3:]))
            if 0 in ready and not self._feed():
                watched.remove(0)
            if self._link in ready:
                self._hear()
        return self._status

    def _feed(self) -> bytes:
        """Pass input on; nothing means its end."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(0, wire.CHUNK)
        self._link.sendall(wire.frame(wire.DATA, data))
        return data

    def _hear(self) -> None:
        received = self._link.recv(65536)
        if not received:
            raise StepError("srun: the agent of this pod has gone")
        for kind, payload in self._decoder.feed(received):
            if kind == wire.DATA:
                piece = wire.parse_output(payload)
                self._files.write(self._labels.take(piece) if self._labels else piece)
                continue
            words = wire.parse_control(payload)
            if "number" in words:
                self._files = Files(self._step, int(words["number"]), self._job)
            if "note" in words:
                _say(f"srun: {words['note']}")
            if "status" in words:
                for piece in self._labels.rest() if self._labels else ():
                    self._files.write(piece)
                self._status = int(words["status"])


def scontrol(arguments: Sequence[str]) -> int:
    """The parts of scontrol that scripts use to find the nodes of their job."""
    if _asks_version(arguments):
        return 0
    words = [each for each in arguments if not each.startswith("-")]
    if words[:1] == ["show"] and words[1:2] in (["hostnames"], ["hostname"]):
        text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
        for name in hostlist.expand(text):
            sys.stdout.write(f"{name}\n")
        return 0
    if words[:1] == ["show"] and words[1:2] in (["hostlist"], ["hostlistsorted"]):
        names = words[2].split(",") if len(words) > 2 else sys.stdin.read().split()
        sys.stdout.write(f"{hostlist.compress(names)}\n")
        return 0
    if words[:1] == ["requeue"]:
        if words[1:] not in ([], [os.environ.get("SLURM_JOB_ID")]):
            raise StepError("scontrol requeue: a job can requeue itself only")
        return _requeue()
    raise StepError(
        f"scontrol {' '.join(arguments)}: pods have `show hostnames`, `show hostlist` and "
        "`requeue` of their own job; run the rest on a login node"
    )


def _requeue() -> int:
    """Put this job back into the queue; slurmctld ends it then."""
    with _agent() as link:
        link.sendall(wire.control(requeue=True))
        decoder = wire.Decoder()
        while True:
            data = link.recv(65536)
            if not data:
                raise StepError("scontrol requeue: the agent of this pod has gone")
            for _, payload in decoder.feed(data):
                error = str(wire.parse_control(payload).get("error", ""))
                if error:
                    raise StepError(f"scontrol requeue: {error}")
                return 0


def _agent() -> socket.socket:
    """A connection to the agent of this pod."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(os.environ["RAILWELD_SOCKET"])
    except (OSError, KeyError) as error:
        link.close()
        raise StepError(f"the agent of this pod does not answer: {error}") from error
    return link


def main(name: str, arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    try:
        return srun(arguments) if name == "srun" else scontrol(arguments)
    except (StepError, hostlist.HostlistError) as error:
        _say(str(error))
        return 1


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
