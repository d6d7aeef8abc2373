"""The Llamas that 07.2 and 07.5 count with: numbers that tp cuts and does not, and bytes that a token leaves."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from course_lib.checks.kit.spec import BF16
from course_lib.config import ModelConfig
from course_lib.costs.model.activations import head_activations, layer_activations
from course_lib.costs.model.parameters import Weight, layer_weights, outer_weights


class Numbers(NamedTuple):
    """Of a whole model: in matrices, in norms, and in embedding and head."""

    matrices: int
    norms: int
    root: int


class Bytes(NamedTuple):
    """That a token leaves for backward: inside the blocks, between them, and on every rank along tp."""

    inside: int
    between: int
    everywhere: int

    def on_rank(self, tp: int, sequence_parallel: bool = True) -> float:
        """Of a token, by the ranks that share it."""
        between = self.between / tp if sequence_parallel else self.between
        return self.inside / tp + between + self.everywhere


def numbers_of(model: ModelConfig) -> Numbers:
    """What is not split is a norm's."""

    def count(weights: tuple[Weight, ...], split: bool) -> int:
        return sum(one.parameters for one in weights if (one.split is not None) == split)

    layer, outer = layer_weights(model), outer_weights(model)
    matrices, norms = (model.n_layers * count(layer, split) + count(outer, split) for split in (True, False))
    return Numbers(matrices, norms, count(outer, split=True))


def layer_numbers(model: ModelConfig) -> int:
    """In the matrices of a layer."""
    return sum(one.parameters for one in layer_weights(model) if one.split is not None)


def bytes_of(model: ModelConfig) -> Bytes:
    """In bf16, with norms as on a GPU."""
    sizes = {"batch": 1, "sequence": 1, "itemsize": BF16}
    found: Counter[str] = Counter()
    for layers, kept in (
        (model.n_layers, layer_activations(model, **sizes, fused_norms=True)),
        (1, head_activations(model, **sizes, fused_norms=True)),
    ):
        for saved in kept:
            found[saved.shared_by] += layers * saved.nbytes
    return Bytes(found["tp"], found["sequence"] + found["gathered"], found["nothing"])
