"""What is wrong with a schedule, found on its lists alone; a learner's list is looked at in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from course_lib.schedules.instructions import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Compute,
    Forward,
    Instruction,
    Message,
    RecvActivation,
    RecvGradient,
    Schedule,
    SendActivation,
    SendGradient,
    needs,
    partner,
)


def problems(schedule: Schedule) -> list[str]:
    """Sentences, none if the schedule is good.

    Good means: every stage computes each micro-batch once, on its own rank, each after what it needs and with its
    message received; and the ranks never block each other, even if every send waits for its receive.
    """
    return [*_counts(schedule), *_orders(schedule)] or _deadlock(schedule)


def _counts(schedule: Schedule) -> Iterator[str]:
    """Instructions on a foreign rank, twice, or not at all."""
    found: Counter[Instruction] = Counter()
    for rank, instructions in enumerate(schedule.lists):
        for instruction in instructions:
            found[instruction] += 1
            stage_is_there = 0 <= instruction.stage < schedule.n_stages
            microbatch_is_there = 0 <= instruction.microbatch < schedule.n_microbatches
            own = schedule.rank_of(instruction.stage) == rank
            if not (stage_is_there and microbatch_is_there and own):
                yield f"rank {rank} has {instruction}, which is not its own"
    for instruction, times in found.items():
        if times > 1:
            yield f"{instruction} stands {times} times"
    for stage in range(schedule.n_stages):
        for microbatch in range(schedule.n_microbatches):
            yield from _missing(found, stage, microbatch)


def _missing(found: Counter[Instruction], stage: int, microbatch: int) -> Iterator[str]:
    if Forward(stage, microbatch) not in found:
        yield f"no {Forward(stage, microbatch)}"
    whole = Backward(stage, microbatch)
    parts = (BackwardInput(stage, microbatch), BackwardWeight(stage, microbatch))
    there = [part for part in parts if part in found]
    if whole in found and there:
        yield f"{whole} and its parts too"
    if whole not in found and len(there) < len(parts):
        yield f"no {whole}"


def _orders(schedule: Schedule) -> Iterator[str]:
    """What comes before something that it needs from its own rank, its messages among them."""
    for rank, instructions in enumerate(schedule.lists):
        done: set[Instruction] = set()
        for instruction in instructions:
            for choices in _needed_here(instruction, schedule):
                if done.isdisjoint(choices):
                    yield f"rank {rank} does {instruction} before {choices[0]}"
            done.add(instruction)


def _needed_here(instruction: Instruction, schedule: Schedule) -> list[tuple[Instruction, ...]]:
    """What a rank's own list must hold before an instruction: one of each tuple."""
    stage, microbatch = instruction.stage, instruction.microbatch
    if isinstance(instruction, Compute):
        receive = RecvActivation if isinstance(instruction, Forward) else RecvGradient
        here = schedule.rank_of(stage)
        needed: list[tuple[Instruction, ...]] = []
        for one in needs(instruction, schedule.n_stages):
            if schedule.rank_of(one.stage) == here:
                needed.append((one,))
            else:
                needed.append((receive(stage, microbatch),))
        return needed
    if isinstance(instruction, SendActivation):
        return [(Forward(stage, microbatch),)]
    if isinstance(instruction, SendGradient):
        return [(Backward(stage, microbatch), BackwardInput(stage, microbatch))]
    return []


def _deadlock(schedule: Schedule) -> list[str]:
    """Let ranks run with sends that wait for their receives; say who is stuck."""
    at = [0] * schedule.n_ranks

    def current(rank: int) -> Instruction | None:
        instructions = schedule.lists[rank]
        return instructions[at[rank]] if at[rank] < len(instructions) else None

    moved = True
    while moved:
        moved = False
        for rank in range(schedule.n_ranks):
            while (instruction := current(rank)) is not None:
                if isinstance(instruction, Message):
                    # A message passes when both ranks have come to their ends of it.
                    other_end = partner(instruction)
                    other = schedule.rank_of(other_end.stage)
                    if current(other) != other_end:
                        break
                    at[other] += 1
                at[rank] += 1
                moved = True
    stuck = []
    for rank in range(schedule.n_ranks):
        if current(rank):
            stuck.append(f"rank {rank} waits at {current(rank)}")
    return [f"deadlock: {', '.join(stuck)}"] if stuck else []
