"""A copy of the bridge's Jobs, their pods and the nodes, kept by watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from railweld import names
from railweld.bridge.kube import GONE, Kube, KubeRefusedError, KubeUnknownError
from railweld.bridge.observed import JobView, Key, NodeView, PodView, Printed, key_of
from railweld.stack.objects import Manifest

_log = logging.getLogger(__name__)

PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class RunObjects:
    """Objects of one run."""

    job: JobView | None = None
    pods: dict[str, PodView] = field(default_factory=dict)

    @property
    def job_uid(self) -> str:
        """Of the Job, also once only pods of it are left; empty when nothing is."""
        if self.job is not None:
            return self.job.uid
        return next((pod.job_uid for pod in self.pods.values()), "")

    @property
    def may_grow(self) -> bool:
        """Whether the Job controller may still make pods: what is not there yet is not gone."""
        job = self.job
        waits = job is not None and not job.deleting and not job.finished
        return waits and job is not None and len(self.pods) < len(job.hosts)


class Mirror:
    """Jobs, pods and nodes as last seen.

    While `live` is false the copy may be old: what is missing in it is unknown, not gone.
    """

    def __init__(self, kube: Kube, namespace: str, cluster: str) -> None:
        self._kube = kube
        base = f"/namespaces/{namespace}"
        self.cluster = cluster
        self._labels = f"{names.LABEL_SLURM_CLUSTER}={cluster}"
        self._paths = {
            "jobs": f"/apis/batch/v1{base}/jobs",
            "pods": f"/api/v1{base}/pods",
            "nodes": "/api/v1/nodes",
        }
        self._live: dict[str, bool] = dict.fromkeys(self._paths, False)
        self.runs: dict[Key, RunObjects] = {}
        self.nodes: dict[str, NodeView] = {}
        #: Last words of pods, by rank, of runs that somebody follows; a pod may go with its own.
        self.printed: dict[Key, dict[int, Printed]] = {}
        #: When a node was first seen unready, on the monotonic clock.
        self.unready: dict[str, float] = {}
        #: Hostnames that Slurm will not use until this bridge says so: their pods hold nothing up.
        self.abandoned: frozenset[str] = frozenset()
        #: Called with the run that changed, or None when anything may have.
        self.on_change: Callable[[Key | None], None] = lambda _key: None
        self.on_nodes: Callable[[], None] = lambda: None
        #: How often a watch began anew, by kind.
        self.restarts: dict[str, int] = dict.fromkeys(self._paths, 0)

    @property
    def live(self) -> bool:
        """Whether the copy of Jobs and pods follows the API server."""
        return self._live["jobs"] and self._live["pods"]

    @property
    def nodes_live(self) -> bool:
        """Whether the copy of the nodes does."""
        return self._live["nodes"]

    async def follow(self) -> None:
        """Keep all copies, for ever."""
        async with asyncio.TaskGroup() as group:
            for kind in self._paths:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: str) -> None:
        attempt, version = 0, ""
        labels = "" if kind == "nodes" else self._labels
        while True:
            try:
                if not version:
                    items, version = await self._kube.list(self._paths[kind], labels=labels)
                    self._replace(kind, items)
                    _log.info("listed", extra={"kind": kind, "objects": len(items)})
                # Not before: a copy from before an outage is old until then.
                async for event, manifest in self._kube.watch(
                    self._paths[kind],
                    version,
                    labels=labels,
                    opened=partial(self._set_live, kind, True),
                ):
                    attempt = 0
                    version = manifest["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        self._apply(kind, manifest, deleted=event == "DELETED")
                # The server ends a watch now and then; it goes on where it was.
                continue
            except KubeRefusedError as error:
                # 410: the version is too old. Anything else is looked at afresh, too.
                version = ""
                if error.status == GONE:
                    _log.info("watch expired", extra={"kind": kind})
                    self.restarts[kind] += 1
                    continue
                reason: Exception = error
            except KubeUnknownError as error:
                reason = error
            self._set_live(kind, False)
            self.restarts[kind] += 1
            _log.warning("watch lost", extra={"kind": kind, "error": str(reason)})
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1

    def _set_live(self, kind: str, value: bool) -> None:
        if self._live[kind] != value:
            self._live[kind] = value
            if kind == "nodes":
                self.on_nodes()
            else:
                self.on_change(None)

    def _replace(self, kind: str, items: list[Manifest]) -> None:
        if kind == "nodes":
            self.nodes = {each.name: each for each in map(NodeView.of, items)}
            self._note_unready()
            self.on_nodes()
            return
        for objects in self.runs.values():
            if kind == "jobs":
                objects.job = None
            else:
                objects.pods = {}
        for manifest in items:
            self._store(kind, manifest, deleted=False)
        self._prune()
        self.on_change(None)

    def _apply(self, kind: str, manifest: Manifest, *, deleted: bool) -> None:
        if kind == "nodes":
            view = NodeView.of(manifest)
            known = self.nodes.get(view.name)
            if deleted:
                self.nodes.pop(view.name, None)
            else:
                self.nodes[view.name] = view
            self._note_unready()
            if deleted or view != known:
                self.on_nodes()
            return
        key = self._store(kind, manifest, deleted=deleted)
        if key is not None:
            self._prune(key)
            self.on_change(key)

    def _note_unready(self) -> None:
        now = time.monotonic()
        self.unready = {
            each.name: self.unready.get(each.name, now)
            for each in self.nodes.values()
            if not each.ready
        }

    def away(self, grace: float) -> frozenset[str]:
        """Hostnames of nodes that have been unready for longer than `grace` seconds."""
        now = time.monotonic()
        return frozenset(
            self.nodes[name].hostname for name, since in self.unready.items() if now - since > grace
        )

    def occupied(self, ended: Callable[[Key], bool]) -> frozenset[str]:
        """Hostnames where a pod of an ended run may still be running."""
        return frozenset(
            pod.hostname
            for key, objects in self.runs.items()
            if ended(key)
            for pod in objects.pods.values()
            if pod.hostname and not pod.terminal
        )

    def _store(self, kind: str, manifest: Manifest, *, deleted: bool) -> Key | None:
        key = key_of(manifest)
        if key is None:
            return None
        objects = self.runs.setdefault(key, RunObjects())
        if kind == "jobs":
            objects.job = None if deleted else JobView.of(manifest)
            return key
        pod = PodView.of(manifest)
        if pod.printed is not None and key in self.printed:
            self.printed[key][pod.index] = pod.printed
        if deleted:
            objects.pods.pop(pod.name, None)
        else:
            objects.pods[pod.name] = pod
        return key

    def _prune(self, key: Key | None = None) -> None:
        for each in [key] if key is not None else list(self.runs):
            objects = self.runs.get(each)
            if objects is not None and objects.job is None and not objects.pods:
                del self.runs[each]

    def seen(self, key: Key, job: Manifest) -> None:
        """A Job that this daemon has just made, before the watch tells of it."""
        self.runs.setdefault(key, RunObjects()).job = JobView.of(job)

    def of(self, key: Key) -> RunObjects:
        """Objects of a run; an empty set for one that has none."""
        return self.runs.get(key) or RunObjects()

    def by_hostname(self) -> Mapping[str, NodeView]:
        """Nodes by the label that pods are pinned with."""
        return {each.hostname: each for each in self.nodes.values()}

    def settled(self, pods: Mapping[str, PodView]) -> bool:
        """Whether nothing of these pods runs: ended, as a kubelet that is alive has reported."""
        for pod in pods.values():
            if pod.hostname in self.abandoned:
                continue
            if not pod.terminal:
                return False
            node = self.nodes.get(pod.node)
            if pod.node and (node is None or not node.ready):
                return False
        return True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what only matters to a daemon that goes on."""
    with contextlib.suppress(KubeUnknownError, KubeRefusedError):
        yield


def label_selector(cluster: str, key: Key) -> str:
    """Selects the objects of one run."""
    labels: dict[str, Any] = {
        names.LABEL_SLURM_CLUSTER: cluster,
        names.LABEL_JOB_ID: key.job_id,
        names.LABEL_JOB_RESTART: key.restart,
    }
    return ",".join(f"{name}={value}" for name, value in labels.items())
