"""What autograd keeps of a frozen model with adapters, tensor by tensor.

A frozen matrix needs no input for its gradient, so that its input is let go of, unless something that is trained reads
it as well. Everything else stays: gates, queries and keys are kept for the gradient on its way to the layers below. So
adapters save nearly all bytes of gradients and optimizer, and few of activations. LoRA beside every matrix reads all
their inputs, and keeps r numbers more a token for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import (
    HALF,
    Recompute,
    Saved,
    Sharing,
    checkpointed_activations,
    head_activations,
    is_counted,
    layer_activations,
)
from course_lib.costs.model.adapters import Adapters, called
from course_lib.costs.model.autocast import shortened
from course_lib.costs.model.expert_activations import expert_layer_activations
from course_lib.costs.model.parameters import Weight, layer_weights

_FP32 = 4
_OUT, _DOWN = "o_proj", "down_proj"  # the last maps of the two blocks
_ROW = 1  # the dim along which these are cut
_FROM_LATENT = ("attention.query", "attention.key_value", "q_b_proj", "kv_b_proj")  # which read no stream


def adapter_activations(
    config: ModelConfig,
    adapters: Adapters,
    *,
    batch: int,
    sequence: int,
    itemsize: int,
    recompute: Recompute = "none",
    fused_norms: bool = False,
) -> tuple[Saved, ...]:
    """The tensors that a decoder with adapters keeps, from its first layer to the loss, where all else is frozen.

    Maps in codes keep the same: their weights come back from the codes. Adapters have the model's dtype here. Layers
    that are recomputed keep their input, as without adapters, and share one tensor of rotary angles in fp32.
    """
    sizes: dict[str, Any] = {"batch": batch, "sequence": sequence, "itemsize": itemsize}
    ends = frozen_ends(head_activations(config, **sizes, fused_norms=fused_norms))
    if recompute == "layers":
        turned = config.head_size // 2 * (config.positions == "rotary")
        angles = Saved(name="angles", elements=sequence * turned, itemsize=_FP32, shared_by="nothing")
        layer = checkpointed_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
        return (*layer * config.n_layers, angles, *ends)
    found: list[Saved] = []
    for place, (count, kind) in enumerate(config.layer_kinds):
        first, others = (
            adapted_layer(kind, adapters, **sizes, fused_norms=fused_norms, stream=stream) for stream in (False, True)
        )
        found += first if place == 0 else others
        found += others * (count - 1)
    return (*found, *ends)


def frozen_ends(kept: Iterable[Saved], *, pieces: int = 1) -> tuple[Saved, ...]:
    """Of what a model keeps at its ends: embedding and head are frozen, so that nobody reads again what they read.

    But a loss in pieces makes its logits once more, from what the head has read.
    """
    frozen = ("tokens", "positions", *(("head input",) if pieces == 1 else ()))
    return tuple(_without_weights(saved for saved in kept if saved.name not in frozen))


def adapted_layer(
    kind: ModelConfig,
    adapters: Adapters,
    *,
    batch: int,
    sequence: int,
    itemsize: int,
    fused_norms: bool,
    stream: bool,
    autocast: bool = False,
    nf4: bool = False,
) -> tuple[Saved, ...]:
    """What one layer with adapters keeps; `stream` says whether its input has a gradient, as in all but the first.

    With `autocast` products are in 16 bits, and matrices that do not lie in codes are copied.
    """
    rows = layer_activations if is_counted(kind) else expert_layer_activations
    layer = rows(kind, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms)
    way = _Way(kind, adapters, stream)
    kept = [*way.through(layer), *way.of_adapters(batch * sequence, itemsize)]
    if not autocast:
        return tuple(kept)
    return (*shortened(kept, way.read_by), *way.copies(nf4))


def adapter_results(
    kind: ModelConfig, adapters: Adapters, *, batch: int, sequence: int, itemsize: int
) -> tuple[Saved, ...]:
    """What the products with A and B make in one layer; factors are no products."""
    if adapters.rank is None:
        return ()
    found, tokens = [], batch * sequence
    for weight in adapters.beside(kind):
        sides: dict[str, tuple[int, Sharing]] = {
            "A": (adapters.rank, "sequence" if weight.split == _ROW else "nothing"),
            "B": (weight.shape[0], "sequence" if weight.split == _ROW else "tp"),
        }
        for side, (width, shared) in sides.items():
            numbers = weight.copies * tokens * width
            found.append(Saved(name=f"{weight.name}.{side}", elements=numbers, itemsize=itemsize, shared_by=shared))
    return tuple(found)


class _Way:
    """The gradient's way back through one layer: where something is trained, and what its input reaches."""

    def __init__(self, kind: ModelConfig, adapters: Adapters, stream: bool) -> None:
        self.kind, self.adapters, self.stream = kind, adapters, stream
        self.beside = adapters.beside(kind)
        self.of = {self._role(weight) for weight in self.beside}
        in_attention = {self._role(weight) for weight in self.beside if weight.piece == "attention"}
        self.attention = stream or bool(in_attention - {_OUT})
        others = bool(in_attention - {"q_proj", "k_proj", "v_proj", _OUT})  # of what is joined, or called otherwise
        self.queries, self.keys = (stream or others or name in self.of for name in ("q_proj", "k_proj"))
        self.block = self.attention or bool(in_attention)

    def through(self, layer: Iterable[Saved]) -> Iterator[Saved]:
        """Of what the layer keeps if all is trained, what it keeps here."""
        needed = self._needed()
        for saved in _without_weights(layer):
            name = saved.name.partition(":")[0]
            if not needed[name]:
                continue
            if name == "rotations":  # of queries and of keys, each its own
                saved = replace(saved, elements=saved.elements * (self.queries + self.keys) // 2)
            yield saved

    @staticmethod
    def _role(weight: Weight) -> str:
        """The last map of a block, whatever it is called; of others their name."""
        if weight.split == _ROW:
            return _OUT if weight.piece == "attention" else _DOWN
        return called(weight)

    def _reached(self, weight: Weight) -> bool:
        """Whether what a matrix multiplies has a gradient."""
        role = self._role(weight)
        if weight.piece == "attention":
            from_latent = self.kind.latent is not None and called(weight) in _FROM_LATENT
            return self.attention if role == _OUT or from_latent else self.stream
        inner = {self._role(one) for one in self.beside if one.piece == weight.piece} - {_DOWN}
        return self.block or (role == _DOWN and bool(inner))

    def _needed(self) -> dict[str, bool]:
        lora, of = self.adapters.rank is not None, self.of
        shared, own = (
            {self._role(weight) for weight in self.beside if weight.piece == piece} for piece in ("shared_ffn", "ffn")
        )
        experts, own = (own, set[str]()) if self.kind.n_experts > 1 else (set[str](), own)
        return {
            **dict.fromkeys(("query latent", "latent"), lora),
            **dict.fromkeys(("query latent norm", "latent norm", "attention norm"), self.stream),
            "attention input": lora and self._readers("attention") > 0,
            **dict.fromkeys(("query", "key", "value", "key and value", "log-sum-exp of scores"), self.attention),
            "rotations": self.queries or self.keys,
            "query norm": self.queries,
            "key norm": self.keys,
            "attention output": self.attention or _OUT in of,
            **dict.fromkeys(("norm after attention", "ffn norm"), self.block),
            "norm after ffn": self.block or bool(own | shared | experts),
            "ffn input": bool((own | shared) - {_DOWN}),
            **self._inner("", own),
            **self._inner("shared ", shared),
            **self._inner("expert ", experts),
            "expert input": bool(experts - {_DOWN}),
            **dict.fromkeys(("router", "expert result", "expert result, weighed"), self.block),
        }

    def _inner(self, whose: str, of: set[str]) -> dict[str, bool]:
        others = of - {_DOWN, "gate_proj", "up_proj"}  # of what is joined, or called otherwise
        gate, up = (self.block or name in of or bool(others) for name in ("gate_proj", "up_proj"))
        last = _DOWN in of
        names = {"gate": gate, "silu(gate)": up, "up": gate if self.kind.gated_ffn else up}
        return {f"{whose}{name}": needed for name, needed in (names | {"gated": last, "gelu(up)": last}).items()}

    def of_adapters(self, tokens: int, itemsize: int) -> Iterator[Saved]:
        """Beside what the model itself has: the numbers between A and B; of factors what they multiply, if it is new.

        Ranks that share a matrix by columns have all of the former, for their rows of B.
        """
        for weight in self.beside:
            name = called(weight)
            if self.adapters.rank is not None:
                shared: Sharing = "sequence" if weight.split == _ROW else "nothing"
                numbers = weight.copies * tokens * self.adapters.rank
                yield Saved(name=f"{name}: between A and B", elements=numbers, itemsize=itemsize, shared_by=shared)
            elif name != _DOWN:  # whose factors multiply what is kept already
                numbers = tokens * weight.shape[0]
                yield Saved(name=f"{name}: before the factors", elements=numbers, itemsize=itemsize, shared_by="tp")

    @property
    def read_by(self) -> dict[str, int]:
        """How many adapters read the inputs of the two blocks, each of which autocast copies; experts copy theirs."""
        beside_experts = self._readers("shared_ffn")
        ffn = beside_experts if self.kind.n_experts > 1 else self._readers("ffn")
        return {"attention input": self._readers("attention"), "ffn input": ffn}

    def _readers(self, piece: str) -> int:
        """Maps of a block, with adapters, that read what its norm has made."""
        inside = [weight for weight in self.beside if weight.piece == piece and weight.split != _ROW]
        return sum(self.kind.latent is None or called(weight) not in _FROM_LATENT for weight in inside)

    def copies(self, nf4: bool) -> Iterator[Saved]:
        """Autocast's. Backward reads a map's matrix, and A, for the gradient of its input; and B for that of A."""
        for weight in layer_weights(self.kind):
            if len(weight.shape) == 2:
                yield from self._copies_beside(weight, nf4)

    def _copies_beside(self, weight: Weight, nf4: bool) -> Iterator[Saved]:
        outputs, inputs = weight.shape
        is_frozen_alone = weight.part == "router" or not weight.is_map
        reached = self.block if is_frozen_alone else self._reached(weight)
        sizes = {"": outputs * inputs * reached * (is_frozen_alone or not nf4)}
        if self.adapters.rank is not None and weight in self.beside:
            sizes |= {" A": self.adapters.rank * inputs * reached, " B": self.adapters.rank * outputs}
        for kind, numbers in sizes.items():
            name = f"{weight.name}{kind} in 16 bits"
            yield Saved(name=name, elements=weight.copies * numbers, itemsize=HALF, shared_by="tp")


def _without_weights(kept: Iterable[Saved]) -> Iterator[Saved]:
    """A frozen norm does not keep what its weight was multiplied by."""
    return (saved for saved in kept if not saved.name.endswith("normalised in fp32"))
