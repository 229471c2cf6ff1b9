"""What a run asks of the API server beside its way from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from railweld import names
from railweld.bridge.decide import Act, Slurm, decide
from railweld.bridge.hub import Crew, Hub
from railweld.bridge.kube import Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.mirror import Mirror, RunObjects
from railweld.bridge.observed import HOSTNAME, INDEX, JobView, Key, Outcome, PodView
from railweld.bridge.pod import step, wire
from railweld.bridge.run import Run, Settings
from railweld.bridge.session import Session
from railweld.bridge.slurm import SlurmUnknownError

KEY = Key(7, 0)
NAME = "slurm-lab-7-r0"
JOBS = f"/apis/batch/v1/namespaces/jobs/jobs/{NAME}"
PODS = "/api/v1/namespaces/jobs/pods"


def job(**spec: Any) -> dict[str, Any]:
    labels = {names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0"}
    return {"metadata": {"name": NAME, "uid": "u", "labels": labels}, "spec": spec}


class Server:
    """Answers like an API server that has one Job, or none; keeps what was written."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found
        self.written: list[tuple[str, str, Any]] = []
        self.refuses = False
        #: What the next requests meet instead of an answer.
        self.faults: list[Exception] = []

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == JOBS
        return self.found

    async def list(self, _path: str, **_: object) -> tuple[list[Any], str]:
        if self.faults:
            raise self.faults.pop(0)
        return [], "1"

    async def request(self, method: str, path: str, body: Any = None, **_: object) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        if self.refuses:
            raise KubeRefusedError(403, "Forbidden", "no")
        self.written.append((method, path, body))
        return {**job(), "spec": (body or {}).get("spec")}


def run_of(server: Server, limit: float | None) -> Run:
    kube = cast("Kube", server)
    world = SimpleNamespace(
        settings=lambda: SimpleNamespace(namespace="jobs", kill_wait=60),
        time_limit=lambda _key: limit,
    )
    return Run(KEY, kube, Mirror(kube, "jobs", "lab"), cast("Any", world))


@pytest.mark.parametrize(
    ("limit", "wanted"), [(3600.0, []), (7200.0, [7560]), (math.inf, [None]), (None, [])]
)
def test_a_changed_time_limit_is_carried_over_once(
    limit: float | None, wanted: list[int | None]
) -> None:
    server = Server(None)
    run = run_of(server, limit)
    run._mirror.seen(KEY, job(activeDeadlineSeconds=3960))

    async def look() -> None:
        for _ in range(2):
            await run._keep_deadline()

    asyncio.run(look())
    assert [body["spec"]["activeDeadlineSeconds"] for _, _, body in server.written] == wanted
    assert all((method, path) == ("PATCH", JOBS) for method, path, _ in server.written)


def test_a_deadline_that_cannot_be_changed_ends_nothing() -> None:
    server = Server(None)
    server.refuses = True
    run = run_of(server, 7200.0)
    run._mirror.seen(KEY, job(activeDeadlineSeconds=3960))
    asyncio.run(run._keep_deadline())
    assert server.written == []


def left(run: Run) -> None:
    """Pods that the copy has, of which no Job is known."""
    pods = {}
    for name, phase, extra in (
        ("runs", "Running", {}),
        ("ends", "Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        ("ended", "Succeeded", {}),
    ):
        metadata = {"name": name, "uid": f"uid-{name}", **extra}
        pods[name] = PodView.of({"metadata": metadata, "status": {"phase": phase}})
    run._mirror.runs[KEY] = RunObjects(pods=pods)


def test_pods_without_their_job_are_deleted_one_by_one() -> None:
    server = Server(None)
    run = run_of(server, None)
    left(run)
    asyncio.run(run._end(Outcome(1, "the Job was deleted from outside", True)))
    assert [(method, path) for method, path, _ in server.written] == [
        ("DELETE", f"{PODS}/runs"),
        ("DELETE", f"/api/v1/namespaces/jobs/secrets/{NAME}"),
        ("DELETE", f"/api/v1/namespaces/jobs/services/{NAME}"),
    ]


def test_a_job_that_only_the_copy_lacks_is_found_and_nothing_is_deleted() -> None:
    server = Server(job())
    run = run_of(server, None)
    # Asked for, and the answer got lost.
    run._posted = True
    left(run)
    asyncio.run(run._end(Outcome(1, "the Job was deleted from outside", True)))
    assert server.written == []
    assert run._mirror.of(KEY).job == JobView.of(job())
    run._mirror.runs.clear()
    # Nor is Slurm told that its nodes are free.
    assert not asyncio.run(run._is_gone())
    server.found = None
    run._mirror.runs.clear()
    assert asyncio.run(run._is_gone())


# -- a gang and its agents ---------------------------------------------------------------------

HOSTS = ("gpu1", "gpu2")


class World:
    """What a run asks the bridge, answered by hand."""

    def __init__(self) -> None:
        self.slurm = Slurm.ACTIVE
        self.limit = 600.0
        self.streams = 32
        self.comments: list[str] = []
        self.faults = 0
        #: Of has_ended, one after the other; the last one stays.
        self.answers: list[bool | None] = [False]
        #: What came of being asked for another attempt, likewise.
        self.attempts: list[Exception | None] = [None]
        self.server: Server | None = None
        self.seeds: bytes | Exception = b"seed"

    async def seed(self) -> bytes:
        if isinstance(self.seeds, Exception):
            raise self.seeds
        return self.seeds

    async def put_back(self, run: Run, outcome: Outcome) -> None:
        answer = self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]
        assert self.server is not None
        self.server.written.append(("REQUEUE", outcome.text, answer))
        if answer is not None:
            raise answer
        run.put_back = True

    async def has_ended(self, _key: Key, _since: float) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise SlurmUnknownError("no answer")
        return answer

    def settings(self) -> Settings:
        return Settings(
            namespace="jobs",
            hub="127.0.0.1:1",
            kill_wait=60,
            gated=False,
            ranked=False,
            start_limit=self.limit,
            streams=self.streams,
        )

    def slurm_of(self, _key: Key) -> Slurm:
        return self.slurm

    def failed_nodes(self, _hosts: tuple[str, ...]) -> Mapping[int, str]:
        return {}

    def time_limit(self, _key: Key) -> float | None:
        return None

    def commented(self, _key: Key, text: str) -> None:
        self.comments.append(text)

    def faulted(self, _key: Key) -> None:
        self.faults += 1


class Pod:
    """An agent's end of the wire, by hand."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank = rank
        self.port = port
        self.told: list[dict[str, Any]] = []
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, state: str = "ready", **more: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        theirs = bytes.fromhex((await step.greeting(reader))["nonce"])
        mine = os.urandom(wire.NONCE_BYTES)
        session = wire.session(KEY_OF_JOB, NAME, self.rank, theirs, mine)
        proof = wire.proof(session, b"agent")
        writer.write(wire.control(job=NAME, node=self.rank, nonce=mine.hex(), proof=proof))
        await step.greeting(reader)
        self.writer, self.seal = writer, wire.Seal(session, server=False)
        self.report(state, **more)
        self._reading = asyncio.ensure_future(self._read(reader))

    def report(self, state: str, **more: Any) -> None:
        content = {"state": state, "pod": f"uid{self.rank}", "address": f"10.0.0.{self.rank}"}
        self.writer.write(self.seal.control(**content, **more))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async for _, payload in step.opened(reader, self.seal):
                self.told.append(wire.parse_control(payload))

    def ops(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["op"] == name]

    def drop(self) -> None:
        self.writer.transport.abort()


KEY_OF_JOB = b"k" * 64


def gang(run: Run, *phases: str, **status: Any) -> None:
    """A Job, and its pods as their kubelets report them."""
    marks = {names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0"}
    about = {names.ANNOTATION_HOSTS: ",".join(HOSTS)}
    metadata = {"name": NAME, "uid": "u", "labels": marks, "annotations": about}
    items = []
    for rank, phase in enumerate(phases):
        spec = {"nodeName": HOSTS[rank], "nodeSelector": {HOSTNAME: HOSTS[rank]}}
        labels = {**marks, INDEX: str(rank)}
        pod = {"name": f"p{rank}", "uid": f"uid{rank}", "labels": labels}
        items.append({"metadata": pod, "spec": spec, "status": {"phase": phase, **status}})
    run._mirror._replace("jobs", [{"metadata": metadata}])
    run._mirror._replace("pods", items)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    nodes = [{"metadata": {"name": host}, "status": ready} for host in HOSTS]
    run._mirror._replace("nodes", nodes)
    for kind in ("jobs", "pods", "nodes"):
        run._mirror._set_live(kind, True)


def made(world: World, server: Any) -> Run:
    kube = cast("Kube", server)
    run = Run(KEY, kube, Mirror(kube, "jobs", "lab"), cast("Any", world))
    run._secret_key, run._complete = KEY_OF_JOB, True
    return run


@contextlib.asynccontextmanager
async def driven(world: World, kube: Any) -> AsyncIterator[tuple[Run, int]]:
    """A run that is driven, and the port for its agents."""
    run = made(world, kube)
    run._mirror.on_change = lambda _key: run.wake()

    async def lookup(name: str) -> tuple[bytes, Crew] | None:
        return (KEY_OF_JOB, run) if name == NAME else None

    hub = Hub(lookup)
    port = await hub.start("127.0.0.1", 0)
    driver = asyncio.ensure_future(run.drive())
    try:
        yield run, port
    finally:
        driver.cancel()
        for agent in list(run.agents.values()):
            agent.hang_up()
        await hub.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_pod_whose_order_to_start_got_lost_gets_it_again() -> None:
    async def play() -> None:
        async with driven(World(), Server(None)) as (run, port):
            gang(run, "Running", "Running")
            pods = [Pod(rank, port) for rank in (0, 1)]
            for pod in pods:
                await pod.connect()
            await until(lambda: all(pod.ops("go") for pod in pods) and len(run._bodies) == 2)
            # As if it had not come: the connection broke with the order in it.
            pods[0].report("started")
            pods[1].drop()
            await until(lambda: 1 not in run.agents)
            # The first one is away for a moment; where it is reached is known.
            pods[0].drop()
            await until(lambda: 0 not in run.agents)
            again = Pod(1, port)
            await again.connect()
            await until(lambda: again.ops("go"))
            assert again.ops("go")[0]["peers"] == ["10.0.0.0", "10.0.0.1"]

    asyncio.run(play())


def test_an_outage_is_no_time_in_which_pods_failed_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("railweld.bridge.run.time.monotonic", lambda: clock[0])
    run = made(World(), Server(None))
    gang(run, "Pending", "Pending")
    run.view()
    clock[0] += 100
    assert run.view().waited == 100
    run._mirror._set_live("pods", False)
    run.view()
    clock[0] += 5000
    assert run.view().waited == 100
    run._mirror._set_live("pods", True)
    assert run.view().waited == 100
    clock[0] += 499
    assert decide(run.view()).act is Act.WAIT
    clock[0] += 2
    found = decide(run.view())
    assert found.act is Act.DELETE
    assert "did not start within 600 s: 0/2 pods" in found.text


REFUSED = KubeRefusedError(403, "Forbidden", "no")
SILENT = KubeUnknownError("no answer")


@pytest.mark.parametrize("fault", [REFUSED, SILENT, KeyError("status")])
def test_nothing_that_goes_wrong_stops_a_cancellation(fault: Exception) -> None:
    """Nobody else would end the pods: the epilog only waits for them."""

    async def play() -> None:
        world, server = World(), Server(None)
        # At the DELETE, and when it was looked whether the pods are gone.
        server.faults = [fault, fault]
        async with driven(world, server) as (run, _):
            gang(run, "Running", "Running")
            run.cancelled = True
            run.wake()
            await until(lambda: server.written)
            assert [method for method, _, _ in server.written] == ["DELETE"]
            server.faults = [fault]
            run._mirror._replace("jobs", [])
            run._mirror._replace("pods", [])
            await until(lambda: run.outcome)
            assert run.outcome is not None
            assert run.outcome.status == -15
            assert server.faults == []
        assert world.faults == (3 if isinstance(fault, KeyError) else 0)

    asyncio.run(play())


def test_a_step_that_is_refused_ends_the_job_though_the_server_falls_silent_then() -> None:
    async def play() -> None:
        world, server = World(), Server(job())
        world.seeds = REFUSED
        server.faults = [SILENT, SILENT]
        async with driven(world, server) as (run, _):
            run._secret_key, run._complete = None, False
            run._request = cast("Any", (SimpleNamespace(name=NAME), None, None))
            run.session = cast("Any", SimpleNamespace(note=lambda _text: None))
            gang(run, "Pending", "Pending")
            await until(lambda: len(server.written) == 2)
            assert [method for method, _, _ in server.written] == ["PATCH", "DELETE"]
            assert run._decided is not None
            assert run._decided.text == "no"

    asyncio.run(play())


def test_a_daemon_that_dies_behind_the_first_object_of_a_job_leaves_it_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one takes a Job that has its Secret for complete, so nothing comes after that."""
    objects: list[str] = []
    for kind in ("secret", "service"):
        monkeypatch.setattr(f"railweld.bridge.render.{kind}", lambda *_: {})

    async def make(kind: str, _manifest: object) -> bool:
        objects.append(kind)
        return True

    async def play(job_: dict[str, Any]) -> bool:
        world = World()
        run = made(world, Server(job_))
        monkeypatch.setattr(run, "_make", make)
        run._complete = False
        await run._complete_with(cast("Any", None), cast("Any", None), job_)
        return run._complete

    assert asyncio.run(play(job(template={"spec": {}})))
    assert objects == ["services", "secrets"]


def test_events_that_may_not_be_read_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railweld.bridge.run.OBSTACLE_SECONDS", -1.0)

    async def play() -> None:
        server = Server(None)
        server.refuses = True
        asked: list[str] = []
        answer = server.request

        async def request(method: str, path: str, body: Any = None, **more: object) -> Any:
            asked.append(path)
            return await answer(method, path, body, **more)

        monkeypatch.setattr(server, "request", request)
        async with driven(World(), server) as (run, _):
            gang(run)
            await until(lambda: run.wake() or len(asked) > 1)
            assert {path.rpartition("/")[2] for path in asked} == {"events"}
            assert run._decided is None
            assert run.trouble == ""

    asyncio.run(play())


# -- signals -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(world: World, server: Server) -> AsyncIterator[tuple[Run, list[Pod]]]:
    """A gang whose bodies run."""
    async with driven(world, server) as (run, port):
        gang(run, "Running", "Running")
        pods = [Pod(rank, port) for rank in (0, 1)]
        for pod in pods:
            await pod.connect("started", counts=True)
        await until(lambda: len(run._bodies) == 2)
        yield run, pods


def test_a_sigterm_that_is_not_slurms_end_goes_to_the_bodies() -> None:
    async def play() -> None:
        world, server = World(), Server(None)
        async with running(world, server) as (run, pods):
            run.signal("TERM", 1)
            await until(lambda: all(pod.ops("signal") for pod in pods))
            assert pods[0].ops("signal") == [{"op": "signal", "name": "TERM", "number": 1}]
            # The next one is.
            world.answers = [True]
            run.signal("TERM", 2)
            await until(lambda: run.cancelled and server.written)
            assert [len(pod.ops("signal")) for pod in pods] == [1, 1]
            assert [method for method, _, _ in server.written] == ["DELETE"]

    asyncio.run(play())


def test_the_bodies_need_not_wait_for_a_slurmctld_that_does_not_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("railweld.bridge.run.TERM_SECONDS", 0.05)
    monkeypatch.setattr("railweld.bridge.run.PAUSES", (0.2, 0.2, 0.2))

    async def play() -> None:
        world, server = World(), Server(None)
        world.answers = [None, None, True]
        async with running(world, server) as (run, pods):
            run.signal("TERM", 1)
            await until(lambda: all(pod.ops("signal") for pod in pods))
            assert not run.cancelled
            await until(lambda: run.cancelled)
            assert [len(pod.ops("signal")) for pod in pods] == [1, 1]

    asyncio.run(play())


def test_agents_that_connect_later_get_the_signals_too() -> None:
    async def play() -> None:
        async with driven(World(), Server(None)) as (run, port):
            gang(run, "Running", "Running")
            first = Pod(0, port)
            await first.connect(counts=True)
            await until(lambda: run.agents)
            run.signal("USR1", 1)
            run.signal("USR2", 2)
            # Of a client of an earlier release: it would be sent to some of them twice.
            run.signal("HUP")
            await until(lambda: len(first.ops("signal")) == 3)
            second, old = Pod(1, port), Pod(1, port)
            await second.connect(counts=True)
            await until(lambda: second.ops("go"))
            assert [each["name"] for each in second.ops("signal")] == ["USR1", "USR2"]
            # An agent that does not know numbers would take each as a new one.
            await old.connect()
            await until(lambda: old.ops("go"))
            assert old.ops("signal") == []

    asyncio.run(play())


# -- what of the output is missing -------------------------------------------------------------


def said_at_the_end(
    written: list[list[int]], *messages: str | None, streams: int = 32
) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Notes, exit events and AdminComments of a run whose pods ended with these last words."""
    world, server = World(), Server(None)
    world.streams = streams
    frames = bytearray()

    async def play() -> None:
        async with driven(world, server) as (run, port):
            gang(run, "Running", "Running")
            transport = SimpleNamespace(get_write_buffer_size=lambda: 0)
            writer = SimpleNamespace(
                write=frames.extend, is_closing=lambda: False, drain=done, transport=transport
            )
            session = Session(cast("Any", writer), 2001)
            session.take_written(written)
            run.session = session
            for rank in (0, 1):
                await Pod(rank, port).connect("started")
            await until(lambda: len(run._bodies) == 2)
            for rank, message in enumerate(messages):
                ended = {"exitCode": 0, "finishedAt": "2026-01-01T00:00:01Z", "message": message}
                status = {
                    "phase": "Succeeded",
                    "containerStatuses": [{"state": {"terminated": ended}}],
                }
                run._mirror._store("pods", ending(rank, status), deleted=False)
            run.wake()
            await until(lambda: run.outcome)
            await session.exit(0)
            assert run._mirror.printed == {}

    async def done() -> None:
        pass

    asyncio.run(play())
    told = [wire.parse_control(payload) for _, payload in wire.Decoder().feed(bytes(frames))]
    notes = [each["text"] for each in told if each["event"] == "note"]
    return notes, [each for each in told if each["event"] == "exit"], world.comments


def ending(rank: int, status: dict[str, Any]) -> dict[str, Any]:
    marks = {names.LABEL_JOB_ID: "7", names.LABEL_JOB_RESTART: "0", INDEX: str(rank)}
    spec = {"nodeName": HOSTS[rank], "nodeSelector": {HOSTNAME: HOSTS[rank]}}
    metadata = {"name": f"p{rank}", "uid": f"uid{rank}", "labels": marks}
    return {"metadata": metadata, "spec": spec, "status": status}


WORDS = '{"printed": [100, 7], "unwritten": 0}'


def test_the_batch_step_is_told_how_much_there_was_to_write() -> None:
    notes, exits, comments = said_at_the_end([[0, 1, 100], [0, 2, 7], [1, 1, 90]], WORDS, WORDS)
    assert notes == []
    rows = [[0, 1, 100, "gpu1"], [0, 2, 7, "gpu1"], [1, 1, 100, "gpu2"], [1, 2, 7, "gpu2"]]
    assert exits == [{"event": "exit", "status": 0, "printed": rows}]
    assert comments[-1] == "17 bytes of output were not in its file at the end"


@pytest.mark.parametrize("message", [None, "", "the body's own words", '{"printed": [1]}'])
def test_a_pod_without_last_words_is_named(message: str | None) -> None:
    notes, exits, _ = said_at_the_end([[0, 1, 100], [0, 2, 7]], WORDS, message)
    said = "gpu2: lines may be missing at the end: its pod left no word of them"
    assert notes == [f"{said}; see railweld-bridge logs 7"]
    assert [row[0] for row in exits[0]["printed"]] == [0, 0]


def test_what_a_node_could_not_write_to_its_own_file_is_said() -> None:
    words = '{"printed": [100, 0], "unwritten": 40}'
    notes, exits, _ = said_at_the_end([[0, 1, 100]], words, words, streams=1)
    assert notes == ["gpu2: 40 bytes are not in its own file; see railweld-bridge logs 7"]
    assert [row[0] for row in exits[0]["printed"]] == [0, 0]


def test_last_words_of_a_pod_that_is_gone_at_once_are_kept() -> None:
    run = made(World(), Server(None))
    gang(run, "Running", "Running")
    run.view()
    ended = {"exitCode": 0, "message": WORDS}
    status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}
    run._mirror._apply("pods", ending(1, status), deleted=True)
    assert run._mirror.printed[KEY] == {1: (100, 7, 0)}


def test_another_attempt_is_asked_for_before_the_job_is_deleted() -> None:
    """And nothing is deleted while slurmctld does not answer."""

    async def play() -> None:
        world, server = World(), Server(None)
        world.server = server
        silence = SlurmUnknownError("no answer")
        world.attempts = [silence, silence, None]
        async with running(world, server) as (run, _):
            status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
            run._mirror._store("pods", ending(1, status), deleted=False)
            run.wake()
            await until(lambda: run._decided)
        steps = [method for method, _, _ in server.written]
        assert steps == ["PATCH", "REQUEUE", "PATCH", "REQUEUE", "PATCH", "REQUEUE", "DELETE"]
        assert "low on memory" in server.written[1][1]

    asyncio.run(play())


def test_a_user_whose_pods_start_in_an_outage_is_told_once() -> None:
    async def play() -> None:
        notes: list[str] = []
        async with driven(World(), Server(None)) as (run, _):
            gang(run, "Pending", "Pending")
            run.session = cast("Any", SimpleNamespace(note=notes.append))
            run._mirror._set_live("pods", False)
            for _look in range(3):
                await until(lambda: not run._changed.is_set())
                run.wake()
            await until(lambda: notes and not run._changed.is_set())
            assert notes == ["the Kubernetes API does not answer"]

    asyncio.run(play())
