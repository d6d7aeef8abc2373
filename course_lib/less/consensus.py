"""Gossip about opinions alone: each rank holds one number, and mixing brings them together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from course_lib.less.topologies import mixing


def opinions(topology: str, first: Sequence[float], steps: int) -> list[list[float]]:
    """What each rank holds, at first and after each step of gossip; their mean stays.

    Raises: ValueError as `mixing`.
    """
    matrices = mixing(topology, len(first))
    held = torch.tensor(first, dtype=torch.float64)
    seen = [held.tolist()]
    for step in range(steps):
        held = matrices[step % len(matrices)] @ held
        seen.append(held.tolist())
    return seen


def disagreement(held: Sequence[float]) -> float:
    """The standard deviation of the opinions."""
    return torch.tensor(held, dtype=torch.float64).std(correction=0).item()
