"""One executor for all pipeline schedules: it does what a rank's list says, with real tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm import Work
from course_lib.parallel.pipelines.deferred import Deferred
from course_lib.schedules import (
    LABELS,
    Backward,
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

_Place = tuple[int, int]  # stage, micro-batch

_METHODS: dict[type[Instruction], str] = {
    Forward: "forward",
    Backward: "backward",
    BackwardInput: "backward",
    BackwardWeight: "backward_weight",
    SendActivation: "send_activation",
    RecvActivation: "recv_activation",
    SendGradient: "send_gradient",
    RecvGradient: "recv_gradient",
}
# What can be the last of a stage's work. A send too, since it waits for what is in the background.
_ENDS = Backward | BackwardWeight | SendGradient


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
        self.rank = group.rank()
        self.names = dist.get_process_group_ranks(group)  # of the group's ranks, in the whole world
        self.device = next(parameter.device for stage in stages.values() for parameter in stage.parameters())
        self.stage_complete: Callable[[int], object] = lambda stage: None  # called once a stage's gradients are there
        self.held = Held(in_flight=0, stashed=0)  # the most of the last run, counted on what was kept
        self.stashed_bytes = 0  # the most that weights' gradients waited with

    def run(
        self,
        microbatches: Sequence[Tensor],
        shapes: Sequence[Sequence[Tensor]],
        loss: Callable[[Tensor, int], Tensor],
    ) -> None:
        """Forward and backward of all micro-batches: gradients are added to `.grad` of this rank's weights.

        Receives are posted where the list has them, no earlier: two ranks then ask for their messages in one order, as
        NCCL needs. An output that was sent is let go when its gradient has come back; of gradients that were sent no
        more are kept than there are ranks.

        `shapes` are, for each micro-batch, like what each stage takes. `loss` makes of the last stage's output, and
        a micro-batch's number, what is to be differentiated; the gradients are those of the sum over micro-batches.
        `stage_complete` is called with each stage whose gradients are all there.

        Cost: `course_lib.costs.comm.pipeline`.
        """
        run = _BatchRun(self, microbatches, shapes, loss)
        try:
            ends = self.ends
            for place, instruction in enumerate(self.schedule.lists[self.rank]):
                run.do(instruction)
                if ends.get(instruction.stage) == place:
                    self.stage_complete(instruction.stage)
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
            if stage not in self.stages:
                continue
            if stage > 0 and stage - 1 not in self.stages:
                x = comm.recv(self.room(shapes[stage]), self.peer(stage - 1), self.group)
            x = self.stages[stage](x)
            if stage < self.schedule.n_stages - 1 and stage + 1 not in self.stages:
                comm.send(x.contiguous(), self.peer(stage + 1), self.group)
        return x

    @property
    def ends(self) -> dict[int, int]:
        """By stage of this rank, the place in its list from which on the stage's gradients are complete."""
        ends = {}
        for place, one in enumerate(self.schedule.lists[self.rank]):
            if isinstance(one, _ENDS):
                ends[one.stage] = place
        return ends

    def room(self, like: Tensor) -> Tensor:
        """Memory for a message; `empty_like` would take 100 times as long, since `like` is on no device."""
        return torch.empty(like.shape, dtype=like.dtype, device=self.device)

    def peer(self, stage: int) -> int:
        """The global rank on which a stage lies."""
        return self.names[self.schedule.rank_of(stage)]


class _BatchRun:
    """What one rank holds while it goes through its list: one method for each instruction.

    A micro-batch passes a stage like this. `recv_activation` posts a receive, `forward` waits for it, computes, and
    keeps input and output. `send_activation` ships the output, detached: the graph ends at the stage's border. When
    `recv_gradient` has brought the output's gradient, `backward` goes through the stage's own graph, and
    `send_gradient` ships the gradient of the input to the stage before, which goes on in its graph.

    Stages on one rank hand over in `ready`, without a message.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        microbatches: Sequence[Tensor],
        shapes: Sequence[Sequence[Tensor]],
        loss: Callable[[Tensor, int], Tensor],
    ) -> None:
        self.pipeline, self.schedule, self.stages = pipeline, pipeline.schedule, pipeline.stages
        self.microbatches, self.shapes, self.loss = microbatches, shapes, loss
        self.last_stage = self.schedule.n_stages - 1
        self.split: set[_Place] = set()  # whose backward comes in two parts
        for one in self.schedule.lists[pipeline.rank]:
            if isinstance(one, BackwardInput):
                self.split.add((one.stage, one.microbatch))
        self.saved: dict[_Place, tuple[Tensor, Tensor]] = {}  # input and output of a stage, until its backward
        self.owed: dict[_Place, Deferred] = {}  # weights' gradients, until BackwardWeight
        self.ready: dict[Message, Tensor] = {}  # gradients to be sent; what a stage hands to one on its own rank
        self.arriving: dict[Message, tuple[Tensor, Work]] = {}
        self.sent: dict[_Place, Work] = {}  # outputs, until their gradients come back
        self.leaving: deque[Work] = deque()  # gradients, the oldest first
        self.most_in_flight = self.most_stashed = self.most_stashed_bytes = 0

    def do(self, instruction: Instruction) -> None:
        """Carry out one instruction."""
        method = getattr(self, _METHODS[type(instruction)])
        method(instruction)

    def forward(self, one: Forward) -> None:
        """A stage's output, or on the last stage its loss; both ends of it are kept for backward."""
        stage, microbatch = place = (one.stage, one.microbatch)
        if stage == 0:
            x = self.microbatches[microbatch]
        else:
            x = self.take(RecvActivation(stage, microbatch))
            x.requires_grad_()  # the stage before waits for its gradient
        later = Deferred() if place in self.split else None
        with self.timed(one):
            with later or nullcontext():
                y = self.stages[stage](x)
            if stage == self.last_stage:
                y = self.loss(y, microbatch)
        if later:
            self.owed[place] = later
        if stage < self.last_stage and self.is_here(stage + 1):
            self.ready[RecvActivation(stage + 1, microbatch)] = y.detach()
        self.saved[place] = (x, y)
        self.most_in_flight = max(self.most_in_flight, len(self.saved))

    def backward(self, one: Backward | BackwardInput) -> None:
        """Gradients of a stage's weights, or those that are not left for later, and of its input."""
        stage, microbatch = place = (one.stage, one.microbatch)
        gradient = None  # of a loss, which is 1
        if stage < self.last_stage:
            gradient = self.take(RecvGradient(stage, microbatch))
        x, y = self.saved.pop(place)
        if sent := self.sent.pop(place, None):
            sent.wait()  # it has arrived, since its gradient came back; now its memory can go
        with self.timed(one):
            if y.requires_grad:  # not if everything up to here is frozen
                torch.autograd.backward(y, gradient)
        if stage > 0:
            assert x.grad is not None
            if self.is_here(stage - 1):
                self.ready[RecvGradient(stage - 1, microbatch)] = x.grad
            else:
                self.ready[SendGradient(stage, microbatch)] = x.grad
        self.count_stashed()

    def backward_weight(self, one: BackwardWeight) -> None:
        """The gradients of weights that were left for later."""
        later = self.owed.pop((one.stage, one.microbatch))
        with self.timed(one):
            later.finish()

    def send_activation(self, one: SendActivation) -> None:
        """Start sending a stage's output to the next one."""
        place = (one.stage, one.microbatch)
        _, y = self.saved[place]
        self.sent[place] = self.isend(y.detach(), one.stage + 1)

    def recv_activation(self, one: RecvActivation) -> None:
        """Post the receive of a stage's input."""
        self.irecv(one, one.stage, one.stage - 1)

    def send_gradient(self, one: SendGradient) -> None:
        """Start sending the gradient of a stage's input back."""
        gradient = self.ready.pop(one)
        self.leaving.append(self.isend(gradient, one.stage - 1))
        if len(self.leaving) > self.schedule.n_ranks:
            self.leaving.popleft().wait()  # it has most likely arrived; now its memory can go

    def recv_gradient(self, one: RecvGradient) -> None:
        """Post the receive of the gradient of a stage's output."""
        self.irecv(one, one.stage + 1, one.stage + 1)

    @contextmanager
    def timed(self, compute: Compute) -> Iterator[None]:
        """Show a computation in the timeline; with `durations` it lasts as long as they say."""
        label, durations = LABELS[type(compute)], self.pipeline.durations
        if durations is None:
            with comm.span(label):
                yield
        else:
            yield
            comm.compute(durations.of(compute), label)

    def is_here(self, stage: int) -> bool:
        """Whether a stage lies on this rank, so that nothing has to be sent."""
        return self.schedule.rank_of(stage) == self.pipeline.rank

    def count_stashed(self) -> None:
        """Keep the most that weights' gradients have waited with; it is most after a backward."""
        stashed = []
        for place, later in self.owed.items():
            if place not in self.saved:  # its first part is over
                stashed.append(later.retained_bytes)
        self.most_stashed = max(self.most_stashed, len(stashed))
        self.most_stashed_bytes = max(self.most_stashed_bytes, sum(stashed))

    def irecv(self, message: Message, boundary: int, stage: int) -> None:
        """Post a receive from a stage of what passes a boundary; who needs what it brings waits for it."""
        pipeline = self.pipeline
        into = pipeline.room(self.shapes[message.microbatch][boundary])
        work = comm.irecv(into, pipeline.peer(stage), pipeline.group)
        self.arriving[message] = (into, work)

    def isend(self, x: Tensor, stage: int) -> Work:
        """Start a send to a stage's rank, and go on."""
        pipeline = self.pipeline
        return comm.isend(x.contiguous(), pipeline.peer(stage), pipeline.group)

    def take(self, message: Message) -> Tensor:
        """What a message brought, or a stage on this rank handed over."""
        if message in self.ready:
            return self.ready.pop(message)
        x, work = self.arriving.pop(message)
        work.wait()
        return x

    def finish(self) -> None:
        """Wait until the last gradients have passed."""
        while self.leaving:
            self.leaving.popleft().wait()

    def give_up(self) -> None:
        """Let nobody wait any more: nothing is left unless something failed."""
        arriving = [work for _, work in self.arriving.values()]
        for work in [*self.sent.values(), *self.leaving, *arriving]:
            work.give_up()
