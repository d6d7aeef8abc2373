"""One step of training as a check sets it: what each rank gets, what it reports, and the same on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.forwards import Forwards, forwards_of
from course_lib.checks.kit.gradients import Place, gradients_on
from course_lib.comm import ledger
from course_lib.verify.numbers import number_of


class Report(NamedTuple):
    """One rank after its step."""

    gradients: dict[Place, Tensor | None]
    loss: float | str  # a text says what was returned, if it is no number
    changed: bool  # the weights
    written: bool  # even if with the same numbers
    forwards: Forwards
    more: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One step of training: each rank's part of a model, what the answer gets there, and the same on one device.

    `parts` and `loss` share their weights; of replicas, each part is the model itself.
    """

    parts: Sequence[nn.Module]
    arguments: Callable[[nn.Module, int], tuple[Any, ...]]  # on a rank, from its part
    loss: Callable[[], Tensor]  # of all ranks' data
    alone: Callable[[int], Tensor] | None = None  # of one rank's, if the gradients are averages
    told: Sequence[int] = ()  # the ranks that return the loss
    tensors: bool = False  # whether it may be a tensor
    rows: int = 0  # that one forward may take at most; 0: any number
    held: int = 0  # forwards that may wait for their backward; 0: any number
    share: int = 0  # different rows that a rank may compute in the whole step; 0: any number
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def on_one_device(self, loss: Callable[[], Tensor]) -> tuple[dict[Place, Tensor | None], float]:
        """The gradients that a loss leaves, by the ranks that have them, and its value."""
        with in_dtype(self.dtype):
            for part in self.parts:
                part.zero_grad()
            value = loss()
            value.backward()
        found = [gradients_on(rank, part) for rank, part in enumerate(self.parts)]
        return {place: x for mine in found for place, x in mine.items()}, value.item()

    @cached_property
    def wanted(self) -> tuple[dict[Place, Tensor | None], float]:
        """What all ranks together must have, and the loss."""
        return self.on_one_device(self.loss)

    @cached_property
    def own(self) -> dict[Place, Tensor | None]:
        """Each rank's gradients if nothing is averaged; empty where that is right."""
        if self.alone is None or len(self.parts) == 1:
            return {}
        found = [self.on_one_device(partial(self.alone, rank))[0] for rank in range(len(self.parts))]
        return {(rank, name): found[rank][rank, name] for rank, name in found[0]}

    def run(self, program: Callable[..., Any]) -> Report:
        """On a rank: let a program take the step. The ledger then holds what it sent."""
        rank = dist.get_rank()
        part = self.parts[rank]
        with in_dtype(self.dtype), _nothing_in_empty(), forwards_of(part) as forwards:
            with self.around(part) as more:
                arguments = self.arguments(part, rank)
                before, untouched = models.state(part), _marks(part)
                ledger.clear()
                loss, gradients = number_or_type(program(*arguments), self.tensors), gradients_on(rank, part)
            after, marks, events = models.state(part), _marks(part), list(ledger.current())
            more |= self.after(arguments)
            ledger.clear()
            ledger.current().extend(events)
        changed = any(not before[name].equal(after[name]) for name in before)
        return Report(gradients, loss, changed, marks != untouched, forwards, more)

    @contextmanager
    def around(self, part: nn.Module) -> Iterator[dict[str, Any]]:
        """Around the answer and the making of its arguments; what it yields is reported."""
        yield {}

    def after(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """On a rank, once the step is over: more that is reported."""
        return {}


@contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What torch makes is of this type, unless it is told otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _nothing_in_empty() -> Iterator[None]:
    """Let torch.empty give nan: what is read too early shows, where old memory may hold the right numbers."""
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def _marks(part: nn.Module) -> list[tuple[int, int]]:
    """What writing a weight changes, even if its numbers stay."""
    return [(p._version, p.data_ptr()) for p in part.parameters()]


def number_or_type(loss: object, tensors: bool) -> float | str:
    """A number as it is, anything else in words: it need not be able to travel. `tensors` of one number may be one."""
    if isinstance(loss, Tensor) and tensors and loss.numel() == 1:
        loss = loss.item()
    if isinstance(loss, Tensor):
        return "a tensor with its history" if loss.requires_grad else "a tensor"
    number = number_of(loss)
    return type(loss).__name__ if number is None else float(number)


def together(reports: Sequence[Report]) -> dict[Place, Tensor | None]:
    """The gradients of all ranks."""
    return {place: x for report in reports for place, x in report.gradients.items()}
