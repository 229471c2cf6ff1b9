"""Between the daemon and the API server: sees every request, and lets some go wrong.

The daemon speaks plain HTTP to it, it speaks TLS to the server. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
import yarl
from aiohttp import web

from tests.integration.stack.plane import ControlPlane, free_port

WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass
class Fault:
    """What happens to a request; counted down to nothing if `times` is given.

    Attributes:
        matches: method, path and query text of the request.
        answer: status, headers and body instead of the server's.
        before: called before the request is passed on, which then is not.
        after: called when the server has answered; the daemon does not get the answer.
        freeze: the answer's body never comes.
        delay: seconds that a request waits before it is passed on.
    """

    matches: Callable[[str, str, str], bool]
    answer: tuple[int, dict[str, str], bytes] | None = None
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    freeze: bool = False
    delay: float = 0.0
    times: int | None = None
    happened: int = 0


@dataclass
class Proxy:
    """A running proxy."""

    plane: ControlPlane
    port: int = field(default_factory=free_port)
    faults: list[Fault] = field(default_factory=list)
    #: Method and path of every request.
    seen: list[tuple[str, str]] = field(default_factory=list)
    _streams: set[asyncio.Transport] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def kubeconfig(self, direct: Path) -> Path:
        """The daemon's kubeconfig, by way of the proxy."""
        config = yaml.safe_load(direct.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        path = direct.with_name("proxied-kubeconfig")
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def fault(self, **options: object) -> Fault:
        """From now on, let this go wrong."""
        found = Fault(**options)  # type: ignore[arg-type]  # keywords of the tests
        self.faults.append(found)
        return found

    def cut_watches(self) -> None:
        """Close every watch in the middle."""

        def cut() -> None:
            for each in list(self._streams):
                each.abort()

        self._loop.call_soon_threadsafe(cut)

    # -- inside the thread -------------------------------------------------------------------

    def _fault_of(self, request: web.Request) -> Fault | None:
        for each in self.faults:
            if each.times is not None and each.happened >= each.times:
                continue
            if each.matches(request.method, request.path, request.query_string):
                each.happened += 1
                return each
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path))
        fault = self._fault_of(request)
        if fault is not None and fault.answer is not None:
            status, headers, body = fault.answer
            return web.Response(status=status, headers=headers, body=body)
        if fault is not None and fault.before is not None:
            await asyncio.to_thread(fault.before)
            raise web.HTTPServiceUnavailable
        if fault is not None:
            await asyncio.sleep(fault.delay)
        # Without a certificate of its own: the daemon's token decides what may be done.
        trust = ssl.create_default_context(cafile=str(self.plane.folder / "ca.crt"))
        server = f"https://{self.plane.address}:{self.plane.port}"
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "transfer-encoding", "connection")
        }
        connector = aiohttp.TCPConnector(ssl=trust)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.request(
                request.method,
                yarl.URL(server + request.raw_path, encoded=True),
                headers=headers,
                data=await request.read() or None,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer,
        ):
            if fault is not None and fault.after is not None:
                await answer.read()
                await asyncio.to_thread(fault.after)
                raise web.HTTPServiceUnavailable
            response = web.StreamResponse(status=answer.status)
            for name in ("Content-Type", "Content-Encoding", "Retry-After"):
                if name in answer.headers:
                    response.headers[name] = answer.headers[name]
            await response.prepare(request)
            if fault is not None and fault.freeze:
                await asyncio.Event().wait()
            transport = request.transport
            if "watch" in request.query and isinstance(transport, asyncio.Transport):
                self._streams.add(transport)
            try:
                async for data in answer.content.iter_any():
                    await response.write(data)
            finally:
                if isinstance(transport, asyncio.Transport):
                    self._streams.discard(transport)
            return response

    async def _serve(self, started: Future[None]) -> None:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        started.set_result(None)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


@contextlib.contextmanager
def running(plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy for the length of a `with`."""
    proxy = Proxy(plane)
    started: Future[None] = Future()
    loop = proxy._loop
    task = loop.create_task(proxy._serve(started))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        # Handlers of watches outlive their connections; the collector would end them anywhere.
        left = asyncio.all_tasks(loop)
        for each in left:
            each.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.result(30)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
