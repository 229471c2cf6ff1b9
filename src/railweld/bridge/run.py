"""One run of one job: carries out what `decide` says, and connects client and agents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from railweld import names
from railweld.bridge import render
from railweld.bridge.decide import Act, Decision, Slurm, State, View, decide
from railweld.bridge.hub import Agent
from railweld.bridge.kube import CONFLICT, NOT_FOUND, Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.mirror import Mirror, label_selector
from railweld.bridge.observed import JobView, Key, Outcome, PodView, Printed, write_outcome
from railweld.bridge.pod import wire
from railweld.bridge.session import Session
from railweld.bridge.slurm import SlurmUnknownError
from railweld.stack.objects import Manifest

_log = logging.getLogger(__name__)

#: A run is looked at this often even if nothing seems to have changed.
LOOK_SECONDS: Final = 5.0
PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
#: Failed attempts before the user is told why it takes so long.
PATIENCE: Final = 5
#: Notes about waiting, at most this often.
NOTE_SECONDS: Final = 15.0
LABELLED: Final = 2
#: So many nodes are named whose output is not complete.
LOST_LINES: Final = 8
#: A SIGTERM is passed on if slurmctld has not said by then why it was sent.
TERM_SECONDS: Final = 5.0
#: So many of the last signals are kept for agents that connect later.
SIGNALS: Final = 64
#: Pods that are not even made after so long are asked after.
OBSTACLE_SECONDS: Final = 5.0


class RunError(Exception):
    """This run cannot be; the text is for the user."""


@dataclass(frozen=True)
class Settings:
    """What all runs share."""

    namespace: str
    hub: str
    kill_wait: int
    gated: bool
    ranked: bool
    start_limit: float
    streams: int


class World(Protocol):
    """What a run asks the bridge about its surroundings."""

    def slurm_of(self, key: Key) -> Slurm:
        """What slurmctld says of a run."""

    def settings(self) -> Settings:
        """What all runs share."""

    def failed_nodes(self, hosts: tuple[str, ...]) -> Mapping[int, str]:
        """Ranks whose node is given up, and why."""

    def time_limit(self, key: Key) -> float | None:
        """Seconds that Slurm gives a run, infinite without a limit; None while that is unknown."""

    async def has_ended(self, key: Key, since: float) -> bool:
        """Whether Slurm has ended a run, asked after a moment; raises SlurmUnknownError."""

    async def may_create(self) -> None:
        """Raise RunError while pods would not be placed as Slurm says."""

    async def agent_config(self) -> str:
        """Name of the ConfigMap with the agent."""

    async def seed(self) -> bytes:
        """What the keys of runs are derived from."""

    def requeue(self, run: Run, agent: Agent) -> None:
        """A job asks to be requeued, from inside."""

    async def put_back(self, run: Run, outcome: Outcome) -> None:
        """Another attempt for a run, if it may have one; raises SlurmUnknownError."""

    def commented(self, key: Key, text: str) -> None:
        """Say in AdminComment what the job is doing."""

    def faulted(self, key: Key) -> None:
        """Count a fault of the bridge itself."""


class Run:
    """One run. All fields but the client's request can be found again after a restart."""

    def __init__(self, key: Key, kube: Kube, mirror: Mirror, world: World) -> None:
        self.key = key
        self._kube = kube
        self._mirror = mirror
        self._world = world
        self._changed = asyncio.Event()
        self._since = time.monotonic()
        #: Seconds of waiting for pods; while the API server is silent it may be that they start.
        self._waited = 0.0
        self._looked: float | None = None
        self._failing_since: float | None = None
        self._over_since: float | None = None
        self._ran = False
        #: Whether the API server was ever asked to make the Job, whatever it answered.
        self._posted = False
        self._obstacle = ""
        self._obstacle_at = 0.0
        self._noted = ("", 0.0)
        #: Why the last step failed; empty if it did not.
        self.trouble = ""
        self._secret_key: bytes | None = None
        self._request: tuple[render.Facts, render.Request, Manifest] | None = None
        self._complete = False
        self.owner: int | None = None
        self.name: str | None = None
        self.hosts: tuple[str, ...] = ()
        self.session: Session | None = None
        self.agents: dict[int, Agent] = {}
        #: Pods whose body was started, by rank: their agents' connections may come and go.
        self._bodies: dict[int, str] = {}
        #: What each rank's agent said last, and ranks whose pod has ended.
        self._printed: dict[int, Printed] = mirror.printed.setdefault(key, {})
        self._exited: set[int] = set()
        #: Where each rank is reached, also while its agent is away.
        self._addresses: dict[int, tuple[str, int]] = {}
        #: What the batch step was sent, by number; agents that connect later get it too.
        self._signals: dict[int, str] = {}
        #: SIGTERMs of which is not known yet whether they are Slurm's end of the job.
        self._terms: list[int | None] = []
        self._judging: asyncio.Task[None] | None = None
        self.created = False
        #: Whether Slurm runs the job again, and how often slurmctld was told to.
        self.put_back = False
        self.requeues = 0
        #: What is in the output already, of what is said once.
        self._told: set[str] = set()
        self.cancelled = False
        self.decision = Decision(Act.WAIT, State.UNKNOWN)
        self._decided: Outcome | None = None
        self._seen: Outcome | None = None
        self.outcome: Outcome | None = None
        #: When each state was first reached, seconds since the epoch.
        self.times: dict[str, float] = {}

    # -- what comes in -----------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed; look again."""
        self._changed.set()

    def attach(
        self,
        session: Session,
        facts: render.Facts,
        request: render.Request,
        template: Manifest,
        *,
        created: bool,
    ) -> None:
        """A client is there, with the script."""
        self.session = session
        self.owner = facts.uid
        self.name = facts.name
        self._request = (facts, request, template)
        self.created = self.created or created
        if not self.hosts:
            self.hosts = facts.hosts
        session.attached(self.name if self.created else None, self._labels())
        for agent in self.agents.values():
            self._show(agent)
        self.wake()

    def detach(self, session: Session) -> None:
        """The client's connection ended. That alone ends nothing: slurmctld decides."""
        if self.session is session:
            self.session = None
            for agent in self.agents.values():
                agent.send(op="hide")
            self.wake()

    def signal(self, name: str, number: Any = None) -> None:
        """The batch step got a signal; its client says each again when it comes back."""
        known = number if isinstance(number, int) and number > 0 else None
        if name != "TERM":
            self._relay(name, known)
            return
        self._terms.append(known)
        if self._judging is None:
            self._judging = asyncio.ensure_future(self._judge())

    def _relay(self, name: str, number: int | None) -> None:
        """Pass a signal to the bodies: each gets it once, those that are not there yet later."""
        if number is not None:
            self._signals[number] = name
            for old in sorted(self._signals)[:-SIGNALS]:
                del self._signals[old]
        for agent in self.agents.values():
            agent.send(op="signal", name=name, number=number)

    async def _judge(self) -> None:
        """Tell a SIGTERM that somebody asked for from the one with which Slurm ends a job.

        Slurm marks a job as ended before it sends that, so one look is enough. Where slurmctld does
        not answer soon the bodies get the signal meanwhile, which is no harm to those that are
        ended anyway; Slurm has patience for KillWait.
        """
        asking: asyncio.Future[bool] | None = None
        try:
            while self._terms:
                terms = list(self._terms)
                asking = asyncio.ensure_future(self._has_ended(time.monotonic()))
                answered, _ = await asyncio.wait({asking}, timeout=TERM_SECONDS)
                if not answered or not asking.result():
                    for number in terms:
                        self._relay("TERM", number)
                if await asking:
                    self.cancelled = True
                    self.wake()
                    return
                del self._terms[: len(terms)]
        finally:
            self._judging = None
            if asking is not None:
                asking.cancel()

    async def _has_ended(self, since: float) -> bool:
        while True:
            try:
                return await self._world.has_ended(self.key, since)
            except SlurmUnknownError as error:
                _log.warning("why SIGTERM?", extra={"run": str(self.key), "error": str(error)})
                await asyncio.sleep(PAUSES[2])

    def note_once(self, text: str) -> None:
        """A line in the job's output, if it is not there yet."""
        if self.session is not None and text not in self._told:
            self._told.add(text)
            self.session.note(text)

    def written(self, rows: list[Any]) -> None:
        """The client wrote output to the file: its agents may forget it."""
        if self.session is None:
            return
        for node, stream, offset in self.session.take_written(rows):
            agent = self.agents.get(node)
            if agent is not None:
                agent.send(op="written", stream=stream, offset=offset)

    # -- agents (hub.Crew) -------------------------------------------------------------------

    def joined(self, agent: Agent) -> None:
        """An agent connected."""
        previous = self.agents.get(agent.rank)
        if previous is not None:
            previous.hang_up()
        if agent.rank >= len(self.hosts) > 0:
            agent.hang_up()
            return
        self.agents[agent.rank] = agent
        self._show(agent)
        if agent.counts:
            for number, name in sorted(self._signals.items()):
                agent.send(op="signal", name=name, number=number)
        self._end_idle()
        self.wake()

    def left(self, agent: Agent) -> None:
        """Its connection ended; it comes back if its pod lives."""
        if self.agents.get(agent.rank) is agent:
            del self.agents[agent.rank]
            self.wake()

    def told(self, agent: Agent, content: dict[str, Any]) -> None:
        """It said something."""
        if "note" in content and self.session is not None:
            self.session.note(f"{self._host(agent.rank)}: {str(content['note'])[:500]}")
        if content.get("op") == "requeue":
            self._world.requeue(self, agent)
        self._end_idle()
        self.wake()

    def _end_idle(self) -> None:
        """The first node's body has ended: pods that wait for its steps may end too."""
        leader = self.agents.get(0)
        ended = leader is not None and leader.state == "ended"
        pods = self._mirror.of(self.key).pods.values()
        if ended or any(pod.index == 0 and pod.terminal for pod in pods):
            for agent in self.agents.values():
                if agent.idle:
                    agent.send(op="end")

    async def shown(self, agent: Agent, piece: wire.Output) -> None:
        """Output of a body, on its way to the file."""
        if self.session is not None and self._is_shown(agent.rank):
            await self.session.output(piece)

    def _show(self, agent: Agent) -> None:
        if not self._is_shown(agent.rank):
            agent.send(op="hide", never=True)
            return
        if self.session is None:
            return
        written = self.session.written
        agent.send(
            op="show", **{str(stream): written.get((agent.rank, stream), 0) for stream in (1, 2)}
        )

    def _is_shown(self, rank: int) -> bool:
        return rank == 0 or len(self.hosts) <= self._world.settings().streams

    def _labels(self) -> Mapping[int, str] | None:
        mode = self._request[1].mode if self._request else ""
        if mode == "leader" or not LABELLED <= len(self.hosts) <= self._world.settings().streams:
            return None
        return dict(enumerate(self.hosts))

    def _host(self, rank: int) -> str:
        return self.hosts[rank] if rank < len(self.hosts) else str(rank)

    # -- the key -----------------------------------------------------------------------------

    async def secret_key(self) -> bytes | None:
        """The key that the run's agents show; found again after a restart.

        The Secret goes as soon as its Job is being deleted, while pods still take their grace and
        print; their agents' key then follows from the Job's uid.
        """
        if self._secret_key is None and self.name is not None:
            try:
                found = await self._kube.get(self._path("secrets", self.name))
                if found is not None:
                    self._secret_key = base64.b64decode(found["data"]["key"])
                    self._complete = True
                elif uid := self._mirror.of(self.key).job_uid:
                    return render.key(await self._world.seed(), uid)
            except (KubeUnknownError, KubeRefusedError):
                return None
        return self._secret_key

    # -- the loop ----------------------------------------------------------------------------

    def _count_waiting(self) -> float:
        """Seconds since the Job was made, as far as it is known what happened in them."""
        now = time.monotonic()
        if self._looked is not None:
            self._waited += now - self._looked
        self._looked = now if self._mirror.live else None
        return self._waited

    def view(self) -> View:
        """Everything that the next decision rests on."""
        objects = self._mirror.of(self.key)
        job = objects.job
        self._end_idle()
        if job is not None:
            self.created = True
            self.name, self.owner = job.name, job.owner
            self.hosts = job.hosts
            if job.finished and self._over_since is None:
                self._over_since = time.monotonic()
        for pod in objects.pods.values():
            if pod.exit_code is not None:
                self._exited.add(pod.index)
            if pod.printed is not None:
                self._printed[pod.index] = pod.printed
        settings = self._world.settings()
        uids = {pod.index: pod.uid for pod in objects.pods.values()}
        agents = {
            rank: agent for rank, agent in self.agents.items() if uids.get(rank) == agent.pod_uid
        }
        for rank, agent in agents.items():
            if agent.state == "ready":
                # The order to start it may have been lost with a connection.
                self._bodies.pop(rank, None)
            else:
                self._bodies[rank] = agent.pod_uid
            if agent.address:
                self._addresses[rank] = (agent.address, agent.port)
        started = {rank for rank, uid in self._bodies.items() if uids.get(rank) == uid} | {
            pod.index for pod in objects.pods.values() if pod.terminal
        }
        self._ran = self._ran or 0 < len(self.hosts) == len(started)
        return View(
            hosts=self.hosts,
            slurm=self._world.slurm_of(self.key),
            live=self._mirror.live,
            job=job,
            pods=objects.pods,
            attached=self.session is not None and self._request is not None,
            created=self.created,
            complete=self._complete,
            cancelled=self.cancelled,
            ready={rank for rank, agent in agents.items() if agent.state == "ready"},
            started=started,
            settled=self._mirror.settled(objects.pods),
            waited=self._count_waiting(),
            start_limit=settings.start_limit,
            gated=settings.gated,
            obstacle=self._obstacle,
            failing=_since(self._failing_since),
            over=_since(self._over_since),
            ran=self._ran,
            failed_nodes=self._world.failed_nodes(self.hosts),
            decided=self._decided,
            seen=self._seen,
        )

    async def drive(self) -> Outcome:
        """Bring the run to its end; returns how it ended once nothing of it is left.

        Whatever goes wrong, it goes on from what is observed: nobody else would end the pods, and
        Slurm's epilog waits for them.
        """
        attempt = 0
        while True:
            self._changed.clear()
            try:
                outcome = await self._look()
            except KubeUnknownError as error:
                _log.warning("waiting", extra={"run": str(self.key), "error": str(error)})
                if attempt >= PATIENCE:
                    self._say_trouble(f"this takes long: {error}")
            except KubeRefusedError as error:
                _log.warning("refused", extra={"run": str(self.key), "error": str(error)})
                self._say_trouble(f"Kubernetes refuses what ends the job: {error}")
            except Exception as error:  # noqa: BLE001 - a run without a driver holds its nodes for ever
                _log.exception("fault", extra={"run": str(self.key)})
                self._world.faulted(self.key)
                self._say_trouble(f"a fault of the bridge: {error!r}; see journalctl -u bridged")
            else:
                if outcome is not None:
                    try:
                        self._account()
                    except Exception:  # noqa: BLE001 - the nodes are free: no reason to hold them
                        _log.exception("fault", extra={"run": str(self.key)})
                        self._world.faulted(self.key)
                    self._mirror.printed.pop(self.key, None)
                    self.outcome = outcome
                    if self._judging is not None:
                        self._judging.cancel()
                    return outcome
                attempt, self.trouble = 0, ""
                with contextlib.suppress(TimeoutError):
                    # Not wait_for, which before Python 3.12 may lose a cancellation.
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()
                continue
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1

    async def _look(self) -> Outcome | None:
        """See where the run is and do the next step; returns how it ended."""
        decision = decide(self.view())
        self._note(decision)
        if decision.act is Act.FINISH and await self._is_gone():
            return decision.outcome
        try:
            await self._step(decision)
        except (KubeRefusedError, RunError, ValueError) as error:
            if decision.act is Act.DELETE:
                raise
            failed = Outcome(1, str(error), True)
            if not self.created:
                return failed
            _log.exception("failed", extra={"run": str(self.key)})
            # What is there already is deleted at the next look.
            self._decided = failed
            self.wake()
            return None
        await self._find_obstacle(decision)
        await self._keep_deadline()
        return None

    def _account(self) -> None:
        """Say what of the output is not where the user looks for it, before the batch step ends.

        What it still has to write it knows better: it gets the numbers, and says so itself.
        """
        session = self.session
        if session is None:
            return
        lines, late = [], 0
        ran = {*self._bodies, *self._exited, *(rank for rank, _ in session.written)}
        for rank in sorted(ran | self._printed.keys()):
            host, printed = self._host(rank), self._printed.get(rank)
            if printed is None:
                lines.append(
                    f"{host}: lines may be missing at the end: its pod left no word of them"
                )
            elif not self._is_shown(rank):
                if printed.unwritten:
                    lines.append(f"{host}: {printed.unwritten} bytes are not in its own file")
            else:
                for stream, count in ((1, printed.stdout), (2, printed.stderr)):
                    session.printed.append((rank, stream, count, host))
                    late += max(count - session.written.get((rank, stream), 0), 0)
        if late:
            self._world.commented(
                self.key, f"{late} bytes of output were not in its file at the end"
            )
        if late or lines:
            extra = {"run": str(self.key), "late": late, "why": "; ".join(lines)}
            _log.warning("output is not complete", extra=extra)
        for line in lines[:LOST_LINES]:
            session.note(f"{line}; see railweld-bridge logs {self.key.job_id}")
        if len(lines) > LOST_LINES:
            session.note(f"and {len(lines) - LOST_LINES} nodes more")

    def _say_trouble(self, text: str) -> None:
        """Why the run does not go on, once, for its user and for the operator."""
        if text != self.trouble and self.session is not None:
            self.session.note(f"{text}; trying again")
        self.trouble = text

    async def _step(self, decision: Decision) -> None:
        match decision.act:
            case Act.CREATE:
                await self._create()
            case Act.COMPLETE:
                await self._complete_job()
            case Act.PLACE:
                await self._place()
            case Act.GO:
                self._go()
            case Act.DELETE:
                assert decision.outcome is not None  # noqa: S101 - DELETE always has one
                await self._end(decision.outcome)
                self._decided = decision.outcome
            case Act.WAIT | Act.FINISH:
                pass

    def _note(self, decision: Decision) -> None:
        """Tell the user, the log and AdminComment what changed."""
        before, self.decision = self.decision, decision
        self._seen = decision.outcome or self._seen
        own = decision.outcome is not None and decision.outcome.status > 0
        if own and self._failing_since is None:
            self._failing_since = time.monotonic()
        if decision.state is not before.state:
            self.times.setdefault(decision.state, time.time())
            _log.info(
                "state",
                extra={"run": str(self.key), "state": decision.state, "why": decision.text},
            )
        said, when = self._noted
        now = time.monotonic()
        if decision.text == said or self.session is None:
            return
        late = now - self._since > NOTE_SECONDS and now - when > NOTE_SECONDS
        if decision.state is State.STARTING and not late:
            return
        self._noted = (decision.text, now)
        if decision.state in (State.STARTING, State.UNKNOWN):
            self.session.note(decision.text)
        if decision.state is not State.UNKNOWN:
            self._world.commented(self.key, f"{decision.state}: {decision.text}")

    # -- steps -------------------------------------------------------------------------------

    def _path(self, kind: str, name: str = "") -> str:
        base = f"/namespaces/{self._world.settings().namespace}/{kind}"
        prefix = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        return f"{prefix}{base}/{name}" if name else f"{prefix}{base}"

    async def _create(self) -> None:
        """Make the Job; one of that name is ours after a crash, or an earlier job's."""
        assert self._request is not None  # noqa: S101 - decide() saw a client
        facts, request, template = self._request
        await self._world.may_create()
        settings = self._world.settings()
        manifest = render.job(
            facts,
            request,
            template,
            namespace=settings.namespace,
            hub=settings.hub,
            agent=await self._world.agent_config(),
            kill_wait=settings.kill_wait,
            gated=settings.gated,
            ranked=settings.ranked,
        )
        # Refused here, before anything is made, rather than with pods waiting for it.
        trial = {**manifest, "metadata": {**manifest["metadata"], "uid": ""}}
        render.secret(facts, request, trial, "0" * 64)
        self._since = time.monotonic()
        self._waited, self._looked = 0.0, self._since
        self._posted = True
        try:
            made = await self._kube.request("POST", self._path("jobs"), manifest)
        except KubeRefusedError as error:
            if error.status != CONFLICT:
                raise
            made = await self._adopt(facts)
        self.created = True
        self._mirror.seen(self.key, made)
        self.hosts = JobView.of(made).hosts
        if self.session is not None:
            self.session.attached(self.name, self._labels())
        await self._complete_with(facts, request, made)
        self.wake()

    async def _adopt(self, facts: render.Facts) -> Manifest:
        found = await self._kube.get(self._path("jobs", facts.name))
        if found is None:
            raise KubeUnknownError(f"{facts.name}: went while it was looked at")
        view = JobView.of(found)
        if view.owner != facts.uid or view.submitted != facts.submitted:
            raise RunError(
                f"Job {facts.name}: found one of another submission ({view.submitted}, uid "
                f"{view.owner}); it is removed as soon as Slurm no longer knows it"
            )
        return found

    async def _complete_job(self) -> None:
        """Make what a crash left out."""
        assert self._request is not None  # noqa: S101 - decide() saw a client
        facts, request, _ = self._request
        found = await self._kube.get(self._path("jobs", facts.name))
        if found is None:
            return
        await self._complete_with(facts, request, found)
        self.wake()

    async def _complete_with(
        self, facts: render.Facts, request: render.Request, job: Manifest
    ) -> None:
        key = render.key(await self._world.seed(), job["metadata"]["uid"])
        secret = render.secret(facts, request, job, key.decode())
        # The Secret last: a daemon that finds it takes the objects for complete.
        if not job["spec"]["template"]["spec"].get("hostNetwork"):
            await self._make("services", render.service(facts, job))
        if await self._make("secrets", secret):
            self._secret_key = key
        else:
            self._secret_key = None
            if await self.secret_key() is None:
                raise KubeUnknownError(f"Secret {facts.name}: cannot be read back")
        self._complete = True

    async def _make(self, kind: str, manifest: Manifest) -> bool:
        try:
            await self._kube.request("POST", self._path(kind), manifest)
        except KubeRefusedError as error:
            if error.status != CONFLICT:
                raise
            found = await self._kube.get(self._path(kind, manifest["metadata"]["name"]))
            owners = (found or {}).get("metadata", {}).get("ownerReferences") or [{}]
            if found and owners[0].get("uid") != manifest["metadata"]["ownerReferences"][0]["uid"]:
                # Of an earlier Job of this name; its owner is gone, so it goes too.
                await self._kube.request("DELETE", self._path(kind, found["metadata"]["name"]))
                raise KubeUnknownError(
                    f"{kind} {found['metadata']['name']}: was an old one"
                ) from error
            return False
        return True

    async def _place(self) -> None:
        """Before Kubernetes 1.36: give each pod its node and lift its gate, in one patch."""
        pods = [pod for pod in self._mirror.of(self.key).pods.values() if pod.gated]
        results = await asyncio.gather(*map(self._place_one, pods), return_exceptions=True)
        for each in results:
            if isinstance(each, BaseException):
                raise each

    async def _place_one(self, pod: PodView) -> None:
        if not 0 <= pod.index < len(self.hosts):
            raise RunError(f"pod {pod.name}: found no rank for it")
        body = {
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.hosts[pod.index]},
                "schedulingGates": [],
            }
        }
        try:
            # In a strategic merge, gates merge by name and an empty list removes nothing.
            await self._kube.request(
                "PATCH",
                self._path("pods", pod.name),
                body,
                content="application/merge-patch+json",
            )
        except KubeRefusedError as error:
            if error.status != NOT_FOUND:
                raise

    async def _find_obstacle(self, decision: Decision) -> None:
        """Why the Job controller makes no pods: a quota, a policy. Only its events say so."""
        now = time.monotonic()
        late = now - self._since > OBSTACLE_SECONDS and now - self._obstacle_at > OBSTACLE_SECONDS
        objects = self._mirror.of(self.key)
        if decision.state is not State.STARTING or not late or objects.job is None:
            return
        if len(objects.pods) >= len(self.hosts):
            self._obstacle = ""
            return
        self._obstacle_at = now
        try:
            items = await self._kube.request(
                "GET",
                self._path("events"),
                query={
                    "fieldSelector": f"involvedObject.uid={objects.job.uid},reason=FailedCreate"
                },
            )
        except KubeRefusedError as error:
            # The pods may come all the same; only the reason for their absence stays unknown.
            _log.warning("events refused", extra={"run": str(self.key), "error": str(error)})
            return
        if items["items"]:
            newest = max(items["items"], key=lambda each: str(each.get("lastTimestamp") or ""))
            found = str(newest.get("message") or "")
            if found != self._obstacle:
                self._obstacle = found
                self.wake()

    async def _keep_deadline(self) -> None:
        """Kubernetes ends no job that Slurm still gives time: limits are changed, and overrun."""
        job, limit = self._mirror.of(self.key).job, self._world.time_limit(self.key)
        if job is None or job.deleting or job.finished or limit is None:
            return
        age = 0.0 if job.started is None else time.time() - job.started
        wanted = render.kept_deadline(job.deadline, limit, self._world.settings().kill_wait, age)
        if wanted == job.deadline:
            return
        try:
            made = await self._kube.request(
                "PATCH",
                self._path("jobs", job.name),
                {"metadata": {"uid": job.uid}, "spec": {"activeDeadlineSeconds": wanted}},
                content="application/merge-patch+json",
            )
        except KubeRefusedError as error:
            # No reason to end it now; asked again at the next look.
            _log.warning("deadline refused", extra={"run": str(self.key), "error": str(error)})
        else:
            _log.info("deadline", extra={"run": str(self.key), "seconds": wanted})
            self._mirror.seen(self.key, made)

    def _go(self) -> None:
        """Every pod is there: start the bodies."""
        pods = self._mirror.of(self.key).pods.values()
        # One that has ended since the daemon started was never met.
        known = {pod.index: (pod.ip, 0) for pod in pods} | self._addresses
        peers = [known.get(rank, ("", 0))[0] for rank in range(len(self.hosts))]
        for agent in self.agents.values():
            if agent.state == "ready":
                agent.send(op="go", peers=peers, leader=list(known[0]) if 0 in known else None)
                agent.state = "started"

    async def _end(self, outcome: Outcome) -> None:
        """Delete the Job; why is written on it first, if it is not Slurm's own wish."""
        objects = self._mirror.of(self.key)
        if objects.job is None:
            await self._end_orphans()
            return
        if objects.job.deleting:
            return
        path = self._path("jobs", objects.job.name)
        try:
            if outcome.status >= 0 and objects.job.outcome is None:
                note = {names.ANNOTATION_OUTCOME: write_outcome(outcome)}
                await self._kube.request(
                    "PATCH",
                    path,
                    {"metadata": {"annotations": note, "uid": objects.job.uid}},
                    content="application/merge-patch+json",
                )
            await self._put_back(outcome)
            await self._kube.request(
                "DELETE",
                path,
                {
                    "kind": "DeleteOptions",
                    "apiVersion": "v1",
                    # The Job stays, as being deleted, until its pods are gone.
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": objects.job.uid},
                },
            )
        except KubeRefusedError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def _put_back(self, outcome: Outcome) -> None:
        """Ask for another attempt while the Job is there.

        Afterwards nothing tells a daemon that starts anew that there is to be one. Slurm starts it
        only when the epilogs have seen the pods go.
        """
        if not outcome.again:
            return
        self.note_once(outcome.text)
        try:
            await self._world.put_back(self, outcome)
        except SlurmUnknownError as error:
            raise KubeUnknownError(f"nothing is deleted before Slurm answers: {error}") from error

    async def _end_orphans(self) -> None:
        """Delete what a Job has left that was taken away without its objects."""
        if await self._find_job():
            return
        name = render.run_name(self._cluster(), self.key)
        paths = [
            self._path("pods", pod.name)
            for pod in self._mirror.of(self.key).pods.values()
            if not pod.deleting and not pod.terminal
        ]
        for path in (*paths, self._path("secrets", name), self._path("services", name)):
            try:
                await self._kube.request("DELETE", path)
            except KubeRefusedError as error:
                if error.status != NOT_FOUND:
                    raise

    async def _find_job(self) -> bool:
        """Whether there is a Job that the copy, begun anew at the wrong moment, does not have."""
        name = render.run_name(self._cluster(), self.key)
        found = await self._kube.get(self._path("jobs", name))
        if found is not None:
            self._mirror.seen(self.key, found)
            self.wake()
        return found is not None

    async def _is_gone(self) -> bool:
        """Look once more, past every cache, before Slurm is told that its nodes are free."""
        if not self.created and not self._posted:
            return True
        if self._mirror.of(self.key).job is None and await self._find_job():
            return False
        items, _ = await self._kube.list(
            self._path("pods"), labels=label_selector(self._cluster(), self.key)
        )
        pods = {each["metadata"]["name"]: PodView.of(each) for each in items}
        return self._mirror.settled(pods)

    def _cluster(self) -> str:
        return self._mirror.cluster


def _since(moment: float | None) -> float:
    return 0.0 if moment is None else time.monotonic() - moment


Driver = Callable[[Run], Awaitable[None]]
