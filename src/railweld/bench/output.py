"""A measurement as `railweld bench --json` prints it and `railweld report` reads it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Size(_Strict):
    """One message size and the bus bandwidth at it, out of place."""

    bytes: int
    busbw_gb_per_s: float


class MeasuredRun(_Strict):
    """One run; None where it gave no figure or has no limit."""

    nodes: list[str] = Field(min_length=1)
    busbw_gb_per_s: float | None
    needed_gb_per_s: float | None
    limit_gb_per_s: float | None = None
    limit_source: str = ""
    nccl: str = ""
    failure: str = ""
    rows: list[Size]


class Measurement(_Strict):
    """All runs of one command and what follows from them."""

    site: str
    runs: list[MeasuredRun]
    slow_nodes: list[str] = []
    slow_links: list[list[str]] = []
    checks: list[dict[str, str]] = []
