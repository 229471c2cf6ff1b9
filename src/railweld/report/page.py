"""Puts a report into one HTML file: no server, no network, light and dark, printable."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from railweld.errors import UsageError
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


def require_writable(path: Path) -> None:
    """Refuse a place that cannot be written to, before minutes of looking.

    Raises:
        UsageError: the folder is not there or not writable, or the path is a folder.
    """
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        found = "a folder" if path.is_dir() else "no writable folder"
        raise UsageError(f"--output {path}: found {found}, expected a file in a writable folder")


def write(path: Path, text: str) -> None:
    """Write the file whole or not at all.

    Raises:
        UsageError: the folder is not there or not writable.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise UsageError(
            f"{path}: found {error}, expected a folder to write the report to"
        ) from error
