"""A small client of the Kubernetes API: reads a kubeconfig, bounded in time, errors in words.

Only what preflight and diff need; standard library only, so that rendering and comparing work
wherever the command line does.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import yaml

from railweld.errors import CouldNotLookError
from railweld.stack.objects import Key, Manifest, key

#: One request may take this long; the whole first contact may take `Cluster.patience`.
REQUEST_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.5


class ApiError(CouldNotLookError):
    """The API server was reached and said no."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Target:
    """Where a kubeconfig leads to, and how one proves who one is."""

    file: Path
    context: str
    server: str
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]
    #: Where the token stands, if it is in a file of its own.
    token_file: Path | None = None

    @property
    def words(self) -> str:
        """For errors."""
        return f"context {self.context} of {self.file} ({self.server})"


def read_kubeconfig(path: Path, context: str | None = None) -> Target:
    """Read one context of a kubeconfig.

    Raises:
        CouldNotLookError: no file, no such context, or credentials that cannot be read.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise CouldNotLookError(
            f"kubeconfig {path}: {error.strerror}, expected the file that deploy-cluster.yml "
            "writes. Fix: run playbooks/deploy-cluster.yml, or set railweld:kubeconfig"
        ) from error
    except yaml.YAMLError as error:
        raise CouldNotLookError(
            f"kubeconfig {path}: found text that is not YAML: {error}"
        ) from error
    wanted = context or data.get("current-context")
    known = [entry["name"] for entry in data.get("contexts") or ()]
    if wanted not in known:
        raise CouldNotLookError(
            f"kubeconfig {path}: found the contexts {', '.join(known) or 'none'}, expected "
            f"{wanted!r}. Fix: run playbooks/deploy-cluster.yml, or set railweld:context"
        )
    chosen = _entry(data, "contexts", "context", wanted)
    cluster = _entry(data, "clusters", "cluster", chosen.get("cluster"))
    user = _entry(data, "users", "user", chosen.get("user"))
    server = str(cluster.get("server", ""))
    try:
        tls = _tls(path.parent, cluster, user) if server.startswith("https://") else None
    except (OSError, ssl.SSLError, binascii.Error) as error:
        raise CouldNotLookError(
            f"kubeconfig {path}, context {wanted}: found certificates that cannot be used "
            f"({error}), expected a readable CA, certificate and key"
        ) from error
    token_file = path.parent / str(user["tokenFile"]) if user.get("tokenFile") else None
    return Target(path, str(wanted), server, tls, _headers(path.parent, user), token_file)


def _entry(data: Mapping[str, Any], section: str, part: str, name: Any) -> Mapping[str, Any]:
    for entry in data.get(section) or ():
        if entry.get("name") == name:
            found: Mapping[str, Any] = entry.get(part) or {}
            return found
    return {}


def _material(base: Path, entry: Mapping[str, Any], name: str) -> bytes | None:
    """A certificate or key, written into the file or beside it."""
    if inline := entry.get(f"{name}-data"):
        return base64.b64decode(inline)
    if file := entry.get(name):
        return (base / str(file)).read_bytes()
    return None


def _tls(base: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _material(base, cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate = _material(base, user, "client-certificate")
    private = _material(base, user, "client-key")
    if certificate and private:
        # The standard library loads these from a file only; it exists for a moment, mode 0600.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + private)
            file.flush()
            tls.load_cert_chain(file.name)
    return tls


def _headers(base: Path, user: Mapping[str, Any]) -> dict[str, str]:
    token = user.get("token")
    if not token and (file := user.get("tokenFile")):
        token = (base / str(file)).read_text(encoding="ascii").strip()
    if not token and (plugin := user.get("exec")):
        token = _plugin_token(plugin)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _plugin_token(plugin: Mapping[str, Any]) -> str:
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    environment = {each["name"]: each["value"] for each in plugin.get("env") or ()}
    info = {
        "apiVersion": plugin.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    try:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        )
        return str(json.loads(done.stdout)["status"]["token"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise CouldNotLookError(
            f"kubeconfig: `{' '.join(command)}` gave no token ({error}), expected an "
            "ExecCredential with one"
        ) from error


class Cluster:
    """The API of one cluster, over one kept connection."""

    def __init__(self, target: Target, *, patience: float = 20.0) -> None:
        self.target = target
        self._patience = patience
        self._connection: http.client.HTTPConnection | None = None
        self._resources: dict[str, dict[str, Mapping[str, Any]] | None] = {}

    @classmethod
    def connect(cls, path: Path, context: str | None = None, *, patience: float = 20.0) -> Cluster:
        """Open the cluster of a kubeconfig and see that it answers, within `patience` seconds."""
        cluster = cls(read_kubeconfig(path, context), patience=patience)
        cluster.wait()
        return cluster

    def wait(self) -> None:
        """Return once the API server answers; raises CouldNotLookError when it does not."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self.request("GET", "/version")
            except ApiError as error:
                if error.status < http.client.INTERNAL_SERVER_ERROR:
                    raise
                last: Exception = error
            except ssl.SSLCertVerificationError as error:
                raise CouldNotLookError(
                    f"{self.target.words}: found a certificate that this kubeconfig's CA did not "
                    f"sign ({error.verify_message}), expected the site's own cluster. Fix: fetch "
                    "the kubeconfig again with playbooks/deploy-cluster.yml"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                last = error
            else:
                return
            if time.monotonic() >= deadline:
                raise CouldNotLookError(
                    f"{self.target.words}: no answer for {self._patience:g} s "
                    f"({_reason(last)}), expected the API server. See: kubectl --kubeconfig "
                    f"{self.target.file} --context {self.target.context} get --raw /readyz"
                ) from last
            time.sleep(PAUSE_SECONDS)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Any:
        """Send one request and return its JSON; raises ApiError for a refusal."""
        url = f"{urlsplit(self.target.server).path.rstrip('/')}{path}"
        if query:
            url += "?" + urlencode(query)
        headers = {"Accept": "application/json", **self.target.headers}
        if body is not None:
            headers["Content-Type"] = content
        data = None if body is None else json.dumps(body).encode()
        fresh = self._connection is None
        connection = self._connection or self._open()
        self._connection = connection
        try:
            connection.request(method, url, data, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            if fresh or method not in ("GET", "PATCH"):
                raise
            # A kept connection may have been closed at the other end; these may be repeated.
            return self.request(method, path, body, query=query, content=content)
        if response.status >= http.client.BAD_REQUEST:
            raise ApiError(self._refusal(response.status, method, path, text), response.status)
        return json.loads(text) if text else None

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, wanted: Key) -> Manifest | None:
        """A live object, or None when it, its kind or its namespace is not there."""
        path = self.path(wanted)
        if path is None:
            return None
        try:
            found: Manifest = self.request("GET", path)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise
        return found

    def apply(self, manifest: Manifest, *, manager: str, dry_run: bool = False) -> Manifest:
        """Server-side apply, winning every conflict; returns the object as it is then."""
        path = self.path(key(manifest))
        if path is None:
            raise ApiError(
                f"{self.target.words}: found no kind {manifest['kind']} of "
                f"{manifest['apiVersion']}",
                http.client.NOT_FOUND,
            )
        query = {"fieldManager": manager, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        result: Manifest = self.request(
            "PATCH", path, manifest, query=query, content="application/apply-patch+yaml"
        )
        return result

    def serves(self, api_version: str, kind: str) -> bool:
        """Whether the cluster has the kind."""
        return kind in (self._kinds(api_version) or {})

    def path(self, wanted: Key) -> str | None:
        """Path of an object; None when the cluster does not have its kind."""
        collection = self.collection(wanted.api_version, wanted.kind, wanted.namespace)
        return None if collection is None else f"{collection}/{quote(wanted.name)}"

    def collection(self, api_version: str, kind: str, namespace: str = "") -> str | None:
        """Path of all objects of a kind, in one namespace or in all."""
        resource = (self._kinds(api_version) or {}).get(kind)
        if resource is None:
            return None
        base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if namespace and resource["namespaced"]:
            base += f"/namespaces/{quote(namespace)}"
        return f"{base}/{resource['name']}"

    def _kinds(self, api_version: str) -> dict[str, Mapping[str, Any]] | None:
        if api_version not in self._resources:
            base = "/apis" if "/" in api_version else "/api"
            try:
                listing = self.request("GET", f"{base}/{api_version}")
            except ApiError as error:
                if error.status != http.client.NOT_FOUND:
                    raise
                self._resources[api_version] = None
            else:
                self._resources[api_version] = {
                    each["kind"]: each for each in listing["resources"] if "/" not in each["name"]
                }
        return self._resources[api_version]

    def _open(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.target.server)
        host = parts.hostname or ""
        if self.target.tls is None:
            return http.client.HTTPConnection(host, parts.port, timeout=REQUEST_SECONDS)
        return http.client.HTTPSConnection(
            host, parts.port, timeout=REQUEST_SECONDS, context=self.target.tls
        )

    def _refusal(self, status: int, method: str, path: str, text: bytes) -> str:
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text.decode(errors="replace")[:200]
        words = {
            http.client.UNAUTHORIZED: "; the credentials are not of this cluster or have expired: "
            "run playbooks/deploy-cluster.yml again",
            http.client.FORBIDDEN: "; the user of this context lacks the right",
        }.get(status, "")
        return f"{self.target.words}: {method} {path}: {message}{words}"


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {error.strerror}"
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
