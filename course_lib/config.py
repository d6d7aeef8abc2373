"""What describes a run: for now the model.

The course's letters, used in every shape comment and formula:
    B  batch (sequences)    S  sequence length (tokens)    H  hidden size
    A  attention heads      L  decoder layers              V  vocabulary size
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder of the Llama shape: RMSNorm, grouped-query attention, SwiGLU, no biases."""

    name: str
    hidden_size: int  # H
    n_layers: int  # L
    n_heads: int  # A, query heads
    n_kv_heads: int  # heads of keys and values; A / n_kv_heads queries share one
    ffn_size: int  # inner size of the feed-forward block
    vocab_size: int  # V
    tied: bool  # the output head reuses the embedding's weights

    def __post_init__(self) -> None:
        for field in ("hidden_size", "n_layers", "n_heads", "n_kv_heads", "ffn_size", "vocab_size"):
            if getattr(self, field) < 1:
                self._refuse(f"{field}={getattr(self, field)}", "sizes are positive", f"give {field} >= 1")
        self._require_divides("n_heads", "hidden_size")
        self._require_divides("n_kv_heads", "n_heads")

    @property
    def head_size(self) -> int:
        """Width of one attention head, H / A."""
        return self.hidden_size // self.n_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys (and of the values) of all kv heads together."""
        return self.n_kv_heads * self.head_size

    def _require_divides(self, part: str, whole: str) -> None:
        parts, size = getattr(self, part), getattr(self, whole)
        if size % parts:
            choices = [n for n in range(1, 2 * parts) if size % n == 0]
            self._refuse(f"{part}={parts}", f"{part} divides {whole}={size}", f"choose {part} in {choices}")

    def _refuse(self, values: str, rule: str, way_out: str) -> None:
        raise ValueError(four_parts(f"ModelConfig {self.name!r}", values, rule, way_out))


# Grattafiori et al. 2024, "The Llama 3 Herd of Models", Table 3.
LLAMA_3_1_8B = ModelConfig(
    name="Llama 3.1 8B",
    hidden_size=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    ffn_size=14336,
    vocab_size=128_256,
    tied=False,
)
