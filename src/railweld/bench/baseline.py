"""The last accepted figures of a site. Only figures are kept: never an environment, never a log."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from railweld.bench.judge import Run
from railweld.errors import RailweldError
from railweld.record import Check, Status
from railweld.state import site_state_dir

#: Share of a stored figure that may be missing: the tolerance that vendor gates use.
TOLERANCE: Final = 0.1


class Figure(BaseModel):
    """Bus bandwidth in GB/s at a message size in bytes."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    busbw: float
    size: int


class _File(BaseModel):
    format: Literal[1] = 1
    saved: str
    runs: dict[str, Figure]


def path(site: str) -> Path:
    """Where a site's baseline is kept."""
    return site_state_dir(site) / "bench-baseline.json"


def save(site: str, runs: Iterable[Run]) -> Path:
    """Keep the figures of finished runs; those of other runs stay as they are.

    Returns:
        The file.

    Raises:
        RailweldError: no run came to its end, or a run had wrong values, so there is nothing that
            may serve as a reference.
    """
    runs = list(runs)
    wrong = [run.name for run in runs if run.result is not None and run.result.wrong]
    if wrong:
        raise RailweldError(
            f"{', '.join(wrong)}: found wrong values, expected none in a baseline; nothing was "
            "saved. Fix: find out why (railweld doctor), then measure again"
        )
    figures = {
        run.name: Figure(busbw=run.busbw, size=run.result.largest.size)
        for run in runs
        if run.busbw is not None and run.result is not None and run.result.largest is not None
    }
    if not figures:
        raise RailweldError(
            f"site {site}: found no finished run, expected at least one for a baseline; nothing "
            "was saved"
        )
    file = path(site)
    known = _read(file).runs if file.exists() else {}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    data = _File(saved=now, runs={**known, **figures})
    # Whole or not at all: a cut while writing must not cost the old baseline.
    new = file.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(data.model_dump_json(indent=2))
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
    return file


def load(site: str) -> dict[str, Figure]:
    """The stored figures by run.

    Raises:
        RailweldError: there is no baseline, or the file is not one.
    """
    file = path(site)
    if not file.exists():
        raise RailweldError(
            f"site {site}: found no {file}, expected a saved baseline. "
            "Fix: railweld bench --baseline save"
        )
    return _read(file).runs


def _read(file: Path) -> _File:
    try:
        return _File.model_validate_json(file.read_bytes())
    except ValueError as error:
        first = " ".join(str(error).split("[type=")[0].split())
        raise RailweldError(
            f"{file}: found {first}, expected a baseline. "
            "Fix: remove the file and save again: railweld bench --baseline save"
        ) from error


def compare(run: Run, known: dict[str, Figure], *, command: str) -> Check:
    """Set one run beside its stored figure; a run that has none is skipped, not passed."""
    figure = known.get(run.name)
    size = run.result.largest.size if run.result and run.result.largest else None
    if figure is None or run.busbw is None:
        status, found = Status.SKIPPED, "no stored figure" if figure is None else "no result"
        expected, fix = "both to compare", "railweld bench --baseline save"
    elif size != figure.size:
        status, found = Status.SKIPPED, f"messages of {size} bytes"
        expected, fix = f"{figure.size} bytes, as stored", "measure with the same --max-bytes"
    else:
        least = figure.busbw * (1 - TOLERANCE)
        status = Status.FAIL if run.busbw < least else Status.PASS
        found = f"{run.busbw:.2f} GB/s"
        expected = f"at least {least:.2f} GB/s ({1 - TOLERANCE:g} of the stored {figure.busbw:.2f})"
        fix = "" if status is Status.PASS else "compare versions and links with railweld verify"
    return Check(
        id="bench.baseline",
        layer="gpu" if len(run.nodes) == 1 else "link",
        target=run.name,
        status=status,
        ran=command,
        found=found,
        expected=expected,
        fix=fix,
        ref="docs/bench.md",
    )
