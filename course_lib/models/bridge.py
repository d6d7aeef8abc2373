"""Weights to and from transformers' Llama, OLMo and GPT-2: with them its logits are our decoder's.

Each tensor of theirs is one of ours or, in GPT-2, several joined; the table that says which is read in both
directions. `transformers` is imported where it is used, since that takes seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import four_parts
from course_lib.models.bridge_config import computed_config, family_of, transformers_config, transformers_model
from course_lib.models.decoder import Decoder
from course_lib.models.expert_files import Box, Piece, is_in_pieces, name_in_files, pieces
from course_lib.models.logits import Logits

_LLAMA_LAYER = {  # theirs -> ours
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.o_proj",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn.gate_proj",
    "mlp.up_proj": "ffn.up_proj",
    "mlp.down_proj": "ffn.down_proj",
}
_GPT2_NORMS = {"ln_1": "attention_norm", "ln_2": "ffn_norm"}
_GPT2_LINEAR = {  # theirs -> ours; their weights are (in, out)
    "attn.c_attn": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attn.c_proj": ("attention.o_proj",),
    "mlp.c_fc": ("ffn.up_proj",),
    "mlp.c_proj": ("ffn.down_proj",),
}


@dataclass(frozen=True, kw_only=True)
class Link:
    """One tensor of theirs, and those of ours that it joins along their first dim."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False

    def join(self, ours: Mapping[str, Tensor]) -> Tensor:
        """Theirs from ours, in memory of its own."""
        joined = torch.cat([ours[name] for name in self.ours])
        return joined.T.contiguous() if self.transposed else joined

    def split(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ours from theirs: equal parts."""
        joined = theirs[self.theirs]
        parts = (joined.T if self.transposed else joined).chunk(len(self.ours))
        return dict(zip(self.ours, parts, strict=True))

    def common(self, name: str, shape: Sequence[int], box: Box, numbers: Tensor) -> tuple[Box, Tensor]:
        """Where in theirs lies a box of one of ours, which has this shape as a whole; and its numbers as theirs lie."""
        rows = shape[0] * self.ours.index(name) if shape else 0
        offsets, sizes = box
        moved = [offset + rows * (dim == 0) for dim, offset in enumerate(offsets)]
        step = -1 if self.transposed else 1
        return (tuple(moved[::step]), tuple(sizes[::step])), numbers.T if self.transposed else numbers

    def shape_of_theirs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of equal parts of this shape."""
        joined = (shape[0] * len(self.ours), *shape[1:]) if shape else ()
        return joined[:: -1 if self.transposed else 1]


def to_transformers(model: Decoder) -> nn.Module:
    """Their model, with a copy of our weights in our dtype, in evaluation mode.

    Raises: ValueError for a shape that none of their three has.
    """
    theirs = transformers_model(model.config)
    weights = weights_to_transformers(model.state_dict(), model.config)
    # assign: their .to(dtype) would round the rotary angles too
    theirs.load_state_dict(weights, strict=False, assign=True)
    theirs.tie_weights()
    return theirs.eval()


def from_transformers(theirs: nn.Module) -> Decoder:
    """Our decoder, with a copy of their weights in their dtype.

    Raises: ValueError for a model that our decoder cannot be.
    """
    config = computed_config(theirs.config)
    weights = weights_from_transformers(theirs.state_dict(), config)
    model = Decoder(config).to(next(theirs.parameters()).dtype)
    model.load_state_dict(weights, strict=not config.tied)
    return model


def weights_to_transformers(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A state dict of ours as one of theirs; a tied head is left out.

    Raises: ValueError for weights that are missing or too many.
    """
    table = list(links(config))
    _check_names(
        "weights_to_transformers", weights, {name for link in table for name in link.ours}, config, "head.weight"
    )
    return {link.theirs: link.join(weights) for link in table}


def weights_from_transformers(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A state dict of theirs as one of ours; a tied head is left out.

    Raises: ValueError for weights that are missing or too many.
    """
    table = list(links(config))
    _check_names("weights_from_transformers", weights, {link.theirs for link in table}, config, "lm_head.weight")
    return {name: part for link in table for name, part in link.split(weights).items()}


def links(config: ModelConfig) -> Iterator[Link]:
    """Every tensor of theirs.

    Raises: ValueError for a shape that none of their three has.
    """
    yield from _gpt2_links(config) if family_of(config) == "gpt2" else _llama_links(config)
    if not config.tied:
        yield Link(theirs="lm_head.weight", ours=("head.weight",))


def links_of(model: nn.Module, names: Iterable[str]) -> list[Link | Piece]:
    """Every tensor that a checkpoint of theirs has of a model; `names` are ours, of what is tied the first.

    A model of theirs has its own names, also inside `Logits`, and so has any model that they have not; but for
    experts, which the files have one by one.
    """
    if isinstance(model, Decoder):
        return [*links(model.config)]
    prefix = "model." if isinstance(model, Logits) else ""
    return [link for name in names for link in _links_to_files(model, name, name.removeprefix(prefix))]


def _links_to_files(model: nn.Module, ours: str, name: str) -> list[Link | Piece]:
    """The tensors that files have of one tensor of a model of theirs."""
    theirs = model.model if isinstance(model, Logits) else model
    model_type = getattr(getattr(theirs, "config", None), "model_type", "")
    if is_in_pieces(model_type, name):
        return [*pieces(model_type, name, ours, len(model.get_parameter(ours)))]
    return [Link(theirs=name_in_files(model_type, name), ours=(ours,))]


def ties_of(model: nn.Module, first_name: Mapping[str, str]) -> dict[str, str]:
    """Theirs by another name -> by the first, of what is tied; `first_name` has all names of ours."""
    tied = {name: first for name, first in first_name.items() if name != first}
    if isinstance(model, Decoder):
        theirs = {link.ours[0]: link.theirs for link in links(model.config)}
        return dict.fromkeys(["lm_head.weight"], theirs[next(iter(tied.values()))]) if tied else {}
    prefix = "model." if isinstance(model, Logits) else ""
    return {name.removeprefix(prefix): first.removeprefix(prefix) for name, first in tied.items()}


def config_of_theirs(model: nn.Module) -> Any:
    """The configuration with which `transformers` builds the model; None if it has no such model.

    Raises: ValueError for a decoder of a shape that none of their three has.
    """
    if isinstance(model, Decoder):
        return transformers_config(model.config)
    theirs = model.model if isinstance(model, Logits) else model
    return copy.deepcopy(getattr(theirs, "config", None))


def _llama_links(config: ModelConfig) -> Iterator[Link]:
    """Llama and OLMo; OLMo's norms have no weights."""
    yield Link(theirs="model.embed_tokens.weight", ours=("embedding.weight",))
    for number in range(config.n_layers):
        for theirs, ours in _LLAMA_LAYER.items():
            if config.norm == "rms" or "norm" not in ours:
                name = f"layers.{number}.{ours}.weight"
                yield Link(theirs=f"model.layers.{number}.{theirs}.weight", ours=(name,))
    if config.norm == "rms":
        yield Link(theirs="model.norm.weight", ours=("norm.weight",))


def _gpt2_links(config: ModelConfig) -> Iterator[Link]:
    yield Link(theirs="transformer.wte.weight", ours=("embedding.weight",))
    yield Link(theirs="transformer.wpe.weight", ours=("positions.weight",))
    for kind in ("weight", "bias"):
        for number in range(config.n_layers):
            theirs, ours = f"transformer.h.{number}", f"layers.{number}"
            for norm, name in _GPT2_NORMS.items():
                yield Link(theirs=f"{theirs}.{norm}.{kind}", ours=(f"{ours}.{name}.{kind}",))
            for linear, names in _GPT2_LINEAR.items():
                parts = tuple(f"{ours}.{name}.{kind}" for name in names)
                yield Link(theirs=f"{theirs}.{linear}.{kind}", ours=parts, transposed=kind == "weight")
        yield Link(theirs=f"transformer.ln_f.{kind}", ours=(f"norm.{kind}",))


def _check_names(
    operation: str, weights: Mapping[str, Tensor], expected: set[str], config: ModelConfig, head: str
) -> None:
    """A tied head may be there, as the embedding's second name, or not."""
    found = set(weights) - ({head} if config.tied else set())
    for what, names in (("missing", expected - found), ("too many", found - expected)):
        if names:
            values = f"{len(names)} weights {what}, {min(names)} among them"
            rule = f"{config.name} has {len(expected)} weights with fixed names"
            raise ValueError(four_parts(operation, values, rule, "give the weights of a model with this very config"))
