"""Before data moves, the ranks compare what they are about to do.

On send and receive a wrong length or dtype is silent garbage or an abort that nobody can catch. So each from-scratch
collective first exchanges a descriptor of fixed size, outside the ledger, and all ranks raise the same error.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm.call import words_device_of
from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What a rank is about to do; every field must be the same on all ranks."""

    operation: str
    algorithm: str
    call: int
    dtype: str
    length: int
    row: int
    root: int
    reduction: str
    node_size: int


_WAY_OUT = {
    "operation": "let every rank make the same calls in the same order",
    "call": "let every rank make the same number of calls",
    "length": "let every rank make the same calls in the same order, with tensors of one length",
    "row": "pass tensors of the same shape on every rank",
    "dtype": "convert to one dtype first, for example x.float()",
}


def agree(mine: Descriptor, problem: str, group: ProcessGroup) -> None:
    """Raise the same ValueError on every rank of `group` unless all descriptors match and no rank has a problem.

    Cost: one native all-gather of 10 numbers; one more exchange of objects only if something is wrong.
    """
    table = _rows_of_all([*map(_code, vars(mine).values()), int(bool(problem))], group)
    if bool((table == table[group.rank()]).all()) and not problem:
        return
    everyone: list[tuple[Descriptor, str]] = [(mine, problem)] * group.size()
    dist.all_gather_object(everyone, (mine, problem), group=group)
    ranks = dist.get_process_group_ranks(group)
    troubled = [(rank, text) for rank, (_, text) in zip(ranks, everyone, strict=True) if text]
    if troubled:
        raise ValueError(troubled[0][1])
    raise ValueError(_mismatch(dict(zip(ranks, (descriptor for descriptor, _ in everyone), strict=True))))


def agree_pairwise(
    operation: str, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], call: int, group: ProcessGroup
) -> None:
    """Raise the same ValueError on every rank unless each has room for exactly what every other one sends it.

    Cost: one native all-gather of 2 p + 2 numbers.
    """
    p, names = group.size(), dist.get_process_group_ranks(group)
    complete = len(outgoing) == len(incoming) == p
    sizes = [x.numel() for x in (*outgoing, *incoming)] if complete else [-1] * (2 * p)
    dtype = str(outgoing[0].dtype) if outgoing else ""
    rows = _rows_of_all([*sizes, _code(dtype), call], group).tolist()
    if short := [name for name, row in zip(names, rows, strict=True) if row[0] < 0]:
        values, rule = f"{_ranks(short)} with other than {p} parts or shapes", "there is one for each rank of the group"
        raise ValueError(four_parts(operation, values, rule, "give an empty one where nothing is to be sent"))
    for sender, receiver in ((a, b) for a in range(p) for b in range(p)):
        sent, room = rows[sender][receiver], rows[receiver][p + sender]
        if sent != room:
            values = f"rank {names[sender]} sends {sent} numbers to rank {names[receiver]}, which expects {room}"
            raise ValueError(
                four_parts(operation, values, "both ends know the size", "let ranks exchange counts first")
            )
    for field, place in (("dtype", 2 * p), ("call", 2 * p + 1)):
        if len({row[place] for row in rows}) > 1:
            values, rule = f"{field}s differ between ranks", f"all ranks must call with the same {field}"
            raise ValueError(four_parts(operation, values, rule, _WAY_OUT[field]))


def _rows_of_all(mine: Sequence[int], group: ProcessGroup) -> Tensor:
    """A few numbers of every rank, in their order. Shapes: -> (p, numbers)."""
    numbers = torch.tensor(mine, device=words_device_of(group))
    table = [torch.empty_like(numbers) for _ in range(group.size())]
    backend: Any = group._get_backend(numbers.device)
    backend.allgather([table], [numbers]).wait()  # so small a message would cost as much again by way of `dist`
    return torch.stack(table)


def _mismatch(descriptors: dict[int, Descriptor]) -> str:
    """Name the first field that differs, and who has which value."""
    for field in fields(Descriptor):
        owners: dict[object, list[int]] = {}
        for rank, descriptor in descriptors.items():
            owners.setdefault(getattr(descriptor, field.name), []).append(rank)
        if len(owners) > 1:
            values = " and ".join(f"{value} on {_ranks(ranks)}" for value, ranks in owners.items())
            first = next(iter(descriptors.values()))
            way_out = _WAY_OUT.get(field.name, f"pass the same {field.name} on every rank")
            if field.name == "length" and first.operation in ("all_gather", "gather"):
                way_out = "of uneven shards, pass length=, the rows of the whole, on every rank"
            rule = f"all ranks must call with the same {field.name}"
            return four_parts(first.operation, f"{field.name} is {values}", rule, way_out)
    return four_parts("collective", "the ranks disagree", "all ranks make the same call", "compare their code")


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _code(value: str | int) -> int:
    """A number that is equal on all ranks for equal values; Python's own hash of a string is not."""
    return value if isinstance(value, int) else zlib.crc32(value.encode())
