"""What a pipeline rank can be told to do, and the lists that make a schedule.

Letters: p ranks, m micro-batches, v stages on each rank. The model is cut into p v stages, numbered along the
forward pass; stage s lies on rank s mod p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.errors import four_parts


@dataclass(frozen=True, slots=True, repr=False)
class Instruction:
    """One thing to do with one micro-batch at one stage."""

    stage: int
    microbatch: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stage}, {self.microbatch})"

    def __hash__(self) -> int:  # by kind too, for eight kinds share a stage and a micro-batch
        return hash((type(self), self.stage, self.microbatch))


class Compute(Instruction):
    """Work of the rank's own."""

    __slots__ = ()


class Forward(Compute):
    """The stage's forward pass; its activations stay until the backward pass."""

    __slots__ = ()


class Backward(Compute):
    """The gradients of the stage's input and of its weights."""

    __slots__ = ()


class BackwardInput(Compute):
    """The gradient of the stage's input alone: the stage before waits for nothing else."""

    __slots__ = ()


class BackwardWeight(Compute):
    """The gradients of the stage's weights, any time after `BackwardInput`."""

    __slots__ = ()


LABELS: dict[type[Compute], str] = {  # what a ledger and a figure call a computation
    Forward: "forward",
    Backward: "backward",
    BackwardInput: "backward input",
    BackwardWeight: "backward weight",
}


class Message(Instruction):
    """One end of a message between neighbouring stages on different ranks."""

    __slots__ = ()


class SendActivation(Message):
    """The stage's output goes to the next stage."""

    __slots__ = ()


class RecvActivation(Message):
    """The stage's input comes from the stage before."""

    __slots__ = ()


class SendGradient(Message):
    """The gradient of the stage's input goes to the stage before."""

    __slots__ = ()


class RecvGradient(Message):
    """The gradient of the stage's output comes from the next stage."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One list of instructions for each rank."""

    name: str
    n_microbatches: int
    lists: tuple[tuple[Instruction, ...], ...]
    stages_per_rank: int = 1

    @property
    def n_ranks(self) -> int:
        """p."""
        return len(self.lists)

    @property
    def n_stages(self) -> int:
        """p v."""
        return self.n_ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """The rank on which a stage lies."""
        return stage % self.n_ranks

    def stages_of(self, rank: int) -> range:
        """The stages that lie on a rank."""
        return range(rank, self.n_stages, self.n_ranks)

    def computes(self, rank: int) -> Iterator[Compute]:
        """What a rank computes, in its order.

        Raises: ValueError if the schedule has no such rank.
        """
        if not 0 <= rank < self.n_ranks:
            ranks = "1 rank" if self.n_ranks == 1 else f"{self.n_ranks} ranks"
            rule = f"this schedule has {ranks}, counted from 0"
            raise ValueError(four_parts("schedule", f"rank {rank}", rule, "give one of them"))
        return (instruction for instruction in self.lists[rank] if isinstance(instruction, Compute))


def partner(message: Message) -> Message:
    """The other end: what the neighbouring stage's rank must be told.

    >>> partner(SendActivation(0, 3)), partner(RecvGradient(0, 3))
    (RecvActivation(1, 3), SendGradient(1, 3))
    """
    stage, microbatch = message.stage, message.microbatch
    if isinstance(message, SendActivation):
        return RecvActivation(stage + 1, microbatch)
    if isinstance(message, RecvActivation):
        return SendActivation(stage - 1, microbatch)
    if isinstance(message, SendGradient):
        return RecvGradient(stage - 1, microbatch)
    return SendGradient(stage + 1, microbatch)


def needs(compute: Compute, n_stages: int) -> tuple[Compute, ...]:
    """What must have been computed before, wherever it was."""
    stage, microbatch = compute.stage, compute.microbatch
    if isinstance(compute, Forward):
        return (Forward(stage - 1, microbatch),) if stage else ()
    if isinstance(compute, BackwardWeight):
        return (BackwardInput(stage, microbatch),)
    own = Forward(stage, microbatch)  # whose activations a backward uses
    if stage == n_stages - 1:
        return (own,)
    kind = type(compute)  # the whole backward, or its first part, as the next stage does it
    return own, kind(stage + 1, microbatch)
