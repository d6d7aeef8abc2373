"""Settings of which one is given once more: a command refuses that, and a test means the last."""

from __future__ import annotations


def last_of(*overrides: str) -> list[str]:
    """Each setting once, as it was given last."""
    return [*{override.partition("=")[0]: override for override in overrides}.values()]
