"""`python -m course_lib plan`: the best policies for a model on a cluster, why they are, and why the others are not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from course_lib.cli.assumed import assumed_line
from course_lib.cli.compose import refuse
from course_lib.cli.plan_config import COMMAND, PlanConfig, as_values, read_plan
from course_lib.config import ParallelConfig
from course_lib.costs.sweep.job import Job
from course_lib.planner.cuts import of_sequences_and_experts
from course_lib.planner.policy_search import Found, search
from course_lib.planner.reasons import Ranked, described, ranked, why_slower
from course_lib.planner.retime import Recheck, retimed
from course_lib.planner.space import RULES
from course_lib.planner.toy import Toy, toy_of
from course_lib.sim.step import CAUSE_NAMES
from course_lib.units import format_bytes, format_seconds

_SHOWN = 3
_MORE_TIME = (0.05, 0.25, 1.0)  # shares of the fastest step
_SHARE = 0.01  # of a step: a cause that is worth a word


def plan_command(overrides: Sequence[str]) -> int:
    """Search as the overrides say, print what was found, write it, train its likeness; 1 if nothing is possible.

    Raises: ValueError for an illegal value, or if the file cannot be written.
    """
    config = read_plan(overrides)
    found = search(config.job, config.space)
    print("\n".join([_heading(found), _assumed(config), *_rejections(found)]))
    if found.nearest:
        print("\n".join(_nearest(found)))
        _write(config, found, [], None, None)
        return 1
    best = ranked(found, _SHOWN)
    toy = toy_of(best[0].policy, group=found.job.group)
    first = [*_memory(best[0], found), *of_sequences_and_experts(found.job, best[0])]
    print("\n".join(["", *_best(best), "", *first, "", *_likeness(toy)]), flush=True)
    recheck = retimed(found, range(min(config.retime, len(found)))) if config.retime else None
    if recheck:
        print("\n".join(["", *_rechecked(recheck)]))
    _write(config, found, best, toy, recheck)
    if config.train is None:
        return 0
    from course_lib.cli.train import train_command  # which loads torch

    return train_command([*toy.overrides, f"out={config.train}"])


def _heading(found: Found) -> str:
    job = found.job
    groups = f"; activation checkpointing of {job.group} layers at a time" if job.group > 1 else ""
    return (
        f"{job.model.name} on {job.cluster.n_gpus:,} x {job.cluster.device.name} ({job.cluster.name}); "
        f"{job.batch:,} sequences of {job.sequence:,} tokens in a step{groups}"
    )


def _assumed(config: PlanConfig) -> str:
    """What nobody gave; recompute and schedules are looked for, and sequences are shared where tp > 1."""
    shared = ParallelConfig(tp=2, sequence_parallel=True in config.space.sequence_parallel)
    if config.job.nf4:  # which no ranks along tp share
        shared = ParallelConfig()
    one = replace(config.job, parallel=shared)
    line = assumed_line(one, config.job.cluster.device, {*config.given, "recompute", "schedule"})
    return f"{line}; a plan leaves {config.job.reserve:.0%} of it free{_beside(config.job)}"


def _beside(job: Job) -> str:
    """What no formula here times of adapters: measured on an H200, a 1B takes twice as long of 2,048 tokens."""
    if job.adapters is None:
        return ""
    codes = ", and weights are spread out of their codes in no time" if job.nf4 else ""
    return f"; adapters' small products wait for no launch, as of thousands of tokens at a time{codes}"


def _rejections(found: Found) -> list[str]:
    """How many layouts there are, and which rule took how many away, in the order in which rules are applied."""
    lines = [f"{found.n_tried:,} layouts looked at in {format_seconds(found.search_s)}; {len(found):,} are possible"]
    return [*lines, *(f"  {count:>12,} out: {RULES[rule]}" for rule, count in found.rejected.items() if count)]


def _nearest(found: Found) -> list[str]:
    """Of no policy, the one that comes closest."""
    assert found.nearest is not None
    rules = "; ".join(RULES[rule] for rule in found.nearest.broken)
    lacking = found.nearest.lacking_bytes
    room = f"; it lacks {format_bytes(lacking)} of {format_bytes(found.job.room_bytes)} on its fullest GPU"
    return [
        "nothing is possible; what comes nearest:",
        f"  {found.nearest.in_words}",
        f"  out: {rules}{room * (lacking > 0)}",
    ]


def _best(best: Sequence[Ranked]) -> list[str]:
    """The winners, and why each next one loses to the first."""
    lines = []
    for place, one in enumerate(best, start=1):
        known = "no published run is near" if one.nearest.is_far else "it held four of five unseen runs"
        interval = f"likely {format_seconds(one.low_s)} to {format_seconds(one.high_s)}: {known}"
        speed = f"{one.tokens_per_s_per_gpu:,.0f} tokens/s on each GPU, MFU {one.mfu:.1%}"
        lines.append(f"{place}. {one.name}")
        room = f"{format_bytes(one.memory_bytes)} (fits in {100 * one.fit_chance:.0f} of 100)"
        lines.append(f"   {format_seconds(one.step_s)} a step ({interval}), {speed}, {room}")
        lines.append(f"   {_causes(one)}" if place == 1 else f"   {why_slower(one, best[0])}")
        lines.append(f"   nearest published run: {one.nearest.in_words}")
    return lines


def _causes(one: Ranked) -> str:
    """What a step's time goes into, largest first."""
    order = sorted(one.causes_s.items(), key=lambda item: -item[1])
    shares = [f"{CAUSE_NAMES[c]} {seconds / one.step_s:.0%}" for c, seconds in order if seconds > _SHARE * one.step_s]
    return ", ".join(shares)


def _memory(first: Ranked, found: Found) -> list[str]:
    """The winner's memory, and how much less there is for more time."""
    parts = [f"{name} {format_bytes(size)}" for name, size in first.memory.items() if size > 0]
    lines = [f"memory of the first, on its fullest GPU: {', '.join(parts)}"]
    for more in _MORE_TIME:
        one = described(found, [found.front(1 + more)[0]])[0]
        lines.append(f"  for {more:.0%} more time at most: {format_bytes(one.memory_bytes)} with {one.name}")
    return lines


def _likeness(toy: Toy) -> list[str]:
    """How to try the shape of the first here."""
    command = shlex.join(["python", "-m", "course_lib", "train", *toy.overrides])
    return [f"the first, small enough for this machine: {command}", *(f"  left out: {words}" for words in toy.left_out)]


def _rechecked(recheck: Recheck) -> list[str]:
    """What the instruction lists say of the fastest."""
    n, most, first = len(recheck.policies), recheck.most_off, recheck.policies[0]
    return [
        f"played through, the best {n} differ from the closed form by {recheck.median_off:.1%} in the middle, "
        f"and by {most.off:+.1%} at most",
        f"  then the fastest is {first.name}, {format_seconds(first.exact_s)}; the closed form's number "
        f"{recheck.best_before}, {format_seconds(first.closed_s)}",
    ]


def _write(config: PlanConfig, found: Found, best: Sequence[Ranked], toy: Toy | None, recheck: Recheck | None) -> None:
    """Everything as JSON, if a file is asked for.

    Raises: ValueError if the system refuses.
    """
    if config.out is None:
        return
    values = {
        "job": as_values(found.job),
        "tried": found.n_tried,
        "possible": len(found),
        "search_s": found.search_s,
        "rejected": {rule: {"rule": RULES[rule], "count": count} for rule, count in found.rejected.items()},
        "best": [_row(one, best[0]) for one in best],
        "front": [] if found.nearest else [_row(one, best[0]) for one in described(found, found.front())],
        "retimed": [{**asdict(one), "off": one.off} for one in recheck.policies] if recheck else [],
        "nearest": _nearest_values(found),
        "train": list(toy.overrides) if toy else None,
    }
    try:
        config.out.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        refuse(COMMAND, f"out={str(config.out)!r}", f"cannot be written: {error.strerror}", "name another file")
    print(f"written: {config.out}")


def _row(one: Ranked, first: Ranked) -> Mapping[str, Any]:
    why = None if one == first else why_slower(one, first)
    return {**asdict(one), "memory_bytes": one.memory_bytes, "why_slower": why}


def _nearest_values(found: Found) -> Mapping[str, Any] | None:
    if found.nearest is None:
        return None
    return {
        "name": found.nearest.in_words,
        "policy": found.nearest.policies.one(0),
        "broken": [RULES[rule] for rule in found.nearest.broken],
        "lacking_bytes": found.nearest.lacking_bytes,
    }
