"""Images through the real podman into a registry, and what a node would pull from there."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from railweld.images.catalog import catalog
from railweld.images.make import build, push
from railweld.site import Site

pytestmark = pytest.mark.deep


class Registry:
    """As much of the distribution protocol as a push needs; keeps everything in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        uploads: dict[str, bytes] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content

            def do_GET(self) -> None:
                path, _, name = self.path.rpartition("/")
                found = registry.blobs if path.endswith("/blobs") else registry.manifests
                key = name if path.endswith("/blobs") else self.path
                if self.path == "/v2/":
                    self.answer(200)
                elif key in found:
                    self.answer(200, found[key])
                else:
                    self.answer(404)

            do_HEAD = do_GET  # noqa: N815 - the library's names

            def do_POST(self) -> None:
                uploads[self.path] = b""
                self.answer(202, Location=f"{self.path}upload")

            def do_PATCH(self) -> None:
                uploads[self.path] = self.body()
                self.answer(202, Location=self.path, Range=f"0-{len(uploads[self.path])}")

            def do_PUT(self) -> None:
                content = self.body()
                if "/manifests/" in self.path:
                    registry.manifests[self.path] = content
                else:
                    content = uploads.pop(self.path.partition("?")[0], b"") + content
                    registry.blobs[f"sha256:{hashlib.sha256(content).hexdigest()}"] = content
                digest = hashlib.sha256(content).hexdigest()
                self.answer(201, Docker_Content_Digest=f"sha256:{digest}")

            def log_message(self, *_: Any) -> None:
                """Keep the tests' output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    found = Registry()
    threading.Thread(target=found.server.serve_forever, daemon=True).start()
    settings = tmp_path / "registries.conf"
    settings.write_text(f'[[registry]]\nlocation = "{found.address}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(settings))
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_the_guards_image_is_pushed_under_the_name_that_pods_ask_for(
    registry: Registry, site: Callable[..., Site]
) -> None:
    entries = catalog(site(image_registry=f"{registry.address}/mirror"))
    archives = build(entries)
    try:
        push(entries, archives)
        manifest = json.loads(registry.manifests["/v2/mirror/clock-guard/manifests/1"])
        config = json.loads(registry.blobs[manifest["config"]["digest"]])
        assert config["config"]["Entrypoint"] == ["/clock-guard"]
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=io.BytesIO(registry.blobs[layer["digest"]])) as archive:
            program = archive.getmember("clock-guard")
            assert program.mode & 0o111
            assert program.size > 1_000_000
        # A second push finds everything there.
        push(entries, archives)
    finally:
        subprocess.run(["podman", "rmi", entries[0].ref], check=False, capture_output=True)
