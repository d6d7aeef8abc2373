"""Assignments that are found by trying: simulated annealing, and a small policy that learns from what it tried."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from random import Random

import numpy as np

from course_lib.planner.assignment import Assignment, StageProblem
from course_lib.split import split_sizes

_LACKING = 3.0  # what lacking room costs, and a stage's whole room once more, in stages of a perfect division
_STARTS, _MOVES = 8, 2000  # of annealing
_HOT, _COLD = 0.5, 1e-3
_LIVES, _BATCH, _ROUNDS, _RATE = 4, 96, 80, 1.0  # of the policy gradient
_FREE = 0.2  # of the choices are drawn without regard to the chances
_Array = np.ndarray


def annealing(problem: StageProblem, seed: int = 0) -> Assignment:
    """Move one layer over a border, or let two stages change their GPUs; worse is accepted ever less often.

    It needs values alone, no gradients: a zeroth-order method. Nothing proves its answer best.
    Source: Kirkpatrick, Gelatt and Vecchi 1983, Optimization by simulated annealing.
    """
    random = Random(seed)
    sizes = split_sizes(len(problem.layers), problem.n_stages)
    best = Assignment(sizes=sizes, gpus=tuple(problem.gpu_of_each_stage()))
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
        sizes, gpus = list(answer.sizes), list(answer.gpus)
        one, other = random.sample(range(p), 2)
        for row in (gpus, sizes) if random.random() < 0.5 else (gpus,):  # with its many layers, or without
            row[one], row[other] = row[other], row[one]
        return Assignment(sizes=tuple(sizes), gpus=tuple(gpus))
    sizes, border = list(answer.sizes), random.randrange(p - 1)
    giver, taker = (border, border + 1) if random.random() < 0.5 else (border + 1, border)
    most = sizes[giver] - 1
    moved = min(most, 1 if random.random() < 0.8 else 1 + random.randrange(most + 1))
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
    """Chances of each choice on each stage, as logits; a fresh one prefers sizes by the GPUs' speeds a little."""

    def __init__(self, problem: StageProblem, random: np.random.Generator) -> None:
        self.problem, self.random = problem, random
        self.p, self.n_layers = problem.n_stages, len(problem.layers)
        self.gpus = np.zeros((self.p, len(problem.gpus)))
        speeds = np.array([gpu.flops_per_s for gpu in problem.gpus])
        fair = self.n_layers * speeds / sum(gpu.flops_per_s * gpu.n_stages for gpu in problem.gpus)
        far = (np.arange(self.n_layers + 1) - fair[:, None]) / np.maximum(1.0, fair[:, None])
        self.sizes = np.tile(-(far**2), (self.p, 1, 1))  # (p, kinds, L + 1)

    def draw(self) -> list[Assignment]:
        """A batch of answers; how to make each of their choices likelier is kept for `learn`."""
        rows, possible = np.arange(_BATCH), np.arange(self.n_layers + 1)
        layers = np.full(_BATCH, self.n_layers)  # that are left
        left = np.tile([gpu.n_stages for gpu in self.problem.gpus], (_BATCH, 1))
        sizes, gpus = np.zeros((2, _BATCH, self.p), dtype=int)
        self.slopes: list[tuple[_Array, _Array, _Array]] = []
        for stage in range(self.p):
            gpu, gpu_slope = self._choose(self.gpus[stage], left > 0)
            after = self.p - stage - 1
            legal = (possible > 0) & (possible <= layers[:, None] - after)
            legal &= (possible == layers[:, None]) | (after > 0)
            size, size_slope = self._choose(self.sizes[stage][gpu], legal)
            left[rows, gpu] -= 1
            layers -= size
            sizes[:, stage], gpus[:, stage] = size, gpu
            self.slopes.append((gpu, gpu_slope, size_slope))
        return [
            Assignment(sizes=tuple(map(int, size)), gpus=tuple(map(int, gpu)))
            for size, gpu in zip(sizes, gpus, strict=True)
        ]

    def learn(self, prices: _Array) -> None:
        """One step up the expected reward, estimated from the batch."""
        advantage = _RATE * (prices.mean() - prices) / (prices.std() + 1e-9) / _BATCH
        for stage, (gpu, gpu_slope, size_slope) in enumerate(self.slopes):
            self.gpus[stage] += advantage @ gpu_slope
            np.add.at(self.sizes[stage], gpu, advantage[:, None] * size_slope)

    def _choose(self, logits: _Array, legal: _Array) -> tuple[_Array, _Array]:
        """A legal choice for each row, and the slope of its log-probability along the logits."""
        weights = np.where(legal, np.exp(logits - logits.max()), 0.0) + legal * 1e-12  # none is impossible
        chances = weights / weights.sum(axis=1, keepdims=True)
        freely = _FREE * legal / legal.sum(axis=1, keepdims=True) + (1 - _FREE) * chances
        upto = freely.cumsum(axis=1)
        chosen = (upto <= self.random.random((len(legal), 1)) * upto[:, -1:]).sum(axis=1)
        slope = -chances
        slope[np.arange(len(legal)), chosen] += 1
        return chosen, slope


def _price(problem: StageProblem, answer: Assignment) -> float:
    """What is to be small: the slowest stage in times of a perfect division, and the room that is lacking."""
    lacking, slowest = problem.value(answer)
    room = sum(gpu.room_bytes * gpu.n_stages for gpu in problem.gpus)
    return slowest / problem.bound_s + (_LACKING * (1 + problem.n_stages * lacking / room) if lacking else 0.0)
