"""What counts as an answer of the API server, by a server that says anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from railweld.bridge.kube import Kube, KubeRefusedError, KubeUnknownError

PATH = "/apis/batch/v1/namespaces/jobs/jobs/x"
FAILURE = {"kind": "Status", "status": "Failure", "reason": "R", "message": "words"}


def http(status: int, body: bytes, *, length: int | None = None, kind: str = "json") -> bytes:
    """An answer, which may promise more than there is."""
    size = len(body) if length is None else length
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/{kind}\r\n"
        f"Content-Length: {size}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def status(code: Any, number: int) -> bytes:
    """An answer with the API server's own words of failure."""
    return http(number, json.dumps({**FAILURE, "code": code}).encode())


def ask(folder: Path, answer: bytes, question: Callable[[Kube], Awaitable[Any]]) -> Any:
    """Ask a server that gives this answer to everything and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        kubeconfig = folder / "kubeconfig"
        content = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        kubeconfig.write_text(json.dumps(content))
        try:
            async with Kube(kubeconfig) as kube:
                return await asyncio.wait_for(question(kube), 20)
        finally:
            server.close()

    return asyncio.run(run())


def get(kube: Kube) -> Awaitable[Any]:
    return kube.get(PATH)


def listed(kube: Kube) -> Awaitable[Any]:
    return kube.list(PATH)


async def watched(kube: Kube) -> list[Any]:
    return [event async for event in kube.watch(PATH, "1")]


def test_an_object_and_its_absence_are_answers(tmp_path: Path) -> None:
    assert ask(tmp_path, http(200, b'{"kind": "Job"}'), get) == {"kind": "Job"}
    assert ask(tmp_path, status(404, 404), get) is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(http(200, b""), id="nothing"),
        pytest.param(http(200, b"null"), id="null"),
        pytest.param(http(200, b"[]"), id="no-object"),
        pytest.param(http(200, b"<html>sign in</html>", kind="html"), id="a-page"),
        pytest.param(http(200, b'{"kind": "Jo'), id="cut-in-the-middle"),
        pytest.param(http(200, b'{"kind": "Job"}', length=99), id="shorter-than-promised"),
        pytest.param(
            b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}", id="cut-chunk"
        ),
        pytest.param(b"", id="hung-up"),
        pytest.param(b"SSH-2.0-x\r\n", id="no-http"),
        pytest.param(status(503, 200), id="200-with-an-error"),
        pytest.param(status(None, 200), id="200-with-an-error-without-a-code"),
        pytest.param(status(200, 200), id="200-with-an-error-that-says-200"),
        pytest.param(status("x", 200), id="200-with-an-error-that-says-anything"),
        pytest.param(status(401, 401), id="token-not-taken"),
        pytest.param(status(500, 500), id="internal"),
        pytest.param(http(502, b"<html>bad gateway</html>", kind="html"), id="bad-gateway"),
        # Of a balancer without a server behind it: no word of whether the object is there.
        pytest.param(http(404, b"404 page not found\n", kind="html"), id="page-not-found"),
        pytest.param(http(404, b"", kind="html"), id="empty-not-found"),
        pytest.param(http(404, b'{"error": "no route"}'), id="no-route"),
        pytest.param(http(403, b"<html>blocked</html>", kind="html"), id="blocked"),
    ],
)
def test_what_is_no_answer_says_nothing_about_an_object(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(KubeUnknownError):
        ask(tmp_path, answer, get)


@pytest.mark.parametrize(("code", "number"), [(403, 403), (409, 409), (422, 422), (403, 200)])
def test_a_refusal_is_the_servers_own(tmp_path: Path, code: int, number: int) -> None:
    with pytest.raises(KubeRefusedError, match="words") as caught:
        ask(tmp_path, status(code, number), lambda kube: kube.request("POST", PATH, {}))
    assert caught.value.status == code


def test_a_page_keeps_its_number(tmp_path: Path) -> None:
    """An API server answers like that for a kind that it does not know."""
    with pytest.raises(KubeUnknownError, match="404 page not found") as caught:
        ask(tmp_path, http(404, b"404 page not found\n", kind="html"), get)
    assert caught.value.status == 404


def test_lists_are_read(tmp_path: Path) -> None:
    text = b'{"metadata": {"resourceVersion": "7"}, "items": [{"a": 1}]}'
    assert ask(tmp_path, http(200, text), listed) == ([{"a": 1}], "7")
    # As Go writes an empty one.
    text = b'{"metadata": {"resourceVersion": "7"}, "items": null}'
    assert ask(tmp_path, http(200, text), listed) == ([], "7")


@pytest.mark.parametrize(
    "text",
    [b"{}", b"null", b"[]", b'{"items": []}', b'{"metadata": {"resourceVersion": "7"}}'],
)
def test_what_is_no_list_is_no_empty_one(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(KubeUnknownError):
        ask(tmp_path, http(200, text), listed)


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**FAILURE, "code": 500}).encode(),
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": null}',
        b"[]",
        b"<html>",
    ],
)
def test_a_watch_that_says_something_else_is_a_lost_one(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(KubeUnknownError):
        ask(tmp_path, http(200, line + b"\n"), watched)


def test_a_watch_that_has_expired_says_so(tmp_path: Path) -> None:
    event = {"type": "ERROR", "object": {**FAILURE, "code": 410}}
    with pytest.raises(KubeRefusedError) as caught:
        ask(tmp_path, http(200, json.dumps(event).encode() + b"\n"), watched)
    assert caught.value.status == 410
