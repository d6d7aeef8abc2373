"""How every collective begins: find the group, number the call, check the input, let the ranks compare."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_process_group_ranks

from course_lib.comm import call as calls
from course_lib.comm import clock, guard
from course_lib.comm.p2p import Port
from course_lib.comm.reductions import COMBINE, exists
from course_lib.comm.switches import active
from course_lib.errors import four_parts

NATIVE = "native"
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "broadcast": ("naive", "tree"),
    "reduce": ("naive", "tree"),
    "scatter": ("naive", "tree"),
    "gather": ("naive", "tree"),
    "all_gather": ("naive", "ring"),
    "reduce_scatter": ("naive", "ring"),
    "all_to_all": ("pairwise",),
    "barrier": ("dissemination",),
    "all_reduce": ("naive", "ring", "tree", "recursive_doubling", "halving_doubling", "hierarchical"),
}
_SPLITTING = ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")
_OF_GLOO = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
)


def open_call(
    operation: str,
    algorithm: str,
    group: ProcessGroup | None,
    x: Tensor | None = None,
    *,
    length: int | None = None,
    root: int | None = None,
    op: ReduceOp.RedOpType | None = None,
    node_size: int | None = None,
    background: bool = False,
) -> Port:
    """The port of a new call, which begins when those in the background have ended, unless it will run there itself.

    `length` is given where `x` is one shard of a whole of that many rows.
    Raises: ValueError, the same on every rank if the guard is on.
    """
    members, call = next_call(operation, group, background=background)
    problem = (
        _problem_of_kind(operation, x, members)
        or _problem_of_names(operation, algorithm, members, root)
        or _problem_of_tensor(operation, x, length, members)
        or _problem_of_dtype(operation, algorithm, x, op, members)
        or _problem_of_nodes(operation, algorithm, node_size, members)
    )
    if active.guard:
        sent = x if isinstance(x, Tensor) else None
        mine = guard.Descriptor(
            operation=operation,
            algorithm=algorithm,
            call=call,
            dtype=str(sent.dtype) if sent is not None else "",
            row=sent.shape[1:].numel() if sent is not None else 0,
            length=length if length is not None else _rows(sent),
            root=-1 if root is None else root,
            reduction=str(op),
            node_size=node_size or 0,
        )
        guard.agree(mine, problem, members)
    elif problem:
        raise ValueError(problem)
    return Port(members, operation=operation, algorithm=algorithm, call=call)


def next_call(operation: str, group: ProcessGroup | None, *, background: bool = False) -> tuple[ProcessGroup, int]:
    """The group that is meant, and the new call's number in it."""
    members = calls.resolve(group, operation)
    call = calls.next_number(members)  # a report of who waits reads it from here by this name
    if not background:
        clock.finish_background()
    return members, call


def _rows(x: Tensor | None) -> int:
    if x is None:
        return 0
    return len(x) if x.dim() else 1


def _problem_of_kind(operation: str, x: object, group: ProcessGroup) -> str:
    if x is None and operation == "barrier" or isinstance(x, Tensor):
        return ""
    values = f"a {type(x).__name__} on rank {_me(group)}"
    return four_parts(operation, values, "ranks exchange the numbers of a tensor", "pass torch.tensor(...) of it")


def _problem_of_names(operation: str, algorithm: str, group: ProcessGroup, root: int | None) -> str:
    known = (*ALGORITHMS[operation], NATIVE)
    if algorithm not in known:
        return four_parts(
            operation, f"algorithm={algorithm!r}", "it has no such algorithm", f"choose one of {', '.join(known)}"
        )
    ranks = get_process_group_ranks(group)
    if root is not None and root not in ranks:
        name = "dst" if operation in ("reduce", "gather") else "src"
        return four_parts(operation, f"{name}={root}", f"{name} is a rank of the group", f"choose {name} in {ranks}")
    return ""


def _problem_of_tensor(operation: str, x: Tensor | None, length: int | None, group: ProcessGroup) -> str:
    if x is None:
        return ""
    if operation in _SPLITTING and not x.dim():
        values = f"a tensor without dimensions on rank {_me(group)}"
        return four_parts(operation, values, "dim 0 is what the ranks share", "pass x.view(1)")
    if x.layout is not torch.strided:
        values = f"a sparse tensor on rank {_me(group)}"
        return four_parts(operation, values, "a message is contiguous memory", "pass x.to_dense()")
    if not x.is_contiguous():
        values = f"a tensor of shape {tuple(x.shape)} with strides {x.stride()} on rank {_me(group)}"
        return four_parts(operation, values, "a message is contiguous memory", "pass x.contiguous()")
    if x.numel() == 0 and not length:
        values = f"an empty tensor of shape {tuple(x.shape)} on rank {_me(group)}"
        return four_parts(operation, values, "there must be something to send", "pass at least one element")
    if length is None:
        return ""
    expected = len(range(length)[group.rank() :: group.size()])  # what tensor_split gives this rank
    if len(x) != expected:
        values = f"a shard of {_rows(x)} rows on rank {_me(group)}, length={length}, {group.size()} ranks"
        rule = f"shards follow torch.tensor_split, which gives this rank {expected}"
        return four_parts(operation, values, rule, "pass length=, the rows of the whole, and that shard")
    return ""


def _problem_of_dtype(
    operation: str, algorithm: str, x: Tensor | None, op: ReduceOp.RedOpType | None, group: ProcessGroup
) -> str:
    if op is not None and op not in COMBINE:
        return four_parts(operation, f"op={op}", "no from-scratch reduction of that kind", "use SUM, AVG, MAX or MIN")
    if x is None:
        return ""
    if op is not None and not exists(op, x.dtype):
        values = f"op={op.name} of {x.dtype}"
        if op == ReduceOp.AVG:
            return four_parts(operation, values, "an average needs floats", "pass x.float(), or use SUM")
        return four_parts(operation, values, "torch has no such reduction", "pass x in a dtype that has, as float32")
    if algorithm == NATIVE and x.dtype not in _OF_GLOO and calls.backend_for(group, x) == "gloo":
        values = f"{x.dtype} with algorithm='native'"
        way_out = f"convert it, or choose {ALGORITHMS[operation][-1]!r}, which sends any bytes"
        return four_parts(operation, values, "gloo's own calls do not know this dtype", way_out)
    return ""


def _problem_of_nodes(operation: str, algorithm: str, node_size: int | None, group: ProcessGroup) -> str:
    p = group.size()
    fitting = [n for n in range(1, p + 1) if p % n == 0]
    if algorithm == "hierarchical" and node_size not in fitting:
        return four_parts(
            operation,
            f"node_size={node_size} with {p} ranks",
            "all nodes hold equally many",
            f"choose one of {fitting}",
        )
    return ""


def _me(group: ProcessGroup) -> int:
    rank: int = get_process_group_ranks(group)[group.rank()]
    return rank
