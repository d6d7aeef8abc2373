"""Policies in arrays: thousands of ways to spread a training step over GPUs, one record of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from course_lib.costs.sweep import job
from course_lib.errors import four_parts

Value = npt.NDArray[np.float64] | float  # one number for all policies, or one for each
CHUNK = 20_000  # policies at a time: their arrays stay in the processor's cache
RECOMPUTE, SCHEDULES = job.RECOMPUTE, job.SCHEDULES  # a policy's code is the place in these lists
EVERY_SCHEDULE = job.EVERY_SCHEDULE  # of published runs, too: the first of them are SCHEDULES
CONTEXTS = ("ring", "all_gather", "ulysses")  # ways in which cp ranks share attention
_FROM_ZERO = ("zero_stage", "recompute", "schedule", "context", "sequence_parallel", "reduce_each", "offload")


@dataclass(frozen=True, kw_only=True)
class Policies:
    """n policies; each field has the shape (n,), or is one number for all of them.

    The ranks are laid out with tp innermost, then cp, dp and pp, so that tp stays inside a node if it can.
    """

    dp: Any = 1
    tp: Any = 1
    pp: Any = 1
    cp: Any = 1
    ep: Any = 1  # of the dp x cp x tp ranks of a stage, those that share the experts of a layer
    etp: Any = 1  # ranks that share the matrices of one expert; ParallelConfig has etp = tp
    zero_stage: Any = 0
    reduce_each: Any = False  # ZeRO-2 reduces gradients after each micro-batch, and never has them whole
    shards: Any = 1  # ranks over which ZeRO cuts: dp x cp, or fewer if it cuts within a node alone
    sequence_parallel: Any = False
    micro_batch: Any = 1  # sequences
    n_microbatches: Any = 1  # of each replica in a step; the global batch is dp x micro_batch x n_microbatches
    sequence: Any = 2048  # tokens, before cp
    recompute: Any = 0  # code of RECOMPUTE
    schedule: Any = 1  # code of EVERY_SCHEDULE
    stages_per_rank: Any = 1  # v, of the interleaved schedule and of ZB-V
    context: Any = 0  # code of CONTEXTS
    offload: Any = False  # optimizer states lie in the host's memory, and Adam runs there

    def __post_init__(self) -> None:
        sizes = {len(values) for values in self._arrays().values() if values.ndim}
        if len(sizes) > 1 or any(values.ndim > 1 for values in self._arrays().values()):
            values = ", ".join(f"{name}: {array.shape}" for name, array in self._arrays().items() if array.ndim)
            raise ValueError(four_parts("Policies", values, "fields are as long as each other", "give (n,) or numbers"))
        for name, array in self._arrays().items():
            low = 0 if name in _FROM_ZERO else 1
            if array.size and not np.nanmin(array) >= low:
                rule = f"{name} is at least {low}"
                raise ValueError(four_parts("Policies", f"{name}={np.nanmin(array)}", rule, f"give {name} >= {low}"))

    def __len__(self) -> int:
        return max((len(values) for values in self._arrays().values() if values.ndim), default=1)

    @property
    def world_size(self) -> Any:
        """Ranks of each policy."""
        return np.asarray(self.dp) * self.tp * self.pp * self.cp

    @property
    def tokens(self) -> Any:
        """Of one micro-batch on one rank, where tp does not cut them."""
        return self.micro_batch * self.sequence / self.cp

    @property
    def expert_shards(self) -> Any:
        """Ranks over which ZeRO cuts an expert's states: fewer than `shards`, since ep has cut them already."""
        return np.maximum(1.0, self.shards * self.tp / (self.ep * self.etp))

    @property
    def global_batch(self) -> Any:
        """Sequences of a step."""
        return np.asarray(self.dp) * self.micro_batch * self.n_microbatches

    def take(self, index: Any) -> Policies:
        """Some of them: a slice, a mask, or whole numbers; what is one number for all stays so."""
        return Policies(**{name: v[index] if v.ndim else v.item() for name, v in self._arrays().items()})

    def one(self, index: int) -> dict[str, Any]:
        """The fields of one policy as plain numbers."""
        return {name: (v[index] if v.ndim else v).item() for name, v in self._arrays().items()}

    def pieces(self, size: int, dtype: Any = None) -> Sequence[Policies]:
        """At most `size` policies each, whose arrays stay in the cache; in another dtype if one is given."""
        arrays = self._arrays()
        if dtype is not None:
            arrays = {name: v if v.ndim else v.astype(dtype) for name, v in arrays.items()}
        return [
            Policies._unchecked(
                {n: v[start : start + size].astype(dtype or v.dtype) if v.ndim else v.item() for n, v in arrays.items()}
            )
            for start in range(0, len(self), size)
        ]

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def _unchecked(cls, values: dict[str, Any]) -> Policies:
        """Fields that come from a record that was checked when it was made."""
        made = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made
