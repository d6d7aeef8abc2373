"""How a model is spread over GPUs, checked when it is made and against the model it is used with."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from course_lib.config.model import ModelConfig
from course_lib.errors import four_parts
from course_lib.split import divisors

_DEGREES = ("dp", "tp", "pp", "cp", "ep")
Piece = Literal["embedding", "attention", "ffn", "experts", "shared_ffn", "head"]  # of a model, cut along tp as one
CUT_IN_ALL: frozenset[Piece] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Degrees of parallelism; the ranks number dp x tp x pp x cp."""

    dp: int = 1  # data: replicas of the model, or of its shards
    tp: int = 1  # tensor: ranks that share each matrix
    pp: int = 1  # pipeline: stages, each with L / pp layers
    cp: int = 1  # context: ranks that share each sequence
    ep: int = 1  # expert: of the dp replicas, ranks that share the experts of a layer
    zero_stage: int = 0  # sharded over dp x cp: 1 optimizer states, 2 gradients as well, 3 weights as well
    sequence_parallel: bool = False  # the tp ranks share the sequence where they do not share matrices

    def __post_init__(self) -> None:
        for field in _DEGREES:
            if getattr(self, field) < 1:
                _refuse(f"{field}={getattr(self, field)}", "degrees are positive", f"give {field} >= 1")
        if self.zero_stage not in range(4):
            _refuse(f"zero_stage={self.zero_stage}", "ZeRO has the stages 1 to 3", "choose 0 (none), 1, 2 or 3")
        if self.dp % self.ep:
            _refuse_divisor("ep", self.ep, "dp", self.dp)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> int:
        """Ranks that hold the same part of the model, over which ZeRO shards: dp x cp."""
        return self.dp * self.cp

    @property
    def in_words(self) -> str:
        """The degrees of the ranks' axes above 1."""
        sizes = {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}
        words = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
        return f"{words}, ep={self.ep} of dp" if self.ep > 1 else words

    def check_heads(self, model: ModelConfig) -> None:
        """Refuse ranks of which some would have more heads: kv heads fewer than ranks lie on equally many each.

        Raises: ValueError naming the choices.
        """
        self._check_heads(model, _tp_choices(model, widths=False))

    def check(self, model: ModelConfig, *, sequence: int | None = None, whole: Set[Piece] = CUT_IN_ALL) -> None:
        """Refuse what does not divide, and a sequence that the model has no positions for.

        What is `whole` on every rank along tp has nothing to divide.
        Raises: ValueError naming what is too large or does not divide, and the choices that no other rule forbids.
        """
        if sequence is not None:
            model.check_sequence(sequence)
        each = sequence // self.cp if sequence is not None and self.sequence_parallel else 0
        choices = [n for n in _tp_choices(model, whole=whole) if each % n == 0]
        if "attention" not in whole:
            self._check_heads(model, choices)
        for name, size in (tp_widths(model, whole) | {"sequence/cp": each}).items():
            if size % self.tp:
                _refuse_divisor("tp", self.tp, name, size, choices)
        if model.n_layers % self.pp:
            _refuse_divisor("pp", self.pp, "n_layers", model.n_layers)
        if model.n_experts % self.ep:
            choices = [n for n in divisors(model.n_experts) if self.dp % n == 0]
            _refuse_divisor("ep", self.ep, "n_experts", model.n_experts, choices)
        if sequence is not None and sequence % self.cp:
            _refuse_divisor("cp", self.cp, "sequence", sequence)

    def _check_heads(self, model: ModelConfig, choices: list[int]) -> None:
        kv = model.n_kv_heads
        if model.n_heads % self.tp:
            _refuse_divisor("tp", self.tp, "n_heads", model.n_heads, choices)
        if kv % self.tp and self.tp % kv:
            _refuse(f"tp={self.tp}", f"of tp and n_kv_heads={kv} one divides the other", f"choose tp in {choices}")


def tp_widths(model: ModelConfig, whole: Set[Piece] = CUT_IN_ALL) -> dict[str, int]:
    """What tensor parallelism cuts beside heads: the inner sizes of feed-forward blocks, by field."""
    ffn: Piece = "ffn" if model.n_experts == 1 else "experts"
    sizes: dict[str, tuple[Piece, int | None]] = {
        "ffn_size": (ffn, model.ffn_size),
        "shared_ffn_size": ("shared_ffn", model.shared_ffn_size),
        "dense_ffn_size": ("ffn", model.dense_ffn_size),
    }
    return {name: size for name, (piece, size) in sizes.items() if size and piece not in whole}


def _tp_choices(model: ModelConfig, *, widths: bool = True, whole: Set[Piece] = CUT_IN_ALL) -> list[int]:
    """Every number of ranks at which all rules of tensor parallelism hold at once; `widths` are cut evenly."""
    kv, most = model.n_kv_heads, max(model.n_heads, 1)
    sizes = tp_widths(model, whole).values() if widths else ()
    if "attention" in whole:
        return [n for n in divisors(min(sizes, default=most)) if all(size % n == 0 for size in sizes)]
    heads = [n for n in divisors(model.n_heads) if kv % n == 0 or n % kv == 0]
    return [n for n in heads if all(size % n == 0 for size in sizes)]


def _refuse_divisor(degree: str, parts: int, whole: str, size: int, choices: list[int] | None = None) -> None:
    """`choices` are those that no other rule forbids; the far larger ones are not told."""
    near = [n for n in choices or divisors(size) if n < 2 * parts]
    _refuse(f"{degree}={parts}", f"{degree} divides {whole}={size}", f"choose {degree} in {near}")


def _refuse(values: str, rule: str, way_out: str) -> None:
    raise ValueError(four_parts("ParallelConfig", values, rule, way_out))
