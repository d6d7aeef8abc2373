"""PowerSGD: of each gradient's matrix only two narrow factors travel, and these may be averaged on their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.less.low_rank import first_directions, from_factors, left_factor, orthonormal, right_factor
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Rule, Talk, Tensors, next_turns
from course_lib.parallel.lossy.feedback import RESIDUAL

_DIRECTIONS = "directions"


@dataclass(frozen=True)
class PowerSGD:
    """Each matrix M of a gradient becomes P Q^T, with `rank` columns each, by one step of power iteration.

    M Q is linear in M and Q is the same on all ranks: the mean of their factors is the factor of their mean, so that an
    all-reduce does what for chosen places needs a gather. What has no two dims travels whole. `remembers` is error
    feedback; with `warm` the directions of the last step are those that the next one begins with.

    Cost: all-reduces of (rows + columns) rank numbers for each matrix, in two messages a bucket.
    Source: Vogels, Karimireddy & Jaggi 2019, PowerSGD, algorithms 1 and 2.
    """

    rank: int
    shapes: Mapping[str, tuple[int, ...]]
    remembers: bool = True
    warm: bool = True

    @property
    def rules(self) -> Mapping[str, Rule]:
        kept: dict[str, Rule] = {ROUNDS: "apart", _DIRECTIONS: "apart"}
        return kept | ({RESIDUAL: "own"} if self.remembers else {})

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        matrices = {}
        for name, gradient in gradients.items():
            if len(self.shapes[name]) > 1:
                wanted = gradient
                if self.remembers:
                    wanted = gradient + memory.row(RESIDUAL, name, gradient)
                matrices[name] = wanted.view(self.shapes[name][0], -1)
        others = [name for name in gradients if name not in matrices]
        lefts = {}
        for name, turn in next_turns(memory, matrices).items():
            # At right angles again: else what one gradient lacked would be lost for all later ones.
            directions = orthonormal(self._directions(name, matrices[name], talk, turn, memory))
            lefts[name] = left_factor(matrices[name], directions)
        means = talk.mean([*map(torch.flatten, lefts.values()), *(gradients[name] for name in others)])
        found = dict(zip(others, means[len(lefts) :], strict=True))
        for name, mean in zip(lefts, means, strict=False):  # the matrices' come first
            lefts[name] = orthonormal(mean.view_as(lefts[name]))

        rights = {name: right_factor(matrix, lefts[name]) for name, matrix in matrices.items()}
        for name, mean in zip(rights, talk.mean([*map(torch.flatten, rights.values())]), strict=True):
            right = mean.view_as(rights[name])
            found[name] = from_factors(lefts[name], right).flatten()
            memory.keep(_DIRECTIONS, name, right)
            if self.remembers:
                memory.keep(RESIDUAL, name, matrices[name].flatten() - found[name])
        return found

    def _directions(self, name: str, matrix: Tensor, talk: Talk, turn: int, memory: Memories) -> Tensor:
        """(columns, rank), the same on all ranks."""

        def drawn() -> Tensor:
            draws = talk.draws(name, turn, alike=True)
            return first_directions((len(matrix), matrix.shape[1]), self.rank, draws).to(matrix)

        return memory.of(_DIRECTIONS, name, drawn) if self.warm else drawn()
