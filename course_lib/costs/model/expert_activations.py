"""What autograd keeps of a layer whose tokens pass some of several experts, tensor by tensor.

Which expert a token passes is not known before; but it passes k of them, so that all experts of a layer together see
T k rows, however uneven they share them. Exact for `course_lib.models.moe.MoEDecoder` without a capacity, which would
leave rows out. Where ranks share the experts each sees so many on average.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import Saved, Sharing, attention_activations

_FP32, _INT64 = 4, 8
WEIGHED = "expert result, weighed"  # which fused kernels make again, as silu(gate)


def expert_layer_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, fused_norms: bool = False
) -> tuple[Saved, ...]:
    """The tensors that one layer with experts keeps.

    Raises: ValueError for a size below 1.
    """
    return (
        *attention_activations(config, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms),
        *_router(config, batch, batch * sequence, itemsize),
        *_experts(config, batch * sequence * config.experts_per_token, itemsize),
        *_inner("shared ", batch * sequence * config.shared_ffn_size, itemsize),
    )


def _router(config: ModelConfig, batch: int, tokens: int, itemsize: int) -> Iterator[Saved]:
    """What it reads, what it chose, and what the choices weigh."""
    E, k = config.n_experts, config.experts_per_token
    yield Saved(name="ffn input", elements=tokens * config.hidden_size, itemsize=itemsize, shared_by="gathered")
    sizes = {
        "probabilities": (tokens * E, itemsize),
        "choices": (tokens * k, _INT64),
        "weights of choices": (tokens * (k + 1), itemsize),  # and their sums
        "share of each expert": (batch * E, _FP32),
        "order of rows": (2 * tokens * k, _INT64),  # by expert, and by token
        "weight of each row": (tokens * k, itemsize),
    }
    for name, (numbers, each) in sizes.items():
        yield Saved(name=f"router: {name}", elements=numbers, itemsize=each, shared_by="sequence")


def _experts(config: ModelConfig, rows: int, itemsize: int) -> Iterator[Saved]:
    """Of all together: each row's input, what is inside its expert, and what comes out, before and after its weight."""
    shared: Sharing = "sequence"
    for name in ("expert input", "expert result", WEIGHED):
        yield Saved(name=name, elements=rows * config.hidden_size, itemsize=itemsize, shared_by=shared)
    yield from _inner("expert ", rows * config.ffn_size, itemsize)


def _inner(whose: str, numbers: int, itemsize: int) -> Iterator[Saved]:
    for name in ("gate", "silu(gate)", "up", "gated") if numbers else ():
        yield Saved(name=f"{whose}{name}", elements=numbers, itemsize=itemsize, shared_by="tp")
