"""Agents as real processes against the daemon's hub, over real sockets."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from railweld.bridge import hub as hubs
from railweld.bridge.hub import Agent, Hub
from railweld.bridge.observed import Printed, read_printed
from railweld.bridge.pod import agent as agents
from railweld.bridge.pod import wire
from railweld.bridge.pod.agent import Spool, empty, shortages

SRC = Path(__file__).parents[3] / "src"
KEY = b"k" * 64


def program(**constants: Any) -> str:
    """What starts an agent, with other constants than its own."""
    lines = "".join(f"agent.{name} = {value!r}\n" for name, value in constants.items())
    return (
        "import os, sys, pathlib\nsys.path.insert(0, sys.argv[1])\n"
        f"from railweld.bridge.pod import agent\n{lines}folder = pathlib.Path(sys.argv[2])\n"
        "agent.LAST_WORDS = folder / ('last-words' + os.environ['JOB_COMPLETION_INDEX'])\n"
        "sys.exit(agent.start(folder))\n"
    )


class Crew:
    """Keeps what agents say; starts them when all are there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.agents: dict[int, Agent] = {}
        self.output: dict[int, bytes] = {}
        self.states: list[tuple[int, str]] = []
        self.acknowledges = True

    def joined(self, agent: Agent) -> None:
        self.agents[agent.rank] = agent
        self.states.append((agent.rank, agent.state))
        agent.send(op="show", **{"1": len(self.output.get(agent.rank, b"")), "2": 0})
        if len(self.agents) == self.count:
            leader = ["127.0.0.1", self.agents[0].port]
            for each in self.agents.values():
                each.send(op="go", peers=["127.0.0.1"] * self.count, leader=leader)

    def left(self, agent: Agent) -> None:
        if self.agents.get(agent.rank) is agent:
            del self.agents[agent.rank]

    def told(self, agent: Agent, content: dict[str, Any]) -> None:
        self.states.append((agent.rank, agent.state))
        del content

    async def shown(self, agent: Agent, piece: wire.Output) -> None:
        have = self.output.setdefault(agent.rank, b"")
        assert piece.offset <= len(have), "a gap"
        self.output[agent.rank] = have[: piece.offset] + piece.data
        if self.acknowledges:
            agent.send(op="written", stream=1, offset=len(self.output[agent.rank]))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def hub(crew: Crew, port: int = 0, key: bytes = KEY) -> AsyncIterator[tuple[Hub, int]]:
    async def lookup(name: str) -> tuple[bytes, Crew] | None:
        return (key, crew) if name == "job" else None

    served = Hub(lookup)
    try:
        yield served, await served.start("127.0.0.1", port)
    finally:
        for agent in list(crew.agents.values()):
            agent.hang_up()
        await served.stop()


def folder(tmp_path: Path, script: str, nodes: int, mode: str = "spmd") -> Path:
    plan = {
        "mode": mode, "nodes": [f"n{n}" for n in range(nodes)], "arguments": ["x"],
        "directory": str(tmp_path), "umask": 0o22, "apart": False, "environment": {"MINE": "1"},
        "user": "u", "home": "/", "slurm": {"SLURM_JOB_ID": "7"}, "port": 20007,
        "service": None, "scratch": None, "grace": 30,
    }  # fmt: skip
    (tmp_path / "plan").write_text(json.dumps(plan))
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "script").write_text(f"#!/bin/sh\n{script}\n")
    return tmp_path


async def agent(
    where: Path,
    rank: int,
    port: int,
    python: str = sys.executable,
    start: str | None = None,
    **variables: str,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        python, "-IS", "-c", start or program(), str(SRC), str(where),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        env={
            "PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(rank), "RAILWELD_JOB": "job",
            "RAILWELD_HUB": f"127.0.0.1:{port}", "RAILWELD_POD_IP": "127.0.0.1",
            "RAILWELD_POD_UID": f"uid{rank}", **variables,
        },
    )  # fmt: skip


def test_no_body_starts_before_the_last_agent_is_there(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(3)
        where = folder(tmp_path, 'touch "started$SLURM_NODEID"; echo $SLURM_NODEID $MINE', 3)
        async with hub(crew) as (_, port):
            first = [await agent(where, rank, port) for rank in (0, 1)]
            await until(lambda: len(crew.agents) == 2)
            assert not list(tmp_path.glob("started*"))
            last = await agent(where, 2, port)
            assert [await each.wait() for each in (*first, last)] == [0, 0, 0]
        assert crew.output == {rank: f"{rank} 1\n".encode() for rank in range(3)}
        assert len(list(tmp_path.glob("started*"))) == 3

    asyncio.run(play())


@pytest.mark.parametrize(("script", "status"), [("exit 9", 9), ("kill -TERM $$", 143)])
def test_the_pod_ends_as_the_body_does(tmp_path: Path, script: str, status: int) -> None:
    async def play() -> None:
        async with hub(Crew(1)) as (_, port):
            assert await (await agent(folder(tmp_path, script, 1), 0, port)).wait() == status

    asyncio.run(play())


def runs(python: str) -> bool:
    """Whether there is such an interpreter; a version manager's stand-in for one is none."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-c", ""], check=False).returncode == 0


#: The image's, which may be old, and ours.
PYTHONS = [
    pytest.param(name, marks=pytest.mark.skipif(not runs(name), reason=f"no {name} here"))
    for name in ("python3.8", "python3.9", sys.executable)
]
#: What srun does, with all that it has to say in one piece.
STEP = f"""
import os, socket, sys
sys.path.insert(0, {str(SRC)!r})
from railweld.bridge.pod import srun, wire
hosts = [f"n{{n}}" for n in range(int(sys.argv[1]))]
step = srun.plan(["cat"], dict(os.environ), "/", hosts)
link, decoder, seen = socket.socket(socket.AF_UNIX), wire.Decoder(), b""
link.connect(os.environ["RAILWELD_SOCKET"])
link.sendall(wire.control(step=step.to_words()) + wire.frame(wire.DATA, b"in") +
             wire.frame(wire.DATA, b""))
while True:
    for kind, payload in decoder.feed(link.recv(65536)):
        if kind == wire.DATA:
            seen += wire.parse_output(payload).data
        elif "status" in wire.parse_control(payload):
            assert seen == b"in" * len(hosts)
            sys.exit(40 + wire.parse_control(payload)["status"])
"""


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("python", PYTHONS)
def test_a_step_whose_input_comes_with_it_ends(tmp_path: Path, python: str, nodes: int) -> None:
    (tmp_path / "step.py").write_text(STEP)
    script = f"exec {sys.executable} {tmp_path}/step.py {nodes}"

    async def play() -> None:
        async with hub(Crew(nodes)) as (_, port), asyncio.timeout(30):
            where = folder(tmp_path, script, nodes, "leader")
            pods = [await agent(where, rank, port, python) for rank in range(nodes)]
            assert [await pod.wait() for pod in pods] == [40, *[0] * (nodes - 1)]

    asyncio.run(play())


#: `srun` as scripts call it.
SHIM = f"""#!/bin/sh
exec {sys.executable} -IS -c 'import sys; sys.path.insert(0, "{SRC}")
from railweld.bridge.pod import srun
sys.exit(srun.main("srun", sys.argv[1:]))' "$@"
"""


def test_srun_finds_its_nodes_without_slurms_variables(tmp_path: Path) -> None:
    """As Open MPI's newest starts its daemons: nothing on stdin, a process group of its own."""
    shim = tmp_path / "srun"
    shim.write_text(SHIM)
    shim.chmod(0o755)
    script = (
        "unset SLURM_JOB_NODELIST SLURM_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES\n"
        f"setsid --wait {shim} --external-launcher --ntasks-per-node=1 --kill-on-bad-exit "
        "--mpi=none --cpu-bind=none --ntasks=2 sh -c 'echo $SLURMD_NODENAME $SLURM_NODEID "
        "$SLURM_JOB_NODELIST $MINE' </dev/null"
    )

    async def play() -> None:
        crew = Crew(2)
        async with hub(crew) as (_, port), asyncio.timeout(30):
            where = folder(tmp_path, script, 2, "leader")
            pods = [await agent(where, rank, port) for rank in (0, 1)]
            assert [await pod.wait() for pod in pods] == [0, 0]
        assert sorted(crew.output[0].splitlines()) == [b"n0 0 n[0-1] 1", b"n1 1 n[0-1] 1"]

    asyncio.run(play())


def test_nothing_is_evaluated_that_python_3_8_cannot() -> None:
    """Such as `Callable[...]` outside annotations; an image with 3.8 may be nowhere at hand."""
    for path in sorted((SRC / "railweld/bridge/pod").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
            for field in ("annotation", "returns"):
                if hasattr(node, field):
                    setattr(node, field, None)
        found = {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Subscript)
            and ast.unparse(node.value) in {"list", "dict", "set", "tuple", "Callable", "Iterator"}
        }
        assert found == set(), path


def test_output_is_whole_when_the_daemon_goes_and_comes_back(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        text = "seq 1 20000; touch half; while [ ! -e on ]; do sleep 0.05; done; seq 20001 40000"
        where = folder(tmp_path, text, 1)
        async with hub(crew) as (_, port):
            process = await agent(where, 0, port)
            await until(lambda: (tmp_path / "half").exists() and crew.output.get(0))
        await until(lambda: not crew.agents)
        (tmp_path / "on").touch()
        async with hub(crew, port):
            assert await process.wait() == 0
        assert crew.output[0] == b"".join(b"%d\n" % n for n in range(1, 40001))
        # The body ran on meanwhile, and was not started a second time.
        assert "ready" not in [state for _, state in crew.states[1:]]

    asyncio.run(play())


def test_output_waits_for_a_daemon_that_is_away_when_the_body_ends(tmp_path: Path) -> None:
    """Longer than for a file that cannot be written; Slurm keeps the node for the job meanwhile."""

    async def play() -> None:
        crew = Crew(1)
        text = "touch up; while [ ! -e on ]; do sleep 0.05; done; seq 1 1000; touch done; exit 3"
        where = folder(tmp_path, text, 1)
        async with hub(crew) as (_, port):
            process = await agent(where, 0, port, start=program(DRAIN_SECONDS=0.1))
            await until((tmp_path / "up").exists)
        await until(lambda: not crew.agents)
        (tmp_path / "on").touch()
        await until((tmp_path / "done").exists)
        # What is tested is that nothing happens for longer than that.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 1)
        async with hub(crew, port):
            assert await process.wait() == 3
        assert crew.output[0] == b"".join(b"%d\n" % n for n in range(1, 1001))

    asyncio.run(play())


def test_a_pod_that_waited_long_enough_says_how_much_it_has_printed(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        text = "touch up; while [ ! -e on ]; do sleep 0.05; done; seq 1 1000; exit 3"
        where = folder(tmp_path, text, 1)
        (where / "last-words0").touch()
        async with hub(crew) as (_, port):
            process = await agent(where, 0, port, start=program(AWAY_SECONDS=0.1))
            await until((tmp_path / "up").exists)
        await until(lambda: not crew.agents)
        (tmp_path / "on").touch()
        assert await process.wait() == 3
        words = (where / "last-words0").read_text()
        assert read_printed(words) == Printed(sum(len(f"{n}\n") for n in range(1, 1001)), 0, 0)

    asyncio.run(play())


def test_a_silent_body_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub hangs up on silence; agents speak though the body does not."""
    assert agents.REPORT_SECONDS * 2 < hubs.SILENCE_SECONDS
    monkeypatch.setattr("railweld.bridge.hub.SILENCE_SECONDS", 1.0)

    async def play() -> None:
        crew = Crew(1)
        async with hub(crew) as (_, port):
            where = folder(tmp_path, "sleep 3; echo up", 1)
            process = await agent(where, 0, port, start=program(REPORT_SECONDS=0.2))
            assert await process.wait() == 0
        assert [state for _, state in crew.states].count("ready") == 1
        assert crew.output == {0: b"up\n"}

    asyncio.run(play())


def test_a_body_never_waits_for_a_reader(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        crew.acknowledges = False
        where = folder(tmp_path, "head -c 3000000 /dev/zero; touch done", 1)
        async with hub(crew) as (_, port):
            process = await agent(where, 0, port)
            await until((tmp_path / "done").exists)
            # No more is sent than may be under way, until the reader says how far it came.
            await until(lambda: len(crew.output.get(0, b"")) == wire.WINDOW)
            crew.acknowledges = True
            crew.agents[0].send(op="written", stream=1, offset=wire.WINDOW)
            assert await process.wait() == 0
        assert crew.output[0] == bytes(3000000)

    asyncio.run(play())


def test_a_termination_reaches_the_body_and_its_last_words_the_reader(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        text = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"
        async with hub(crew) as (_, port):
            process = await agent(folder(tmp_path, text, 1), 0, port)
            await until(lambda: crew.output.get(0) == b"up\n")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 5
        # Every process of the pod gets the signal, as in a step of Slurm: `sleep` too.
        assert crew.output[0].startswith(b"up\n")
        assert crew.output[0].endswith(b"bye\n")

    asyncio.run(play())


@pytest.mark.parametrize("python", PYTHONS)
def test_each_signal_comes_once_and_not_before_the_script_is_ready_for_it(
    tmp_path: Path, python: str
) -> None:
    async def play() -> None:
        crew = Crew(2)
        traps = "trap 'echo got 1' USR1; sleep 0.5; trap 'echo got 2' USR2"
        text = f"sleep 1; {traps}; until [ -e on ]; do sleep 0.05; done"
        where = folder(tmp_path, text, 2)
        async with hub(crew) as (_, port):
            first = await agent(where, 0, port, python)
            await until(lambda: crew.agents)
            # Nothing runs yet, and the daemon says it again after a restart.
            for number in (1, 1, 2):
                crew.agents[0].send(op="signal", name=f"USR{number}", number=number)
            second = await agent(where, 1, port)
            await until(lambda: crew.output.get(0, b"").count(b"got") == 2)
            for number in (1, 2):
                crew.agents[0].send(op="signal", name=f"USR{number}", number=number)
            (tmp_path / "on").touch()
            assert [await each.wait() for each in (first, second)] == [0, 0]
        assert crew.output == {0: b"got 1\ngot 2\n"}

    asyncio.run(play())


def test_a_script_without_a_trap_gets_its_signal_in_the_end(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        where = folder(tmp_path, "exec sleep 60", 1)
        async with hub(crew) as (_, port):
            process = await agent(where, 0, port, start=program(SETTLE_SECONDS=0.5))
            await until(lambda: crew.agents)
            crew.agents[0].send(op="signal", name="USR1", number=1)
            assert await process.wait() == 128 + signal.SIGUSR1

    asyncio.run(play())


def test_an_agent_that_is_ended_at_the_barrier_starts_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(2)
        async with hub(crew) as (_, port):
            process = await agent(folder(tmp_path, "touch started", 2), 0, port)
            await until(lambda: crew.agents)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 143
        assert not (tmp_path / "started").exists()

    asyncio.run(play())


def test_neither_end_talks_to_one_without_the_jobs_key(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(1)
        async with hub(crew, key=b"j" * 64) as (served, port):
            process = await agent(folder(tmp_path, "touch started", 1), 0, port)
            await until(lambda: served.refused >= 2)
            process.kill()
            await process.wait()
        assert not crew.agents
        assert not (tmp_path / "started").exists()

    asyncio.run(play())


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        wire.HEADER.pack(2**31, wire.CONTROL),
        wire.HEADER.pack(9000, wire.CONTROL),
        wire.control(job="job", node=-1, nonce="00" * 16, proof=""),
        wire.control(job="job", node="0", nonce="00" * 16, proof=""),
        wire.control(job="job", node=0, nonce="zz", proof=""),
        wire.control(job="job", node=0, nonce="00" * 16, proof="0" * 64),
        wire.control(job="other", node=0, nonce="00" * 16, proof="0" * 64),
        wire.control(job=["job"], node=0),
        wire.frame(wire.CONTROL, b"[1]"),
        wire.frame(wire.CONTROL, b"\xff{"),
        wire.frame(wire.DATA, b"x" * 100),
    ],
)
def test_strangers_are_hung_up_on(greeting: bytes) -> None:
    async def play() -> None:
        crew = Crew(1)
        async with hub(crew) as (served, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(greeting)
            await asyncio.wait_for(reader.read(), 30)
            writer.close()
            await until(lambda: served.refused == 1)
        assert not crew.agents

    asyncio.run(play())


def test_a_node_that_is_not_streamed_keeps_its_output_beside_the_users_file(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        crew = Crew(3)
        where = folder(tmp_path, "echo out $SLURM_NODEID; echo err $SLURM_NODEID >&2", 3)
        plan = json.loads((where / "plan").read_text())
        plan |= {"apart": True, "outputs": [f"{tmp_path}/out.txt", f"{tmp_path}/none/err.txt"]}
        (where / "plan").write_text(json.dumps(plan))
        # Of an earlier run, and another's.
        (tmp_path / "out.txt.n1").write_text("before\n")
        (tmp_path / "out.txt.n2").symlink_to(tmp_path / "elsewhere")
        for rank in (1, 2):
            (tmp_path / f"last-words{rank}").touch()
        async with hub(crew) as (_, port):
            pods = [await agent(where, rank, port) for rank in range(3)]
            # Where its file cannot be written the body is none the worse.
            assert [await pod.wait() for pod in pods] == [0, 0, 0]

    asyncio.run(play())
    assert (tmp_path / "out.txt.n1").read_text() == "before\nout 1\n"
    # It says how much of it is missing: the error file of each, the output of one.
    unwritten = [read_printed((tmp_path / f"last-words{rank}").read_text()) for rank in (1, 2)]
    assert unwritten == [Printed(6, 6, 6), Printed(6, 6, 12)]
    assert not (tmp_path / "out.txt.n0").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_a_pod_that_came_to_any_node_has_the_rank_of_it(tmp_path: Path) -> None:
    async def play() -> None:
        crew = Crew(2)
        where = folder(tmp_path, "echo $SLURM_NODEID $SLURMD_NODENAME", 2)
        plan = json.loads((where / "plan").read_text()) | {"hosts": ["k0", "k1"]}
        (where / "plan").write_text(json.dumps(plan))
        async with hub(crew) as (_, port):
            pods = [
                await agent(where, index, port, RAILWELD_NODE=node)
                for index, node in ((0, "k1"), (1, "k0"))
            ]
            assert [await pod.wait() for pod in pods] == [0, 0]
        assert crew.output == {0: b"0 n0\n", 1: b"1 n1\n"}

    asyncio.run(play())


def test_a_pod_with_rdma_is_told_of_too_little_locked_or_shared_memory(tmp_path: Path) -> None:
    """NCCL says nothing of it and goes over TCP."""
    code = (
        "import sys, resource, pathlib\nsys.path.insert(0, sys.argv[1])\n"
        "from railweld.bridge.pod.agent import shortages\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "print(*shortages(*map(pathlib.Path, sys.argv[2:])), sep='\\n')\n"
    )

    def said(*paths: str) -> list[str]:
        argv = [sys.executable, "-IS", "-c", code, str(SRC), *paths]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()

    locked, shared = said(str(tmp_path), "/sys/fs")
    assert "found 64 KiB of memory that may be locked" in locked
    assert "railweld_memlock_kib" in locked
    assert "found 0 KiB in /sys/fs" in shared
    assert said(str(tmp_path / "none"), "/sys/fs") == [""]
    assert shortages(tmp_path / "none") == []


def test_a_spool_keeps_the_newest_and_says_where_it_begins() -> None:
    spool = Spool(10)
    spool.append(b"0123456789")
    assert spool.read(0, 100) == b"0123456789"
    spool.append(b"abc")
    assert (spool.first, spool.end) == (3, 13)
    assert spool.read(3, 100) + spool.read(10, 100) == b"3456789abc"
    spool.append(b"x" * 25)
    assert (spool.first, spool.end) == (28, 38)


def test_scratch_is_emptied_and_no_link_is_followed(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    (kept / "inner").mkdir(parents=True)
    (scratch / "folder" / "inner").mkdir(parents=True)
    (scratch / "file").touch()
    (scratch / "link").symlink_to(kept)
    (scratch / "dangling").symlink_to(tmp_path / "nothing")
    empty(scratch)
    assert list(scratch.iterdir()) == []
    assert (kept / "inner").is_dir()
    # A node without the folder is no reason to fail after the body has ended.
    empty(tmp_path / "nothing")
