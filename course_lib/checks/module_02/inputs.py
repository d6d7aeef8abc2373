"""What the ranks start from and must end with: the parts that several exercises share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import Case
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime


def own_tensor(case: Case, seed: int, rank: int) -> tuple[Any, ...]:
    """Every rank has a whole tensor of its own."""
    return (case.whole(seed, rank),)


def chunks_of_all(case: Case, seed: int) -> list[list[Tensor]]:
    """Every rank's tensor in `world_size` chunks along dim 0, each flattened."""
    p = case.world_size
    return [[c.reshape(-1) for c in case.whole(seed, rank).tensor_split(p)] for rank in range(p)]


def everything_everywhere(case: Case, seed: int, chunks: int = 0) -> Puzzle:
    """All ranks end with the sum of all tensors, in `world_size` chunks or so many."""
    ranks, chunks = range(case.world_size), chunks or case.world_size
    blocks = [list(case.whole(seed, rank).reshape(-1).tensor_split(chunks)) for rank in ranks]
    return Puzzle(
        blocks=blocks, plan=[[[(source, chunk) for source in ranks] for chunk in range(chunks)] for _ in ranks]
    )


def whole_shape(case: Case, rank: int) -> tuple[int, ...]:
    """Every rank ends with the shape of the whole."""
    return (case.length, *case.row)


def shard_rows(case: Case, rank: int) -> int:
    """Rows of a rank's shard under `torch.tensor_split`."""
    return len(torch.arange(case.length).tensor_split(case.world_size)[rank])


def cost(case: Case, operation: str, algorithm: str, **more: Any) -> CommTime:
    """The formula's traffic for a case."""
    itemsize = torch.empty(0, dtype=getattr(torch, case.dtype)).element_size()
    row = torch.Size(case.row).numel()
    flat = operation in ("all_reduce", "broadcast", "reduce")
    length, size = (case.length * row, itemsize) if flat else (case.length, itemsize * row)
    return comm_time(operation, algorithm, world_size=case.world_size, length=length, itemsize=size, **more)
