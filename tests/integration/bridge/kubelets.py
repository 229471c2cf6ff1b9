"""Kubelets for tests: pods of many nodes run as real processes, without images.

Each pod gets a mount and a process namespace of its own, the volumes of its spec, the user of its
security context, and the command of its one container; its node's address is a loopback address.
What is not real: images (the container's file system is this machine's), cgroups, device plugins.

Runs beside Slurm in its container. Faults are files in CONTROL:
    NODE.pull    the image cannot be pulled while the file is there (its text is the reason)
    NODE.hold    the pod stays in ContainerCreating
    NODE.dead    the kubelet says and does nothing more; processes live on
    NODE.evict   the pod is evicted
    NODE.slow    seconds that a pod takes to end after its processes have
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import datetime as dt
import fcntl
import json
import os
import pty
import shlex
import signal
import ssl
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from aiohttp import web

from railweld.bridge.kube import Kube, KubeRefusedError, KubeUnknownError

CONTROL = Path("/run/kubelets")
STATE = Path("/var/lib/kubelets")
#: Disks of nodes, below /local of each.
DISKS = STATE / "disks"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 10.0


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


class Pod:
    """One pod on one node."""

    def __init__(self, fleet: Fleet, manifest: dict[str, Any]) -> None:
        self.fleet = fleet
        self.manifest = manifest
        metadata = manifest["metadata"]
        self.name, self.uid = metadata["name"], metadata["uid"]
        self.path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{self.name}"
        self.namespace = metadata["namespace"]
        self.node = manifest["spec"]["nodeName"]
        self.folder = STATE / self.uid
        self.process: asyncio.subprocess.Process | None = None
        self.deleted = asyncio.Event()
        self.grace = 30
        self.over = False

    def fault(self, kind: str) -> str | None:
        try:
            return (CONTROL / f"{self.node}.{kind}").read_text()
        except FileNotFoundError:
            return None

    @property
    def dead(self) -> bool:
        return self.fault("dead") is not None

    async def status(self, **content: Any) -> None:
        while self.dead:
            await asyncio.sleep(0.2)
        await self.fleet.request(
            "PATCH",
            f"{self.path}/status",
            {"status": content},
            content="application/merge-patch+json",
        )

    def container(self, state: dict[str, Any], *, ready: bool = False) -> list[dict[str, Any]]:
        spec = self.manifest["spec"]["containers"][0]
        return [
            {
                "name": spec["name"],
                "image": spec["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": ready,
                "started": ready,
                "state": state,
                "containerID": f"process://{self.uid}" if ready else "",
            }
        ]

    async def live(self) -> None:
        try:
            if not await self.start():
                return
            waiter = asyncio.ensure_future(self.wait())
            watcher = asyncio.ensure_future(self.supervise())
            code = await waiter
            watcher.cancel()
            await self.ended(code)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            say("pod", self.name, repr(error))
            raise

    async def start(self) -> bool:
        """Prepare and start; False when the pod was deleted before."""
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        await self.status(
            phase="Pending", startTime=now(), containerStatuses=self.container(waiting)
        )
        said = ""
        while (reason := self.fault("pull")) is not None or self.fault("hold") is not None:
            if reason is not None and reason != said:
                said = reason
                state = {
                    "waiting": {"reason": "ImagePullBackOff", "message": reason or "no such image"}
                }
                await self.status(containerStatuses=self.container(state))
            if await self.gone_early():
                return False
            await asyncio.sleep(0.1)
        while True:
            if await self.gone_early():
                return False
            try:
                mounts = await self.volumes()
                break
            except LookupError:
                # As a kubelet: the volume is not there yet, it tries again.
                await asyncio.sleep(0.1)
        log = (self.folder / "log").open("ab")
        self.process = await asyncio.create_subprocess_exec(
            *self.command(mounts),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment(),
            start_new_session=True,
        )
        log.close()
        await self.status(
            phase="Running",
            podIP=self.address,
            podIPs=[{"ip": self.address}],
            hostIP=self.address,
            containerStatuses=self.container({"running": {"startedAt": now()}}, ready=True),
            conditions=[
                {"type": "PodScheduled", "status": "True"},
                {"type": "Initialized", "status": "True"},
                {"type": "ContainersReady", "status": "True"},
                {"type": "Ready", "status": "True"},
            ],
        )
        return True

    async def gone_early(self) -> bool:
        if self.deleted.is_set() and not self.dead:
            await self.remove()
            return True
        return False

    @property
    def address(self) -> str:
        return self.fleet.address(self.node)

    async def volumes(self) -> list[tuple[str, str, bool]]:
        """Source, target, read-only; LookupError for what is not there yet."""
        spec = self.manifest["spec"]
        sources = {}
        for volume in spec.get("volumes") or ():
            folder = self.folder / "volumes" / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                found = await self.object("secrets", volume["secret"]["secretName"])
                data = {k: base64.b64decode(v) for k, v in found["data"].items()}
                self.write(folder, data, volume["secret"])
            elif "configMap" in volume:
                found = await self.object("configmaps", volume["configMap"]["name"])
                data = {k: v.encode() for k, v in found["data"].items()}
                self.write(folder, data, volume["configMap"])
            elif "hostPath" in volume:
                folder = self.host_path(volume["hostPath"]["path"])
            elif "emptyDir" in volume:
                folder.chmod(0o777)
            sources[volume["name"]] = folder
        self.last_words.touch()
        self.last_words.chmod(0o666)
        return [
            *(
                (
                    str(self.part(sources[mount["name"]], mount)),
                    mount["mountPath"],
                    mount.get("readOnly", False),
                )
                for mount in spec["containers"][0].get("volumeMounts") or ()
            ),
            (str(self.last_words), "/dev/termination-log", False),
        ]

    @property
    def last_words(self) -> Path:
        """As a kubelet's: for the container to write, and part of its status in the end."""
        return self.folder / "termination-log"

    def host_path(self, path: str) -> Path:
        """A folder of the node: below /local of its own disk, elsewhere of this machine."""
        if not path.startswith("/local/"):
            Path(path).mkdir(parents=True, exist_ok=True)
            return Path(path)
        folder = DISKS / self.node / path.removeprefix("/")
        if not folder.is_dir():
            # As role nvme_cache leaves it.
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        return folder

    def part(self, volume: Path, mount: dict[str, Any]) -> Path:
        """The part of a volume that is mounted; made with the volume's mode, as by a kubelet."""
        expression = mount.get("subPathExpr")
        if expression is None:
            return volume / mount.get("subPath", "")
        for name, value in self.environment().items():
            expression = expression.replace(f"$({name})", value)
        folder = volume / expression
        if not folder.exists():
            folder.mkdir()
            folder.chmod(volume.stat().st_mode & 0o7777)
        return folder

    async def object(self, kind: str, name: str) -> dict[str, Any]:
        found = await self.fleet.kube.get(f"/api/v1/namespaces/{self.namespace}/{kind}/{name}")
        if found is None:
            raise LookupError(name)
        return found

    @staticmethod
    def write(folder: Path, data: dict[str, bytes], source: dict[str, Any]) -> None:
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[item["key"]])
            path.chmod(source.get("defaultMode", 0o644))

    def command(self, mounts: list[tuple[str, str, bool]]) -> list[str]:
        spec = self.manifest["spec"]
        security = spec["securityContext"]
        lines = ["set -e"]
        for source, target, read_only in mounts:
            q = shlex.quote
            lines.append(
                f"[ -e {q(target)} ] || {{ if [ -d {q(source)} ]; then mkdir -p {q(target)}; "
                f"else touch {q(target)}; fi; }}"
            )
            lines.append(f"mount --bind {q(source)} {q(target)}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {q(target)}")
        groups = ",".join(map(str, security.get("supplementalGroups") or ())) or None
        lines.append("ulimit -c 0")
        argv = [
            "setpriv",
            "--reuid",
            str(security["runAsUser"]),
            "--regid",
            str(security["runAsGroup"]),
            *(["--groups", groups] if groups else ["--clear-groups"]),
            "--no-new-privs",
            "--bounding-set",
            "-all",
            "--inh-caps",
            "-all",
            *spec["containers"][0]["command"],
            *(spec["containers"][0].get("args") or ()),
        ]
        lines.append(f"exec {shlex.join(argv)}")
        return [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            "\n".join(lines),
        ]

    def environment(self) -> dict[str, str]:
        spec = self.manifest["spec"]
        found = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOSTNAME": self.node if spec.get("hostNetwork") else self.name,
            "IMAGE_MARK": "from-image",
        }
        for source in spec["containers"][0].get("envFrom") or ():
            found.update(self.fleet.profile(source["configMapRef"]["name"]))
        fields = {
            "metadata.uid": self.uid,
            "metadata.name": self.name,
            "status.podIP": self.address,
            "spec.nodeName": self.node,
        }
        for entry in spec["containers"][0].get("env") or ():
            if "value" in entry:
                found[entry["name"]] = entry["value"]
            elif "fieldRef" in entry.get("valueFrom", {}):
                path = entry["valueFrom"]["fieldRef"]["fieldPath"]
                found[entry["name"]] = fields.get(path) or self.label(path)
        return found

    def label(self, path: str) -> str:
        """`metadata.annotations['x']` and the like."""
        kind, _, rest = path.removeprefix("metadata.").partition("[")
        return str((self.manifest["metadata"].get(kind) or {}).get(rest.strip("']"), ""))

    def inner(self) -> list[int]:
        """The pod's first process, as this namespace numbers it."""
        assert self.process is not None
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(each) for each in text.split()]

    def enter(self, command: list[str]) -> list[str]:
        """Another process of the pod's user, in its namespaces, with its container's variables."""
        security = self.manifest["spec"]["securityContext"]
        user, group = str(security["runAsUser"]), str(security["runAsGroup"])
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return [
            *("nsenter", "--target", str(self.inner()[0]), "--mount", "--pid", "--"),
            *("setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs"),
            *("env", "-i", *variables, *command),
        ]

    def kill(self, number: int) -> None:
        for pid in self.inner():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def wait(self) -> int:
        assert self.process is not None
        code = await self.process.wait()
        return 128 - code if code < 0 else code

    async def supervise(self) -> None:
        """Deletion and eviction."""
        while not (self.deleted.is_set() and not self.dead):
            if self.fault("evict") is not None and not self.dead:
                await self.status(reason="Evicted", message="The node was low on resource: memory.")
                break
            await asyncio.sleep(0.05)
        self.kill(signal.SIGTERM)
        await asyncio.sleep(self.grace)
        self.kill(signal.SIGKILL)

    async def ended(self, code: int) -> None:
        slow = self.fault("slow")
        if slow:
            await asyncio.sleep(float(slow))
        self.over = True
        terminated = {
            "exitCode": code,
            "finishedAt": now(),
            "startedAt": now(),
            "reason": "Completed" if code == 0 else self.fault("reason") or "Error",
            "message": self.last_words.read_text()[:4096],
        }
        with contextlib.suppress(KubeRefusedError):
            await self.status(
                phase="Succeeded" if code == 0 else "Failed",
                containerStatuses=self.container({"terminated": terminated}),
            )
        await self.deleted.wait()
        await self.remove()

    async def remove(self) -> None:
        while self.dead:
            await asyncio.sleep(0.2)
        with contextlib.suppress(KubeRefusedError):
            await self.fleet.request(
                "DELETE",
                self.path,
                {
                    "kind": "DeleteOptions",
                    "apiVersion": "v1",
                    "gracePeriodSeconds": 0,
                    "preconditions": {"uid": self.uid},
                },
            )


class Fleet:
    """All nodes."""

    def __init__(self, kube: Kube, count: int, port: int) -> None:
        self.kube = kube
        self.nodes = [f"gpu{number}" for number in range(1, count + 1)]
        self.port = port
        self.pods: dict[str, Pod] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.profiles: dict[str, dict[str, str]] = {}

    def address(self, node: str) -> str:
        number = int(node[3:])
        return f"127.0.{1 + number // 250}.{1 + number % 250}"

    def profile(self, name: str) -> dict[str, str]:
        return self.profiles.get(name, {})

    async def request(self, method: str, path: str, body: Any, **options: Any) -> Any:
        while True:
            try:
                return await self.kube.request(method, path, body, **options)
            except KubeUnknownError:
                await asyncio.sleep(0.3)

    async def ready(self, node: str) -> None:
        await self.request(
            "PATCH",
            f"/api/v1/nodes/{node}/status",
            {
                "status": {
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "KubeletReady",
                            "message": "test",
                            "lastHeartbeatTime": now(),
                            "lastTransitionTime": now(),
                        }
                    ],
                    "addresses": [{"type": "InternalIP", "address": self.address(node)}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
                    "nodeInfo": {
                        "kubeletVersion": "v1.36.3",
                        "architecture": "amd64",
                        "bootID": "b",
                        "containerRuntimeVersion": "process://1",
                        "kernelVersion": "k",
                        "kubeProxyVersion": "",
                        "machineID": "m",
                        "operatingSystem": "linux",
                        "osImage": "test",
                        "systemUUID": "s",
                    },
                }
            },
            content="application/merge-patch+json",
        )

    async def beat(self, node: str) -> None:
        """Lease and readiness of one node, for as long as its kubelet lives."""
        was_dead = True
        while True:
            dead = is_dead = (CONTROL / f"{node}.dead").exists()
            if not dead:
                stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                if was_dead:
                    await self.ready(node)
                lease = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": node, "namespace": "kube-node-lease"},
                    "spec": {
                        "holderIdentity": node,
                        "leaseDurationSeconds": 40,
                        "renewTime": stamp,
                    },
                }
                try:
                    await self.kube.request(
                        "PATCH",
                        f"{LEASES}/{node}",
                        lease,
                        content="application/apply-patch+yaml",
                        query={"fieldManager": "kubelet", "force": "true"},
                    )
                except (KubeUnknownError, KubeRefusedError) as error:
                    say("lease", node, error)
                    # The controllers may have called the node unready meanwhile.
                    dead = True
            was_dead = dead
            for _ in range(int(HEARTBEAT_SECONDS / 0.2)):
                await asyncio.sleep(0.2)
                if (CONTROL / f"{node}.dead").exists() != is_dead:
                    break

    async def watch(self) -> None:
        while True:
            try:
                items, version = await self.kube.list("/api/v1/pods")
                for manifest in items:
                    self.saw(manifest, gone=False)
                async for event, manifest in self.kube.watch("/api/v1/pods", version):
                    if event != "BOOKMARK":
                        self.saw(manifest, gone=event == "DELETED")
            except (KubeUnknownError, KubeRefusedError) as error:
                say("watch", error)
                await asyncio.sleep(0.3)

    def saw(self, manifest: dict[str, Any], *, gone: bool) -> None:
        if manifest["spec"].get("nodeName") not in self.nodes:
            return
        uid = manifest["metadata"]["uid"]
        pod = self.pods.get(uid)
        if gone:
            if pod is not None:
                # Removed by force: a kubelet ends what still runs.
                pod.deleted.set()
                pod.grace = 0
                del self.pods[uid]
            return
        if pod is None:
            if manifest["status"].get("phase") in ("Succeeded", "Failed") and (
                "deletionTimestamp" not in manifest["metadata"]
            ):
                return
            pod = self.pods[uid] = Pod(self, manifest)
            task = asyncio.ensure_future(pod.live())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        if "deletionTimestamp" in manifest["metadata"] and not pod.deleted.is_set():
            grace = manifest["metadata"].get("deletionGracePeriodSeconds")
            pod.grace = 30 if grace is None else grace
            pod.deleted.set()

    async def follow_profiles(self) -> None:
        while True:
            with contextlib.suppress(KubeUnknownError, KubeRefusedError):
                items, _ = await self.kube.list("/api/v1/configmaps")
                self.profiles = {each["metadata"]["name"]: each.get("data") or {} for each in items}
            await asyncio.sleep(10)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """GET /containerLogs/NAMESPACE/POD/CONTAINER, as the API server asks."""
        name = request.match_info["pod"]
        found = [pod for pod in self.pods.values() if pod.name == name]
        folders = [pod.folder for pod in found] or [
            path
            for path in STATE.iterdir()
            if (path / "name").exists() and (path / "name").read_text() == name
        ]
        if not folders:
            return web.Response(status=404, text="no such pod")
        data = (folders[0] / "log").read_bytes() if (folders[0] / "log").exists() else b""
        tail = request.query.get("tailLines")
        if tail:
            data = b"".join(data.splitlines(keepends=True)[-int(tail) :])
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(data)
        offset = len(data)
        while request.query.get("follow") in ("true", "1") and found and not found[0].over:
            await asyncio.sleep(0.1)
            with (folders[0] / "log").open("rb") as file:
                file.seek(offset)
                more = file.read()
            offset += len(more)
            await response.write(more)
        return response

    async def exec(self, request: web.Request) -> web.StreamResponse:
        """GET /exec/NAMESPACE/POD/CONTAINER over a websocket, with a terminal."""
        name = request.match_info["pod"]
        pod = next((pod for pod in self.pods.values() if pod.name == name), None)
        if pod is None or not pod.inner():
            return web.Response(status=404, text="no such container")
        link = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await link.prepare(request)
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *pod.enter(request.query.getall("command")),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        loop = asyncio.get_running_loop()
        shown: asyncio.Queue[bytes] = asyncio.Queue()

        def read() -> None:
            try:
                data = os.read(ours, 4096)
            except OSError:
                data = b""
            if not data:
                loop.remove_reader(ours)
            shown.put_nowait(data)

        async def show() -> None:
            while data := await shown.get():
                await link.send_bytes(b"\1" + data)

        async def typed() -> None:
            async for message in link:
                if message.data[:1] == b"\0":
                    os.write(ours, message.data[1:])
                elif message.data[:1] == b"\4":
                    size = json.loads(message.data[1:])
                    words = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                    fcntl.ioctl(ours, termios.TIOCSWINSZ, words)
            # The other side is gone: so is the shell, as with a kubelet.
            with contextlib.suppress(ProcessLookupError):
                process.kill()

        loop.add_reader(ours, read)
        typing = asyncio.ensure_future(typed())
        await show()
        code = await process.wait()
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status |= {"status": "Failure", "reason": "NonZeroExitCode"}
            status["details"] = {"causes": causes}
        await link.send_bytes(b"\3" + json.dumps(status).encode())
        await link.close()
        typing.cancel()
        os.close(ours)
        return link

    async def serve(self) -> None:
        app = web.Application()
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self.exec)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.logs)
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                str(STATE / "key"),
                "-out",
                str(STATE / "crt"),
                "-days",
                "2",
                "-subj",
                "/CN=kubelet",
            ],
            check=True,
            capture_output=True,
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(STATE / "crt", STATE / "key")
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        host = "0.0.0.0"  # noqa: S104 - every node of the test has a loopback address of its own
        await web.TCPSite(runner, host, self.port, ssl_context=tls).start()

    async def run(self) -> None:
        await self.serve()
        await asyncio.gather(
            self.watch(), self.follow_profiles(), *(self.beat(node) for node in self.nodes)
        )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    CONTROL.mkdir(parents=True, exist_ok=True)
    STATE.mkdir(parents=True, exist_ok=True)
    async with Kube(options.kubeconfig) as kube:
        await Fleet(kube, options.nodes, options.port).run()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    asyncio.run(main())
