"""What fine-tuning with a frozen model trains, and what lasts of it from step to step, for layers of any shape.

An adapter stands beside a linear map. Experts are no maps: a layer's lie side by side in one tensor, and stay frozen as
they are, as does the router that chooses among them.
Source: Hu et al. 2021, LoRA, section 4.2; Dettmers et al. 2023, QLoRA, section 3.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from math import ceil, prod

from course_lib.config import ModelConfig
from course_lib.config.parallel import CUT_IN_ALL, Piece
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.parameters import Weight, layer_weights, model_parameters
from course_lib.costs.model.states import StateBytes, state_bytes
from course_lib.errors import four_parts

MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a Llama's layer
FACTORS = ("k_proj", "v_proj", "down_proj")  # of (IA)^3: after the first two, before the third
_NAMES = {
    "attention.query": "q_proj",
    "attention.key": "k_proj",
    "attention.value": "v_proj",
    "attention.output": "o_proj",
}
_NF4_BLOCK, _SCALES_BLOCK, _FP32 = 64, 256, 4


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What is trained: `rank` numbers between A and B beside each of `maps`; or rank None, (IA)^3's factors.

    A layer of another shape has other maps; with all of a Llama's all of its own are meant.
    """

    rank: int | None = 8
    maps: tuple[str, ...] = MAPS

    def __post_init__(self) -> None:
        known = FACTORS if self.rank is None else MAPS
        if not self.maps or not {*self.maps} <= {*known}:
            values, rule = f"rank={self.rank}, maps={self.maps}", "a layer has these maps, and something is trained"
            raise ValueError(four_parts("Adapters", values, rule, f"choose from {', '.join(known)}"))
        if self.rank is not None and self.rank < 1:
            raise ValueError(four_parts("Adapters", f"rank={self.rank}", "B A has a rank", "give rank >= 1, or None"))

    def beside(self, kind: ModelConfig) -> tuple[Weight, ...]:
        """The matrices of one layer that something trained stands beside."""
        everything = {*self.maps} == {*MAPS}
        return tuple(weight for weight in _linear_maps(kind) if everything or called(weight) in self.maps)

    def numbers(self, weight: Weight, tp: int = 1) -> int:
        """That are trained beside a matrix, on the first of tp ranks: what is not cut with it is whole on each."""
        outputs, inputs = weight.shape_at(tp)
        if self.rank is not None:
            return weight.copies * self.rank * (outputs + inputs)
        return weight.copies * (inputs if called(weight) == FACTORS[-1] else outputs)

    def of_layer(self, kind: ModelConfig, *, tp: int = 1, whole: Set[Piece] = CUT_IN_ALL) -> int:
        """Numbers that are trained in one layer, on the first of tp ranks, each of which has all of what is `whole`.

        Raises: ValueError for a layer without such maps.
        """
        chosen = self.beside(kind)
        if not chosen or (self.rank is None and {called(one) for one in chosen}.isdisjoint(FACTORS[:2])):
            rule = f"its layers have no maps called {', '.join(self.maps if self.rank else FACTORS[:2])}"
            raise ValueError(four_parts("Adapters", kind.name, rule, "choose LoRA beside all maps"))
        return sum(self.numbers(weight, 1 if weight.piece in whole else tp) for weight in chosen)

    def parameters(self, config: ModelConfig) -> int:
        """Numbers that are trained in all layers."""
        return sum(count * self.of_layer(kind) for count, kind in config.layer_kinds)


IA3 = Adapters(rank=None, maps=FACTORS)


def _linear_maps(kind: ModelConfig) -> tuple[Weight, ...]:
    """The matrices of one layer's linear maps; a router is none that anything is trained beside."""
    parts = ("attention", "ffn")
    return tuple(one for one in layer_weights(kind) if len(one.shape) == 2 and one.is_map and one.part in parts)


def called(weight: Weight) -> str:
    """The map's name in a Llama, or in the model that it was read from; else its own here."""
    if weight.name.endswith(".weight"):
        return weight.name.split(".")[-2]
    block, _, name = weight.name.partition(".")
    return _NAMES.get(weight.name, f"{name}_proj" if "ffn" in block else weight.name)


def nf4_bytes(numbers: int, *, double: bool = True) -> int:
    """A matrix in NF4: half a byte a number, and for each 64 a scale; with `double` of a byte, in blocks of 256.

    >>> nf4_bytes(2**20), nf4_bytes(2**20, double=False)
    (540932, 589824)
    """
    scales = ceil(numbers / _NF4_BLOCK)
    if not double:
        return ceil(numbers / 2) + _FP32 * scales
    return ceil(numbers / 2) + scales + _FP32 * ceil(scales / _SCALES_BLOCK) + _FP32  # the last is the scales' mean


def nf4_saving(kind: ModelConfig, itemsize: int) -> int:
    """Bytes that one layer does not keep because its maps lie in codes."""
    sizes = [(one.copies, prod(one.shape)) for one in _linear_maps(kind)]
    return sum(copies * (numbers * itemsize - nf4_bytes(numbers)) for copies, numbers in sizes)


def adapter_state_bytes(
    config: ModelConfig, adapters: Adapters, convention: Convention, *, itemsize: int = 2, nf4: bool = False
) -> StateBytes:
    """Weights, gradients and optimizer states; `convention` counts what is trained, `itemsize` what is frozen.

    With `nf4` the layers' maps lie in codes; embedding, head, norms and experts stay as they are.
    Raises: ValueError for layers without such maps.
    """
    frozen = model_parameters(config) * itemsize
    if nf4:
        frozen -= sum(count * nf4_saving(kind, itemsize) for count, kind in config.layer_kinds)
    trained = state_bytes(adapters.parameters(config), convention)
    return replace(trained, weights=trained.weights + frozen)
