"""Every way to train that one may think of, and which rule each breaks: on arrays, degrees first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from course_lib.costs.sweep import job as jobs
from course_lib.errors import four_parts
from course_lib.sim.policies import RECOMPUTE, SCHEDULES, Policies
from course_lib.split import divisors

_Array = Any  # of whole numbers, or of yes and no
_Broken = dict[str, _Array]  # by rule, which combinations break it
_MOST = 2**20  # of any axis: products of three are still whole numbers to numpy
_INTERLEAVED = SCHEDULES.index("interleaved")
SHARDS, REDUCE = ("all", "domain"), ("step", "microbatch")
Job = jobs.Job  # what is to be trained, on what, and what is assumed of the code that does it


@dataclass(frozen=True, kw_only=True)
class Space:
    """Values that are combined, each with each; dp is what the other degrees leave of the GPUs.

    None means: every divisor of the number of GPUs for a degree, and of the number of experts for ep.
    """

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    zero_stage: tuple[int, ...] = (0, 1, 2, 3)
    micro_batch: tuple[int, ...] = (1, 2, 4, 8)
    recompute: tuple[str, ...] = ("none", "half", "layers")
    schedule: tuple[str, ...] = SCHEDULES
    stages_per_rank: tuple[int, ...] = (1, 2, 4, 8)  # 1 for all schedules but the interleaved one
    shards: tuple[str, ...] = (SHARDS[0],)  # whom ZeRO cuts among: all copies, or an NVLink domain's own (HSDP)
    # When ZeRO-2 reduces gradients: "step" leaves out that it has several micro-batches, "microbatch" is after each of
    # them. No published run shows what that takes: Llama 3's reduce once a step, or they would be a quarter slower.
    reduce: tuple[str, ...] = (REDUCE[0],)
    sequence_parallel: tuple[bool, ...] = (True,)  # where tp > 1: as Megatron and torchtitan have it

    def __post_init__(self) -> None:
        known: dict[str, Sequence[object]] = {
            "recompute": RECOMPUTE,
            "schedule": SCHEDULES,
            "shards": SHARDS,
            "reduce": REDUCE,
            "sequence_parallel": (True, False),
        }
        for field in fields(self):
            values = getattr(self, field.name)
            legal = known.get(field.name) or (range(4) if field.name == "zero_stage" else None)
            if values is None and field.default is None:
                continue
            wrong = [v for v in values if (v not in legal if legal else type(v) is not int or not 1 <= v <= _MOST)]
            if wrong or not values:
                choices = f"from {', '.join(map(str, legal))}" if legal else f"whole numbers from 1 to {_MOST}"
                rule = f"{field.name} takes one or several {choices}"
                raise ValueError(four_parts("plan", f"{field.name}={values}", rule, f"choose {choices}"))
        if set(self.schedule) == {"interleaved"} and max(self.stages_per_rank) == 1:
            given = f"schedule={self.schedule} with stages_per_rank={self.stages_per_rank}"
            rule = "interleaved ranks take turns between stages"
            raise ValueError(four_parts("plan", given, rule, "give stages_per_rank >= 2, or another schedule"))


RULES = {  # and what is wrong where one is broken, in the order in which they are applied
    "ranks": "tp x pp x cp needs more GPUs than there are, or leaves some over",
    "bandwidth": "tp leaves its NVLink domain, where its messages would wait for slower wires",
    "heads": "query heads do not divide by tp",
    "kv heads": "kv heads do not divide by tp, nor tp by them",
    "widths": "the feed-forward size does not divide by tp",
    "layers": "layers, rounded up for each stage, leave none for the last, or interleaved stages do not divide them",
    "experts": "ep does not divide the experts, or the ranks of a stage",
    "sequence": "the sequence does not divide by cp x tp",
    "batch": "the batch does not divide by dp x micro-batch",
    "schedule": "interleaving lacks micro-batches in groups of pp, or pp is 1, so that a schedule has no pipeline",
    "zero": "ZeRO has nobody to share with, or ZeRO 2 would reduce gradients again for each micro-batch",
    "reduce": "reduce=microbatch is of ZeRO 2 with several micro-batches alone",
    "memory": "the fullest GPU has no room",
}


class Combinations:
    """The grid of a space for a job: degrees, then for each what else there is to choose."""

    def __init__(self, job: Job, space: Space) -> None:
        self.job, self.n_gpus = job, job.cluster.n_gpus
        every = divisors(self.n_gpus)
        ep = space.ep or divisors(job.model.n_experts)
        self.tp, self.pp, self.cp, self.ep = _grid(space.tp or every, space.pp or every, space.cp or every, ep)
        turns = [
            (SCHEDULES.index(name), v)
            for name in space.schedule
            for v in (space.stages_per_rank if name == "interleaved" else (1,))
            if name != "interleaved" or v > 1
        ]
        self.zero, self.micro, self.recompute, turn, inside, again, self.shares = _grid(
            space.zero_stage,
            space.micro_batch,
            [RECOMPUTE.index(name) for name in space.recompute],
            range(len(turns)),
            [SHARDS.index(name) for name in space.shards],
            [REDUCE.index(name) for name in space.reduce],
            space.sequence_parallel,
        )
        self.inside, self.again = inside > 0, again > 0
        self.schedule, self.v = np.array(turns, dtype=np.int64).reshape(-1, 2)[turn].T

    def __len__(self) -> int:
        return len(self.tp) * len(self.zero)

    @cached_property
    def degrees(self) -> _Broken:
        """By rule, the degrees that break it."""
        model, n, tp, ep = self.job.model, self.n_gpus, self.tp, self.ep
        ranks = tp * self.pp * self.cp
        kv = model.n_kv_heads
        widths = [model.shared_ffn_size, model.dense_ffn_size or 0, model.ffn_size if model.n_experts == 1 else 0]
        return {
            "ranks": (ranks > n) | (n % np.minimum(ranks, n) > 0),
            "bandwidth": tp > self.job.cluster.domain,
            "heads": model.n_heads % tp > 0,
            "kv heads": (kv % tp > 0) & (tp % kv > 0),
            "widths": np.any([width % tp > 0 for width in widths], axis=0),
            "layers": _unevenly(model.n_layers, self.pp, 1),
            "experts": (model.n_experts % ep > 0) | (n // self.pp % ep > 0),
            "sequence": self.job.sequence % (self.cp * tp) > 0,
        }

    def others(self, degrees: _Array) -> _Broken:
        """By rule, of some degrees (rows) with everything else (columns) what breaks it."""
        pp, dp = self.pp[degrees, None], self.dp(degrees)
        m = self.job.batch // np.maximum(1, dp * self.micro)
        alone = (pp == 1) & (self.schedule != SCHEDULES.index("1f1b"))
        in_turn = self.schedule == _INTERLEAVED
        reduces_again = (self.zero == 2) & (m > 1)
        shares, sharing = self.zero > 0, self.sharing(degrees, np.arange(len(self.zero)))
        return {
            "layers": in_turn & _unevenly(self.job.model.n_layers, pp, self.v),
            "batch": (m < 1) | (self.job.batch % (dp * self.micro) > 0),
            "schedule": alone | (in_turn & (m % pp > 0)),
            "zero": (shares & (sharing == 1)) | (self.inside & ~shares) | (reduces_again & ~self.again),
            "reduce": self.again & ~reduces_again,
        }

    def dp(self, degrees: _Array) -> _Array:
        """Replicas, a column for broadcasting."""
        ranks = self.tp * self.pp * self.cp
        return np.maximum(1, self.n_gpus // ranks)[degrees, None]

    def sharing(self, degrees: _Array, rest: _Array) -> _Array:
        """How many ranks ZeRO cuts among, a row for each of the degrees and a column for each of the rest."""
        copies = self.dp(degrees) * self.cp[degrees, None]
        return np.where(self.inside[rest], self._near(copies, self.tp[degrees, None]), copies)

    def _near(self, copies: _Array, tp: _Array) -> _Array:
        """Of the ranks that hold the same weights those in one NVLink domain, so many that groups are alike."""
        return np.gcd(copies, np.maximum(1, self.job.cluster.domain // tp))

    def policies(self, degrees: _Array, rest: _Array) -> Policies:
        """Those of degrees and of the rest that go together, one by one."""
        tp, cp, dp = self.tp[degrees], self.cp[degrees], self.dp(degrees)[:, 0]
        micro, zero = self.micro[rest], self.zero[rest]
        return Policies(
            dp=dp,
            tp=tp,
            pp=self.pp[degrees],
            cp=cp,
            ep=self.ep[degrees],
            zero_stage=zero,
            reduce_each=self.again[rest],
            shards=np.where(self.inside[rest], self._near(dp * cp, tp), dp * cp),
            sequence_parallel=(tp > 1) & (self.shares[rest] > 0),
            micro_batch=micro,
            n_microbatches=np.maximum(1, self.job.batch // (dp * micro)),
            sequence=self.job.sequence,
            offload=self.job.offload != "none",
            recompute=self.recompute[rest],
            schedule=self.schedule[rest],
            stages_per_rank=self.v[rest],
        )


def rejected_and_legal(grid: Combinations) -> tuple[dict[str, int], _Array, _Array]:
    """By rule, how many combinations break it as their first; and the places of the legal ones, degrees and rest."""
    each = len(grid.zero)
    counts = dict.fromkeys(RULES, 0)
    good = _count_first(grid.degrees, np.ones(len(grid.tp), dtype=bool), counts, each)
    degrees = np.flatnonzero(good)
    left = _count_first(grid.others(degrees), np.ones((len(degrees), each), dtype=bool), counts, 1)
    rows, rest = np.nonzero(left)
    return counts, degrees[rows], rest


def fewest_broken(grid: Combinations) -> tuple[tuple[str, ...], Policies]:
    """The combination that breaks fewest rules, and which: what comes nearest where nothing is legal.

    Degrees that do not fit the number of GPUs are no neighbours of anything.
    """
    wrong = np.sum([*grid.degrees.values()], axis=0) + 1000 * grid.degrees["ranks"]
    degrees = np.flatnonzero(wrong == wrong.min())
    others = grid.others(degrees)
    broken = np.sum([*np.broadcast_arrays(*others.values())], axis=0)
    row, rest = np.unravel_index(int(broken.argmin()), broken.shape)
    rules = [rule for rule, found in grid.degrees.items() if found[degrees[row]]]
    rules += [rule for rule, found in others.items() if np.broadcast_to(found, broken.shape)[row, rest]]
    return tuple(dict.fromkeys(rules)), grid.policies(degrees[[row]], np.array([rest]))


def _count_first(broken: Mapping[str, _Array], good: _Array, counts: dict[str, int], each: int) -> _Array:
    """Take away what breaks a rule, rule after rule, and count it."""
    for rule, found in broken.items():
        gone = good & found
        counts[rule] += each * int(np.count_nonzero(gone))
        good = good & ~gone
    return good


def _unevenly(n_layers: int, pp: _Array, v: _Array) -> _Array:
    """Which stages neither share the layers evenly, nor, one on each rank, leave some for the last."""
    stages = pp * v
    divides = (n_layers % stages == 0) | ((n_layers + 2) % stages == 0)
    leaves = (v == 1) & (-(-n_layers // pp) * (pp - 1) < n_layers)
    return (stages > n_layers) | ~(divides | leaves)


def _grid(*axes: Any) -> list[_Array]:
    return [axis.reshape(-1) for axis in np.meshgrid(*(np.array(axis, dtype=np.int64) for axis in axes), indexing="ij")]
