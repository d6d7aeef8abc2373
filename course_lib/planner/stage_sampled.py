"""Assignments that are found by trying: simulated annealing, and a small policy that learns from what it tried."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from random import Random

import numpy as np

from course_lib.planner.stage_problem import Assignment, StageProblem, even_sizes

_LACKING = 10.0  # what lacking all the room there is weighs, in slowest stages of a perfect division
_STARTS, _MOVES = 4, 4000  # of annealing
_HOT, _COLD = 0.5, 1e-3
_LIVES, _BATCH, _ROUNDS, _RATE = 3, 96, 80, 0.3  # of the policy gradient
_FREE = 0.1
_Array = np.ndarray


def annealing(problem: StageProblem, seed: int = 0) -> Assignment:
    """Move one layer over a border, or let two stages change their GPUs; worse is accepted ever less often.

    It needs values alone, no gradients: a zeroth-order method. Nothing proves its answer best.
    Source: Kirkpatrick, Gelatt and Vecchi 1983, Optimization by simulated annealing.
    """
    random = Random(seed)
    best = Assignment(
        sizes=tuple(even_sizes(len(problem.layers), problem.n_stages)), gpus=tuple(problem.gpu_of_each_stage())
    )
    for start in range(_STARTS):
        now = _anywhere(problem, random) if start else best
        worth = _price(problem, now)
        for move in range(_MOVES):
            heat = _HOT * (_COLD / _HOT) ** (move / _MOVES)
            other = _neighbour(now, random)
            price = _price(problem, other)
            if price <= worth or random.random() < exp((worth - price) / heat):
                now, worth = other, price
                best = min(best, now, key=problem.value)
    return best


def _anywhere(problem: StageProblem, random: Random) -> Assignment:
    """Cuts and an order of the GPUs by chance."""
    n_layers, gpus = len(problem.layers), problem.gpu_of_each_stage()
    cuts = sorted(random.sample(range(1, n_layers), problem.n_stages - 1))
    random.shuffle(gpus)
    return Assignment(sizes=tuple(end - first for first, end in pairwise((0, *cuts, n_layers))), gpus=tuple(gpus))


def _neighbour(answer: Assignment, random: Random) -> Assignment:
    """The answer after one move."""
    p = len(answer.sizes)
    if p == 1:
        return answer
    if len(set(answer.gpus)) > 1 and random.random() < 0.3:
        gpus = list(answer.gpus)
        one, other = random.sample(range(p), 2)
        gpus[one], gpus[other] = gpus[other], gpus[one]
        return Assignment(sizes=answer.sizes, gpus=tuple(gpus))
    sizes, border = list(answer.sizes), random.randrange(p - 1)
    giver, taker = (border, border + 1) if random.random() < 0.5 else (border + 1, border)
    most = sizes[giver] - 1
    moved = min(most, 1 + (random.random() < 0.2) * random.randrange(max(1, most)))
    sizes[giver] -= moved
    sizes[taker] += moved
    return Assignment(sizes=tuple(sizes), gpus=answer.gpus)


def policy_gradient(problem: StageProblem, seed: int = 0) -> Assignment:
    """REINFORCE on a table: from stage to stage draw a GPU of those left, then where the stage ends.

    After each batch the chances of what was drawn move by how much better than the batch it did. The best that was ever
    drawn is the answer; nothing proves it best.
    Source: Williams 1992, Simple statistical gradient-following algorithms; for devices Mirhoseini et al. 2017, Device
    placement optimization with reinforcement learning.
    """
    random = np.random.default_rng(seed)
    champions = []
    for _ in range(_LIVES):
        policy = _Policy(problem, random)
        for _ in range(_ROUNDS):
            answers = policy.draw()
            prices = np.array([_price(problem, answer) for answer in answers])
            policy.learn(prices)
            champions.append(answers[int(prices.argmin())])
    return min(champions, key=problem.value)


class _Policy:
    """Chances of each choice on each stage, as logits; a fresh one prefers an even division a little."""

    def __init__(self, problem: StageProblem, random: np.random.Generator) -> None:
        self.problem, self.random = problem, random
        self.p, self.n_layers = problem.n_stages, len(problem.layers)
        even = self.n_layers * (np.arange(self.p) + 1) / self.p
        width = max(1.0, self.n_layers / self.p)
        self.ends = -(((np.arange(self.n_layers + 1) - even[:, None]) / width) ** 2)  # (p, L + 1)
        self.gpus = np.zeros((self.p, len(problem.gpus)))

    def draw(self) -> list[Assignment]:
        """A batch of answers; how to make each of their choices likelier is kept for `learn`."""
        first = np.zeros(_BATCH, dtype=int)
        left = np.tile([gpu.n_stages for gpu in self.problem.gpus], (_BATCH, 1))
        sizes, gpus = np.zeros((2, _BATCH, self.p), dtype=int)
        self.slopes: list[tuple[_Array, _Array]] = []
        places = np.arange(self.n_layers + 1)
        for stage in range(self.p):
            gpus[:, stage], gpu_slope = self._choose(self.gpus[stage], left > 0)
            left[np.arange(_BATCH), gpus[:, stage]] -= 1
            after = self.p - stage - 1
            legal = (places > first[:, None]) & (places <= self.n_layers - after)
            legal &= (places == self.n_layers) if not after else True
            end, end_slope = self._choose(self.ends[stage], legal)
            sizes[:, stage], first = end - first, end
            self.slopes.append((gpu_slope, end_slope))
        return [
            Assignment(sizes=tuple(map(int, size)), gpus=tuple(map(int, gpu)))
            for size, gpu in zip(sizes, gpus, strict=True)
        ]

    def learn(self, prices: _Array) -> None:
        """One step up the expected reward, estimated from the batch."""
        advantage = (prices.mean() - prices) / (prices.std() + 1e-9)
        for stage, (gpu_slope, end_slope) in enumerate(self.slopes):
            self.gpus[stage] += _RATE * (advantage @ gpu_slope) / _BATCH
            self.ends[stage] += _RATE * (advantage @ end_slope) / _BATCH

    def _choose(self, logits: _Array, legal: _Array) -> tuple[_Array, _Array]:
        """A legal choice for each row, and the slope of its log-probability along the logits."""
        weights = np.where(legal, np.exp(logits - logits.max()), 0.0) + legal * 1e-12
        chances = weights / weights.sum(axis=1, keepdims=True)
        freely = _FREE * legal / legal.sum(axis=1, keepdims=True) + (1 - _FREE) * chances
        drawn = (freely.cumsum(axis=1) < self.random.random((len(legal), 1))).sum(axis=1)
        chosen = np.minimum(drawn, legal.shape[1] - 1)
        slope = -chances
        slope[np.arange(len(legal)), chosen] += 1
        return chosen, slope


def _price(problem: StageProblem, answer: Assignment) -> float:
    """What is to be small: the slowest stage in times of a perfect division, and the room that is lacking."""
    lacking, slowest = problem.value(answer)
    room = sum(gpu.room_bytes * gpu.n_stages for gpu in problem.gpus)
    return slowest / problem.bound_s + _LACKING * lacking / room
