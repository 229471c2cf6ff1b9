"""A run of two pods, for tests of what is made for it."""

from __future__ import annotations

from railweld.bridge import render
from railweld.bridge.observed import Key

FACTS = render.Facts(
    key=Key(7, 0),
    cluster="lab",
    hosts=("gpu1", "gpu2"),
    nodes=("gpu1", "gpu2"),
    uid=2001,
    gid=2001,
    groups=(2001, 3000),
    user="alice",
    group="alice",
    home="/home/alice",
    submitted="2026-01-01T00:00:00",
    partition="gpu",
    time_limit=3600.0,
)
