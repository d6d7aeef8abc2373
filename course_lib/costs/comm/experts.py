"""What expert parallelism sends: one layer's tokens on their way to experts of other ranks, and the results back.

A layer's E experts lie over the ep ranks as `torch.tensor_split` cuts them: E_r on rank r. The router of each rank
chooses experts for its own tokens; a token that passes k experts is k rows of H numbers.

    forward     how many rows come for each expert    rank r to rank j   8 E_j bytes
                the rows themselves                   rank r to rank j   H w for each row of r's for j's experts
                what the experts made of them         the way back       as many
    backward    gradients of the results, then of the rows               the same two ways, without counts

Each row travels by itself. A token that goes to two experts of one rank is sent there twice, and no rank passes rows on
inside its node: what DeepSeek-V3 saves by choosing few nodes for each token (section 3.2.2) is not counted here. A
layer that is recomputed sends in backward what it sent in forward once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from course_lib.config import ModelConfig
from course_lib.costs.comm.context import Pass
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.comm.uneven import all_to_all_uneven, transposed
from course_lib.errors import four_parts
from course_lib.split import split_sizes

_COUNT_BYTES = 8  # an int64 for each expert


def expert_exchange(
    rows: Sequence[Sequence[int]],
    *,
    hidden_size: int,
    itemsize: int,
    when: Pass = "forward",
    node_size: int | None = None,
) -> CommTime:
    """A layer's dispatch and combine, where rank r has `rows[r][e]` rows for expert e, those that were dropped apart.

    Rank r sends (E - E_r) x 8 bytes of counts, the rows that leave it, and the results of the rows that came to it:
    (leaving + coming) x H w. Backward sends the same without counts. How much comes to a rank is decided by the
    routers of all, so one rank that many chose keeps the others waiting.
    Source: Lepikhin et al. 2020, GShard (dispatch and combine); uneven messages need the counts.
    Raises: ValueError for a size below 1, fewer experts than ranks, or a table without a column for each expert.
    """
    between = expert_rows_between(rows)
    ranks, experts = len(rows), len(rows[0])
    for name, size in (("hidden_size", hidden_size), ("itemsize", itemsize)):
        if size < 1:
            rule = f"{name} is positive"
            raise ValueError(four_parts("expert_exchange", f"{name}={size}", rule, f"give {name} >= 1"))
    row_bytes = hidden_size * itemsize
    out = [[count * row_bytes for count in row] for row in between]
    there_and_back = all_to_all_uneven(out, node_size=node_size) + all_to_all_uneven(
        transposed(out), node_size=node_size
    )
    if when == "backward":
        return there_and_back
    counts = [[_COUNT_BYTES * here for here in split_sizes(experts, ranks)]] * ranks
    return all_to_all_uneven(counts, node_size=node_size) + there_and_back


def expert_rows_between(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """How many rows each rank has for the experts of each rank, its own included.

    Shapes: (ep, E) to (ep, ep).
    Raises: ValueError for fewer experts than ranks, or a table without a column for each expert.
    """
    ranks, experts = len(rows), len(rows[0]) if rows else 0
    if not 1 <= ranks <= experts or any(len(row) != experts or min(row) < 0 for row in rows):
        values = f"{ranks} ranks, rows of {[len(row) for row in rows]}"
        rule = "every rank has an expert, and a number of rows, 0 or more, for each expert"
        raise ValueError(four_parts("expert_exchange", values, rule, "give a table of ep ranks x E experts"))
    ends = [0, *accumulate(split_sizes(experts, ranks))]
    return [[sum(row[first:last]) for first, last in pairwise(ends)] for row in rows]


def even_expert_rows(config: ModelConfig, tokens: Sequence[int]) -> list[list[int]]:
    """What a router without preferences gives: each rank's k rows a token shared out over all experts.

    `tokens[r]` are those of rank r. Where T k does not divide by E the first experts get one row more. A fair router
    is what balance losses aim at, so this is the least that the busiest rank can have.
    """
    return [list(split_sizes(count * config.experts_per_token, config.n_experts)) for count in tokens]
