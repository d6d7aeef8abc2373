"""The nine collectives: check the call, let the ranks compare it, run the chosen algorithm.

Conventions are PyTorch's: `group=None` is the default group, `src` and `dst` are global ranks. Results are new
tensors; what ends in an underscore works in place. A tensor is split along dim 0 as `torch.tensor_split` does, chunk r
for rank r. `algorithm="native"` is torch.distributed's own call. `course_lib.costs.comm_time` counts what each
algorithm sends. With the guard on, a call that does not match raises the same ValueError on every rank.
None of these calls is differentiable: autograd would know of this rank's part alone, so results are detached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, overload

from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_group_rank

from course_lib.comm import doubling, hierarchical, naive, native, pairwise, ring, tree
from course_lib.comm.opening import NATIVE, open_call
from course_lib.comm.p2p import Port, Work
from course_lib.comm.reductions import COMBINE, finish

Op = ReduceOp.RedOpType
_ALL_REDUCE = {
    "naive": naive.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "recursive_doubling": doubling.recursive_doubling,
    "halving_doubling": doubling.halving_doubling,
}
_ROOTED = {"naive": naive, "tree": tree}
_SHARDED = {"naive": naive, "ring": ring}


def all_reduce(
    x: Tensor,
    *,
    op: Op = ReduceOp.SUM,
    algorithm: str = "ring",
    group: ProcessGroup | None = None,
    node_size: int | None = None,
) -> Tensor:
    """Reduce `x` over all ranks; every rank gets the result. `node_size` belongs to "hierarchical".

    Shapes: x (...) -> (...). Not differentiable. Cost: ring 2 (p - 1)/p M bytes sent per rank, 2 (p - 1) steps.
    """
    port = open_call("all_reduce", algorithm, group, x, op=op, node_size=node_size)
    return _all_reduce(x.detach().clone(), op, algorithm, port, node_size)


@overload
def all_reduce_(
    x: Tensor,
    *,
    op: Op = ReduceOp.SUM,
    algorithm: str = "ring",
    group: ProcessGroup | None = None,
    node_size: int | None = None,
    async_op: Literal[False] = False,
) -> Tensor: ...


@overload
def all_reduce_(
    x: Tensor,
    *,
    op: Op = ReduceOp.SUM,
    algorithm: str = "ring",
    group: ProcessGroup | None = None,
    node_size: int | None = None,
    async_op: Literal[True],
) -> Work: ...


def all_reduce_(
    x: Tensor,
    *,
    op: Op = ReduceOp.SUM,
    algorithm: str = "ring",
    group: ProcessGroup | None = None,
    node_size: int | None = None,
    async_op: bool = False,
) -> Tensor | Work:
    """`all_reduce` in place; returns `x`. Not differentiable: autograd does not see that the numbers are new.

    With `async_op` it returns at once, and `x` may be used again after the returned work's `wait()`. All such calls of
    a process run on one thread in the order of their launch. Any other call lets them end first, so that a rank's
    calls have one order. With the guard on, the launch waits until all ranks have launched.
    """
    port = open_call("all_reduce", algorithm, group, x, op=op, node_size=node_size, background=async_op)
    if async_op and algorithm == NATIVE:
        return port.native_in_background("all_reduce_", x, lambda: native.all_reduce_begun(x.detach(), op, port.group))
    work = _launched(port, "all_reduce_", lambda: _all_reduce(x.detach(), op, algorithm, port, node_size), async_op)
    return x if work is None else work


def _launched(port: Port, name: str, call: Callable[[], object], async_op: bool) -> Work | None:
    """Make the call, now or on the communication thread."""
    if async_op:
        return port.in_background(name, call)
    call()
    return None


def _all_reduce(x: Tensor, op: Op, algorithm: str, port: Port, node_size: int | None) -> Tensor:
    if algorithm == NATIVE:
        with port.native(x):
            return native.all_reduce(x, op, port.group)
    flat = x.view(-1)
    if algorithm == "hierarchical":
        hierarchical.all_reduce(flat, port, COMBINE[op], node_size or port.size)
    else:
        _ALL_REDUCE[algorithm](flat, port, COMBINE[op])
    return _ended(x, op, port)


def _ended(result: Tensor, op: Op, port: Port) -> Tensor:
    """What a call gives that reduces, and the end of it."""
    port.close()
    return finish(result, op, port.size)


def reduce_scatter(
    x: Tensor, *, op: Op = ReduceOp.SUM, algorithm: str = "ring", group: ProcessGroup | None = None
) -> Tensor:
    """Reduce `x` over all ranks; rank r gets shard r of the result.

    Shapes: x (N, ...) -> (N/p, ...). Not differentiable. Cost: ring (p - 1)/p M bytes sent per rank, p - 1 steps.
    """
    port = open_call("reduce_scatter", algorithm, group, x, op=op)
    if algorithm == NATIVE:
        with port.native(x):
            return native.reduce_scatter(x.detach(), op, port.group)
    chunks = port.room(x).copy_(x.detach()).tensor_split(port.size)
    _SHARDED[algorithm].reduce_scatter(chunks, port, COMBINE[op])
    return _ended(chunks[port.rank].clone(), op, port)


def reduce_scatter_(
    x: Tensor,
    *,
    op: Op = ReduceOp.SUM,
    algorithm: str = "ring",
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """`reduce_scatter` in place: this rank's shard of the result replaces its chunk of `x`; the rest is scratch.

    With `async_op` as in `all_reduce_`.
    """
    port = open_call("reduce_scatter", algorithm, group, x, op=op, background=async_op)
    chunks = x.detach().tensor_split(port.size)
    if algorithm == NATIVE:
        begin = partial(native.reduce_scatter_begun, chunks, op, port.group)
        return _native(port, "reduce_scatter_", x, begin, async_op)

    def call() -> None:
        _SHARDED[algorithm].reduce_scatter(chunks, port, COMBINE[op])
        _ended(chunks[port.rank], op, port)

    return _launched(port, "reduce_scatter_", call, async_op)


def all_gather_(
    whole: Tensor, *, algorithm: str = "ring", group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """`all_gather` in place: this rank's shard is its chunk of `whole` already, the others' are filled in.

    With `async_op` as in `all_reduce_`.
    """
    port = open_call("all_gather", algorithm, group, whole, background=async_op)
    chunks = whole.detach().tensor_split(port.size)
    if algorithm == NATIVE:
        begin = partial(native.all_gather_begun, chunks, port.group)
        return _native(port, "all_gather_", chunks[port.rank], begin, async_op)
    return _launched(port, "all_gather_", lambda: _SHARDED[algorithm].all_gather(chunks, port), async_op)


def _native(port: Port, name: str, payload: Tensor, begin: Callable[[], native.Begun], async_op: bool) -> Work | None:
    """Make a native call: begun in the background it runs on the back end's own threads, in the order of launch."""
    work = port.native_in_background(name, payload, begin)
    if async_op:
        return work
    work.wait()
    return None


def all_gather(
    shard: Tensor, *, length: int | None = None, algorithm: str = "ring", group: ProcessGroup | None = None
) -> Tensor:
    """Put the shards of all ranks together, on every rank. `length` counts the rows of the whole: p shards' by default.

    Shapes: shard (N/p, ...) -> (N, ...). Not differentiable. Cost: (p - 1)/p M bytes sent per rank, p - 1 steps.
    """
    port, whole = _open_shard("all_gather", algorithm, group, shard, length)
    if algorithm == NATIVE:
        with port.native(shard):
            return native.all_gather(shard.detach(), _lengths(whole, port), port.group)
    _SHARDED[algorithm].all_gather(whole.tensor_split(port.size), port)
    return whole


def broadcast(x: Tensor, *, src: int = 0, algorithm: str = "tree", group: ProcessGroup | None = None) -> Tensor:
    """Give every rank a copy of `x` of rank `src`; elsewhere `x` only tells shape and dtype.

    Shapes: x (...) -> (...). Not differentiable. Cost: tree M bytes to each child, ceil(log2 p) steps.
    """
    port = open_call("broadcast", algorithm, group, x, root=src)
    result, root = x.detach().clone(), get_group_rank(port.group, src)
    if algorithm == NATIVE:
        with port.native(x):
            return native.broadcast(result, root, port.group)
    _ROOTED[algorithm].broadcast(result, root, port)
    return result


def reduce(
    x: Tensor,
    *,
    dst: int = 0,
    op: Op = ReduceOp.SUM,
    algorithm: str = "tree",
    group: ProcessGroup | None = None,
) -> Tensor | None:
    """Reduce `x` over all ranks; rank `dst` gets the result, the others None.

    Shapes: x (...) -> (...). Not differentiable. Cost: tree M bytes sent per rank, ceil(log2 p) steps.
    """
    port = open_call("reduce", algorithm, group, x, root=dst, op=op)
    result, root = x.detach().clone(), get_group_rank(port.group, dst)
    if algorithm == NATIVE:
        with port.native(x):
            native.reduce(result, root, op, port.group)
    else:
        _ROOTED[algorithm].reduce(result, root, port, COMBINE[op])
        _ended(result, op, port)
    return result if port.rank == root else None


def scatter(x: Tensor, *, src: int = 0, algorithm: str = "tree", group: ProcessGroup | None = None) -> Tensor:
    """Give rank r chunk r of `x` of rank `src`; elsewhere `x` only tells shape and dtype.

    Shapes: x (N, ...) -> (N/p, ...). Not differentiable. Cost: src sends (p - 1)/p M bytes; tree ceil(log2 p) steps.
    """
    port = open_call("scatter", algorithm, group, x, root=src)
    root = get_group_rank(port.group, src)
    if algorithm == NATIVE:
        with port.native(x):
            return native.scatter(x.detach(), root, port.group)
    chunks = x.detach().clone().tensor_split(port.size)
    _ROOTED[algorithm].scatter(chunks, root, port)
    return chunks[port.rank].clone()


def gather(
    shard: Tensor,
    *,
    dst: int = 0,
    length: int | None = None,
    algorithm: str = "tree",
    group: ProcessGroup | None = None,
) -> Tensor | None:
    """Put the shards of all ranks together on rank `dst`; the others get None. `length` as in `all_gather`.

    Shapes: shard (N/p, ...) -> (N, ...). Not differentiable.
    Cost: dst receives (p - 1)/p M bytes; tree ceil(log2 p) steps.
    """
    port, whole = _open_shard("gather", algorithm, group, shard, length, root=dst)
    root = get_group_rank(port.group, dst)
    if algorithm == NATIVE:
        with port.native(shard):
            return native.gather(shard.detach(), _lengths(whole, port), root, port.group)
    _ROOTED[algorithm].gather(whole.tensor_split(port.size), root, port)
    return whole if port.rank == root else None


def all_to_all(x: Tensor, *, algorithm: str = "pairwise", group: ProcessGroup | None = None) -> Tensor:
    """Send chunk j of `x` to rank j; the result is what came, in rank order.

    Shapes: x (N, ...) -> (p N/p, ...). Not differentiable. Cost: (p - 1)/p M bytes sent per rank, p - 1 steps.
    """
    port = open_call("all_to_all", algorithm, group, x)
    if algorithm == NATIVE:
        with port.native(x):
            return native.all_to_all(x.detach(), port.group)
    chunks = x.detach().tensor_split(port.size)
    mine = len(chunks[port.rank])
    result = x.new_empty(mine * port.size, *x.shape[1:])
    pairwise.all_to_all(chunks, [result[mine * r : mine * (r + 1)] for r in range(port.size)], port)
    return result


def barrier(*, algorithm: str = "dissemination", group: ProcessGroup | None = None) -> None:
    """Return when every rank has called it. Cost: ceil(log2 p) messages of one byte."""
    port = open_call("barrier", algorithm, group)
    if algorithm == NATIVE:
        with port.native(None):
            native.barrier(port.group)
    else:
        pairwise.barrier(port)


def _open_shard(
    operation: str,
    algorithm: str,
    group: ProcessGroup | None,
    shard: Tensor,
    length: int | None,
    root: int | None = None,
) -> tuple[Port, Tensor]:
    """The port, and the whole tensor with this rank's shard in its place."""
    port = open_call(operation, algorithm, group, shard, length=length, root=root)
    rows = len(shard) * port.size if length is None else length
    whole = shard.new_empty(rows, *shard.shape[1:])
    whole.tensor_split(port.size)[port.rank].copy_(shard.detach())
    return port, whole


def _lengths(whole: Tensor, port: Port) -> list[int]:
    return [len(chunk) for chunk in whole.tensor_split(port.size)]
