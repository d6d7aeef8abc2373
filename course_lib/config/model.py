"""The shape of a decoder, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from course_lib.errors import four_parts

Positions = Literal["rotary", "learned"]
Norm = Literal["rms", "layer", "layer_unweighted"]
Bias = Literal["qkv", "attention_output", "ffn", "head"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder: GPT, OLMo, Llama, or one with a mixture of experts.

    What has a default is of the Llama shape: RMSNorm, SwiGLU, rotary positions, no biases, no experts.
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

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) < 1:
                self._refuse(f"{field}={getattr(self, field)}", "sizes are positive", f"give {field} >= 1")
        self._require_positive("rotary_base", self.rotary_base)
        self._require_positive("norm_eps", self.norm_eps)
        self._require_positive("clip_qkv", 1.0 if self.clip_qkv is None else self.clip_qkv)
        self._require_divides("n_heads", "hidden_size")
        self._require_divides("n_kv_heads", "n_heads")
        self._require_choice("positions", self.positions, get_args(Positions))
        self._require_choice("norm", self.norm, get_args(Norm))
        for bias in self.biases:
            self._require_choice("biases", bias, get_args(Bias))
        self._require_table_length()
        self._require_enough_experts()

    @property
    def head_size(self) -> int:
        """Width of one attention head, H / A."""
        return self.hidden_size // self.n_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys (and of the values) of all kv heads together."""
        return self.n_kv_heads * self.head_size

    def check_sequence(self, sequence: int) -> None:
        """Refuse tokens beyond a table of learned positions; rotary ones have no end.

        Raises: ValueError naming the longest sequence.
        """
        if self.positions == "learned" and self.max_sequence is not None and sequence > self.max_sequence:
            rule = f"its table of learned positions has {self.max_sequence} rows"
            self._refuse(f"sequence={sequence}", rule, f"give sequence <= {self.max_sequence}")

    def _require_positive(self, field: str, value: float) -> None:
        if not value > 0:
            self._refuse(f"{field}={value}", f"{field} is positive", f"give {field} > 0")

    def _require_divides(self, part: str, whole: str) -> None:
        parts, size = getattr(self, part), getattr(self, whole)
        if size % parts:
            choices = [n for n in range(1, 2 * parts) if size % n == 0]
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

    def _refuse(self, values: str, rule: str, way_out: str) -> None:
        raise ValueError(four_parts(f"ModelConfig {self.name!r}", values, rule, way_out))
