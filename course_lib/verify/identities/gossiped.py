"""Gossip on ranks: whole numbers keep their mean to the bit, and how fast ranks agree is the matrix's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.less.topologies import mixing, spectral_gap
from course_lib.parallel.lossy.neighbours import mixed
from course_lib.ranks import run_ranks
from course_lib.training.gossip_technique import LAST, TRACKER, gossip
from course_lib.verify.identities.averaged import normal_numbers, off, whole_numbers
from course_lib.verify.identities.trained import make_trainer, small_batch

_RANKS, _SIZE = 4, 30

Mixing = Callable[[str, int], list[Tensor]]


def mean_kept(topology: str, matrices: Mixing = mixing) -> float:
    """The mean of the ranks' numbers stays where it is, whoever talks to whom."""
    x = 2.0**20 * whole_numbers(1, _RANKS, _SIZE)[0]
    return off(_gossiped(x, matrices(topology, _RANKS), 6)[-1].mean(0), x.mean(0))


def agreed_after_a_cycle() -> float:
    """One peer in each step, further and further on: after log2 p steps all have the mean."""
    x, matrices = whole_numbers(1, _RANKS, _SIZE)[0], mixing("one_peer_exponential", _RANKS)
    return off(_gossiped(x, matrices, len(matrices))[-1], x.mean(0).expand_as(x))


def contraction(topology: str) -> float:
    """On the slowest difference between ranks, a step leaves 1 - gap of it."""
    (matrix,) = mixing(topology, _RANKS)
    _, _, right = torch.linalg.svd(matrix - 1 / _RANKS)
    x = right[0][:, None].expand(_RANKS, _SIZE).contiguous()
    left = _gossiped(x, [matrix], 1)[-1].norm() / x.norm()
    return off(left, torch.tensor(1 - spectral_gap(matrix), dtype=torch.float64))


def equal_curvatures(topology: str) -> float:
    """If all ranks' losses are bent alike, the mean of their weights is that of training without a loss."""
    targets = normal_numbers(1, _RANKS, _SIZE)[0]
    found = torch.stack(run_ranks(_descend, _RANKS, targets, mixing(topology, _RANKS)))
    alone = torch.zeros(_SIZE, dtype=torch.float64)
    for _ in range(_STEPS):
        alone -= _RATE * (alone - targets.mean(0))
    return off(found.mean(0), alone)


def trackers_sum(topology: str) -> float:
    """In each step the trackers of all ranks add up to their gradients."""
    found = run_ranks(_track, _RANKS, topology)
    trackers, gradients = (torch.stack(one).sum(0) for one in zip(*found, strict=True))
    return off(trackers, gradients)


_RATE, _STEPS = 0.1, 8


def _descend(targets: Tensor, matrices: list[Tensor]) -> Tensor:
    x = torch.zeros(_SIZE, dtype=torch.float64)
    for step in range(_STEPS):
        x = _mixed(x - _RATE * (x - targets[dist.get_rank()]), matrices[step % len(matrices)])
    return x


def _track(topology: str) -> tuple[Tensor, Tensor]:
    trainer = make_trainer((gossip(topology, track=True),), "sgd")
    trackers, gradients = [], []
    for step in range(_STEPS):
        trainer.step(small_batch(step))
        kinds = trainer.apart.memory.kinds
        trackers.append(torch.cat(list(kinds[TRACKER].values())))
        gradients.append(torch.cat(list(kinds[LAST].values())))
    return torch.stack(trackers), torch.stack(gradients)


def _gossiped(x: Tensor, matrices: list[Tensor], steps: int) -> Tensor:
    """Numbers of all ranks after each step. Shapes: (p, d) -> (steps, p, d)."""
    return torch.stack(run_ranks(_gossip, len(x), x, matrices, steps), dim=1)


def _gossip(x: Tensor, matrices: list[Tensor], steps: int) -> Tensor:
    mine, found = x[dist.get_rank()].clone(), []
    for step in range(steps):
        mine = _mixed(mine, matrices[step % len(matrices)])
        found.append(mine)
    return torch.stack(found)


def _mixed(mine: Tensor, matrix: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    return mixed(mine, matrix, group)
