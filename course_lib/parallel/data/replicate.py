"""Equal models to begin with: what one rank has, all others take over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.parallel.data.buckets import BUCKET_BYTES, fill
from course_lib.parallel.table.local import own_part


def broadcast_state(model: nn.Module, group: ProcessGroup | None = None, src: int = 0) -> None:
    """Give every rank the parameters, frozen ones too, and buffers of rank `src`; ranks may have been seeded apart.

    What is on meta has nothing to give, and of a DTensor a rank has its part to give.

    Cost: one tree broadcast for about every 25 MiB.
    """
    tensors = []
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            tensors.append(own_part(tensor.detach()))
    broadcast_tensors(tensors, group, src)


def broadcast_tensors(tensors: Sequence[Tensor], group: ProcessGroup | None, src: int) -> None:
    """Copy tensors of rank `src` into those of all other ranks, many of them in one message."""
    with torch.no_grad():
        some = [tensor for tensor in tensors if tensor.numel()]
        for bucket in fill(some, BUCKET_BYTES):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            flat = comm.broadcast(flat, src=src, group=group)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
