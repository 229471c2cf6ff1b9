"""The API client and the looks before a deployment, against servers on the loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.errors import CouldNotLookError, ExitCode
from railweld.stack.api import ApiError, Cluster, read_kubeconfig
from railweld.stack.diff import compare, extra_data, remove_extra_data
from railweld.stack.objects import Key, Manifest, key, make, owned
from railweld.stack.preflight import PreflightError, adopt_command, preflight

CORE = [
    {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
    {"name": "namespaces", "kind": "Namespace", "namespaced": False},
]


class Api:
    """Objects and discovery, as far as these tests ask."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.status: int | None = None
        self.seen: list[tuple[str, str, str | None]] = []

    def put(self, manifest: Manifest) -> None:
        name = key(manifest)
        kind = next(each for each in CORE if each["kind"] == name.kind)
        where = f"/namespaces/{name.namespace}" if name.namespace else ""
        self.objects[f"/api/v1{where}/{kind['name']}/{name.name}"] = manifest

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.status is not None:
            return self.status, {"message": "no"}
        bare, _, query = path.partition("?")
        if bare == "/version":
            return 200, {"gitVersion": "v1.36.3"}
        if bare == "/api/v1":
            return 200, {"resources": CORE}
        if method == "PATCH" and "dryRun=All" in query:
            live = self.objects[bare]
            data = {**live.get("data", {}), **body.get("data", {})}
            metadata = {**live["metadata"]}
            metadata["labels"] = {
                **metadata.get("labels", {}),
                **body["metadata"].get("labels", {}),
            }
            return 200, {**live, "data": data, "metadata": metadata}
        if method == "PATCH" and not query:
            data = {**self.objects[bare]["data"], **body["data"]}
            kept = {name: value for name, value in data.items() if value is not None}
            self.objects[bare] = {**self.objects[bare], "data": kept}
        if "labelSelector" in query:
            return 200, {"items": []}
        found = self.objects.get(bare)
        return (200, found) if found is not None else (404, {"message": "not found"})


@pytest.fixture
def api() -> Iterator[tuple[Api, int]]:
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            state.seen.append((self.command, self.path, self.headers.get("Authorization")))
            status, data = state.answer(self.command, self.path, body)
            text = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = reply  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state, server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Callable[..., Path]:
    def write(server: str = "http://127.0.0.1:1", user: dict[str, Any] | None = None) -> Path:
        path = tmp_path / "kubeconfig"
        config = {
            "current-context": "railweld-lab",
            "contexts": [{"name": "railweld-lab", "context": {"cluster": "lab", "user": "admin"}}],
            "clusters": [{"name": "lab", "cluster": {"server": server}}],
            "users": [{"name": "admin", "user": user or {}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    return write


@pytest.fixture
def cluster(api: tuple[Api, int], kubeconfig: Callable[..., Path]) -> Iterator[Cluster]:
    found = Cluster.connect(kubeconfig(f"http://127.0.0.1:{api[1]}"), patience=5)
    yield found
    found.close()


def named(site: str) -> Manifest:
    text = yaml.safe_dump({"clusterName": site})
    return make(
        "v1", "ConfigMap", "kubeadm-config", "kube-system", data={"ClusterConfiguration": text}
    )


def namespace(site: str | None) -> Manifest:
    labels = {"railweld.io/site": site} if site else None
    return make("v1", "Namespace", "railweld-system", labels=labels)


def profile(**data: str) -> Manifest:
    return owned(make("v1", "ConfigMap", "nccl-profile", "railweld-jobs", data=data), "lab")


def test_a_missing_file_names_the_playbook(tmp_path: Path) -> None:
    with pytest.raises(CouldNotLookError, match=r"deploy-cluster\.yml") as caught:
        read_kubeconfig(tmp_path / "none")
    assert caught.value.exit_code == ExitCode.UNKNOWN


def test_an_unknown_context_names_those_that_are_there(kubeconfig: Callable[..., Path]) -> None:
    with pytest.raises(CouldNotLookError, match="found the contexts railweld-lab, expected 'x'"):
        read_kubeconfig(kubeconfig(), "x")


def test_text_that_is_no_yaml_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("{")
    with pytest.raises(CouldNotLookError, match="not YAML"):
        read_kubeconfig(tmp_path / "k")


def test_certificates_that_cannot_be_used_are_one_error(kubeconfig: Callable[..., Path]) -> None:
    user = {"client-certificate-data": "eA==", "client-key-data": "eA=="}
    with pytest.raises(CouldNotLookError, match="certificates that cannot be used"):
        read_kubeconfig(kubeconfig("https://127.0.0.1:1", user))


def test_nobody_there_is_said_within_the_given_time(kubeconfig: Callable[..., Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        path = kubeconfig(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(CouldNotLookError, match=r"no answer for 0 s .*refused"):
            Cluster.connect(path, patience=0)


def test_a_server_that_is_not_ready_yet_is_waited_for(
    api: tuple[Api, int], kubeconfig: Callable[..., Path]
) -> None:
    state, port = api
    state.status = 500
    timer = threading.Timer(0.3, lambda: setattr(state, "status", None))
    timer.start()
    Cluster.connect(kubeconfig(f"http://127.0.0.1:{port}"), patience=30).close()


def test_refused_credentials_are_not_waited_for(
    api: tuple[Api, int], kubeconfig: Callable[..., Path]
) -> None:
    state, port = api
    state.status = 401
    with pytest.raises(ApiError, match="not of this cluster or have expired"):
        Cluster.connect(kubeconfig(f"http://127.0.0.1:{port}"), patience=600)


@pytest.mark.parametrize("kind", ["token", "tokenFile", "exec"])
def test_tokens_from_the_file_a_file_or_a_program(
    api: tuple[Api, int], kubeconfig: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    (tmp_path / "token").write_text("secret\n")
    program = 'echo \'{"status": {"token": "secret"}}\''
    users: dict[str, Any] = {
        "token": {"token": "secret"},
        "tokenFile": {"tokenFile": "token"},
        "exec": {"exec": {"command": "sh", "args": ["-c", program]}},
    }
    path = kubeconfig(f"http://127.0.0.1:{api[1]}", users[kind])
    Cluster.connect(path, patience=5).close()
    assert api[0].seen[-1][2] == "Bearer secret"


def test_a_program_that_gives_no_token_is_one_error(kubeconfig: Callable[..., Path]) -> None:
    with pytest.raises(CouldNotLookError, match="gave no token"):
        read_kubeconfig(kubeconfig(user={"exec": {"command": "false"}}))


def test_what_is_not_there_is_none(cluster: Cluster) -> None:
    assert cluster.get(Key("v1", "ConfigMap", "default", "x")) is None
    assert cluster.get(Key("example.com/v1", "Thing", "default", "x")) is None


def test_the_sites_own_cluster_passes(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(named("lab"))
    preflight(cluster, "lab", [profile()])
    api[0].put(namespace("lab"))
    preflight(cluster, "lab", [profile()])


def test_a_cluster_of_another_name_is_refused(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(named("berlin"))
    with pytest.raises(PreflightError, match="found the cluster of site berlin, expected lab"):
        preflight(cluster, "lab", [])


def test_a_label_of_another_site_is_refused_too(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(named("lab"))
    api[0].put(namespace("berlin"))
    with pytest.raises(PreflightError, match="found the cluster of site berlin, expected lab"):
        preflight(cluster, "lab", [])


def test_a_nameless_cluster_must_be_said_to_be_the_sites(
    api: tuple[Api, int], cluster: Cluster
) -> None:
    with pytest.raises(PreflightError, match="kubectl label namespace railweld-system"):
        preflight(cluster, "lab", [])
    api[0].put(namespace("lab"))
    preflight(cluster, "lab", [])


def test_foreign_objects_are_refused_with_the_command(
    api: tuple[Api, int], cluster: Cluster
) -> None:
    api[0].put(named("lab"))
    api[0].put(make("v1", "ConfigMap", "nccl-profile", "railweld-jobs", data={}))
    with pytest.raises(PreflightError) as caught:
        preflight(cluster, "lab", [profile()])
    assert adopt_command(key(profile()), "lab") in str(caught.value)


def test_kinds_that_the_cluster_lacks_are_named(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(named("lab"))
    wanted = make("monitoring.coreos.com/v1", "PrometheusRule", "x", "railweld-system")
    with pytest.raises(PreflightError, match=r"PrometheusRule \(monitoring\.coreos\.com/v1\)"):
        preflight(cluster, "lab", [wanted])


def test_differences_are_of_the_described_fields(api: tuple[Api, int], cluster: Cluster) -> None:
    wanted = profile(NCCL_IB_TC="104", NCCL_NET="IB")
    assert [each.kind for each in compare(cluster, "lab", [wanted])] == ["missing"]
    api[0].put(wanted)
    assert compare(cluster, "lab", [wanted]) == []
    api[0].put(profile(NCCL_IB_TC="0", NCCL_NET="IB", NCCL_SHM_DISABLE="1"))
    (finding,) = compare(cluster, "lab", [wanted])
    assert [each.sentence() for each in finding.differences] == [
        'data.NCCL_IB_TC: found "0", expected "104"',
        'data.NCCL_SHM_DISABLE: found "1", expected nothing',
    ]


def test_what_is_not_described_is_taken_out_of_a_profile(
    api: tuple[Api, int], cluster: Cluster
) -> None:
    wanted = profile(NCCL_NET="IB")
    assert list(extra_data(cluster, [wanted])) == []
    api[0].put(profile(NCCL_NET="Socket", NCCL_SHM_DISABLE="1"))
    (finding,) = extra_data(cluster, [wanted])
    assert [each.path for each in finding.differences] == ["data.NCCL_SHM_DISABLE"]
    remove_extra_data(cluster, finding)
    live = cluster.get(key(wanted))
    assert live is not None
    # What is described is put right by the engine.
    assert live["data"] == {"NCCL_NET": "Socket"}


def test_a_foreign_object_is_told_apart(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(make("v1", "ConfigMap", "nccl-profile", "railweld-jobs", data={}))
    assert [each.kind for each in compare(cluster, "lab", [profile()])] == ["foreign"]


def test_a_closed_connection_is_opened_again(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].put(profile())
    assert cluster.get(key(profile())) is not None
    assert cluster._connection is not None
    assert cluster._connection.sock is not None
    cluster._connection.sock.shutdown(socket.SHUT_RDWR)
    assert cluster.get(key(profile())) is not None
