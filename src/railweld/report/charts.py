"""The report's drawings. Colours of text and grid come from the page, so that both themes work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from railweld.bench.output import MeasuredRun
from railweld.record import Status
from railweld.report.data import ORDER, Data, pairs

#: One colour per status, told apart by people who see red and green alike, on light and dark.
COLOURS: Final = {
    Status.FAIL: "#d1495b",
    Status.UNKNOWN: "#8a6fb0",
    Status.WARN: "#e0a030",
    Status.SKIPPED: "#8b95a1",
    Status.PASS: "#2a9d8f",
}
_SYMBOLS: Final = {"node": "square", "leaf": "diamond", "spine": "triangle-up"}


def topology(data: Data) -> go.Figure:
    """Nodes below, leaves and spines above, a line per cable; colours say what was found."""
    places = _places(data)
    figure = go.Figure()
    for status in reversed(ORDER):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for link in data.links:
            if link.state is not status:
                continue
            (x1, y1), (x2, y2) = (places[name][:2] for name in link.ends)
            xs += [x1, x2, None]
            ys += [y1, y2, None]
        if xs:
            figure.add_scatter(
                x=xs, y=ys, mode="lines", name=f"cable: {status}", hoverinfo="skip",
                line={"color": COLOURS[status], "width": 3 if status is Status.FAIL else 1.5},
            )  # fmt: skip
    named = len(places) <= 80
    for status in reversed(ORDER):
        names = [name for name in places if data.state(name) is status]
        if names:
            figure.add_scatter(
                x=[places[name][0] for name in names],
                y=[places[name][1] for name in names],
                mode="markers+text" if named else "markers",
                name=f"machine: {status}",
                text=names,
                textposition=[
                    "bottom center" if places[name][2] == "node" else "top center"
                    for name in names
                ],
                hovertemplate="%{text}<extra></extra>",
                marker={
                    "color": COLOURS[status],
                    "size": 16,
                    "symbol": [_SYMBOLS[places[name][2]] for name in names],
                },
            )  # fmt: skip
    hidden = {"visible": False}
    figure.update_layout(xaxis=hidden, yaxis={**hidden, "range": [-0.5, 2.5]}, height=420)
    return _plain(figure)


def _places(data: Data) -> dict[str, tuple[float, float, str]]:
    """Position and kind of each machine; rows are centred over each other."""
    site = data.site
    spines = set(site.groups.get("spines", ()))
    rows = (
        ("node", [name for name, host in site.hosts.items() if host.hcas]),
        ("leaf", [name for name in site.switches if name not in spines]),
        ("spine", [name for name in site.switches if name in spines]),
    )
    widest = max((len(names) for _, names in rows), default=1)
    found = {}
    for height, (kind, names) in enumerate(rows):
        step = widest / max(1, len(names))
        for place, name in enumerate(names):
            found[name] = ((place + 0.5) * step, float(height), kind)
    return found


def bandwidth(runs: Sequence[MeasuredRun]) -> go.Figure:
    """Bus bandwidth against message size; the broken line is what a run needs."""
    figure = go.Figure()
    shown = [run for run in runs if len(run.rows) > 1][:20]
    for run in shown:
        name = ",".join(run.nodes) if len(run.nodes) < 4 else f"{len(run.nodes)} nodes"
        figure.add_scatter(
            x=[row.bytes for row in run.rows],
            y=[row.busbw_gb_per_s for row in run.rows],
            mode="lines+markers",
            name=name,
        )
        if run.needed_gb_per_s is not None:
            figure.add_scatter(
                x=[run.rows[0].bytes, run.rows[-1].bytes],
                y=[run.needed_gb_per_s] * 2,
                mode="lines",
                line={"dash": "dash", "width": 1, "color": COLOURS[Status.SKIPPED]},
                name=f"needed by {name}",
                showlegend=False,
            )
    figure.update_xaxes(type="log", title="message, bytes", exponentformat="SI")
    figure.update_yaxes(title="bus bandwidth, GB/s", rangemode="tozero")
    figure.update_layout(height=420)
    return _plain(figure)


def matrix(runs: Sequence[MeasuredRun]) -> go.Figure | None:
    """Bus bandwidth of every pair as a heat map; None where no pairs were measured."""
    known = pairs(runs)
    if not known:
        return None
    names = list(dict.fromkeys(name for pair in known for name in pair))
    both = {**known, **{(b, a): value for (a, b), value in known.items()}}
    figure = go.Figure(
        go.Heatmap(
            x=names,
            y=names,
            z=[[both.get((row, column)) for column in names] for row in names],
            colorscale="Viridis",
            colorbar={"title": "GB/s"},
            hovertemplate="%{y} - %{x}: %{z:.2f} GB/s<extra></extra>",
        )
    )
    figure.update_layout(height=max(360, min(900, 40 + 28 * len(names))))
    figure.update_yaxes(autorange="reversed")
    return _plain(figure)


def _plain(figure: go.Figure) -> go.Figure:
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": -0.15},
    )
    return figure
