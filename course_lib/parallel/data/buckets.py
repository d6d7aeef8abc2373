"""Buckets: many gradients side by side in one flat tensor, so that one all-reduce averages them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.units import MiB

BUCKET_CAP_MB = 25
BUCKET_BYTES = BUCKET_CAP_MB * MiB
DENSE = "a bucket has room for every number of a gradient"  # the rule that a sparse one breaks
AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def fill(tensors: Iterable[AnyTensor], bucket_bytes: float) -> list[list[AnyTensor]]:
    """Deal tensors out to buckets in their order; a bucket is full once it holds `bucket_bytes` or more.

    A bucket has one dtype and one device.
    """
    buckets: list[list[AnyTensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[AnyTensor]] = {}
    held: dict[tuple[torch.dtype, torch.device], int] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        if kind not in filling:
            filling[kind], held[kind] = [], 0
            buckets.append(filling[kind])
        filling[kind].append(tensor)
        held[kind] += tensor.nbytes
        if held[kind] >= bucket_bytes:
            del filling[kind]
    return buckets


class Bucket:
    """The gradients of some parameters in one flat tensor, and which of them a backward has brought so far.

    They are copied in and out; with `as_view` they lie in the bucket and nowhere else. `numbers` are the parameters'
    in the model.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], numbers: Sequence[int] = (), *, as_view: bool = False
    ) -> None:
        self.parameters, self.numbers, self.as_view = parameters, numbers, as_view
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        self.views = [part.view_as(p) for part, p in zip(self.flat.split(sizes), parameters, strict=True)]
        self.begin(range(len(parameters)))

    def begin(self, awaited: Iterable[int]) -> None:
        """A backward begins: these places must be filled before the bucket may leave."""
        self.pending, self.filled = set(awaited), set[int]()
        self.launched = False
        self.work: comm.Work | None = None

    def mark_ready(self, place: int) -> None:
        """One parameter's gradient is complete, or there is more of it."""
        self.take(place)
        self.filled.add(place)
        self.pending.discard(place)

    def launch(self, hook: Callable[[Bucket], comm.Work | None]) -> None:
        """Let `hook` average the bucket; zeros stand where no gradient came."""
        for place in range(len(self.parameters)):
            if place not in self.filled:
                self.take(place)
        self.launched, self.work = True, hook(self)

    def wait(self) -> None:
        """Return when the average is there."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()

    def give_up(self) -> None:
        """Let nobody wait for it: the backward has failed."""
        work, self.work = self.work, None
        if work is not None:
            work.give_up()

    def take(self, place: int) -> None:
        """Put one parameter's gradient into the bucket; where there is none, the bucket holds zeros."""
        gradient, view = self.parameters[place].grad, self.views[place]
        if gradient is None:
            view.zero_()
        elif gradient is not view:  # as a view it is one until zero_grad() forgets it
            view.copy_(gradient.detach())  # which has a graph of its own after create_graph
            if self.as_view:
                self.parameters[place].grad = view

    def give(self, place: int) -> None:
        """Make the bucket's content the parameter's gradient, also where it had none."""
        parameter, view = self.parameters[place], self.views[place]
        if self.as_view:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.detach().copy_(view)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient to average, by name, in the order in which backward reaches most of them."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad and p.numel()}
    return dict(reversed(found.items()))


def average_gradients_in_buckets(
    model: nn.Module,
    group: ProcessGroup | None = None,
    algorithm: str = "ring",
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """What `average_gradients` does, with fewer and longer messages.

    Cost: one all-reduce for each bucket.
    """
    for parameters in fill(trained(model).values(), bucket_bytes):
        bucket = Bucket(parameters)
        for place in range(len(parameters)):
            bucket.take(place)
        comm.all_reduce_(bucket.flat, op=ReduceOp.AVG, algorithm=algorithm, group=group)
        for place in range(len(parameters)):
            bucket.give(place)
