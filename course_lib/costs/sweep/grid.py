"""All legal ways to spread a model over GPUs, out of a grid of degrees; and why the others are not legal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.errors import four_parts

_AXES = ("gpus", "tp", "pp", "ep", "cp", "zero_stages", "microbatches")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Values to combine, each with each; the default is the grid of the LLM Parallelism Explorer."""

    gpus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 10240)
    tp: tuple[int, ...] = (1, 2, 4, 8)
    pp: tuple[int, ...] = (1, 2, 4, 8, 16)
    cp: tuple[int, ...] = (1, 2, 4, 8)
    ep: tuple[int, ...] | None = None  # None: the powers of two up to the model's number of experts
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    microbatches: tuple[int, ...] = (1, 2, 4)
    sequence_parallel: bool = True  # the tp ranks share the sequence, where tp > 1

    def __post_init__(self) -> None:
        for axis in _AXES:
            values = getattr(self, axis)
            least = 0 if axis == "zero_stages" else 1
            if (axis, values) != ("ep", None) and not _whole_numbers(values, least):
                rule, way_out = f"an axis has values, whole and none below {least}", f"give {axis}=({least}, ...)"
                raise ValueError(four_parts("Grid", f"{axis}={values}", rule, way_out))

    def combinations(self, n_experts: int) -> Iterator[tuple[int, ...]]:
        """Every combination, in the order of the axes, the last one fastest."""
        ep = self.ep or tuple(1 << k for k in range(n_experts.bit_length()))
        return product(self.gpus, self.tp, self.pp, ep, self.cp, self.zero_stages, self.microbatches)


def _whole_numbers(values: object, least: int) -> bool:
    """Whether there are some, none below the least."""
    return isinstance(values, tuple) and bool(values) and all(type(n) is int and n >= least for n in values)


class Candidate(NamedTuple):
    """One legal combination."""

    parallel: ParallelConfig
    microbatch: int
    n_microbatches: int


def candidates(
    model: ModelConfig, grid: Grid, *, sequence: int, global_batch: int, whole_heads: bool = True
) -> list[Candidate]:
    """The legal combinations of a grid; without `whole_heads`, tp may cut through a head, as in the Explorer.

    Raises: ValueError if there is none, with the number of combinations that each rule excluded, or if the model has
    no positions for the sequence.
    """
    for name, size in (("sequence", sequence), ("global_batch", global_batch)):
        if size < 1:
            raise ValueError(four_parts("sweep", f"{name}={size}", f"{name} is positive", f"give {name} >= 1"))
    model.check_sequence(sequence)
    found, excluded = [], Counter[str]()
    for gpus, tp, pp, ep, cp, zero_stage, microbatch in grid.combinations(model.n_experts):
        dp, rest = divmod(gpus, tp * pp * cp)
        rule = "GPUs divide by tp x pp x cp" if rest or not dp else None
        degrees = (dp, tp if whole_heads else 1, pp, ep, cp)
        rule = rule or _broken_rule(model, degrees, sequence, global_batch, microbatch)
        if rule:
            excluded[rule] += 1
            continue
        shared = grid.sequence_parallel and tp > 1
        parallel = ParallelConfig(dp=dp, tp=tp, pp=pp, ep=ep, cp=cp, zero_stage=zero_stage, sequence_parallel=shared)
        found.append(Candidate(parallel, microbatch, global_batch // (dp * microbatch)))
    if not found:
        _refuse(model, excluded)
    return found


def _broken_rule(
    model: ModelConfig, degrees: tuple[int, ...], sequence: int, global_batch: int, microbatch: int
) -> str | None:
    """The first rule that a combination breaks, None if it is legal."""
    dp, tp, pp, ep, cp = degrees
    broken = {
        "layers divide by pp": model.n_layers % pp,
        "experts divide by ep": model.n_experts % ep,
        "dp divides by ep": dp % ep,
        "the sequence divides by cp": sequence % cp,
        "heads and the feed-forward size divide by tp": _remainder(model, tp),
        "kv heads divide by tp, or tp by them": model.n_kv_heads % tp and tp % model.n_kv_heads,
        "the global batch divides by dp x microbatch": global_batch % (dp * microbatch),
    }
    return next((rule for rule, remainder in broken.items() if remainder), None)


def _remainder(model: ModelConfig, tp: int) -> int:
    sizes = model.n_heads, model.ffn_size, model.shared_ffn_size, model.dense_ffn_size or 0
    return next((size % tp for size in sizes if size % tp), 0)


def _refuse(model: ModelConfig, excluded: Counter[str]) -> None:
    counts = ", ".join(f"{count:,} by '{rule}'" for rule, count in excluded.most_common())
    values = f"{model.name}: of {excluded.total():,} combinations none is legal"
    way_out = "widen the axis that the first rule names"
    raise ValueError(four_parts("sweep", values, f"excluded {counts}", way_out))
