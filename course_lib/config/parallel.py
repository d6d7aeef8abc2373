"""How a model is spread over GPUs, checked when it is made and against the model it is used with."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.config.model import ModelConfig
from course_lib.errors import four_parts

_DEGREES = ("dp", "tp", "pp", "cp", "ep")


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
        return " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)

    def check_heads(self, model: ModelConfig) -> None:
        """Refuse ranks of which some would have more heads: kv heads fewer than ranks lie on equally many each.

        Raises: ValueError naming the choices.
        """
        if model.n_heads % self.tp:
            _refuse_divisor("tp", self.tp, "n_heads", model.n_heads)
        kv, heads = model.n_kv_heads, model.n_heads
        if kv % self.tp and self.tp % kv:
            choices = [n for n in range(1, heads + 1) if heads % n == 0 and (kv % n == 0 or n % kv == 0)]
            rule = f"of tp and n_kv_heads={kv} one divides the other"
            _refuse(f"tp={self.tp}", rule, f"choose tp in {choices}")

    def check(self, model: ModelConfig, *, sequence: int | None = None) -> None:
        """Refuse what does not divide, and a sequence that the model has no positions for.

        Raises: ValueError naming what is too large or does not divide, and the choices.
        """
        if sequence is not None:
            model.check_sequence(sequence)
        self.check_heads(model)
        for field in ("ffn_size", "shared_ffn_size", "dense_ffn_size"):
            if (getattr(model, field) or 0) % self.tp:
                _refuse_divisor("tp", self.tp, field, getattr(model, field))
        if model.n_layers % self.pp:
            _refuse_divisor("pp", self.pp, "n_layers", model.n_layers)
        if model.n_experts % self.ep:
            _refuse_divisor("ep", self.ep, "n_experts", model.n_experts)
        if sequence is not None and sequence % self.cp:
            _refuse_divisor("cp", self.cp, "sequence", sequence)
        if sequence is not None and self.sequence_parallel and sequence // self.cp % self.tp:
            _refuse_divisor("tp", self.tp, "sequence/cp", sequence // self.cp)


def _refuse_divisor(degree: str, parts: int, whole: str, size: int) -> None:
    choices = [n for n in range(1, 2 * parts) if size % n == 0]
    _refuse(f"{degree}={parts}", f"{degree} divides {whole}={size}", f"choose {degree} in {choices}")


def _refuse(values: str, rule: str, way_out: str) -> None:
    raise ValueError(four_parts("ParallelConfig", values, rule, way_out))
