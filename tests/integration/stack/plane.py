"""A real control plane without nodes: etcd and Kubernetes as plain processes on the loopback."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import yaml

from railweld.cluster.model import controllers
from railweld.lab import engine, tools
from railweld.site.variables import SiteVariables
from railweld.stack.api import Cluster, read_kubeconfig
from railweld.stack.objects import Manifest

ROOT = Path(__file__).resolve().parents[3]
#: Starting takes seconds; a machine that does other things too may take longer.
PATIENCE = 180.0
#: As deployed clusters have it.
QPS = SiteVariables.model_fields["controller_qps"].default


def program(tool: str, name: str) -> Path:
    """A program that the lab builds, from its cache."""
    return tools.ensure(tool) / name


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Return once something is so; fails when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.2)


class ControlPlane:
    """etcd, API server, controllers and scheduler; nodes only if kwok makes them."""

    def __init__(self, folder: Path, site: str = "lab", address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.address = address
        self.site = site
        self.port = free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.context = f"railweld-{site}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd = [free_port(), free_port()]

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._certificates()
        self._write_kubeconfig()
        self._strict_pod_security()
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd)
        self.run(
            "etcd",
            program("etcd", "etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
            "--unsafe-no-fsync",
        )
        self.start_api_server()
        self.wait()
        self.name_cluster(self.site)
        config = f"--kubeconfig={self.kubeconfig}"
        self.run(
            "controllers",
            program("kubernetes", "kube-controller-manager"),
            config,
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            *(f"--{name}={value}" for name, value in controllers(QPS).items()),
            f"--secure-port={free_port()}",
            f"--cert-dir={self.folder / 'kcm'}",
        )
        self.run(
            "scheduler",
            program("kubernetes", "kube-scheduler"),
            config,
            "--leader-elect=false",
            f"--secure-port={free_port()}",
        )

    def start_api_server(self) -> None:
        """Start (again) the API server alone."""
        certificate, private = self.folder / "api.crt", self.folder / "api.key"
        self.run(
            "apiserver",
            program("kubernetes", "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd[0]}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            f"--client-ca-file={self.folder / 'ca.crt'}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={private}",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            f"--admission-control-config-file={self.folder / 'admission.yaml'}",
            "--allow-privileged",
        )

    def run(self, name: str, *command: Any, environment: Mapping[str, str] | None = None) -> None:
        """Start one process; its output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                # Tests that are killed leave no control plane behind.
                ["setpriv", "--pdeathsig", "KILL", *(str(each) for each in command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
            )

    def stop(self, name: str | None = None) -> None:
        """End one process, or all."""
        for each in [name] if name else list(reversed(self._processes)):
            process = self._processes.pop(each)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait(self) -> None:
        """Return when the API server is ready, all of its start-up work included."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(Exception):
                cluster = self.cluster()
                cluster.request("GET", "/api/v1/namespaces/kube-system")
                cluster.close()
                # Controllers that find it unhealthy for ten seconds end.
                self.kubectl("get", "--raw", "/healthz")
                return
            if time.monotonic() > deadline or self._processes["apiserver"].poll() is not None:
                tail = (self.folder / "apiserver.log").read_text()[-2000:]
                raise AssertionError(f"the API server did not come up:\n{tail}")
            time.sleep(0.2)

    # -- use ---------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """A client with the administrator's rights."""
        return Cluster.connect(self.kubeconfig, self.context, patience=PATIENCE)

    def as_user(self, name: str, **extra: str) -> Cluster:
        """A client that acts as somebody else, with what their credentials say beside the name."""
        headers = {"Impersonate-User": name}
        headers |= {
            f"Impersonate-Extra-{quote(key, safe='')}": value for key, value in extra.items()
        }
        target = read_kubeconfig(self.kubeconfig, self.context)
        return Cluster(dataclasses.replace(target, headers=headers), patience=PATIENCE)

    def account_kubeconfig(self, account: str, namespace: str = "railweld-system") -> Path:
        """A kubeconfig with a service account's own token, for programs of the stack."""
        token = self.kubectl("-n", namespace, "create", "token", account).stdout.strip()
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = self.folder / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def kubectl(
        self, *arguments: str, text: str | None = None, check: bool = True, user: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as another user if wanted."""
        impersonation = [f"--as={user}"] if user else []
        done = subprocess.run(
            [
                str(program("kubernetes", "kubectl")),
                f"--kubeconfig={self.kubeconfig}",
                f"--context={self.context}",
                *impersonation,
                *arguments,
            ],
            capture_output=True,
            text=True,
            input=text,
            check=False,
            env={**os.environ, "HOME": str(self.folder)},
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def create(
        self, manifest: Mapping[str, Any], *, user: str = "", dry_run: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Create an object, as a trial unless told otherwise."""
        extra = ["--dry-run=server"] if dry_run else []
        return self.kubectl(
            "create", "-f", "-", *extra, text=json.dumps(manifest), check=False, user=user
        )

    def apply(self, manifests: Iterable[Manifest]) -> None:
        """Make objects without Pulumi, in the order given."""
        cluster = self.cluster()
        for manifest in manifests:
            # A definition's kind is served a moment after it is stored.
            wait_until(lambda kind=manifest: self._serves(kind))
            cluster.apply(manifest, manager="test")
        cluster.close()

    def _serves(self, manifest: Manifest) -> bool:
        cluster = self.cluster()
        served = cluster.serves(manifest["apiVersion"], manifest["kind"])
        cluster.close()
        return served

    def name_cluster(self, name: str) -> None:
        """What kubeadm leaves: the cluster's name."""
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
            "data": {"ClusterConfiguration": yaml.safe_dump({"clusterName": name})},
        }
        self.kubectl("apply", "-f", "-", text=json.dumps(manifest))

    def nodes(self, count: int, capacity: Mapping[str, str], *, alive: bool = True) -> None:
        """Register nodes; kwok keeps those that are `alive`, the others never report."""
        items = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"gpu{number}",
                    "labels": {
                        "kubernetes.io/hostname": f"gpu{number}",
                        "kubernetes.io/os": "linux",
                        "nvidia.com/gpu.present": "true",
                        "rdma.nvidia.com/available": "true",
                    },
                    "annotations": {"kwok.x-k8s.io/node": "fake"} if alive else {},
                },
                "status": {
                    "capacity": {"cpu": "128", "memory": "1Ti", "pods": "110", **capacity},
                    "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", **capacity},
                },
            }
            for number in range(1, count + 1)
        ]
        listing = {"apiVersion": "v1", "kind": "List", "items": items}
        self.kubectl("create", "-f", "-", text=json.dumps(listing))

    def start_kwok(self) -> None:
        """Simulate kubelets for nodes with the annotation."""
        self.run(
            "kwok",
            program("kwok", "kwok"),
            f"--kubeconfig={self.kubeconfig}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        )

    # -- certificates ------------------------------------------------------------------------

    def _certificates(self) -> None:
        folder = self.folder
        _openssl("req", "-x509", *_new("ca", folder), "-days", "2", "-subj", "/CN=ca",
                 "-out", str(folder / "ca.crt"))  # fmt: skip
        _openssl("genrsa", "-out", str(folder / "sa.key"), "2048")
        names = f"subjectAltName=IP:127.0.0.1,IP:{self.address},DNS:localhost\n"
        (folder / "api.ext").write_text(names)
        (folder / "admin.ext").write_text("extendedKeyUsage=clientAuth\n")
        for name, subject in (("api", "/CN=apiserver"), ("admin", "/O=system:masters/CN=admin")):
            _openssl("req", *_new(name, folder), "-subj", subject,
                     "-out", str(folder / f"{name}.csr"))  # fmt: skip
            _openssl("x509", "-req", "-in", str(folder / f"{name}.csr"), "-days", "2",
                     "-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"),
                     "-CAcreateserial", "-extfile", str(folder / f"{name}.ext"),
                     "-out", str(folder / f"{name}.crt"))  # fmt: skip

    def _strict_pod_security(self) -> None:
        """Namespaces that name no level are held to one, as on sites that care."""
        kind = "PodSecurityConfiguration"
        level = {"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": kind}
        level["defaults"] = {"enforce": "baseline", "enforce-version": "latest"}
        config = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AdmissionConfiguration",
            "plugins": [{"name": "PodSecurity", "configuration": level}],
        }
        (self.folder / "admission.yaml").write_text(yaml.safe_dump(config))

    def _write_kubeconfig(self) -> None:
        def data(name: str) -> str:
            return base64.b64encode((self.folder / name).read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.context,
            "clusters": [
                {
                    "name": self.site,
                    "cluster": {
                        "server": f"https://{self.address}:{self.port}",
                        "certificate-authority-data": data("ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": "admin",
                    "user": {
                        "client-certificate-data": data("admin.crt"),
                        "client-key-data": data("admin.key"),
                    },
                }
            ],
            "contexts": [
                {"name": self.context, "context": {"cluster": self.site, "user": "admin"}}
            ],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)


def _new(name: str, folder: Path) -> list[str]:
    return ["-newkey", "rsa:2048", "-nodes", "-keyout", str(folder / f"{name}.key")]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _descendants(pid: int) -> list[int]:
    """Children of a process and theirs; plugins have process groups of their own."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


@contextlib.contextmanager
def running(folder: Path, site: str = "lab", address: str = "127.0.0.1") -> Iterator[ControlPlane]:
    """A control plane for the length of a `with`."""
    plane = ControlPlane(folder, site, address)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


class Target(Protocol):
    """A cluster of a site, and the way into it."""

    @property
    def site(self) -> str:
        """Name of the site."""

    @property
    def kubeconfig(self) -> Path:
        """Administrator's credentials."""


class Pulumi:
    """The real engine with the real provider, on a copy of the program with a state of its own."""

    def __init__(self, plane: Target, folder: Path, inventory: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.state = folder / "backend"
        self.program = folder / "pulumi"
        # A copy: the stack's configuration file lies beside the program.
        shutil.copytree(
            ROOT / "pulumi",
            self.program,
            ignore=shutil.ignore_patterns("__pycache__", "Pulumi.*.yaml"),
        )
        (folder / "passphrase").write_text("lab")
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([*map(str, engine.folders()), os.environ["PATH"]]),
            "HOME": str(folder),
            # The project's own backend in another place: ~ is the account's home, whatever HOME is.
            "PULUMI_BACKEND_URL": self._backend(),
            "PULUMI_HOME": str(folder / "home"),
            **engine.SETTINGS,
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(folder / "passphrase"),
            "RAILWELD_VERSIONS": str(ROOT / "versions"),
        }
        self("stack", "init", plane.site)
        self("config", "set", "site", str(inventory))
        self("config", "set", "railweld:kubeconfig", str(plane.kubeconfig))
        self("config", "set", "railweld:patience", "5")

    def _backend(self) -> str:
        project = yaml.safe_load((self.program / "Pulumi.yaml").read_text())
        url = str(project["backend"]["url"])
        assert "~/.local/state/railweld?" in url
        return url.replace("~/.local/state/railweld", str(self.state))

    def __call__(
        self, *arguments: str, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the CLI in the program's folder."""
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color=never"],
            cwd=self.program,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def up(self, *, check: bool = True, preview: bool = False) -> subprocess.CompletedProcess[str]:
        """Deploy without asking; with the preview that users see first, if wanted."""
        return self("up", "--yes", *([] if preview else ["--skip-preview"]), check=check)

    def start_up(self) -> subprocess.Popen[bytes]:
        """Deploy in the background, to be cut."""
        return subprocess.Popen(
            ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--color=never"],
            cwd=self.program,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def cut(process: subprocess.Popen[bytes]) -> None:
        """End a run and all that it started as a power cut does: nothing is written down."""
        for each in [*_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait()

    def changes(self, *arguments: str) -> dict[str, int]:
        """What a preview would do, by operation; `same` is left out."""
        done = self("preview", "--json", *arguments)
        summary: dict[str, int] = json.loads(done.stdout)["changeSummary"]
        return {name: count for name, count in summary.items() if name != "same"}

    def exported(self) -> str:
        """The state as it lies on the disk."""
        return "".join(
            path.read_text(errors="replace")
            for path in sorted(self.state.rglob("*"))
            if path.is_file()
        )
