"""What a plan assumes where ranks share sequences or experts, and what other ways would cost."""

from __future__ import annotations

import numpy as np

from course_lib.planner.reasons import Ranked
from course_lib.planner.space import Job
from course_lib.sim.constants import rates_for
from course_lib.sim.policies import CONTEXTS, Policies
from course_lib.sim.simulate import step_times
from course_lib.units import format_seconds

_WAYS = {"ring": "round a ring", "all_gather": "in an all-gather", "ulysses": "by Ulysses"}


def of_sequences_and_experts(job: Job, one: Ranked) -> list[str]:
    """A sentence for cp and one for experts, where the policy has them."""
    words = [_of_sequences(job, one)] if one.policy["cp"] > 1 else []
    return [*words, _of_experts(job, one)] if job.model.n_experts > 1 else words


def context_ways_s(job: Job, one: Ranked) -> dict[str, float]:
    """Seconds of a step that messages along cp take and nothing hides, by way; those that the model allows.

    Ulysses gives every rank heads of its own, so it needs as many on each tp rank as there are cp ranks.
    """
    policies = Policies(**{**one.policy, "context": np.arange(len(CONTEXTS))})
    rates = rates_for(job)
    times = step_times(job.model, rates, policies, job.adapters)
    found = dict(zip(CONTEXTS, np.asarray(times.cp).tolist(), strict=True))
    if job.model.n_heads / one.policy["tp"] < one.policy["cp"]:
        del found["ulysses"]
    return found


def _of_sequences(job: Job, one: Ranked) -> str:
    ways = context_ways_s(job, one)
    ring, *others = [f"{_WAYS[way]} {format_seconds(seconds)}" for way, seconds in ways.items()]
    if "ulysses" not in ways:
        others.append(f"Ulysses would need {one.policy['cp']:.0f} heads on each tp rank")
    return (
        "along cp: each rank has two pieces of a sequence (zigzag), so that all have as much attention to compute; "
        f"messages take, beyond what hides them, {ring} of a step, as is counted above; {', '.join(others)}"
    )


def _of_experts(job: Job, one: Ranked) -> str:
    ep, k = int(one.policy["ep"]), job.model.experts_per_token
    even = "routers choose all experts equally often"
    if ep == 1:
        return f"experts: {even}; every rank has all of a layer's, so no row leaves it"
    ranks = ep * int(one.policy["etp"])
    away = f" over domains of {job.cluster.domain}" if ranks > job.cluster.domain else " inside a domain"
    return (
        f"along ep: {even}; each of a token's {k} rows travels by itself{away}, and nothing hides it: code that sends "
        "a token once to a node, or computes meanwhile, is faster; ranks that share experts are counted as neighbours, "
        "whatever cp and tp are"
    )
