"""The last accepted figures of a site. Only figures are kept: never an environment, never a log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from railweld.bench.judge import Run
from railweld.errors import RailweldError
from railweld.record import Check, Status
from railweld.state import site_state_dir

#: Share of a stored figure that may be missing: the tolerance that vendor gates use.
TOLERANCE: Final = 0.1
_FORMAT: Final = 1


@dataclass(frozen=True)
class Figure:
    """Bus bandwidth in GB/s at a message size in bytes."""

    busbw: float
    size: int


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
        run.name: {"busbw": run.busbw, "size": run.result.largest.size}
        for run in runs
        if run.busbw is not None and run.result is not None and run.result.largest is not None
    }
    if not figures:
        raise RailweldError(
            f"site {site}: found no finished run, expected at least one for a baseline; nothing "
            "was saved"
        )
    file = path(site)
    known = _read(file)["runs"] if file.exists() else {}
    data = {
        "format": _FORMAT,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": {**known, **figures},
    }
    # Whole or not at all: a cut while writing must not cost the old baseline.
    new = file.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        json.dump(data, stream, indent=2, sort_keys=True)
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
    return {
        name: Figure(float(run["busbw"]), int(run["size"]))
        for name, run in _read(file)["runs"].items()
    }


def _read(file: Path) -> dict[str, dict[str, dict[str, float]]]:
    try:
        data = json.loads(file.read_text())
        if data["format"] != _FORMAT or not isinstance(data["runs"], dict):
            raise ValueError(data["format"])  # noqa: TRY301 - one place says what is wrong
    except (ValueError, KeyError, TypeError) as error:
        raise RailweldError(
            f"{file}: found {type(error).__name__}: {error}, expected a baseline of format "
            f"{_FORMAT}. Fix: remove the file and save again: railweld bench --baseline save"
        ) from error
    return data  # type: ignore[no-any-return] # judged just above


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
