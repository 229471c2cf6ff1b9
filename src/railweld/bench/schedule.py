"""Orders pairs of nodes into rounds in which every node is busy."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Every pair of nodes once, in the fewest rounds that use each node at most once a round.

    The circle method of round-robin tournaments: n - 1 rounds of n / 2 pairs for an even number of
    nodes, n rounds with one node resting in turn for an odd one. Fewer is impossible: every node
    has n - 1 partners, and with an odd number one of them has to rest in each round.
    """
    ring: list[str | None] = list(nodes)
    if len(ring) < 2:
        return []
    if len(ring) % 2:
        ring.append(None)
    fixed, rest = ring[0], ring[1:]
    found = []
    for _ in rest:
        circle = [fixed, *rest]
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        rest = [rest[-1], *rest[:-1]]
    return found


def fewest_rounds(count: int) -> int:
    """Rounds that a number of nodes needs at least."""
    if count < 2:
        return 0
    return count - 1 if count % 2 == 0 else count
