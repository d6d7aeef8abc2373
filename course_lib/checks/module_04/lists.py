"""What is wrong with the lists that a learner wrote: their form, who waits for whom, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from course_lib.checks.kit.said import plural
from course_lib.costs.comm.pipeline import pipeline_bubble_s, pipeline_in_flight
from course_lib.schedules import (
    Backward,
    Compute,
    Durations,
    Forward,
    Instruction,
    Schedule,
    bubble_s,
    held,
    problems,
    time_schedule,
)
from course_lib.schedules.instructions import needs
from course_lib.schedules.messages import add_messages
from course_lib.verify.numbers import whole_of
from course_lib.verify.ratios import times

Order = Callable[[int, int, int], Any]  # of rank, p and m
Lists = list[list[Instruction]]
_OTHER = {"gpipe": "1f1b", "1f1b": "gpipe"}
_WORDS = {"gpipe": "GPipe", "1f1b": "1F1B"}
_UNEQUAL = Durations(forward_s=2.0, backward_input_s=3.0, backward_weight_s=1.0)


class Written(NamedTuple):
    """By rank what the answer gave, or, of the first rank where that is no list of computations, what it is."""

    lists: Lists
    strange: str = ""


def write(order: Order, p: int, m: int) -> Written:
    """Call the answer for every rank."""
    lists: Lists = []
    for rank in range(p):
        result = order(rank, p, m)
        if result is None or not hasattr(result, "__iter__"):
            return Written([], f"for rank {rank} it returned {type(result).__name__}, not a list")
        lists.append([])
        for one in islice(result, 4 * m + 4):  # twice too many: one that has no end
            compute = _compute(one)
            if isinstance(compute, str):
                return Written([], f"rank {rank}'s list holds {one!r}: {compute}")
            lists[-1].append(compute)
    return Written(lists)


def _compute(one: Any) -> Instruction | str:
    """The computation, of Python's own whole numbers; or what is wrong with it."""
    if one is None:
        return "idle time is not written down; waiting comes by itself"
    if type(one) not in (Forward, Backward):
        return "it is made of Forward(stage, microbatch) and Backward; the messages are added for you"
    stage, microbatch = whole_of(one.stage), whole_of(one.microbatch)
    if stage is None or microbatch is None:
        return "stage and micro-batch are whole numbers"
    kind: type[Instruction] = type(one)
    return kind(stage, microbatch)


def schedule_of(lists: Lists, m: int) -> Schedule:
    """The computations alone, without messages."""
    return Schedule(name="yours", n_microbatches=m, lists=tuple(map(tuple, lists)))


def not_legal(written: Written, m: int) -> str | None:
    """None if the ranks come to the end of their lists, else the first thing that keeps them from it."""
    if written.strange:
        return written.strange
    schedule = schedule_of(written.lists, m)
    for rank, instructions in enumerate(schedule.lists):
        for one in instructions:
            if not 0 <= one.microbatch < m:
                return f"rank {rank}'s list holds {one}: of {m} micro-batches the last is number {m - 1}"
            if one.stage != rank:
                return f"rank {rank}'s list holds {one}: stage {one.stage} lies on another rank; stage = rank here"
    found = [line for line in problems(schedule) if "before Recv" not in line]  # the messages come later
    return found[0] if found else _blocked(schedule)


def _blocked(schedule: Schedule) -> str | None:
    """Let every rank go on as long as it can; then say who waits for whom."""
    at, done = [0] * schedule.n_ranks, set[Instruction]()
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.n_ranks):
            while at[rank] < len(schedule.lists[rank]) and not _missing(schedule, rank, at[rank], done):
                done.add(schedule.lists[rank][at[rank]])
                at[rank] += 1
                moved = True
    waits = []
    for rank in range(schedule.n_ranks):
        if at[rank] < len(schedule.lists[rank]):
            missing = _missing(schedule, rank, at[rank], done)[0]
            other = schedule.rank_of(missing.stage)
            after = schedule.lists[other][at[other]]
            if after == missing:
                continue  # the other rank waits with just that; its own line says for what
            waits.append(
                f"rank {rank} waits with {schedule.lists[rank][at[rank]]} for {missing}, "
                f"which rank {other} does only after {after}"
            )
    return f"your lists deadlock: {'; '.join(waits)}" if waits else None


def _missing(schedule: Schedule, rank: int, place: int, done: set[Instruction]) -> list[Compute]:
    compute = schedule.lists[rank][place]
    assert isinstance(compute, Compute)
    return [one for one in needs(compute, schedule.n_stages) if one not in done]


def too_costly(name: str, lists: Lists, m: int) -> str | None:
    """None if bubble and activations in flight are the named schedule's."""
    p, schedule = len(lists), add_messages(schedule_of(lists, m))
    holds = [held(schedule, rank).in_flight for rank in range(p)]
    begins = _wrong_beginning(name, lists, m)
    return _wrong_bubble(name, schedule, holds, begins) or _wrong_held(name, holds, m, begins)


def _wrong_beginning(name: str, lists: Lists, m: int) -> str:
    """Of the first rank that begins with too few or too many forwards, how many they are."""
    for rank, instructions in enumerate(lists):
        got = [type(one) for one in instructions].index(Backward)
        want = _in_flight(name, len(lists), m, rank)
        if got != want:
            forwards = plural(got, "forward")
            return f"rank {rank} begins with {forwards} before its first backward, {_WORDS[name]} with {want}"
    return ""


def _wrong_bubble(name: str, schedule: Schedule, holds: Sequence[int], begins: str) -> str | None:
    for durations in (Durations(), _UNEQUAL):
        p, m = schedule.n_ranks, schedule.n_microbatches
        got = bubble_s(time_schedule(schedule, durations), p)
        want = _formula_bubble_s(name, p, m, durations)
        if abs(got - want) < 1e-9:
            continue
        seconds = f"forward {durations.forward_s:g} s and backward {durations.of(Backward(0, 0)):g} s long"
        text = f"the ranks idle for {got:g} s, {_WORDS[name]}'s bubble is {want:g} s ({seconds})"
        if m > 1 and max(holds) == 1 and p > 1:
            return f"{text}: one micro-batch at a time is naive model parallelism, nothing overlaps"
        if seen := begins or _out_of_order(schedule):
            return f"{text}: {seen}"
        return f"{text}: {times(got / want)} it" if want else text
    return None


def _out_of_order(schedule: Schedule) -> str:
    """The first two backwards of a rank that go another way than the micro-batches' numbers."""
    for rank in range(schedule.n_ranks):
        backwards = [one for one in schedule.computes(rank) if isinstance(one, Backward)]
        for before, after in pairwise(backwards):
            if before.microbatch > after.microbatch:
                return f"rank {rank} does {before} before {after}"
    return ""


def _formula_bubble_s(name: str, p: int, m: int, durations: Durations) -> float:
    """The idle time of the busiest rank, by `costs`."""
    return pipeline_bubble_s(
        name,
        n_ranks=p,
        n_microbatches=m,
        forward_s=durations.forward_s,
        backward_input_s=durations.backward_input_s,
        backward_weight_s=durations.backward_weight_s,
    )


def _wrong_held(name: str, holds: Sequence[int], m: int, begins: str) -> str | None:
    p, other = len(holds), _OTHER[name]
    for rank, got in enumerate(holds):
        want = _in_flight(name, p, m, rank)
        if got != want:
            text = f"rank {rank} holds {plural(got, 'activation')} at once, {_WORDS[name]} holds {want}"
            if all(one == _in_flight(other, p, m, place) for place, one in enumerate(holds)):
                return f"{text}: is that {_WORDS[other]}?"
            return f"{text}: {begins or 'it begins well, but later does two forwards without a backward between'}"
    return None


def _in_flight(name: str, p: int, m: int, rank: int) -> int:
    return pipeline_in_flight(name, n_ranks=p, n_microbatches=m, rank=rank)
