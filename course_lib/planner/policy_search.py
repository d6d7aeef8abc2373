"""The best policies for a job: every legal one priced by the closed form, what fits ranked, the rest explained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from course_lib.planner.space import Combinations, Job, Space, fewest_broken, rejected_and_legal
from course_lib.sim.constants import rates_for
from course_lib.sim.memory import memory_of
from course_lib.sim.policies import RECOMPUTE, SCHEDULES, Policies
from course_lib.sim.simulate import Prediction, simulate, step_times

_DEGREES = ("dp", "tp", "pp", "cp", "ep")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that a search knows; policies stand with the fastest first."""

    job: Job
    n_tried: int
    rejected: Mapping[str, int]  # by rule (see RULES): combinations that break it, and none before it
    policies: Policies  # that are legal and fit
    step_s: Any  # of each, shape (n,)
    memory_bytes: Any  # of the fullest GPU of each
    search_s: float
    nearest: Nearest | None  # where nothing is legal and fits

    def __len__(self) -> int:
        return 0 if self.nearest else len(self.policies)

    @cached_property
    def distinct(self) -> list[int]:
        """The places of the fastest policy for each set of degrees, in their order."""
        degrees = np.stack([getattr(self.policies, name) for name in _DEGREES])
        _, first = np.unique(degrees, axis=1, return_index=True)
        return sorted(map(int, first))

    def place_of(self, **degrees: int) -> int | None:
        """How many sets of degrees are faster than these, as tp=8, pp=16; None if no such policy is legal and fits."""
        for place, index in enumerate(self.distinct):
            one = self.policies.one(index)
            if all(one[name] == value for name, value in degrees.items()):
                return place
        return None

    def front(self, most: float = 2.0) -> list[int]:
        """The Pareto front of memory and time: each of these is faster than all that need as little memory.

        It ends where a step takes `most` times as long as the fastest one.
        """
        order = np.lexsort((self.step_s, self.memory_bytes))
        best = np.minimum.accumulate(self.step_s[order])
        kept = np.concatenate([[True], best[1:] < best[:-1]])
        return [int(index) for index in order[kept] if self.step_s[index] <= most * self.step_s[0]]

    def predict(self, indices: list[int]) -> Prediction:
        """Everything that the simulator says of some of them."""
        return simulate(self.job, self.policies.take(np.array(indices)))


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """What comes closest to a policy where there is none."""

    policies: Policies  # one
    broken: tuple[str, ...]  # rules
    lacking_bytes: float  # on the fullest GPU; 0 if it would fit, or if its memory is not known

    @property
    def in_words(self) -> str:
        """The policy's name."""
        return policy_name(self.policies, 0)


def search(job: Job, space: Space | None = None) -> Found:
    """Look at every combination of a space; the default one has all degrees that divide the number of GPUs.

    Rules sort out first, then memory; what is left is priced. Cost: about 250 array operations.
    Raises: ValueError for a device without constants.
    """
    started = time.perf_counter()
    grid = Combinations(job, space or Space())
    rejected, degrees, rest = rejected_and_legal(grid)
    rates = rates_for(job)
    legal = grid.policies(degrees, rest)
    memory = _memory_bytes(job, legal) if len(degrees) else np.zeros(0)
    fits = memory <= job.room_bytes
    rejected["memory"] = int(np.count_nonzero(~fits))
    nearest = None if fits.any() else _nearest(grid, legal, memory)
    kept = legal.take(fits)
    step_s = np.zeros(0) if nearest else np.asarray(step_times(job.model, rates, kept, job.adapters).total)
    order = np.argsort(step_s, kind="stable")
    return Found(
        job=job,
        n_tried=len(grid),
        rejected=rejected,
        policies=kept.take(order),
        step_s=step_s[order],
        memory_bytes=memory[fits][order],
        search_s=time.perf_counter() - started,
        nearest=nearest,
    )


def _nearest(grid: Combinations, legal: Policies, memory: Any) -> Nearest:
    """Of legal policies the one that lacks least; if there is none, the one that breaks fewest rules."""
    if len(memory):
        least = int(memory.argmin())
        lacking = float(memory[least] - grid.job.room_bytes)
        return Nearest(policies=legal.take(np.array([least])), broken=("memory",), lacking_bytes=lacking)
    broken, policies = fewest_broken(grid)
    return Nearest(policies=policies, broken=broken, lacking_bytes=0.0)


def policy_name(policies: Policies, index: int) -> str:
    """A policy as one would type it, without what is 1.

    >>> import numpy as np
    >>> policy_name(Policies(tp=np.array([8]), pp=2, n_microbatches=16, schedule=2, stages_per_rank=4), 0)
    'tp=8 pp=2 interleaved x 4, 16 micro-batches of 1'
    """
    one = policies.one(index)
    words = [f"{name}={one[name]:.0f}" for name in _DEGREES if one[name] > 1] or ["one GPU"]
    words += [f"zero_stage={one['zero_stage']:.0f}"] if one["zero_stage"] else []
    words += [f"shards={one['shards']:.0f}"] if one["zero_stage"] and one["shards"] < one["dp"] * one["cp"] else []
    if one["pp"] > 1:
        turns = f" x {one['stages_per_rank']:.0f}" if one["stages_per_rank"] > 1 else ""
        words.append(f"{SCHEDULES[int(one['schedule'])]}{turns}")
    recompute = RECOMPUTE[int(one["recompute"])]
    end = f", recompute={recompute}" if recompute != "none" else ""
    m = one["n_microbatches"]
    return f"{' '.join(words)}, {m:.0f} micro-batch{'es' * (m > 1)} of {one['micro_batch']:.0f}{end}"


def _memory_bytes(job: Job, policies: Policies) -> Any:
    return np.asarray(memory_of(job, policies).total)
