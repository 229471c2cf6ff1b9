"""Faults: placeholder until the next step."""


def reapply() -> None:
    """Nothing yet."""
