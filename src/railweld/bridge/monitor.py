"""Metrics for Prometheus and health for whoever watches the head."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from railweld.bridge.daemon import Bridge


async def serve(bridge: Bridge, host: str, port: int) -> None:
    """Serve /metrics, /healthz and /readyz until cancelled."""
    app = web.Application()

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text="\n".join(_metrics(bridge)) + "\n", content_type="text/plain")

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        problems = list(bridge.problems())
        status = 503 if problems else 200
        return web.Response(text="".join(f"{each}\n" for each in problems) or "ok\n", status=status)

    app.add_routes(
        [web.get("/metrics", metrics), web.get("/healthz", health), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _metrics(bridge: Bridge) -> Iterator[str]:
    yield from _family(
        "railweld_bridge_jobs",
        "gauge",
        "Jobs by state.",
        {
            (("state", each),): n
            for each, n in Counter(r.decision.state for r in bridge.runs.values()).items()
        },
    )
    yield from _family(
        "railweld_bridge_finished_total",
        "counter",
        "Jobs that ended, by kind of end.",
        {(("kind", kind),): n for kind, n in bridge.finished.items()},
    )
    yield from _family(
        "railweld_bridge_api_requests_total",
        "counter",
        "Requests to the Kubernetes API.",
        {(("method", method),): n for method, n in bridge.kube.requests.items()},
    )
    yield from _family(
        "railweld_bridge_watch_restarts_total",
        "counter",
        "Watches that had to begin anew.",
        {(("kind", kind),): n for kind, n in bridge.mirror.restarts.items()},
    )
    yield from _family(
        "railweld_bridge_refused_total",
        "counter",
        "Requests that were refused.",
        {(("by", "client"),): bridge.server.refused, (("by", "agent"),): bridge.hub.refused},
    )
    seconds = bridge.renewal.seconds_left() if bridge.renewal else None
    if seconds is not None:
        text = "Until the token of the Kubernetes API ends."
        yield from _family("railweld_bridge_token_seconds", "gauge", text, {(): seconds})
    for name, text, value in (
        ("agents", "Pods whose agent is connected.", bridge.hub.connected),
        ("faults_total", "Faults of the bridge in following jobs.", bridge.faults),
        ("slurm_looks_total", "Answers of slurmctld.", bridge.slurm.looks),
        ("slurm_age_seconds", "Age of the last answer of slurmctld.", bridge.slurm_age()),
        ("kubernetes_live", "Whether the watches follow the API server.", int(bridge.mirror.live)),
        ("start_time_seconds", "When the daemon started.", bridge.started_at),
        ("now_seconds", "The daemon's clock.", time.time()),
        (
            "resident_bytes",
            "Largest memory so far.",
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ),
    ):
        kind = "counter" if name.endswith("_total") else "gauge"
        yield from _family(f"railweld_bridge_{name}", kind, text, {(): value})


def _family(
    name: str, kind: str, text: str, values: dict[tuple[tuple[str, str], ...], float]
) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        inner = ",".join(f'{key}="{label}"' for key, label in labels)
        yield f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"
