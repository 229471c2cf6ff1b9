"""The daemon's client of the Kubernetes API: a few verbs, watches, logs and exec, over aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from railweld.errors import RailweldError
from railweld.stack.api import Target, read_kubeconfig
from railweld.stack.objects import Manifest

#: One request. A slow API server is waited for, a dead connection is not.
REQUEST_SECONDS: Final = 30.0
#: The API server ends a watch after this long, with a bookmark, and the next goes on from there. A
#: quiet watch sends nothing in between, so this is also how soon a dead connection is noticed.
WATCH_SECONDS: Final = 45
SILENCE_SECONDS: Final = 60.0
#: Requests under way at a time.
PARALLEL: Final = 50
#: How often a request is repeated that the server was too busy for.
BUSY_RETRIES: Final = 5
#: How often a request is repeated for which the account has no right, as the server says.
RIGHT_RETRIES: Final = 10
#: Of RBAC; quotas and policies refuse in other words.
_NO_RIGHT: Final = b" cannot "
#: Objects per page of a list.
PAGE: Final = 500

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
TOO_MANY: Final = 429


class KubeUnknownError(Exception):
    """The API server was not reached or could not answer: nothing follows from it."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        #: Of an answer that is not the API server's, as far as its words show; 0 without any.
        self.status = status


class KubeRefusedError(Exception):
    """The API server answered, and refused."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Kube:
    """One cluster. Credentials are read again when the server no longer takes them."""

    def __init__(self, kubeconfig: Path, context: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._target: Target | None = None
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(PARALLEL)
        #: Requests so far, by method, for the metrics.
        self.requests: dict[str, int] = {}

    async def __aenter__(self) -> Kube:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._target = read_kubeconfig(self._kubeconfig, self._context or None)
            connector = aiohttp.TCPConnector(limit=0, ssl=self._target.tls or False)
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=True,
            )
        return self._session

    async def close(self) -> None:
        """Drop every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _headers(self, data: bytes | None = None, content: str = "") -> dict[str, str]:
        assert self._target is not None  # noqa: S101 - set by _open
        found = {"Accept": "application/json", **self._target.headers}
        return found if data is None else {**found, "Content-Type": content}

    @property
    def token_file(self) -> Path | None:
        """Where the token stands that the next request shows."""
        self._open()
        return self._target.token_file if self._target else None

    def renewed(self) -> None:
        """Another token is in its file: show that from now on. Requests under way go on."""
        self._target = read_kubeconfig(self._kubeconfig, self._context or None)

    def _url(self, path: str, query: Mapping[str, Any] | Sequence[tuple[str, str]] | None) -> str:
        assert self._target is not None  # noqa: S101 - set by _open
        text = self._target.server.rstrip("/") + path
        return f"{text}?{urlencode(query)}" if query else text

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Any:
        """Send one request and return its JSON.

        A server that is busy (429, or 5xx with Retry-After) is asked again, as it says.

        Raises:
            KubeRefusedError: the server said no.
            KubeUnknownError: it did not answer, or could not.
        """
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        attempt = 0
        while True:
            async with self._slots:
                status, headers, text = await self._once(method, path, data, query, content)
            if status == UNAUTHORIZED and attempt == 0:
                # The token may have been renewed meanwhile.
                await self.close()
            elif status == FORBIDDEN and _NO_RIGHT in text and attempt < RIGHT_RETRIES:
                # A server that has just started does not know the roles yet.
                await asyncio.sleep(1.0)
            elif "Retry-After" in headers and attempt < BUSY_RETRIES:
                await asyncio.sleep(min(_seconds(headers["Retry-After"]), 10.0))
            else:
                return _answer(method, path, status, text)
            attempt += 1

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, Any] | None,
        content: str,
    ) -> tuple[int, Mapping[str, str], bytes]:
        self.requests[method] = self.requests.get(method, 0) + 1
        try:
            session = self._open()
            async with session.request(
                method,
                self._url(path, query),
                data=data,
                headers=self._headers(data, content),
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            ) as response:
                return response.status, response.headers, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise KubeUnknownError(f"{method} {path}: {_words(error)}") from error
        except RailweldError as error:
            raise KubeUnknownError(str(error)) from error

    async def get(self, path: str) -> Manifest | None:
        """An object, or None where there is none."""
        try:
            found = await self.request("GET", path)
        except KubeRefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        if not isinstance(found, dict):
            # An answer of nothing is no word of absence.
            raise KubeUnknownError(f"GET {path}: found {_short(found)}, expected an object")
        return found

    async def list(self, path: str, *, labels: str = "") -> tuple[list[Manifest], str]:
        """Every object of a collection as it is now, and the version to watch from."""
        items: list[Manifest] = []
        query: dict[str, Any] = {"limit": PAGE}
        if labels:
            query["labelSelector"] = labels
        while True:
            page = await self.request("GET", path, query=query)
            metadata = page.get("metadata") if isinstance(page, dict) else None
            if not isinstance(metadata, dict) or "items" not in page:
                raise KubeUnknownError(f"GET {path}: found {_short(page)}, expected a list")
            items += page["items"] or ()
            token = metadata.get("continue")
            if not token:
                return items, str(metadata["resourceVersion"])
            query["continue"] = token

    async def watch(
        self,
        path: str,
        version: str,
        *,
        labels: str = "",
        opened: Callable[[], object] = lambda: None,
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """Changes after a version, bookmarks included, until the server ends the watch.

        `opened` is called when the server has taken the request; a quiet watch says nothing else.

        Raises:
            KubeRefusedError: with 410 when the version is too old: list again.
            KubeUnknownError: the connection broke or fell silent.
        """
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
        }
        if labels:
            query["labelSelector"] = labels
        self.requests["WATCH"] = self.requests.get("WATCH", 0) + 1
        try:
            session = self._open()
            async with session.get(
                self._url(path, query),
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS
                ),
            ) as response:
                if response.status == UNAUTHORIZED:
                    await self.close()
                if response.status != 200:
                    _answer("WATCH", path, response.status, await response.read())
                opened()
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if not _is_event(event):
                        raise KubeUnknownError(
                            f"WATCH {path}: found {_short(event)}, expected a change"
                        )
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise KubeRefusedError(
                            int(status.get("code", GONE)),
                            str(status.get("reason")),
                            f"WATCH {path}: {status.get('message')}",
                        )
                    yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise KubeUnknownError(f"WATCH {path}: {_words(error)}") from error
        except RailweldError as error:
            raise KubeUnknownError(str(error)) from error

    @contextlib.asynccontextmanager
    async def exec(
        self, path: str, query: Sequence[tuple[str, str]]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Start a process in a container; channels are the first byte of each message.

        Raises:
            KubeRefusedError: the server said no.
            KubeUnknownError: it did not answer.
        """
        self.requests["EXEC"] = self.requests.get("EXEC", 0) + 1
        try:
            session = self._open()
            link = await session.ws_connect(
                self._url(path, query),
                protocols=("v4.channel.k8s.io",),
                headers=self._headers(),
                # The shell's own silence is no reason to end it; a dead connection is.
                heartbeat=30.0,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise KubeRefusedError(error.status, "", f"EXEC {path}: {error.status}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeUnknownError(f"EXEC {path}: {_words(error)}") from error
        except RailweldError as error:
            raise KubeUnknownError(str(error)) from error
        try:
            yield link
        finally:
            await link.close()

    async def stream(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Bytes of an answer as they come, such as a container's log.

        Raises:
            KubeRefusedError: the server said no.
            KubeUnknownError: it did not answer, or the connection broke.
        """
        self.requests["LOG"] = self.requests.get("LOG", 0) + 1
        try:
            session = self._open()
            async with session.get(
                self._url(path, query),
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS),
            ) as response:
                if response.status != 200:
                    _answer("GET", path, response.status, await response.read())
                async for data in response.content.iter_any():
                    yield data
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeUnknownError(f"GET {path}: {_words(error)}") from error
        except RailweldError as error:
            raise KubeUnknownError(str(error)) from error


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own reader refuses long ones."""
    buffer = bytearray()
    async for data in stream.iter_any():
        buffer += data
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line:
                yield line


def _answer(method: str, path: str, status: int, text: bytes) -> Any:
    """What a request returns, or the error that its answer is.

    Absence and refusal are the API server's to say, in a Status. A page of something before it, a
    balancer or a proxy, is no answer, whatever its number.
    """
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        shown = text.decode(errors="replace")[:200].strip()
        words = f"{method} {path}: {status}: found {shown!r}, expected JSON"
        raise KubeUnknownError(words, status) from error
    said = found if isinstance(found, dict) and found.get("kind") == "Status" else None
    failed = said is not None and said.get("status") == "Failure"
    if status < 400 and not failed:
        return found
    if said is None:
        raise KubeUnknownError(
            f"{method} {path}: {status}: found {_short(found)}, expected a Status", status
        )
    if status < 400:
        # Some proxies answer 200 with an error inside.
        code = said.get("code")
        status = code if isinstance(code, int) and code >= 400 else 500
    words = f"{method} {path}: {status} {said.get('message')}"
    if status >= 500 or status in (TOO_MANY, UNAUTHORIZED):
        raise KubeUnknownError(words, status)
    raise KubeRefusedError(status, str(said.get("reason")), words)


def _is_event(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("type"), str)
        and isinstance(content.get("object"), dict)
    )


def _short(content: Any) -> str:
    text = "nothing" if content is None else json.dumps(content)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _seconds(text: str) -> float:
    try:
        return max(float(text), 0.1)
    except ValueError:
        return 1.0


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
