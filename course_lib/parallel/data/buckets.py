"""Three ways to average gradients over the ranks. Each is there because the one before it is too slow.

1. `average_gradients`: after backward, one all-reduce for each gradient. This is right, but each all-reduce pays for
   its own starts, and a model has hundreds of gradients.
2. `average_gradients_in_buckets`: after backward, one all-reduce for each **bucket**, a long tensor in which many
   gradients lie side by side. There are few starts now, but the network is idle during backward, and all ranks are
   idle after it.
3. `Reducer`: a bucket leaves as soon as backward has filled it, and travels while earlier layers go backward. The
   library's `DistributedDataParallel` is built on this class; the care that it adds is in `guarded`.

None of them makes models equal, they only keep them so: `replicate.broadcast_state` comes before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.parallel.table.hooks import when_gradient_came
from course_lib.units import MiB

BUCKET_CAP_MB = 25
BUCKET_BYTES = BUCKET_CAP_MB * MiB
AnyTensor = TypeVar("AnyTensor", bound=Tensor)


# 1. One all-reduce for each gradient.


def average_gradients(model: nn.Module, group: ProcessGroup | None = None, algorithm: str = "ring") -> None:
    """Replace every gradient by its average over the ranks. Call it between backward and the optimizer's step.

    The average of the ranks' gradients is the gradient of the whole batch's mean loss only if all ranks hold
    equally many tokens; uneven shards would need weights, which this simple form does not have.

    Cost: one all-reduce per trained parameter; by ring each sends 2 (p - 1)/p of its bytes in 2 (p - 1) steps.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad:  # frozen, and it must be so on every rank
            continue
        gradient = parameter.grad
        if gradient is None:
            # This rank's batch did not reach the parameter. Another rank's may have, and waits for our part.
            gradient = torch.zeros_like(parameter)
        gradient = gradient.contiguous()  # a message is one piece of memory
        comm.all_reduce_(gradient, op=ReduceOp.AVG, algorithm=algorithm, group=group)
        parameter.grad = gradient


# 2. One all-reduce for each bucket.


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
        places = range(len(parameters))
        for place in places:
            bucket.take(place)
        average_now(bucket, group, algorithm)
        for place in places:
            bucket.give(place)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient to average, by name, in the order in which backward reaches most of them."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel():
            found[name] = parameter
    # Backward begins at the last layer, so what stands last in the model has its gradient first.
    return dict(reversed(found.items()))


def fill(tensors: Iterable[AnyTensor], bucket_bytes: float) -> list[list[AnyTensor]]:
    """Deal tensors out to buckets in their order; a bucket is full once it holds `bucket_bytes` or more.

    No tensor is cut. A bucket has one dtype and one device.
    """
    buckets: list[list[AnyTensor]] = []
    filling: dict[object, list[AnyTensor]] = {}  # by dtype and device, the bucket that is not yet full
    held: dict[object, int] = {}  # its bytes
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        if kind not in filling:
            filling[kind] = []
            held[kind] = 0
            buckets.append(filling[kind])
        filling[kind].append(tensor)
        held[kind] += tensor.nbytes
        if held[kind] >= bucket_bytes:
            del filling[kind]
    return buckets


class Bucket:
    """Gradients of some parameters side by side in one flat tensor, and which of them this backward still has to bring.

    `views[place]` is that part of `flat` which belongs to `parameters[place]`, in its shape. A gradient is copied into
    its view, and the average is copied out. With `as_view` nothing is copied out: the gradient *is* the view.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, as_view: bool = False) -> None:
        self.parameters, self.as_view = parameters, as_view
        first = parameters[0]
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        parts = self.flat.split(sizes)
        self.views = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        self.begin()

    def begin(self) -> None:
        """A backward begins: every place waits for its gradient."""
        self.pending = set(range(len(self.parameters)))
        self.launched = False
        self.work: comm.Work | None = None

    def mark_ready(self, place: int) -> None:
        """One parameter's gradient is complete, or there is more of it."""
        self.take(place)
        self.pending.discard(place)

    def launch(self, average: Callable[[Bucket], comm.Work | None]) -> None:
        """Let `average` work on the bucket, full or not."""
        for place in self.pending:
            self.take(place)  # zeros, unless earlier micro-batches left a gradient
        self.launched = True
        self.work = average(self)

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
        parameter, view = self.parameters[place], self.views[place]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is not view:  # with as_view it is, until zero_grad() drops it
            view.copy_(gradient.detach())  # with create_graph it has a graph of its own
            if self.as_view:
                parameter.grad = view

    def give(self, place: int) -> None:
        """Make the bucket's content the parameter's gradient, also where it had none."""
        parameter, view = self.parameters[place], self.views[place]
        if self.as_view:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            # Into the old tensor, since somebody may hold on to it.
            parameter.grad.detach().copy_(view)


def homes(buckets: Iterable[Bucket]) -> dict[nn.Parameter, tuple[Bucket, int]]:
    """Of each parameter its bucket, and its place there."""
    found = {}
    for bucket in buckets:
        for place, parameter in enumerate(bucket.parameters):
            found[parameter] = (bucket, place)
    return found


def average_now(bucket: Bucket, group: ProcessGroup | None, algorithm: str) -> None:
    """Average one bucket over the ranks, and come back when that is done."""
    comm.all_reduce_(bucket.flat, op=ReduceOp.AVG, algorithm=algorithm, group=group)


# 3. The same buckets, sent while backward goes on.


def average_in_background(bucket: Bucket, group: ProcessGroup | None, algorithm: str) -> comm.Work:
    """Begin to average one bucket, and come back at once; whoever needs the average waits for the returned work."""
    return comm.all_reduce_(bucket.flat, op=ReduceOp.AVG, algorithm=algorithm, group=group, async_op=True)


class Reducer:
    """Averages gradients during every backward. Make it once:

    reducer = Reducer([*trained(model).values()])
    loss.backward()  # leaves averages
    optimizer.step()

    Autograd calls two of the methods. Each gradient comes to `mark_ready`, which puts it into its bucket, and launches
    the bucket if that was the last one missing. When backward is through, `finish` launches what is left, waits for all
    buckets, and hands the averages out.

    This plain reducer trusts its user: every backward must reach the model on every rank, once. One rank that stays
    away lets the others wait. `guarded` trusts nobody.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: ProcessGroup | None = None,
        algorithm: str = "ring",
        bucket_bytes: float = BUCKET_BYTES,
        *,
        as_view: bool = False,
    ) -> None:
        self.parameters, self.group, self.algorithm = parameters, group, algorithm
        self.bucket_bytes, self.as_view = bucket_bytes, as_view
        self.running = False  # a backward
        self.fill_buckets(parameters)
        for parameter in parameters:
            # As PyTorch's register_post_accumulate_grad_hook, but the parameter does not keep the reducer alive.
            when_gradient_came(parameter, self.mark_ready)

    def fill_buckets(self, parameters: Iterable[nn.Parameter]) -> None:
        """New buckets of these in their order."""
        parts = fill(parameters, self.bucket_bytes)
        self.buckets = [Bucket(part, as_view=self.as_view) for part in parts]
        self.home = homes(self.buckets)

    def begin(self) -> None:
        """Backward has come to the model: all buckets wait for their gradients anew."""
        self.running = True
        self.launched = 0  # buckets
        for bucket in self.buckets:
            bucket.begin()
        # No hook tells that a backward has ended. This is how PyTorch's own wrappers hear of it.
        Variable._execution_engine.queue_callback(self.finish)

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """One parameter's gradient is complete."""
        if not self.running:
            self.begin()
        bucket, place = self.home[parameter]
        bucket.mark_ready(place)
        self.launch_full()

    def launch_full(self) -> None:
        """Launch the buckets in which no gradient is missing, but none before its turn."""
        # Ranks may fill their buckets in different orders. If they also sent them so, one rank's bucket 2 would be
        # added to another's bucket 1. So each bucket waits until all before it have left.
        while self.launched < len(self.buckets) and not self.buckets[self.launched].pending:
            self.launch_next()

    def launch_next(self) -> None:
        """Start the next bucket's all-reduce, and go back to computing."""
        bucket = self.buckets[self.launched]
        self.launched += 1
        bucket.launch(self.average)

    def average(self, bucket: Bucket) -> comm.Work | None:
        """What is done with a bucket; it may go on in the background."""
        return average_in_background(bucket, self.group, self.algorithm)

    def finish(self) -> None:
        """Backward is through: launch what is left, wait for all buckets, and hand the averages out."""
        while self.launched < len(self.buckets):
            # This rank's batch did not reach some of its parameters. The others wait for the bucket all the same.
            self.launch_next()
        for bucket in self.buckets:
            bucket.wait()
        self.running = False
        self.hand_out()

    def hand_out(self) -> None:
        """Make the averages the parameters' gradients."""
        for bucket, place in self.home.values():
            bucket.give(place)
