"""One measured time, with what the alpha-beta model needs to explain it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """How long one algorithm took for a tensor of `nbytes`.

    Units: bytes, seconds (median over rounds). `steps` and `critical_bytes` are the factors of alpha and beta.
    """

    algorithm: str
    world_size: int
    nbytes: int
    seconds: float
    steps: int
    critical_bytes: int
