"""Which bytes of one GPU's bill a fine-tuning refuses to keep: every saver takes a part away, and leaves the others.

Bytes that last from step to step, and those that lie there when forward has ended. Backward's own come and go: of a
recomputed layer all that it keeps is there again, but for one layer at a time. Attention keeps no scores unless asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import (
    HALF,
    Saved,
    checkpointed_activations,
    head_activations,
    layer_activations,
)
from course_lib.costs.model.adapter_activations import adapter_activations
from course_lib.costs.model.adapters import Adapters, adapter_state_bytes
from course_lib.costs.model.checkpointing import chunked_head_activations
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import state_bytes
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.errors import four_parts

_FP32 = 4
_FULL, _BESIDE = "zero", "fp32"  # what training in bf16 keeps of a weight; what is kept of an adapter's, 16 bytes both


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and which bytes are refused; as it stands here, none."""

    adapters: Adapters | None = None  # None: all weights are trained
    nf4: bool = False  # whether the frozen maps lie in codes
    recompute: bool = False  # every layer, from its input
    pieces: int = 1  # of the loss, whose logits exist one piece at a time
    scores: bool = False  # whether attention makes all its scores, and keeps their softmax

    def __post_init__(self) -> None:
        if self.nf4 and self.adapters is None:
            rule, way_out = "codes cannot be trained", "give adapters, or leave nf4 out"
            raise ValueError(four_parts("Recipe", "nf4 without adapters", rule, way_out))


def recipe_memory(config: ModelConfig, recipe: Recipe, *, sequence: int) -> GpuMemory:
    """Bytes of one GPU that trains one sequence at a time in bf16, its loss in fp32, with a GPU's fused norms.

    Raises: ValueError for a loss in less than one piece; where there are adapters, for layers that are not a Llama's.
    """
    if recipe.adapters is None:
        states = state_bytes(model_parameters(config), find_convention(_FULL))
    else:
        states = adapter_state_bytes(config, recipe.adapters, find_convention(_BESIDE), nf4=recipe.nf4)
    kept = _layers(config, recipe, sequence)
    if recipe.scores:
        kept += config.n_layers * HALF * config.n_heads * sequence**2
    if recipe.recompute:
        inputs = checkpointed_activations(config, batch=1, sequence=sequence, itemsize=HALF)
        kept = config.n_layers * _bytes(inputs) + kept // config.n_layers
    sizes = {"batch": 1, "sequence": sequence, "itemsize": HALF}
    ends = chunked_head_activations(config, **sizes, pieces=recipe.pieces, fused_norms=True)
    return GpuMemory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        gathered=0,
        activations=kept,
        head=_bytes(replace(x, itemsize=_FP32) if x.name == "log-probabilities" else x for x in ends),
    )


def _layers(config: ModelConfig, recipe: Recipe, sequence: int) -> int:
    """What all layers keep, with what is beside their maps."""
    sizes = {"batch": 1, "sequence": sequence, "itemsize": HALF}
    if recipe.adapters is None:
        return config.n_layers * _bytes(layer_activations(config, **sizes, fused_norms=True))
    ends = {saved.name for saved in head_activations(config, **sizes, fused_norms=True)}
    every = adapter_activations(config, recipe.adapters, batch=1, sequence=sequence, itemsize=HALF, fused_norms=True)
    return _bytes(saved for saved in every if saved.name not in ends)


def _bytes(kept: Iterable[Saved]) -> int:
    return sum(saved.nbytes for saved in kept)
