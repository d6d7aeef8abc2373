"""By how much the published formulas are off for a Llama, against the exact count, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.activations import HALF, activation_bytes, checkpointed_activations, layer_activations
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import state_bytes
from course_lib.costs.published.activations import (
    korthikanti_first_stage_bytes,
    korthikanti_layer_bytes,
    workshop_activations,
)
from course_lib.costs.published.explorer import (
    explorer_activation_bytes,
    explorer_layer_bytes,
    explorer_parameters,
    explorer_state_bytes,
)
from course_lib.costs.published.parameters import megatron_parameters, workshop_parameters

Unit = Literal["parameters", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A published formula beside what is really there."""

    name: str
    counts: str  # what both count
    unit: Unit
    formula: float
    exact: int
    because: str

    @property
    def off(self) -> float:
        """The share by which the formula is too much, or, if negative, too little."""
        return self.formula / self.exact - 1


def published_gaps(model: ModelConfig, *, batch: int, sequence: int) -> tuple[Gap, ...]:
    """All published formulas on one device that trains a Llama in bf16 with fp32 states; norms are those of a CPU.

    Raises: ValueError for a size below 1, or a decoder of another shape.
    """
    named = replace(model, max_sequence=sequence)  # two formulas count a table of positions
    return (
        *_parameter_gaps(named),
        *_state_gaps(named),
        *_layer_gaps(named, batch, sequence),
        *_whole_gaps(named, batch, sequence),
    )


def _parameter_gaps(model: ModelConfig) -> Iterator[Gap]:
    gap = partial(Gap, counts="parameters", unit="parameters", exact=model_parameters(model))
    gpt = "a GPT: blocks of 8H² instead of 3HF, keys and values as wide as H, biases, a table of positions"
    yield gap(name="workshop, N(12D² + 10D) + ...", formula=workshop_parameters(model), because=gpt)
    tied = "the same, and always one table for embedding and head"
    yield gap(name="Megatron, 12Lh²(1 + ...)", formula=megatron_parameters(model), because=tied)
    yield gap(name="Explorer", formula=explorer_parameters(model), because="it leaves out the norms")


def _state_gaps(model: ModelConfig) -> Iterator[Gap]:
    count, alone = model_parameters(model), ParallelConfig()
    gap = partial(Gap, counts="states", unit="bytes", exact=state_bytes(count, find_convention("zero")).total)
    workshop, half = (find_convention(name).bytes_per_parameter * count for name in ("workshop", "half"))
    yield gap(name="workshop, 14P", formula=workshop, because="it forgets the gradients")
    yield gap(
        name="2(4P) = 8P",
        formula=half,
        because="moments in 16 bits and no fp32 copy of the weights: not how mixed precision trains",
    )
    yield gap(
        name="Explorer NO_OP, 18P",
        formula=explorer_state_bytes(model, alone, "NO_OP"),
        because="it keeps gradients in fp32, which is another convention; and leaves out the norms",
    )


def _layer_gaps(model: ModelConfig, batch: int, sequence: int) -> Iterator[Gap]:
    layer = sum(saved.nbytes for saved in layer_activations(model, batch=batch, sequence=sequence, itemsize=HALF))
    gap = partial(Gap, counts="activations of a layer", unit="bytes", exact=layer)
    korthikanti = partial(korthikanti_layer_bytes, model, batch=batch, sequence=sequence)
    yield gap(
        name="Korthikanti, sbh(34 + 5as/h)",
        formula=korthikanti(),
        because="5as²b are scores, which attention no longer keeps; the rest is a GPT's layer",
    )
    yield gap(
        name="Korthikanti, selective, 34sbh",
        formula=korthikanti(recompute="selective"),
        because="a GPT: GELU of width 4h and dropout masks; SwiGLU keeps four tensors of F, CPU norms keep fp32",
    )
    yield gap(
        name="Explorer",
        formula=explorer_layer_bytes(model, ParallelConfig(), sequence=sequence, microbatch=batch),
        because="of SwiGLU's four tensors of F it counts three, keys and values as wide as H, norms in bf16",
    )
    (kept,) = checkpointed_activations(model, batch=batch, sequence=sequence, itemsize=HALF)
    yield Gap(
        name="Korthikanti, full, 2sbh",
        counts="activations of a recomputed layer",
        unit="bytes",
        formula=korthikanti(recompute="full"),
        exact=kept.nbytes,
        because="exact: a layer's input, whatever its shape",
    )


def _whole_gaps(model: ModelConfig, batch: int, sequence: int) -> Iterator[Gap]:
    exact = activation_bytes(model, batch=batch, sequence=sequence, itemsize=HALF)
    gap = partial(Gap, counts="activations of all", unit="bytes", exact=exact)
    yield gap(
        name="workshop, 2(5NBTD + BNN_hT² + ...)",
        formula=HALF * workshop_activations(model, batch=batch, sequence=sequence),
        because="too few tensors, five of H a layer; but scores, which attention no longer keeps",
    )
    yield gap(
        name="Korthikanti, selective, all layers",
        formula=korthikanti_first_stage_bytes(model, batch=batch, sequence=sequence, recompute="selective"),
        because="a GPT's layers, as above; logits in fp32, which this model keeps in bf16",
    )
    yield gap(
        name="Explorer, 10sbV for the loss",
        formula=explorer_activation_bytes(model, ParallelConfig(), sequence=sequence, microbatch=batch),
        because="layers too small, as above; the loss keeps 2sbV in bf16, not 10sbV",
    )
