"""The same collectives by `torch.distributed`: what one uses in earnest, behind the same signatures.

A native call hides its messages, so the ledger notes only the call and its payload. gloo refuses uneven parts
where a tensor is split; these twins pad to the longest part and cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

Begun = tuple[dist.Work, Callable[[], None]]  # a call under way, and what is left to do when it has ended


def all_reduce(x: Tensor, op: ReduceOp.RedOpType, group: ProcessGroup) -> Tensor:
    """`dist.all_reduce`, in place."""
    dist.all_reduce(x, op=op, group=group)
    return x


def all_reduce_begun(x: Tensor, op: ReduceOp.RedOpType, group: ProcessGroup) -> Begun:
    """`dist.all_reduce` with `async_op=True`, in place."""
    return _begun(dist.all_reduce(x, op=op, group=group, async_op=True), lambda: None)


def broadcast(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """`dist.broadcast`, in place."""
    dist.broadcast(x, group_src=root, group=group)
    return x


def reduce(x: Tensor, root: int, op: ReduceOp.RedOpType, group: ProcessGroup) -> Tensor:
    """`dist.reduce`, in place; only the root's result means something."""
    dist.reduce(x, group_dst=root, op=op, group=group)
    return x


def scatter(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """`dist.scatter` of padded chunks; this rank's chunk."""
    chunks = x.tensor_split(group.size())
    mine = torch.empty_like(chunks[0])
    padded = [_pad(chunk, len(mine)) for chunk in chunks] if group.rank() == root else None
    dist.scatter(mine, padded, group_src=root, group=group)
    return mine[: len(chunks[group.rank()])].clone()


def gather(shard: Tensor, lengths: list[int], root: int, group: ProcessGroup) -> Tensor | None:
    """`dist.gather` of padded shards; the whole on the root, None elsewhere."""
    if shard.is_complex():  # the one call of torch that does not itself send pairs of floats
        pairs = gather(torch.view_as_real(shard), lengths, root, group)
        return None if pairs is None else torch.view_as_complex(pairs)
    padded = _pad(shard, lengths[0])
    parts = [torch.empty_like(padded) for _ in lengths] if group.rank() == root else None
    dist.gather(padded, parts, group_dst=root, group=group)
    return _cut(parts, lengths) if parts is not None else None


def all_gather(shard: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    """`dist.all_gather` of padded shards; the whole."""
    padded = _pad(shard, lengths[0])
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return _cut(parts, lengths)


def all_gather_begun(chunks: Sequence[Tensor], group: ProcessGroup) -> Begun:
    """`dist.all_gather` of this rank's chunk into the others'; padded, so that they are filled when it has ended."""
    padded = _pad(chunks[group.rank()], len(chunks[0]))
    parts = [torch.empty_like(padded) for _ in chunks]
    return _begun(dist.all_gather(parts, padded, group=group, async_op=True), lambda: _take(chunks, parts))


def reduce_scatter_begun(chunks: Sequence[Tensor], op: ReduceOp.RedOpType, group: ProcessGroup) -> Begun:
    """`dist.reduce_scatter` of padded chunks, whose result replaces this rank's."""
    mine = torch.empty_like(chunks[0])
    padded = [_pad(chunk, len(mine)) for chunk in chunks]
    work = dist.reduce_scatter(mine, padded, op=op, group=group, async_op=True)
    return _begun(work, lambda: _take([chunks[group.rank()]], [mine]))


def reduce_scatter(x: Tensor, op: ReduceOp.RedOpType, group: ProcessGroup) -> Tensor:
    """`dist.reduce_scatter` of padded chunks; this rank's shard of the sum."""
    chunks = x.tensor_split(group.size())
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, [_pad(chunk, len(mine)) for chunk in chunks], op=op, group=group)
    return mine[: len(chunks[group.rank()])].clone()


def all_to_all(x: Tensor, group: ProcessGroup) -> Tensor:
    """`dist.all_to_all_single` with the chunks' own lengths."""
    lengths = [len(chunk) for chunk in x.tensor_split(group.size())]
    mine = lengths[group.rank()]
    received = x.new_empty(mine * group.size(), *x.shape[1:])
    dist.all_to_all_single(received, x, [mine] * group.size(), lengths, group=group)
    return received


def barrier(group: ProcessGroup) -> None:
    """`dist.barrier`."""
    dist.barrier(group=group)


def _begun(work: dist.Work | None, take: Callable[[], None]) -> Begun:
    assert work is not None
    return work, take


def _take(chunks: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    for chunk, part in zip(chunks, parts, strict=True):
        chunk.copy_(part[: len(chunk)])


def _pad(x: Tensor, length: int) -> Tensor:
    return x.contiguous() if len(x) == length else torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


def _cut(parts: list[Tensor], lengths: list[int]) -> Tensor:
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
