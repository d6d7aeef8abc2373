"""When each instruction runs, if every rank follows its list: idle time is a fact of the lists and the durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.schedules.instructions import (
    Backward,
    BackwardInput,
    Compute,
    Forward,
    Instruction,
    RecvActivation,
    RecvGradient,
    Schedule,
    needs,
    partner,
)


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Seconds of one micro-batch on one *rank*, as the formulas have them; each of its v stages takes a v-th.

    A whole backward pass takes both of its parts.
    Raises: ValueError for a time below 0, or if nothing takes time.
    """

    forward_s: float = 1.0
    backward_input_s: float = 1.0
    backward_weight_s: float = 1.0

    def __post_init__(self) -> None:
        times = (self.forward_s, self.backward_input_s, self.backward_weight_s)
        if not (min(times) >= 0 and 0 < sum(times) < math.inf):
            rule = "no computation takes less than 0 s, and together they take some time"
            raise ValueError(four_parts("Durations", f"{', '.join(map(str, times))} s", rule, "give other times"))

    def of(self, compute: Compute) -> float:
        """How long an instruction takes."""
        if isinstance(compute, Forward):
            return self.forward_s
        if isinstance(compute, Backward):
            return self.backward_input_s + self.backward_weight_s
        if isinstance(compute, BackwardInput):
            return self.backward_input_s
        return self.backward_weight_s

    def part(self, stages: int) -> Durations:
        """Those of one of a rank's so many stages."""
        return Durations(
            forward_s=self.forward_s / stages,
            backward_input_s=self.backward_input_s / stages,
            backward_weight_s=self.backward_weight_s / stages,
        )


def durations_by_rank(
    durations: Durations | Sequence[Durations], n_ranks: int, *, operation: str = "time_schedule"
) -> list[Durations]:
    """One for all ranks, or one for each, as one for each.

    Raises: ValueError for another number of durations than ranks.
    """
    each = [durations] * n_ranks if isinstance(durations, Durations) else list(durations)
    if len(each) != n_ranks:
        rule, way_out = "each rank has its own", "give one for each rank, or one for all"
        raise ValueError(four_parts(operation, f"{len(each)} durations, {n_ranks} ranks", rule, way_out))
    return each


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One instruction in time. Messages take no time of their ranks; who needs what one brings waits for it."""

    rank: int
    instruction: Instruction
    start_s: float
    end_s: float


def time_schedule(
    schedule: Schedule, durations: Durations | Sequence[Durations], *, message_s: float = 0.0
) -> list[Slot]:
    """The slots of all ranks, in the order of their starts.

    `durations` holds for all ranks, or is one for each. Every message takes `message_s`; a rank sends, and
    receives, one at a time. Sends and receives are started where they stand in the list; who computes waits.
    Raises: ValueError if the ranks block each other, or for another number of durations than ranks.
    """
    run = _Run(schedule, durations, message_s)
    while run.advance():
        pass
    waiting = []
    for rank in range(schedule.n_ranks):
        if run.next(rank):
            waiting.append(f"rank {rank} at {run.next(rank)}")
    if waiting:
        rule, way_out = "some rank can always go on", "let `problems` look at the lists"
        raise ValueError(four_parts("time_schedule", "; ".join(waiting), rule, way_out))
    return sorted(run.slots, key=lambda slot: (slot.start_s, slot.end_s, slot.rank))


def idle_s(slots: Sequence[Slot], n_ranks: int) -> list[float]:
    """By rank, the seconds of the whole run in which it computes nothing."""
    length = max(slot.end_s for slot in slots)
    busy = [0.0] * n_ranks
    for slot in slots:
        if isinstance(slot.instruction, Compute):
            busy[slot.rank] += slot.end_s - slot.start_s
    return [length - one for one in busy]


def bubble_s(slots: Sequence[Slot], n_ranks: int) -> float:
    """The idle time of the busiest rank: what the pipeline costs over perfect division of the work."""
    return min(idle_s(slots, n_ranks))


class _Run:
    """Ranks that go through their lists."""

    def __init__(self, schedule: Schedule, durations: Durations | Sequence[Durations], message_s: float) -> None:
        by_rank = durations_by_rank(durations, schedule.n_ranks)
        self.of_a_stage = [one.part(schedule.stages_per_rank) for one in by_rank]  # by rank
        self.schedule, self.message_s = schedule, message_s
        self.slots: list[Slot] = []
        self.ends: dict[Instruction, float] = {}  # of computations; of sends: when the message left
        self.awaited: set[Instruction] = set()  # receives that have been posted
        p = schedule.n_ranks
        self.at = [0] * p  # by rank, its place in its list
        self.now = [0.0] * p  # when it has computed what stands before that place
        self.out_free = [0.0] * p  # when its way out, and its way in, is free for the next message
        self.in_free = [0.0] * p

    def next(self, rank: int) -> Instruction | None:
        """What a rank does next."""
        instructions = self.schedule.lists[rank]
        return instructions[self.at[rank]] if self.at[rank] < len(instructions) else None

    def advance(self) -> bool:
        """Let every rank go as far as it can; say whether any could."""
        before = sum(self.at)
        for rank in range(self.schedule.n_ranks):
            while (instruction := self.next(rank)) is not None and self.do(rank, instruction):
                self.at[rank] += 1
        return sum(self.at) > before

    def do(self, rank: int, instruction: Instruction) -> bool:
        """Run one instruction if what it needs is there."""
        if isinstance(instruction, Compute):
            return self.compute(rank, instruction)
        if isinstance(instruction, RecvActivation | RecvGradient):
            self.awaited.add(instruction)
            return True
        left = max(self.now[rank], self.out_free[rank])
        arrives = left + self.message_s
        self.out_free[rank] = arrives
        self.ends[instruction] = left
        self.note(rank, instruction, left, arrives)
        return True

    def compute(self, rank: int, compute: Compute) -> bool:
        """Wait for the message, then compute, if everything before it has been computed."""
        needed: list[Instruction] = [*needs(compute, self.schedule.n_stages)]
        receive = RecvActivation if isinstance(compute, Forward) else RecvGradient
        message = receive(compute.stage, compute.microbatch)
        if message in self.awaited:
            needed.append(partner(message))
        if any(one not in self.ends for one in needed):
            return False
        start = self.now[rank]
        for one in needed:
            start = max(start, self.ends[one])
        if message in self.awaited:
            sent = self.ends[partner(message)]
            arrived = max(sent, self.in_free[rank]) + self.message_s
            self.in_free[rank] = arrived
            self.note(rank, message, sent, arrived)
            start = max(start, arrived)
        end = start + self.of_a_stage[rank].of(compute)
        self.now[rank] = self.ends[compute] = end
        self.note(rank, compute, start, end)
        return True

    def note(self, rank: int, instruction: Instruction, start: float, end: float) -> None:
        """Keep a slot."""
        self.slots.append(Slot(rank=rank, instruction=instruction, start_s=start, end_s=end))
