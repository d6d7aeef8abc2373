"""One executor for all pipeline schedules: it does what a rank's list says, with real tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm import Handle
from course_lib.parallel.deferred import Deferred
from course_lib.schedules import (
    LABELS,
    BackwardInput,
    BackwardWeight,
    Compute,
    Durations,
    Forward,
    Held,
    Instruction,
    Message,
    RecvActivation,
    RecvGradient,
    Schedule,
    SendActivation,
    SendGradient,
)

Place = tuple[int, int]  # stage, micro-batch


class Pipeline:
    """A rank's stages, by number, and the schedule that says when they compute.

    With `durations`, those of this rank, a computation lasts as long as they say, as `comm.compute` does it: the way
    to see a timeline under the emulated clock.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        schedule: Schedule,
        group: ProcessGroup,
        *,
        durations: Durations | None = None,
    ) -> None:
        self.stages, self.schedule, self.group = stages, schedule, group
        self.durations = durations.part(schedule.stages_per_rank) if durations else None  # of one stage
        self.rank, self.names = group.rank(), dist.get_process_group_ranks(group)
        self.device = next(parameter.device for stage in stages.values() for parameter in stage.parameters())
        self.held = Held(in_flight=0, stashed=0)  # the most of the last run, counted on what was kept
        self.stashed_bytes = 0  # the most that weights' gradients waited with

    def run(
        self, microbatches: Sequence[Tensor], shapes: Sequence[Tensor], loss: Callable[[Tensor, int], Tensor]
    ) -> None:
        """Forward and backward of all micro-batches: gradients are added to `.grad` of this rank's weights.

        Receives are posted where the list has them, no earlier: two ranks then ask for their messages in one order, as
        NCCL needs. An output that was sent is let go when its gradient has come back; of gradients that were sent no
        more are kept than there are ranks.

        `shapes` are like what each stage takes. `loss` makes of the last stage's output, and a micro-batch's number,
        what is to be differentiated; the gradients are those of the sum over micro-batches.

        Cost: `course_lib.costs.comm.pipeline`.
        """
        run = _Run(self, microbatches, shapes, loss)
        try:
            for instruction in self.schedule.lists[self.rank]:
                run.do(instruction)
            run.finish()
        finally:
            run.give_up()
        self.held = Held(in_flight=run.most_in_flight, stashed=run.most_stashed)
        self.stashed_bytes = run.most_stashed_bytes

    @torch.no_grad()
    def forward(self, inputs: Tensor, shapes: Sequence[Tensor]) -> Tensor:
        """Pass a whole batch through all stages; the last one's rank gets the output, the others nothing of use."""
        x = inputs
        for stage in range(self.schedule.n_stages):
            before, after = (self.schedule.rank_of(number) for number in (stage - 1, stage + 1))
            if stage not in self.stages:
                continue
            if stage and before != self.rank:
                x = comm.recv(self.room(shapes[stage]), self.names[before], self.group)
            x = self.stages[stage](x)
            if stage < self.schedule.n_stages - 1 and after != self.rank:
                comm.send(x.contiguous(), self.names[after], self.group)
        return x

    def room(self, like: Tensor) -> Tensor:
        """Memory for a message; `empty_like` would take 100 times as long, since `like` is on no device."""
        return torch.empty(like.shape, dtype=like.dtype, device=self.device)

    def peer(self, stage: int) -> int:
        """The global rank on which a stage lies."""
        return self.names[self.schedule.rank_of(stage)]


class _Run:
    """What one rank holds while it goes through its list."""

    def __init__(
        self,
        pipeline: Pipeline,
        microbatches: Sequence[Tensor],
        shapes: Sequence[Tensor],
        loss: Callable[[Tensor, int], Tensor],
    ) -> None:
        self.pipeline, self.schedule, self.stages = pipeline, pipeline.schedule, pipeline.stages
        self.microbatches, self.shapes, self.loss = microbatches, shapes, loss
        lists = self.schedule.lists[pipeline.rank]
        self.split = {(one.stage, one.microbatch) for one in lists if isinstance(one, BackwardInput)}
        self.saved: dict[Place, tuple[Tensor, Tensor]] = {}  # input and output of a stage, until its backward
        self.owed: dict[Place, Deferred] = {}  # weights' gradients, until BackwardWeight
        self.ready: dict[Message, Tensor] = {}  # gradients to be sent; what a stage hands to one on its own rank
        self.arriving: dict[Message, tuple[Tensor, Handle]] = {}
        self.sent: dict[Place, Handle] = {}  # outputs, until their gradients come back
        self.leaving: deque[Handle] = deque()  # gradients, the oldest first
        self.most_in_flight = self.most_stashed = self.most_stashed_bytes = 0

    def do(self, instruction: Instruction) -> None:
        """Carry out one instruction."""
        place = (instruction.stage, instruction.microbatch)
        match instruction:
            case Compute():
                self.compute(instruction, place)
            case RecvActivation():
                self.receive(instruction, self.shapes[instruction.stage], instruction.stage - 1)
            case RecvGradient():
                self.receive(instruction, self.shapes[instruction.stage + 1], instruction.stage + 1)
            case SendActivation():
                self.sent[place] = self.send(self.saved[place][1].detach(), instruction.stage + 1)
            case SendGradient():
                self.leaving.append(self.send(self.ready.pop(instruction), instruction.stage - 1))
                if len(self.leaving) > self.schedule.n_ranks:
                    self.leaving.popleft().wait()  # it has most likely arrived; now its memory can go

    def receive(self, message: Message, like: Tensor, stage: int) -> None:
        """Post a receive; who needs what it brings waits for it."""
        into = self.pipeline.room(like)
        self.arriving[message] = (into, comm.irecv(into, self.pipeline.peer(stage), self.pipeline.group))

    def send(self, x: Tensor, stage: int) -> Handle:
        """Start a send, and go on."""
        return comm.isend(x.contiguous(), self.pipeline.peer(stage), self.pipeline.group)

    def take(self, message: Message) -> Tensor:
        """What a message brought, or a stage on this rank handed over."""
        if message in self.ready:
            return self.ready.pop(message)
        x, handle = self.arriving.pop(message)
        handle.wait()
        return x

    def compute(self, compute: Compute, place: Place) -> None:
        """Wait for what a computation needs, then compute, for as long as it is to last."""
        last = compute.stage == self.schedule.n_stages - 1
        needed: Tensor | None = None
        if isinstance(compute, Forward):
            first = not compute.stage
            needed = self.microbatches[compute.microbatch] if first else self.take(RecvActivation(*place))
        elif not isinstance(compute, BackwardWeight) and not last:
            needed = self.take(RecvGradient(*place))
        label, durations = LABELS[type(compute)], self.pipeline.durations
        with nullcontext() if durations else comm.span(label):
            self.work(compute, place, needed)
        if durations:
            comm.compute(durations.of(compute), label)

    def work(self, compute: Compute, place: Place, needed: Tensor | None) -> None:
        """The computation itself; `needed` is the stage's input, or the gradient of its output if others sent one."""
        if isinstance(compute, BackwardWeight):
            self.owed.pop(place).finish()
        elif isinstance(compute, Forward):
            assert needed is not None
            self.forward(place, needed)
            self.most_in_flight = max(self.most_in_flight, len(self.saved))
        else:
            self.backward(place, needed)
            stashed = [later.retained_bytes for one, later in self.owed.items() if one not in self.saved]
            self.most_stashed = max(self.most_stashed, len(stashed))
            self.most_stashed_bytes = max(self.most_stashed_bytes, sum(stashed))

    def forward(self, place: Place, x: Tensor) -> None:
        """A stage's output, or on the last stage its loss; both ends of it are kept for backward."""
        stage, microbatch = place
        if stage:
            x.requires_grad_()
        later = Deferred() if place in self.split else None
        with later or nullcontext():
            y = self.stages[stage](x)
        if later:
            self.owed[place] = later
        if stage == self.schedule.n_stages - 1:
            y = self.loss(y, microbatch)
        elif self.schedule.rank_of(stage + 1) == self.pipeline.rank:
            self.ready[RecvActivation(stage + 1, microbatch)] = y.detach()
        self.saved[place] = (x, y)

    def backward(self, place: Place, gradient: Tensor | None) -> None:
        """Gradients of a stage's weights, or those that are not left for later, and of its input."""
        stage, microbatch = place
        x, y = self.saved.pop(place)
        if sent := self.sent.pop(place, None):
            sent.wait()  # it has arrived, since its gradient came back; now its memory can go
        if y.requires_grad:  # not if everything up to here is frozen
            torch.autograd.backward(y, gradient)
        if not stage:
            return
        assert x.grad is not None
        own = self.schedule.rank_of(stage - 1) == self.pipeline.rank
        self.ready[RecvGradient(stage - 1, microbatch) if own else SendGradient(*place)] = x.grad

    def finish(self) -> None:
        """Wait until the last gradients have passed."""
        while self.leaving:
            self.leaving.popleft().wait()

    def give_up(self) -> None:
        """Let nobody wait any more: nothing is left unless something failed."""
        for handle in [*self.sent.values(), *self.leaving, *(handle for _, handle in self.arriving.values())]:
            handle.give_up()
