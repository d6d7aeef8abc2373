"""The shape of a decoder, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from course_lib.errors import four_parts
from course_lib.split import divisors

Positions = Literal["rotary", "learned"]
Norm = Literal["rms", "layer", "layer_unweighted"]
Bias = Literal["qkv", "attention_output", "ffn", "head"]
QKNorm = Literal["none", "head", "full"]
Joined = Literal["qkv", "gate_up"]

_SIZES = (
    "hidden_size",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "ffn_size",
    "vocab_size",
    "norms_per_layer",
    "n_experts",
    "experts_per_token",
)


_SIZE = 2**28  # so that a matrix of two of them has bytes that a signed 64-bit number can count
_MOST = {  # what is beyond cannot be counted, built or drawn in any time
    **dict.fromkeys(("hidden_size", "n_heads", "n_kv_heads", "ffn_size", "vocab_size", "max_sequence"), _SIZE),
    **dict.fromkeys(("head_dim", "shared_ffn_size", "dense_ffn_size", "window"), _SIZE),
    "n_layers": 2**12,
    "n_experts": 2**16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Keys and values from one short vector for each token, which is all that has to be remembered of it.

    Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.
    """

    kv_rank: int  # numbers of that vector
    query_rank: int | None  # of the vector that queries come from; None: they come from the token itself
    plain_size: int  # of a head of queries and keys what is not turned by its position
    rotary_size: int  # and what is; the heads share that part of their keys
    value_size: int  # of a head

    def __post_init__(self) -> None:
        for field in ("kv_rank", "query_rank", "plain_size", "rotary_size", "value_size"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                values = f"{field}={getattr(self, field)}"
                raise ValueError(four_parts("LatentAttention", values, "sizes are positive", f"give {field} >= 1"))


class MadeWeight(NamedTuple):
    """One tensor of a model that was made, as `costs.Weight` has it."""

    name: str
    part: str
    shape: tuple[int, ...]
    split: int | None = None
    heads: int | None = None
    copies: int = 1
    is_map: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeLayers:
    """Layers that follow one another and are alike."""

    count: int
    weights: tuple[MadeWeight, ...]
    n_experts: int
    ffn_size: int  # of one block, be it an expert


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """All tensors of a model that was made, for no formula has its shape; they are counted in place of one."""

    layers: tuple[MadeLayers, ...]
    outer: tuple[MadeWeight, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a decoder: GPT, OLMo, Llama and their relatives, also with a mixture of experts.

    What has a default is of the Llama shape: RMSNorm, SwiGLU, rotary positions, no biases, no experts. What changes
    no parameter and no operation (caps of scores, scaled rotary angles, norms after blocks or before) is only named.
    """

    name: str
    hidden_size: int  # H
    n_layers: int  # L
    n_heads: int  # A, query heads
    n_kv_heads: int  # heads of keys and values; A / n_kv_heads queries share one
    ffn_size: int  # inner size of the feed-forward block, of one expert if there are several
    vocab_size: int  # V
    tied: bool  # the output head reuses the embedding's weights
    max_sequence: int | None = None  # the longest sequence it was made for; None: not stated
    positions: Positions = "rotary"  # learned: a table of max_sequence rows
    gated_ffn: bool = True  # three matrices (SwiGLU); False: two (GELU)
    norm: Norm = "rms"  # parameters of one norm: H, 2H (weight and bias), 0
    norms_per_layer: int = 2  # one before each block; 4: after each block too
    biases: tuple[Bias, ...] = ()  # which linear maps have one
    n_experts: int = 1  # feed-forward blocks in each layer; 1: no router
    experts_per_token: int = 1  # how many of them a token passes
    rotary_base: float = 10_000.0  # rotary positions: pair i of a head turns by base^(-2i/D) per token
    norm_eps: float = 1e-5  # added under a norm's square root
    clip_qkv: float | None = None  # queries, keys and values are cut to this size; None: not
    head_dim: int | None = None  # D, where it is not H / A
    qk_norm: QKNorm = "none"  # a norm of queries and of keys: of each head, or of all heads together
    shared_ffn_size: int = 0  # inner size of the block that every token passes beside its experts; 0: there is none
    dense_layers: int = 0  # the first layers, with one block in place of experts
    dense_ffn_size: int | None = None  # its inner size
    latent: LatentAttention | None = None  # in place of heads of keys and values; then n_kv_heads = n_heads
    window: int | None = None  # so many tokens a token sees in some layers, itself the last of them; None: all before
    windowed_layers: int = 0  # how many
    joined: tuple[Joined, ...] = ()  # linear maps that read the same and lie in one matrix
    made: Made | None = None  # its tensors, where they were read from a model and not from this shape
    uncomputed: tuple[str, ...] = ()  # settings that change no count, and that our decoder does not have

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) < 1:
                self._refuse(f"{field}={getattr(self, field)}", "sizes are positive", f"give {field} >= 1")
        for field, most in _MOST.items():
            if (getattr(self, field) or 0) > most:
                rule = "no model that can be trained has so many"
                self._refuse(f"{field} of {len(str(most))} digits or more", rule, f"give {field} <= {most}")
        if self.n_heads * (self.head_dim or 1) > _SIZE:
            rule, way_out = "no model that can be trained is so wide", f"give at most {_SIZE} together"
            self._refuse(f"n_heads={self.n_heads} of head_dim={self.head_dim}", rule, way_out)
        self._require_positive("rotary_base", self.rotary_base)
        self._require_positive("norm_eps", self.norm_eps)
        self._require_positive("clip_qkv", 1.0 if self.clip_qkv is None else self.clip_qkv)
        if self.head_dim is None and self.latent is None:
            self._require_divides("n_heads", "hidden_size")
        self._require_divides("n_kv_heads", "n_heads")
        self._require_choice("positions", self.positions, get_args(Positions))
        self._require_choice("norm", self.norm, get_args(Norm))
        for bias in self.biases:
            self._require_choice("biases", bias, get_args(Bias))
        for joined in self.joined:
            self._require_choice("joined", joined, get_args(Joined))
        self._require_choice("qk_norm", self.qk_norm, get_args(QKNorm))
        self._require_table_length()
        self._require_enough_experts()
        self._require_sound_families()

    @property
    def head_size(self) -> int:
        """D, the width of one head of queries and keys: H / A unless it is given."""
        if self.latent is not None:
            return self.latent.plain_size + self.latent.rotary_size
        return self.head_dim or self.hidden_size // self.n_heads

    @property
    def query_size(self) -> int:
        """Width of the queries of all heads together, A D."""
        return self.n_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of the keys (and of the values) of all kv heads together."""
        return self.n_kv_heads * self.head_size

    @property
    def mixed_size(self) -> int:
        """Width of what attention gives to its output map: the values, once for each head of queries."""
        return self.n_heads * (self.latent.value_size if self.latent is not None else self.head_size)

    @property
    def layer_kinds(self) -> tuple[tuple[int, ModelConfig], ...]:
        """The layers from the first on: how many are alike, and a config without the others."""
        if self.made is not None:
            return tuple((run.count, self._alone(run)) for run in self.made.layers)
        if not self.dense_layers:
            return ((self.n_layers, self),)
        assert self.dense_ffn_size is not None
        sparse = replace(self, dense_layers=0, dense_ffn_size=None)
        dense = replace(sparse, n_experts=1, experts_per_token=1, shared_ffn_size=0, ffn_size=self.dense_ffn_size)
        return (self.dense_layers, dense), (self.n_layers - self.dense_layers, sparse)

    def _alone(self, run: MadeLayers) -> ModelConfig:
        """A model of these layers alone."""
        assert self.made is not None
        if len(self.made.layers) == 1:
            return self
        plain: dict[str, Any] = (
            {"n_experts": 1, "experts_per_token": 1, "shared_ffn_size": 0} if run.n_experts == 1 else {}
        )
        made = Made(layers=(run,), outer=self.made.outer)
        return replace(
            self, made=made, n_layers=run.count, ffn_size=run.ffn_size, window=None, windowed_layers=0, **plain
        )

    def check_sequence(self, sequence: int) -> None:
        """Refuse tokens beyond a table of learned positions; rotary ones have no end.

        Raises: ValueError naming the longest sequence.
        """
        if self.positions == "learned" and self.max_sequence is not None and sequence > self.max_sequence:
            rule = f"its table of learned positions has {self.max_sequence} rows"
            self._refuse(f"sequence={sequence}", rule, f"give sequence <= {self.max_sequence}")

    def _require_positive(self, field: str, value: float) -> None:
        if not 0 < value < inf:
            self._refuse(f"{field}={value}", f"{field} is positive", f"give {field} > 0")

    def _require_divides(self, part: str, whole: str) -> None:
        parts, size = getattr(self, part), getattr(self, whole)
        if size % parts:
            choices = [n for n in divisors(size) if n < 2 * parts]
            self._refuse(f"{part}={parts}", f"{part} divides {whole}={size}", f"choose {part} in {choices}")

    def _require_choice(self, field: str, value: str, choices: tuple[str, ...]) -> None:
        if value not in choices:
            self._refuse(f"{field}={value!r}", "not a known kind", f"choose from {', '.join(choices)}")

    def _require_table_length(self) -> None:
        if self.max_sequence is not None and self.max_sequence < 1:
            self._refuse(f"max_sequence={self.max_sequence}", "sizes are positive", "give max_sequence >= 1")
        if self.positions == "learned" and self.max_sequence is None:
            rule = "a table of learned positions has a row for each of them"
            self._refuse("positions='learned', max_sequence=None", rule, "give max_sequence")

    def _require_enough_experts(self) -> None:
        if self.experts_per_token > self.n_experts:
            values = f"experts_per_token={self.experts_per_token}, n_experts={self.n_experts}"
            way_out = f"choose experts_per_token in 1..{self.n_experts}"
            self._refuse(values, "a token passes each expert at most once", way_out)

    def _require_sound_families(self) -> None:
        """What only some families have, and what it goes with."""
        if self.head_dim is not None and (self.head_dim < 1 or self.latent is not None):
            rule = "a head's size is positive, and said once" if self.latent else "sizes are positive"
            self._refuse(f"head_dim={self.head_dim}", rule, "leave head_dim out, or give head_dim >= 1 without latent")
        if self.latent is not None and (self.n_kv_heads != self.n_heads or self.qk_norm != "none"):
            values = f"latent with n_kv_heads={self.n_kv_heads}, qk_norm={self.qk_norm!r}"
            self._refuse(values, "its heads share one latent vector", f"give n_kv_heads={self.n_heads}, qk_norm='none'")
        if self.shared_ffn_size < 0 or (self.shared_ffn_size and self.n_experts == 1):
            values = f"shared_ffn_size={self.shared_ffn_size}, n_experts={self.n_experts}"
            self._refuse(values, "a shared block stands beside experts", "give shared_ffn_size=0, or n_experts >= 2")
        if (self.dense_layers > 0) != (self.dense_ffn_size is not None) or not 0 <= self.dense_layers < self.n_layers:
            values = f"dense_layers={self.dense_layers} of {self.n_layers}, dense_ffn_size={self.dense_ffn_size}"
            self._refuse(values, "some first layers may be dense, of their own size", "give both, or neither")
        if (self.window is None) != (self.windowed_layers == 0) or not 0 <= self.windowed_layers <= self.n_layers:
            values = f"window={self.window}, windowed_layers={self.windowed_layers} of {self.n_layers}"
            self._refuse(values, "a window is that of some layers", "give both, or neither")
        if self.window is not None:
            self._require_positive("window", self.window)
        if self.dense_layers and self.n_experts == 1:
            way_out = "leave dense_layers out, or give n_experts >= 2"
            self._refuse(
                f"dense_layers={self.dense_layers}, n_experts=1", "without experts all layers are dense", way_out
            )

    def _refuse(self, values: str, rule: str, way_out: str) -> None:
        raise ValueError(four_parts(f"ModelConfig {self.name!r}", values, rule, way_out))
