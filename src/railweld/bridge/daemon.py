"""`bridged`: one daemon per Slurm cluster, the only one with rights in Kubernetes.

It keeps no state of its own: what runs is in Kubernetes' labels and in slurmctld.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import fcntl
import grp
import itertools
import logging
import math
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from railweld import names
from railweld.bridge import environment, logs, monitor, nodes, render, script
from railweld.bridge.config import Config, load, split_address
from railweld.bridge.decide import Slurm as SlurmState
from railweld.bridge.desk import Desk
from railweld.bridge.hub import Agent, Crew, Hub
from railweld.bridge.kube import CONFLICT, NOT_FOUND, Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.mirror import Mirror
from railweld.bridge.observed import JobView, Key, Outcome
from railweld.bridge.pod import wire
from railweld.bridge.run import Run, RunError, Settings
from railweld.bridge.server import Attach, Frames, Refused, Server, is_privileged, number
from railweld.bridge.session import Session
from railweld.bridge.slurm import Slurm, SlurmJob, SlurmNode, SlurmUnknownError
from railweld.bridge.token import Renewal
from railweld.errors import RailweldError
from railweld.stack.bridge import PIN_POLICY
from railweld.stack.objects import Manifest

_log = logging.getLogger(__name__)

#: Slurm's own default; the real one is read from slurmctld.
KILL_WAIT: Final = 30
#: Settings of slurmctld are read again after so long: KillWait takes a `reconfigure` only.
SETTINGS_SECONDS: Final = 60.0
#: A policy that was there so long ago is looked at again before the next Job.
POLICY_SECONDS: Final = 30.0
#: A job that slurmctld has just launched may not show as running yet.
LAUNCH_SECONDS: Final = 10.0
#: Looks that must agree before a job counts as ended.
LOOKS: Final = 2
#: Node changes are carried over no more often than this.
NODES_SECONDS: Final = 1.0
#: How often a client's request looks again whether the API server answers.
LIVE_SECONDS: Final = 0.2
#: Silence about a batch step that waits; restarts of the daemon and of others are over sooner.
PATIENCE_SECONDS: Final = 10.0
#: What is said of an API server that is not reached.
API_SILENT: Final = "the Kubernetes API does not answer"
#: Between tries to requeue a job.
REQUEUE_PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
#: A slurmctld that answers, and has refused a requeue so often, will not do it.
REFUSALS: Final = 5
#: Questions to the name service at a time.
NAME_THREADS: Final = 8
#: How often an account is looked for again that is not found.
ACCOUNT_SECONDS: Final = 1.0
#: How often waiting epilogs are looked at, at most.
EPILOG_SECONDS: Final = 0.2


@dataclass(eq=False)
class Epilog:
    """Slurm's Epilog on a host, or EpilogSlurmctld: held until nothing of the job is there."""

    job_id: int
    host: str | None
    asked: float = field(default_factory=time.monotonic)
    released: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Waiting:
    """Tells the user of a batch step what it waits for, once, if that takes a while."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._since = time.monotonic()
        self._said: set[str] = set()

    def note(self, reason: str) -> None:
        """It still waits, and for this."""
        if reason not in self._said and time.monotonic() - self._since > PATIENCE_SECONDS:
            self._said.add(reason)
            self._session.note(f"{reason}; the job waits")


@dataclass(frozen=True)
class Account:
    """A user, as this machine knows it."""

    user: str
    group: str
    home: str
    groups: tuple[int, ...]

    @classmethod
    def of(cls, uid: int, gid: int) -> Account:
        """Ask the name service, which may take its time; KeyError where it does not know."""
        account = pwd.getpwuid(uid)
        groups = os.getgrouplist(account.pw_name, gid)
        group = grp.getgrgid(gid).gr_name
        return cls(account.pw_name, group, account.pw_dir, tuple(each for each in groups if each))


class Bridge:
    """The daemon: runs, and what they share."""

    def __init__(self, config: Config, *, kube: Kube, slurm: Slurm) -> None:
        self.config = config
        self.kube = kube
        self.slurm = slurm
        self.mirror = Mirror(kube, config.namespace, config.cluster)
        self.mirror.on_change = self._on_change
        self.hub = Hub(self._crew)
        self.server = Server(self)
        self.server.handle("epilog", self._epilog)
        self.desk = Desk(self)
        self.runs: dict[Key, Run] = {}
        self._drivers: dict[Key, asyncio.Task[None]] = {}
        #: For the name service alone: one that hangs must not keep the API server's name from being
        #: looked up, which has the threads of the event loop.
        self._names = ThreadPoolExecutor(NAME_THREADS, "names")
        #: Runs whose client waits to be connected: one at a time.
        self._attaching: set[Key] = set()
        #: Runs of which a pod has asked for a requeue that slurmctld has not answered yet.
        self._requeued: dict[Key, Agent] = {}
        self._jobs: dict[int, SlurmJob] | None = None
        self._jobs_at = float("-inf")
        #: Looks in a row that found a run ended; and when the Kubernetes objects were first seen.
        self._ended: dict[Key, int] = {}
        self._agent: str | None = None
        self._seed: bytes | None = None
        self._policy_seen = float("-inf")
        self._gated = config.placement == "patch"
        self._ranked = config.placement == "affinity"
        self._kill_wait = KILL_WAIT
        self._settings_at = float("-inf")
        self._comments: dict[Key, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Runs that came to their end and whose objects are still there.
        self._done: set[Key] = set()
        self._kept: dict[Key, float] = {}
        #: Hostnames of nodes that are given up, and why.
        self.lost: dict[str, str] = {}
        #: Epilogs that wait for their node, and whether there is reason to look at them again.
        self._epilogs: set[Epilog] = set()
        self._news = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._nodes_changed = asyncio.Event()
        self.mirror.on_nodes = self._on_nodes
        #: Why the states of nodes do not reach Slurm.
        self._nodes_trouble = ""
        #: Updates of Slurm nodes, for the metrics.
        self.node_updates = 0
        #: None for credentials that are not a token in a file.
        self.renewal = Renewal(kube, kube.token_file) if kube.token_file else None
        self.hub_port = 0
        self.finished: dict[str, int] = {}
        #: Faults of the bridge itself in following runs, for the metrics.
        self.faults = 0
        self.started_at = time.time()

    # -- life --------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run until cancelled."""
        await self._prepare()
        host, port = self.config.listen_at
        self.hub_port = await self.hub.start(host, port)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.mirror.follow())
            group.create_task(self._tick())
            group.create_task(self._comment())
            group.create_task(self._sync_nodes())
            group.create_task(self._answer_epilogs())
            if self.renewal is not None:
                group.create_task(self.renewal.run())
            await self.server.start(self.config.socket)
            if self.config.monitor_at is not None:
                group.create_task(monitor.serve(self, *self.config.monitor_at))
            _log.info("serving", extra={"socket": str(self.config.socket), "hub": self.hub_port})
            _ready()

    async def _prepare(self) -> None:
        """Learn Slurm's settings as soon as slurmctld answers, and what `reconfigure` changes."""
        if time.monotonic() - self._settings_at < SETTINGS_SECONDS:
            return
        try:
            settings = await self.slurm.settings()
        except SlurmUnknownError as error:
            _log.warning("slurmctld does not say its settings", extra={"error": str(error)})
            return
        self._take_settings(settings)
        self._settings_at = time.monotonic()

    def _take_settings(self, settings: Mapping[str, str]) -> None:
        words = settings.get("KillWait", "").split()
        if words and words[0].isdecimal() and int(words[0]) != self._kill_wait:
            self._kill_wait = int(words[0])
            _log.info("KillWait", extra={"seconds": self._kill_wait})
        cluster = settings.get("ClusterName")
        if cluster and cluster != self.config.cluster:
            raise RailweldError(
                f"cluster: found {cluster} in slurmctld, expected {self.config.cluster} as in the "
                "bridge's configuration. Fix: run playbooks/deploy-slurm.yml"
            )

    # -- what runs ask (run.World) -----------------------------------------------------------

    def settings(self) -> Settings:
        """What all runs share."""
        host, port = split_address("advertise", self.config.advertise)
        return Settings(
            namespace=self.config.namespace,
            hub=f"{host}:{port or self.hub_port}",
            kill_wait=self._kill_wait,
            gated=self._gated,
            ranked=self._ranked,
            start_limit=self.config.start_limit,
            streams=self.config.streams,
        )

    def slurm_of(self, key: Key) -> SlurmState:
        """What slurmctld says of a run, if it was asked lately."""
        if self._jobs is None or time.monotonic() - self._jobs_at > 4 * self.config.tick + 5:
            return SlurmState.UNKNOWN
        if self._ended.get(key, 0) >= LOOKS:
            return SlurmState.ENDED
        return SlurmState.ACTIVE

    def failed_nodes(self, hosts: tuple[str, ...]) -> Mapping[int, str]:
        """Ranks whose node is given up.

        Slurm ends most jobs of a node that is down by itself; not those with `--no-kill`.
        """
        return {rank: self.lost[host] for rank, host in enumerate(hosts) if host in self.lost}

    async def has_ended(self, key: Key, since: float) -> bool:
        """Whether Slurm has ended a run, by an answer that was asked for after a moment.

        Raises:
            SlurmUnknownError: slurmctld does not answer.
        """
        self._take_jobs(await self.slurm.jobs(newer_than=since))
        job = (self._jobs or {}).get(key.job_id)
        return job is None or not job.active or job.restart != key.restart

    def time_limit(self, key: Key) -> float | None:
        """Seconds that Slurm gives a run, infinite without a limit; None while that is unknown."""
        job = (self._jobs or {}).get(key.job_id)
        if self.slurm_of(key) is not SlurmState.ACTIVE or job is None:
            return None
        if not job.active or job.restart != key.restart:
            return None
        return math.inf if job.time_limit is None else job.time_limit

    async def may_create(self) -> None:
        """Refuse while the policy that pins pods to their nodes is missing."""
        pinned = not self._gated and not self._ranked
        if not pinned or time.monotonic() - self._policy_seen < POLICY_SECONDS:
            return
        base = "/apis/admissionregistration.k8s.io/v1"
        for kind in ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"):
            try:
                found = await self.kube.get(f"{base}/{kind}/{PIN_POLICY}")
            except KubeRefusedError as error:
                raise RunError(f"{kind} {PIN_POLICY}: {error}") from error
            except KubeUnknownError as error:
                if error.status != NOT_FOUND:
                    raise
                # As an API server says that it does not know this kind at all: it is older.
                found = None
            if found is None:
                raise RunError(
                    f"found no {kind} {PIN_POLICY} in the cluster, expected the stack's: without "
                    "it pods would not run on the nodes of the job. Fix: pulumi up"
                )
        self._policy_seen = time.monotonic()

    async def agent_config(self) -> str:
        """The ConfigMap with this version's agent, made once."""
        if self._agent is None:
            manifest = render.agent(self.config.namespace)
            path = f"/api/v1/namespaces/{self.config.namespace}/configmaps"
            try:
                await self.kube.request("POST", path, manifest)
            except KubeRefusedError as error:
                if error.status != CONFLICT:
                    raise
            self._agent = str(manifest["metadata"]["name"])
        return self._agent

    async def seed(self) -> bytes:
        """What the keys of runs follow from: made once per cluster, read back ever after."""
        if self._seed is None:
            manifest = render.seed(self.config.cluster, self.config.namespace, os.urandom(32))
            path = f"/api/v1/namespaces/{self.config.namespace}/secrets"
            found = await self.kube.get(f"{path}/{manifest['metadata']['name']}")
            if found is None:
                try:
                    found = await self.kube.request("POST", path, manifest)
                except KubeRefusedError as error:
                    if error.status != CONFLICT:
                        raise
                    # Made, and the answer got lost.
                    raise KubeUnknownError(f"{path}: {error}") from error
            self._seed = base64.b64decode(found["data"]["seed"])
        return self._seed

    def commented(self, key: Key, text: str) -> None:
        """Write AdminComment soon; only the last text of a run counts."""
        self._comments[key] = f"k8s={self.config.namespace}/{self._name(key)} {text}"[:400]

    def faulted(self, key: Key) -> None:
        """Count a fault of the bridge itself; its run goes on, and its log has the reason."""
        del key
        self.faults += 1

    def _name(self, key: Key) -> str:
        run = self.runs.get(key)
        return (run.name if run else None) or str(key)

    async def _comment(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            while self._comments:
                key, text = next(iter(self._comments.items()))
                del self._comments[key]
                with contextlib.suppress(SlurmUnknownError):
                    await self.slurm.admin_comment(key.job_id, text)

    def requeue(self, run: Run, agent: Agent) -> None:
        """A job asks to be requeued, as `scontrol requeue` of its own user does outside."""

        pending, self._requeued[run.key] = run.key in self._requeued, agent
        if pending:
            # Asked again before the answer: one command of Slurm at a time for each job.
            return

        async def ask() -> None:
            trouble = ""
            try:
                await self.slurm.requeue(run.key.job_id)
            except SlurmUnknownError as error:
                trouble = str(error)
            else:
                _log.info("requeued", extra={"run": str(run.key), "why": "the job asked for it"})
            finally:
                self._requeued.pop(run.key).send(op="requeued", error=trouble)

        self._background(ask())

    def slurm_age(self) -> float:
        """Seconds since slurmctld last answered."""
        return time.monotonic() - self._jobs_at

    def problems(self) -> Iterator[str]:
        """What keeps the bridge from doing its work, in words."""
        if self.slurm_age() > 3 * self.config.tick + 5:
            yield "slurmctld does not answer"
        if not self.mirror.live:
            yield API_SILENT
        elif not self.mirror.nodes_live:
            yield "the nodes cannot be watched"
        for run in self.runs.values():
            if run.trouble:
                yield f"job {run.key}: {run.trouble}"
        if self._nodes_trouble:
            yield f"the states of nodes are not carried over: {self._nodes_trouble}"
        if self.renewal is not None and (problem := self.renewal.problem()):
            yield problem

    # -- attaching ---------------------------------------------------------------------------

    async def attach(
        self, session: Session, asked: Attach, known: Callable[[], None] = lambda: None
    ) -> Run:
        """Check a client against slurmctld and connect it with its run.

        What the site allows is asked before anything is made, and never again: a run that is there
        goes on though the rules have changed since. Whose it is, is asked each time.

        Args:
            session: the client.
            asked: what it says of itself.
            known: called once it is known as the one client of a job of its user.

        Raises:
            Refused: the text is for the user.
            ConnectionResetError: another one is about to be connected.
        """
        waiting = Waiting(session)
        job = await self._find(session.uid, asked, waiting)
        key = Key(job.job_id, job.restart)
        if asked.restart < job.restart:
            # The batch step of an earlier run, which Slurm has not ended yet.
            key = Key(job.job_id, asked.restart)
        if key in self._attaching:
            # Hung up on without a word: the same client on an earlier connection is gone when it
            # comes again, and no job is the worse for it.
            raise ConnectionResetError(f"job {key}: another client waits")
        self._attaching.add(key)
        try:
            known()
            return await self._attach(session, asked, job, key, waiting)
        finally:
            self._attaching.discard(key)

    async def _attach(
        self, session: Session, asked: Attach, job: SlurmJob, key: Key, waiting: Waiting
    ) -> Run:
        while key not in self.runs and not self.mirror.live:
            # What is there of the run is not known yet, which is not the same as nothing.
            waiting.note(API_SILENT)
            await asyncio.sleep(LIVE_SECONDS)
        run = self.runs.get(key)
        objects = self.mirror.of(key)
        nothing = run is None and objects.job is None and not objects.pods
        if nothing and (key.restart != job.restart or not job.active):
            raise Refused(f"job {key}: Slurm has ended it, and nothing of it is left", gone=True)
        if run is not None and run.session is not None and run.session.open:
            raise Refused(f"job {key}: found a batch step that is attached already")
        self._check_owner(key, job, asked)
        made = asked.created or objects.job is not None or (run is not None and run.created)
        if not made:
            self._check_site(job)
        account = await self._account(key, job, waiting, made=made)
        facts = self._facts(key, job, account)
        request = self._request(asked, facts, made=made)
        template = {} if made else await self._template(facts.partition, waiting)
        run = self.runs.get(key) or self._begin(key)
        run.attach(session, facts, request, template, created=made)
        if request.mode and len(facts.hosts) > 1 and not asked.created:
            session.note(
                f"{request.mode}: {request.reason}; "
                + (
                    "the script runs on every node"
                    if request.mode == "spmd"
                    else "the script runs on the first node, srun reaches the others"
                )
            )
            if request.outputs and request.outputs[0]:
                session.note(f"output of the other nodes: {request.outputs[0]}.NODE")
        return run

    async def _find(self, uid: int, asked: Attach, waiting: Waiting) -> SlurmJob:
        started = time.monotonic()
        while True:
            try:
                self._take_jobs(await self.slurm.jobs(newer_than=started))
            except SlurmUnknownError as error:
                _log.warning("cannot check a client", extra={"error": str(error)})
                waiting.note("slurmctld does not answer")
                await asyncio.sleep(1.0)
                continue
            job = (self._jobs or {}).get(asked.job_id)
            if job is None:
                raise Refused(f"job {asked.job_id}: found no such job in Slurm")
            if job.uid != uid:
                _log.warning(
                    "foreign job refused", extra={"job": asked.job_id, "uid": uid, "owner": job.uid}
                )
                raise Refused(f"job {asked.job_id}: is not yours")
            if not job.batch:
                raise Refused(f"job {asked.job_id}: is no batch job")
            if job.active and job.state != "CONFIGURING":
                return job
            if asked.created or asked.restart < job.restart:
                return job
            if time.monotonic() - started > LAUNCH_SECONDS:
                raise Refused(f"job {asked.job_id}: found it {job.state}, expected RUNNING")
            await asyncio.sleep(0.2)
            started = max(started, time.monotonic() - LAUNCH_SECONDS)

    def _check_owner(self, key: Key, job: SlurmJob, asked: Attach) -> None:
        """Refuse a run that is there and is not this job's: numbers begin anew with a new state."""
        found = self.mirror.of(key).job
        if found is None:
            return
        # Who was told that the Job is made has seen it begin; submit times of other runs differ.
        other = key.restart == job.restart and not asked.created
        if found.owner != job.uid or (other and found.submitted != job.submitted):
            raise Refused(
                f"job {key}: found Job {found.name} of another submission ({found.submitted}, uid "
                f"{found.owner}), expected {job.submitted}, uid {job.uid}; it is removed as soon "
                "as Slurm no longer knows it"
            )

    def _check_site(self, job: SlurmJob) -> None:
        """Refuse jobs that get no pods here."""
        if job.partition not in self.config.partitions:
            raise Refused(
                f"job {job.job_id}: found it in partition {job.partition}, expected one of "
                + ", ".join(self.config.partitions)
            )
        if job.uid < self.config.minimum_uid:
            raise Refused(
                f"found user {job.uid}, expected one of {self.config.minimum_uid} or more: jobs "
                "run as their users, and system accounts do not run here"
            )

    async def _account(self, key: Key, job: SlurmJob, waiting: Waiting, *, made: bool) -> Account:
        """Who the user is on this machine; needed to make a run's objects, and for nothing else.

        An account that is not found may be one that nobody answers for just now (SSSD, LDAP): the
        libraries do not tell these apart. So it is looked for as long as pods may take to start.
        """
        started = time.monotonic()
        while True:
            if made and not await self._lacks_secret(key, waiting):
                return Account(str(job.uid), str(job.gid), "/", ())
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._names, Account.of, job.uid, job.gid
                )
            except (KeyError, OSError) as error:
                if time.monotonic() - started > self.config.start_limit:
                    raise Refused(
                        f"user {job.uid}: {error}: unknown on the Slurm head for "
                        f"{self.config.start_limit:g} s, expected an account. See: "
                        f"getent passwd {job.uid}"
                    ) from error
                _log.warning("cannot find a user", extra={"uid": job.uid, "error": str(error)})
                waiting.note(f"user {job.uid} is not known on the Slurm head")
            await asyncio.sleep(ACCOUNT_SECONDS)

    async def _lacks_secret(self, key: Key, waiting: Waiting) -> bool:
        """Whether a Job is there without its Secret, as a crash in between leaves it."""
        name = render.run_name(self.config.cluster, key)
        path = f"/api/v1/namespaces/{self.config.namespace}/secrets/{name}"
        while (job := self.mirror.of(key).job) is not None:
            try:
                found = await self.kube.get(path)
            except (KubeUnknownError, KubeRefusedError) as error:
                _log.warning("cannot look for a secret", extra={"error": str(error)})
                waiting.note(API_SILENT)
                await asyncio.sleep(1.0)
            else:
                # One of an earlier Job of this name does not count.
                owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
                return job.uid not in [each.get("uid") for each in owners]
        # Nothing is made any more.
        return False

    def _facts(self, key: Key, job: SlurmJob, account: Account) -> render.Facts:
        frozen = self.mirror.of(key).job
        run = self.runs.get(key)
        if frozen is not None:
            by_host = {self.config.hostname(node): node for node in job.nodes()}
            hosts = frozen.hosts
            nodes = tuple(by_host.get(host, host) for host in hosts)
        else:
            nodes = job.nodes()
            hosts = tuple(map(self.config.hostname, nodes))
        if run is not None and run.hosts:
            hosts = run.hosts
        return render.Facts(
            key=key,
            cluster=self.config.cluster,
            hosts=hosts,
            nodes=nodes,
            uid=job.uid,
            gid=job.gid,
            groups=account.groups,
            user=account.user,
            group=account.group,
            home=account.home,
            submitted=job.submitted,
            partition=job.partition,
            time_limit=job.time_limit,
        )

    def _request(self, asked: Attach, facts: render.Facts, *, made: bool) -> render.Request:
        variables = environment.parse(asked.environment)
        passed = environment.select(variables, self.config.environment)
        try:
            wanted = script.wishes(asked.script, variables, len(facts.hosts))
            if wanted.image is not None and not made:
                script.check_image(wanted.image, self.config.registries)
        except script.ScriptError as error:
            if not made:
                raise Refused(str(error)) from error
            # Another release took it, and its pods are there.
            wanted = script.Wishes("leader", str(error), None)
        return render.Request(
            script=asked.script,
            arguments=asked.arguments,
            directory=asked.directory,
            umask=asked.umask,
            apart=asked.apart,
            environment=passed,
            mode=wanted.mode,
            reason=wanted.reason,
            image=wanted.image,
            outputs=asked.outputs if self._has_own_files(wanted.mode, facts) else (),
        )

    def _has_own_files(self, mode: str, facts: render.Facts) -> bool:
        """Whether nodes write their output themselves: there are too many to stream it all."""
        return mode == "spmd" and len(facts.hosts) > self.config.streams

    async def _template(self, partition: str, waiting: Waiting) -> Manifest:
        name = self.config.partitions[partition]
        path = f"/api/v1/namespaces/{self.config.namespace}/podtemplates/{name}"
        while True:
            try:
                found = await self.kube.get(path)
            except KubeUnknownError as error:
                _log.warning("cannot read a template", extra={"error": str(error)})
                waiting.note(API_SILENT)
                await asyncio.sleep(1.0)
                continue
            except KubeRefusedError as error:
                raise Refused(str(error)) from error
            if found is None:
                raise Refused(
                    f"partition {partition}: found no PodTemplate {self.config.namespace}/{name}, "
                    "expected the stack's. Fix: pulumi up"
                )
            return found

    # -- runs --------------------------------------------------------------------------------

    def _begin(self, key: Key) -> Run:
        run = Run(key, self.kube, self.mirror, self)
        self.runs[key] = run
        task = asyncio.create_task(self._drive(run), name=f"run {key}")
        self._drivers[key] = task
        return run

    async def _drive(self, run: Run) -> None:
        try:
            outcome = await run.drive()
            _log.info(
                "ended",
                extra={"run": str(run.key), "status": outcome.status, "why": outcome.text},
            )
            kind = "ok" if outcome.status == 0 else "failed"
            if outcome.status < 0:
                kind = "cancelled"
            elif outcome.infrastructure:
                kind = "infrastructure"
            self.finished[kind] = self.finished.get(kind, 0) + 1
            if outcome.status != 0:
                run.note_once(outcome.text)
            await self._until_put_back(run, outcome)
            if run.session is not None:
                with contextlib.suppress(OSError):
                    await run.session.exit(outcome.status)
        except asyncio.CancelledError:
            raise
        except Exception:
            # Fails closed: the client waits, Slurm holds the nodes, an operator finds this line.
            _log.exception("a run stopped", extra={"run": str(run.key)})
            raise
        finally:
            self._drivers.pop(run.key, None)
            if run.outcome is not None:
                self._done.add(run.key)
                self.runs.pop(run.key, None)
            self._news.set()

    async def put_back(self, run: Run, outcome: Outcome) -> None:
        """Another attempt for a job that the cluster failed, if it may be requeued.

        A slurmctld that is silent is waited for; only one that answers can say that it will not.

        Raises:
            SlurmUnknownError: whether there is one is not known yet; to be asked again.
        """
        key = run.key
        if run.put_back or not outcome.again or key.restart >= self.config.requeues:
            return
        try:
            if await self.has_ended(key, time.monotonic()):
                # By Slurm; or it was requeued, and the answer got lost.
                return
            job = (self._jobs or {}).get(key.job_id)
            if job is None or not job.requeue:
                return
            run.requeues += 1
            await self.slurm.requeue(key.job_id)
        except SlurmUnknownError as error:
            _log.warning("cannot requeue", extra={"run": str(key), "error": str(error)})
            if run.requeues >= REFUSALS:
                return
            run.note_once("the job is to be put back into the queue; waiting for slurmctld")
            raise
        run.put_back = True
        _log.info("requeued", extra={"run": str(key), "why": outcome.text})
        if run.session is not None:
            run.session.note("the job is put back into the queue")

    async def _until_put_back(self, run: Run, outcome: Outcome) -> None:
        """Hold the batch step until slurmctld has answered: once it ends, the job has failed."""
        for attempt in itertools.count():
            try:
                await self.put_back(run, outcome)
            except SlurmUnknownError:
                await asyncio.sleep(REQUEUE_PAUSES[min(attempt, len(REQUEUE_PAUSES) - 1)])
            else:
                return

    def _on_nodes(self) -> None:
        self._nodes_changed.set()
        self._news.set()

    def _on_change(self, key: Key | None) -> None:
        self._news.set()
        if key is None:
            if self.mirror.live:
                self._take_up()
            for run in self.runs.values():
                run.wake()
            return
        found = self.runs.get(key)
        if found is not None:
            found.wake()

    async def _crew(self, name: str) -> tuple[bytes, Crew] | None:
        for run in self.runs.values():
            if run.name == name:
                key = await run.secret_key()
                return None if key is None else (key, run)
        return None

    # -- epilogs -----------------------------------------------------------------------------

    async def _epilog(
        self, uid: int, content: dict[str, Any], frames: Frames, writer: asyncio.StreamWriter
    ) -> None:
        """Slurm ends a job on a node: answer once no pod of it is left there."""
        if not is_privileged(uid):
            raise Refused("epilog: this is for Slurm's own processes")
        node = str(content.get("node") or "")
        epilog = Epilog(
            number(content.get("job"), "job"), self.config.hostname(node) if node else None
        )
        self._epilogs.add(epilog)
        self._news.set()
        try:
            await frames.during(epilog.released)
        finally:
            self._epilogs.discard(epilog)
        writer.write(wire.control(event="gone"))

    async def _answer_epilogs(self) -> None:
        """One look for all epilogs that wait: a job of a thousand nodes has as many."""
        while True:
            # Not wait_for, which before Python 3.12 may lose a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.tick):
                    await self._news.wait()
            self._news.clear()
            if self._epilogs and self.mirror.live:
                self._release()
                # What changes all the time is not looked at each time.
                await asyncio.sleep(EPILOG_SECONDS)

    def _release(self) -> None:
        """Answer the epilogs whose node has nothing left of their job."""
        jobs = {epilog.job_id for epilog in self._epilogs}
        left: dict[int, set[str | None]] = {}
        keys = []
        for key in {*self.mirror.runs, *self.runs}:
            if key.job_id in jobs and (hosts := self._left(key)):
                left.setdefault(key.job_id, set()).update(hosts)
                keys.append(key)
        held = []
        for epilog in self._epilogs:
            hosts = left.get(epilog.job_id, set())
            if not hosts or (epilog.host is not None and not hosts & {epilog.host, None}):
                if not epilog.released.done():
                    epilog.released.set_result(None)
            else:
                held.append(epilog)
        if held and (self._asking is None or self._asking.done()):
            asked = max(epilog.asked for epilog in held)
            self._asking = self._background(self._ended_by_epilog(keys, asked))

    def _left(self, key: Key) -> set[str | None]:
        """Hosts on which something of a run may still be; None stands for any of them."""
        objects, run = self.mirror.of(key), self.runs.get(key)
        found: set[str | None] = set()
        if objects.may_grow:
            found.add(None)
        elif objects.job is None and not objects.pods and run is not None and run.outcome is None:
            # Its Job may be on the way to the API server: the run knows, and ends when it does not
            # come. One that stopped with an error knows nothing more than the copy does.
            found |= {None} if key in self._drivers else set()
        for name, pod in objects.pods.items():
            if not self.mirror.settled({name: pod}):
                found.add(pod.hostname)
        return found

    async def _ended_by_epilog(self, keys: list[Key], asked: float) -> None:
        """An epilog runs when a job has ended; slurmctld has to say so too."""
        try:
            jobs = await self.slurm.jobs(newer_than=asked)
        except SlurmUnknownError:
            return
        self._take_jobs(jobs)
        for key in keys:
            job = jobs.get(key.job_id)
            if job is None or not job.active or job.restart != key.restart:
                self._ended[key] = LOOKS
                if key not in self.runs:
                    self._begin(key)
                self.runs[key].wake()

    # -- looking -----------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._take_jobs(await self.slurm.jobs(newer_than=started))
            except SlurmUnknownError as error:
                _log.warning("slurmctld does not answer", extra={"error": str(error)})
            else:
                await self._prepare()
                self._look()
            await asyncio.sleep(max(self.config.tick - (time.monotonic() - started), 0.1))

    def _take_jobs(self, jobs: dict[int, SlurmJob]) -> None:
        self._jobs = jobs
        self._jobs_at = time.monotonic()

    def _look(self) -> None:
        """Count looks that found a run ended, and take up runs that nobody follows."""
        assert self._jobs is not None  # noqa: S101 - a look came before
        for key in {*self.runs, *self.mirror.runs}:
            job = self._jobs.get(key.job_id)
            lives = job is not None and job.active and job.restart == key.restart
            self._ended[key] = 0 if lives else self._ended.get(key, 0) + 1
        for key in list(self._ended):
            if key not in self.runs and key not in self.mirror.runs:
                del self._ended[key]
        if not self.mirror.live:
            return
        self._take_up()
        self._done &= self.mirror.runs.keys()
        self._clean()
        for run in self.runs.values():
            run.wake()

    def _take_up(self) -> None:
        """Follow runs that nobody follows: after a restart, or of jobs whose client is gone.

        Their agents may have little time left to hand over what bodies have printed.
        """
        for key, objects in list(self.mirror.runs.items()):
            followed = key in self.runs or key in self._done
            if not followed and (objects.job is None or not objects.job.finished):
                self._begin(key)

    def _clean(self) -> None:
        """Remove what ended runs have left, a while after Slurm has ended them too."""
        now = time.monotonic()
        for key, objects in self.mirror.runs.items():
            job = objects.job
            over = self._ended.get(key, 0) >= LOOKS and key not in self.runs
            if not over or job is None or job.deleting:
                self._kept.pop(key, None)
            elif now - self._kept.setdefault(key, now) > self.config.keep:
                self._kept[key] = now
                self._background(self._remove(job))
        for key in self._kept.keys() - self.mirror.runs.keys():
            del self._kept[key]

    async def _remove(self, job: JobView) -> None:
        path = f"/apis/batch/v1/namespaces/{self.config.namespace}/jobs/{job.name}"
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {"uid": job.uid},
        }
        try:
            await self.kube.request("DELETE", path, body)
        except (KubeUnknownError, KubeRefusedError) as error:
            _log.info("cannot remove yet", extra={"job": job.name, "error": str(error)})
        else:
            _log.info("removed", extra={"job": job.name})

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- nodes -------------------------------------------------------------------------------

    async def _sync_nodes(self) -> None:
        while True:
            self._nodes_changed.clear()
            try:
                await self._look_at_nodes()
            except SlurmUnknownError as error:
                self._nodes_trouble = str(error)
                _log.warning("nodes are not carried over", extra={"error": str(error)})
            else:
                self._nodes_trouble = ""
            # Not for every heartbeat of every kubelet.
            await asyncio.sleep(NODES_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.tick):
                    await self._nodes_changed.wait()

    async def _look_at_nodes(self) -> None:
        """Compare Slurm's nodes with Kubernetes'; a copy that may be old changes nothing."""
        if not self.mirror.nodes_live or not self.mirror.live or self._jobs is None:
            return
        slurm: dict[str, SlurmNode] = {}
        expected: dict[str, Mapping[str, int]] = {}
        for partition in self.config.partitions:
            found = await self.slurm.nodes(partition)
            slurm |= found
            expected |= dict.fromkeys(found, self.config.devices.get(partition, {}))
        hostnames = {name: self.config.hostname(name) for name in slurm}
        views = self.mirror.by_hostname()
        away = self.mirror.away(self.config.node_grace)
        if self.config.sync_nodes:
            occupied = self.mirror.occupied(lambda key: self.slurm_of(key) is SlurmState.ENDED)
            for change in nodes.plan(
                slurm, views, hostnames, expected, away=away, occupied=occupied
            ):
                _log.info("node", extra={"node": change.node, "state": change.state,
                                         "reason": change.reason})  # fmt: skip
                await self.slurm.update_node(change.node, change.state, change.reason)
                self.node_updates += 1
        lost = {}
        for name, node in slurm.items():
            host = hostnames[name]
            if node.down:
                lost[host] = f"Slurm has given the node up: {node.reason or node.state}"
            elif host in away:
                lost[host] = f"the node is gone: {views[host].reason}"
        # A pod on a node that is down here and unready there cannot be ended by anyone; Slurm gives
        # the node to nobody before it is ready again and the bridge resumes it.
        ours = {
            hostnames[name]
            for name, node in slurm.items()
            if node.down and node.reason.startswith(names.BRIDGE_REASON)
        }
        dead = {host for host in ours if host not in views or not views[host].ready}
        changed = lost != self.lost or dead != self.mirror.abandoned
        self.lost, self.mirror.abandoned = lost, frozenset(dead)
        if changed:
            self._news.set()
            for run in self.runs.values():
                run.wake()


def _ready() -> None:
    """Tell systemd, if it waits for that."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.connect(address.replace("@", "\0", 1))
            link.send(b"READY=1")


async def _main(config: Config) -> None:
    loop = asyncio.get_running_loop()
    async with Kube(config.kubeconfig, config.context) as kube:
        bridge = Bridge(config, kube=kube, slurm=Slurm())
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - inside a task
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await bridge.serve()
        except ExceptionGroup as group:
            # Another cluster's slurmctld that answers late: one sentence, not a traceback.
            found = group.subgroup(RailweldError)
            if found is None:
                raise
            raise found.exceptions[0] from None


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon."""
    parser = argparse.ArgumentParser(prog="bridged", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(names.BRIDGE_CONFIG))
    parser.add_argument("--log-level", default="INFO")
    options = parser.parse_args(arguments)
    logs.configure(options.log_level)
    try:
        config = load(options.config)
        config.socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with config.socket.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RailweldError(
                    f"{config.socket}: found another bridged at work, expected one per cluster"
                ) from None
            asyncio.run(_main(config))
    except RailweldError as error:
        _log.error("cannot run", extra={"error": str(error)})
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
