"""Why: what a policy's time goes into, why another one loses to it, and which rules a policy breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.costs.sweep.assembly import CATEGORIES
from course_lib.errors import four_parts
from course_lib.planner.policy_search import Found, policy_name
from course_lib.planner.space import RULES, Combinations, Job, Space
from course_lib.sim.constants import load_constants
from course_lib.sim.nearest import Neighbour, neighbours
from course_lib.sim.room import chance_to_fit
from course_lib.sim.simulate import bottleneck_in_words
from course_lib.sim.step import CAUSE_NAMES, CAUSES
from course_lib.units import format_bytes, format_seconds

_SAID = 0.02  # of the step: a difference that is worth a word


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One policy with everything that is said of it."""

    name: str
    policy: Mapping[str, float]
    step_s: float
    low_s: float  # 80 % of left-out runs, as near to a run that was fitted or as far from all, lay between these two
    high_s: float
    nearest: Neighbour  # of the published runs that constants were fitted to
    causes_s: Mapping[str, float]  # they add up to the step
    memory: Mapping[str, float]  # bytes by category, of the fullest GPU
    fit_chance: float  # share of such runs whose peak stays within the GPU
    tokens_per_s_per_gpu: float
    mfu: float
    bottleneck: str

    @property
    def memory_bytes(self) -> float:
        """All categories."""
        return sum(self.memory.values())


def ranked(found: Found, n: int = 5) -> list[Ranked]:
    """The fastest policies, each with other degrees than those before it.

    Raises: ValueError if the search found none: `found.nearest` says what came closest.
    """
    if found.nearest:
        model, gpus = found.job.model.name, found.job.cluster.n_gpus
        values = f"{model} on {gpus} GPUs: none of {found.n_tried:,} layouts is possible"
        lacking = f", which lacks {format_bytes(found.nearest.lacking_bytes)}" if found.nearest.lacking_bytes else ""
        rules = "; ".join(RULES[rule] for rule in found.nearest.broken)
        raise ValueError(four_parts("plan", values, f"broken: {rules}", f"nearest: {found.nearest.in_words}{lacking}"))
    return described(found, found.distinct[:n])


def described(found: Found, indices: list[int]) -> list[Ranked]:
    """These policies with all that is said of them."""
    said = found.predict(indices)
    near = neighbours(found.job.model, found.policies.take(np.array(indices)))
    factors = [load_constants().interval(found.job.software.stack, is_far=one.is_far) for one in near]
    return [
        Ranked(
            name=policy_name(found.policies, index),
            policy=found.policies.one(index),
            step_s=float(said.step_s[place]),
            low_s=float(said.step_s[place]) * factors[place][0],
            high_s=float(said.step_s[place]) * factors[place][1],
            nearest=near[place],
            causes_s={cause: float(getattr(said.time, cause)[place]) for cause in CAUSES},
            memory={part: float(getattr(said.memory, part)[place]) for part in CATEGORIES},
            fit_chance=chance_to_fit(float(said.memory.total[place]), found.job.cluster.device.usable_bytes),
            tokens_per_s_per_gpu=float(said.tokens_per_s_per_gpu[place]),
            mfu=float(said.mfu[place]),
            bottleneck=bottleneck_in_words(said.time, place),
        )
        for place, index in enumerate(indices)
    ]


def why_slower(loser: Ranked, winner: Ranked) -> str:
    """What costs the loser more time than the winner, and what it saves, largest first."""
    more = {cause: loser.causes_s[cause] - winner.causes_s[cause] for cause in CAUSES}
    worth = _SAID * winner.step_s
    order = sorted(more, key=lambda cause: -abs(more[cause]))
    lost = [f"{format_seconds(more[c])} more for {CAUSE_NAMES[c]}" for c in order if more[c] > worth]
    won = [f"{format_seconds(-more[c])} less for {CAUSE_NAMES[c]}" for c in order if -more[c] > worth]
    behind = f"{loser.step_s / winner.step_s - 1:.1%} slower"
    if not lost:
        largest = max(more, key=lambda cause: more[cause])
        lost = [f"no cause by more than {_SAID:.0%} of a step; most for {CAUSE_NAMES[largest]}"]
    return f"{behind}: {', '.join(lost)}" + (f"; but {', '.join(won)}" if won else "")


def broken_rules(job: Job, *, micro_batch: int = 1, zero_stage: int = 0, **degrees: int) -> list[str]:
    """Every rule that one policy breaks, as sentences; none if it is legal, though it may lack memory.

    Degrees are tp, pp, cp and ep, 1 unless given; dp follows from the GPUs.
    """
    axes: dict[str, Any] = {name: (degrees.get(name, 1),) for name in ("tp", "pp", "cp", "ep")}
    axes |= {"micro_batch": (micro_batch,), "zero_stage": (zero_stage,), "recompute": ("none",), "schedule": ("1f1b",)}
    grid = Combinations(job, Space(**axes))
    broken = [rule for rule, wrong in grid.degrees.items() if wrong[0]]
    if "ranks" not in broken:
        broken += [rule for rule, wrong in grid.others(np.array([0])).items() if np.any(wrong)]
    return [RULES[rule] for rule in dict.fromkeys(broken)]
