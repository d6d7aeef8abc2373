"""How a rank computes outputs and gradients: here, the whole model at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.training import step as steps
from course_lib.training.batches import Batch

Loss = Callable[[Tensor, int], Tensor]  # of a micro-batch's output and number: what is to be differentiated


def _unchanged(x: Tensor) -> Tensor:
    return x


@dataclass
class Ends:
    """What ranks that share the layers' work have at a model's two ends, and between its stages."""

    loss: Callable[[Tensor, Tensor], Tensor] = steps.loss_of  # of what the model gave on this rank, and targets
    whole: Callable[[Tensor], Tensor] = _unchanged  # the output, of what the model gave on this rank
    boundary: Callable[[Tensor], Tensor] = _unchanged  # this rank's part of what one stage hands to the next
    mine: Callable[[Tensor], Tensor] = _unchanged  # of a share's inputs or targets, the positions of this rank
    summed: Callable[[float], float] = lambda loss: loss  # a share's loss, of what this rank has of it
    told: Callable[[Tensor], None] = lambda inputs: None  # hears of the inputs before each forward
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # forward and backward of a batch
    factor: Callable[[], float] = lambda: 1.0  # of the loss that is differentiated; `around` takes it away again
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext  # of all micro-batches but the last
    in_step: bool = False  # each micro-batch makes ranks talk, so that all must have equally many
    stepping: Callable[[], None] = lambda: None  # hears before each step of the optimizer, and may change gradients
    stepped: Callable[[], None] = lambda: None  # hears of each step of the optimizer, and may change weights once more
    updated: Callable[[], None] = lambda: None  # hears when weights are new, by a step or from a checkpoint


class Engine:
    """Forward, then backward, one micro-batch after the other. A pipeline is another engine."""

    def __init__(self, model: nn.Module, n_microbatches: int) -> None:
        self.model, self.n_microbatches = model, n_microbatches
        self.ends = Ends()

    @property
    def last(self) -> dict[str, int]:
        """The coordinates of the ranks that see the model's output, where those are not all."""
        return {}

    def check_rows(self, rows: Sequence[float]) -> None:
        """Refuse shares of so many rows that cannot be cut into micro-batches; fewer rows give fewer of them.

        Raises: ValueError, the same on all ranks.
        """
        m, least = self.n_microbatches, int(min(rows))
        if self.ends.in_step and min(m, max(rows)) > least:
            values, rule = f"{least} samples in a share, {m} micro-batches", "ranks that share weights compute in step"
            way_out = f"give at least {m * len(rows)} samples, or choose accumulation <= {least}"
            raise ValueError(four_parts("Trainer", values, rule, way_out))

    def cut(self, batch: Batch) -> list[Batch]:
        """A rank's share of a batch in micro-batches."""
        inputs, targets = batch
        return steps.micro_batches((self.ends.mine(inputs), self.ends.mine(targets)), self.n_microbatches)

    def output(self, inputs: Tensor) -> Tensor:
        """The model's output for a share, on every rank that works on it."""
        mine = self.ends.mine(inputs)
        self.ends.told(mine)
        return self.ends.whole(self.model(mine))

    def run(self, inputs: Sequence[Tensor], loss: Loss) -> None:
        """Add the gradients of the losses' sum to `.grad`; whoever averages does it in the last backward."""
        for number, x in enumerate(inputs):
            last = number == len(inputs) - 1
            self.ends.told(x)
            with nullcontext() if last else self.ends.no_sync():
                loss(self.model(x), number).backward()

    def shared(self, summed: float) -> float:
        """A share's summed loss, on every rank that works on it."""
        return self.ends.summed(summed)
