"""A lossy average alone, without a model: ranks give it numbers, and all that it did comes back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.parallel.lossy.exchange import Memories, Method, Talk
from course_lib.parallel.lossy.feedback import RESIDUAL
from course_lib.parallel.lossy.two_way import SERVED
from course_lib.ranks import ledger, run_ranks

NAME = "w"  # of the one parameter


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """What some steps of one method did. With p ranks and d numbers:"""

    given: Tensor  # (steps, p, d)
    means: Tensor  # (steps, p, d): what each rank took for the mean
    kept: Tensor  # (steps + 1, d): of all ranks together, before the first step and after each
    bytes_sent: int  # by the first rank, in all steps


def averaged(method: Method, given: Tensor) -> Averaged:
    """Let as many ranks as `given` has rows in a step average them, step after step. Shapes: (steps, p, d)."""
    steps, p, d = given.shape
    found = run_ranks(_on_rank, p, method, given)
    means = torch.stack([means for means, _, _ in found], dim=1)
    kept = torch.zeros(steps + 1, d, dtype=given.dtype)
    for rank, (_, residuals, served) in enumerate(found):
        kept[1:] += residuals
        # Of what servers keep each rank is one: it stands for the mean, of which there are p in the sum.
        kept[1:, _stretch(d, p, rank)] += p * served
    return Averaged(given=given, means=means, kept=kept, bytes_sent=ledger().bytes_sent(0))


def _on_rank(method: Method, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every step the mean, what this rank keeps of its own, and of the stretch that it serves."""
    group = dist.group.WORLD
    assert group is not None
    talk, memory = Talk(group), Memories(method.rules)
    means, residuals, served = [], [], []
    for step in given:
        mine = step[talk.rank].clone()
        means.append(method.average({NAME: mine}, talk, memory)[NAME])
        residuals.append(memory.kinds.get(RESIDUAL, {}).get(NAME, torch.zeros_like(mine)).clone())
        stretch = torch.zeros_like(mine.tensor_split(talk.size)[talk.rank])
        served.append(memory.kinds.get(SERVED, {}).get(NAME, stretch).clone())
    return torch.stack(means), torch.stack(residuals), torch.stack(served)


def _stretch(d: int, p: int, rank: int) -> slice:
    parts = torch.arange(d).tensor_split(p)[rank]
    return slice(int(parts[0]), int(parts[-1]) + 1)


def off(got: Tensor, want: Tensor) -> float:
    """The largest difference over the largest number that was wanted."""
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-300))


def whole_numbers(steps: int, ranks: int, size: int) -> Tensor:
    """Gradients of which sums and quarters are exact, so that an identity can hold to the bit."""
    draws = torch.Generator().manual_seed(10)
    return torch.randint(-512, 512, (steps, ranks, size), generator=draws).double()


def normal_numbers(steps: int, ranks: int, size: int) -> Tensor:
    """Gradients as they come."""
    return torch.randn(steps, ranks, size, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
