"""Data parallelism at its simplest: equal models everywhere, one all-reduce for each gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.parallel.data.buckets import BUCKET_BYTES, fill
from course_lib.parallel.table.local import own_part


def broadcast_state(model: nn.Module, group: ProcessGroup | None = None, src: int = 0) -> None:
    """Give every rank the parameters, frozen ones too, and buffers of rank `src`; ranks may have been seeded apart.

    What is on meta has nothing to give, and of a DTensor a rank has its part to give.

    Cost: one tree broadcast for about every 25 MiB.
    """
    tensors = (*model.parameters(), *model.buffers())
    broadcast_tensors([own_part(x.detach()) for x in tensors if not x.is_meta], group, src)


def broadcast_tensors(tensors: Sequence[Tensor], group: ProcessGroup | None, src: int) -> None:
    """Copy tensors of rank `src` into those of all other ranks, many of them in one message."""
    with torch.no_grad():
        for bucket in fill([tensor for tensor in tensors if tensor.numel()], BUCKET_BYTES):
            flat = comm.broadcast(torch.cat([tensor.reshape(-1) for tensor in bucket]), src=src, group=group)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))


def average_gradients(model: nn.Module, group: ProcessGroup | None = None, algorithm: str = "ring") -> None:
    """Replace every gradient by its average over the ranks. Call it between backward and the optimizer's step.

    The average of the ranks' gradients is the gradient of the whole batch's mean loss only if all ranks hold
    equally many tokens; uneven shards would need weights, which this simple form does not have.

    A parameter that this rank's batch did not reach counts as zero: another rank's may have reached it. A frozen
    one is left out; it must be frozen on every rank.

    Cost: one all-reduce per trained parameter; by ring each sends 2 (p - 1)/p of its bytes in 2 (p - 1) steps.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = comm.all_reduce_(gradient.contiguous(), op=ReduceOp.AVG, algorithm=algorithm, group=group)
