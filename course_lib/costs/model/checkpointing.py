"""What layers keep that compute a second time in backward, in groups and with some results, and a loss in pieces.

A group of n layers keeps one input where n layers would keep n. But while backward is in it, it has everything of its n
layers. A layer keeps as much as about twenty of its inputs, so that the best group is the root of a twentieth of the
layers: one layer, and not the root of all. One group of all layers keeps nothing and saves nothing.
Source: Chen et al. 2016, Training deep nets with sublinear memory cost, section 3; Korthikanti et al. 2022, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import (
    Saved,
    Sharing,
    attention_activations,
    checkpointed_activations,
    head_activations,
    layer_activations,
)
from course_lib.costs.model.parameters import layer_weights
from course_lib.errors import four_parts

Keep = Literal["nothing", "matmuls", "attention"]
_FP32 = 4


def kept_results(config: ModelConfig, *, batch: int, sequence: int, itemsize: int, keep: Keep) -> tuple[Saved, ...]:
    """Results of one layer that are kept beside its input: of all products with weights, or of attention.

    Raises: ValueError for an unknown choice.
    """
    if keep not in get_args(Keep):
        way_out = f"choose from {', '.join(get_args(Keep))}"
        raise ValueError(four_parts("kept_results", f"keep={keep!r}", "not a known choice", way_out))
    tokens = batch * sequence
    if keep == "nothing":
        return ()
    if keep == "attention":
        names = ("attention output", "log-sum-exp of scores")
        everything = attention_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
        return tuple(saved for saved in everything if saved.name in names)
    return tuple(_products(config, tokens, itemsize))


def _products(kind: ModelConfig, tokens: int, itemsize: int) -> Iterator[Saved]:
    """What each matrix of a layer makes: of every token, and of experts of every choice that a token has made."""
    for weight in layer_weights(kind):
        if len(weight.shape) != 2:
            continue
        is_expert = not weight.is_map
        rows = tokens * (kind.experts_per_token if is_expert else weight.copies)
        shared: Sharing = "tp" if weight.split == 0 else "sequence"
        name = f"{'expert ' * is_expert}{weight.name}"
        yield Saved(name=name, elements=rows * weight.shape[0], itemsize=itemsize, shared_by=shared)


def recomputed_bytes(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, group: int = 1, keep: Keep = "nothing"
) -> int:
    """What a whole decoder keeps when forward and loss are done, if `group` layers at a time are recomputed.

    Raises: ValueError as `kept_results`, and for a group without layers.
    """
    if group < 1:
        raise ValueError(four_parts("recomputed_bytes", f"group={group}", "a group has layers", "give group >= 1"))
    sizes: dict[str, Any] = {"batch": batch, "sequence": sequence, "itemsize": itemsize}
    inputs = checkpointed_activations(config, **sizes) * -(-config.n_layers // group)
    results = kept_results(config, **sizes, keep=keep) * config.n_layers
    angles = _FP32 * sequence * config.head_size // 2 if config.positions == "rotary" else 0  # all layers share them
    return sum(saved.nbytes for saved in (*inputs, *results, *head_activations(config, **sizes))) + angles


def recompute_peak_bytes(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, group: int = 1, keep: Keep = "nothing"
) -> int:
    """The most that layers keep in backward: what all keep, and once everything of the group that was computed again.

    Gradients and what an operator needs while it computes come on top.
    Raises: ValueError as `recomputed_bytes`, and for layers that `layer_activations` does not know.
    """
    sizes: dict[str, Any] = {"batch": batch, "sequence": sequence, "itemsize": itemsize}
    kept = recomputed_bytes(config, **sizes, group=group, keep=keep)
    head = sum(saved.nbytes for saved in head_activations(config, **sizes))  # backward is through with it
    everything = sum(saved.nbytes for saved in layer_activations(config, **sizes))
    return kept - head + min(group, config.n_layers) * everything


def best_group(config: ModelConfig, *, batch: int, sequence: int, itemsize: int) -> int:
    """The group with the lowest peak; of several the smallest."""
    sizes: dict[str, Any] = {"batch": batch, "sequence": sequence, "itemsize": itemsize}
    return min(range(1, config.n_layers + 1), key=lambda group: recompute_peak_bytes(config, **sizes, group=group))


def chunked_head_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, pieces: int, fused_norms: bool = False
) -> tuple[Saved, ...]:
    """What embedding, last norm, head and a loss in pieces keep while one piece is there.

    After forward there is none; of the log-probabilities of one piece backward has as many as these.
    Raises: ValueError for less than one piece.
    """
    if pieces < 1:
        values, rule = f"pieces={pieces}", "a loss is made of pieces"
        raise ValueError(four_parts("chunked_head_activations", values, rule, "give pieces >= 1"))
    found = head_activations(config, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms)
    tokens = -(-batch * sequence // pieces)
    return tuple(
        replace(saved, elements=tokens * config.vocab_size) if saved.name == "log-probabilities" else saved
        for saved in found
    )
