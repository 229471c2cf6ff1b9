"""Puts a report into one HTML file: no server, no network, light and dark, printable."""

from __future__ import annotations

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from railweld.report import charts
from railweld.report.data import Data


def render(data: Data) -> str:
    """The page. All text from the site is escaped: names and findings come from machines."""
    environment = Environment(
        loader=PackageLoader("railweld.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs = data.bench.runs if data.bench else []
    matrix = charts.matrix(runs)
    return environment.get_template("page.html.j2").render(
        data=data,
        colours={str(status): colour for status, colour in charts.COLOURS.items()},
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - the library's own code
        topology=_drawing(charts.topology(data), "topology") if data.site.switches else None,
        bandwidth=_drawing(charts.bandwidth(runs), "bandwidth") if runs else None,
        matrix=_drawing(matrix, "matrix") if matrix else None,
    )


def _drawing(figure: go.Figure, name: str) -> Markup:
    # plotly escapes what could end the script element.
    return Markup(  # noqa: S704 - as said
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=name,
            config={"displaylogo": False, "responsive": True},
        )
    )
