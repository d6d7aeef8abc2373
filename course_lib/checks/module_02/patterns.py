"""02.5 to 02.7: a tree, two levels of links, and all pairs."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import Case, Level
from course_lib.checks.module_02 import inputs
from course_lib.checks.module_02.ring import ring_levels
from course_lib.comm.traces import bytes_between_nodes
from course_lib.costs.comm.collectives import comm_time
from course_lib.verify.ratios import times

_groups: dict[int, tuple[Any, Any]] = {}  # on a rank: node size -> (inside, between), made once per pool


def _tensor_and_root(case: Case, seed: int, rank: int) -> tuple[Any, ...]:
    return case.whole(seed, rank), case.root


def _broadcast(case: Case, seed: int) -> Puzzle:
    ranks = range(case.world_size)
    blocks = [[case.whole(seed, rank).reshape(-1)] for rank in ranks]
    return Puzzle(blocks=blocks, plan=[[[(case.root, 0)]] for _ in ranks])


_TREE_BROADCAST = write_exercise(
    key="02.5",
    title="tree broadcast",
    arguments=_tensor_and_root,
    puzzle=_broadcast,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "broadcast", "tree", root=case.root),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Case(world_size=4, length=9), Case(world_size=2, length=9)),
            praise="all ranks have rank 0's tensor, on 4 and on 2 ranks",
        ),
        "edges": Level(
            points=1,
            cases=(
                Case(world_size=4, length=9, root=1),
                Case(world_size=3, length=7, row=(2,), root=2, dtype="int64"),
                Case(world_size=3, length=9, root=1),
                Case(world_size=1, length=5),
            ),
            praise="right for every root, dtype and shape, on 4, 3 and 1 ranks",
        ),
        "steps": Level(
            points=2,
            cases=(
                Case(world_size=4, length=32, traffic=True),
                Case(world_size=4, length=32, root=3, traffic=True),
                Case(world_size=3, length=32, traffic=True),
                Case(world_size=7, length=32, traffic=True),
            ),
            praise="ceil(log2 p) steps, on 7 ranks too, and every rank receives the tensor once",
        ),
    },
    hints=(
        "Let everybody who has the tensor pass it on: after one step 2 ranks have it, then 4, then 8. "
        "Draw it for 4 ranks with src = 0.",
        "Number the ranks from the source: me = (rank - src) % world_size. The source is 0, whoever it is. "
        "At distance 1, 2, 4, ... each me < distance sends to me + distance, if there is such a rank.",
        "Who has me with distance <= me < 2 * distance receives in that step, from me - distance, "
        "and is a sender in all later steps. Turn me back into a rank: (me + src) % world_size.",
    ),
)


def _node_groups(case: Case, seed: int, rank: int) -> tuple[Any, ...]:
    size, p = case.node_size, case.world_size
    if size not in _groups:
        nodes = [list(range(first, first + size)) for first in range(0, p, size)]
        places = [list(range(place, p, size)) for place in range(size)]
        made = [[dist.new_group(ranks) for ranks in lists] for lists in (nodes, places)]
        _groups[size] = made[0][rank // size], made[1][rank % size]
    return (case.whole(seed, rank), *_groups[size])


def _slow_links(case: Case, matrix: list[list[int]]) -> str | None:
    """The point of the exercise: only 1/node_size of the tensor per rank crosses between nodes."""
    nodes, shard = case.world_size // case.node_size, case.length // case.node_size
    ring = comm_time("all_reduce", "ring", world_size=nodes, length=shard, itemsize=4)
    limit, got = ring.total_bytes * case.node_size, bytes_between_nodes(matrix, case.node_size)
    if got <= limit:
        return None
    advice = "reduce inside the node first, then send only one chunk per rank between nodes"
    return f"bytes between nodes {times(got / limit)} the target ({got} B, target {limit}): {advice}"


_HIERARCHICAL = write_exercise(
    key="02.6",
    title="hierarchical all-reduce",
    arguments=_node_groups,
    puzzle=inputs.everything_everywhere,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "all_reduce", "hierarchical", node_size=case.node_size),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Case(world_size=4, length=24, node_size=2),),
            praise="right on 2 nodes of 2 ranks",
        ),
        "edges": Level(
            points=1,
            cases=(
                Case(world_size=4, length=27, node_size=2),
                Case(world_size=4, length=26, node_size=4),
                Case(world_size=4, length=26, node_size=1),
                Case(world_size=3, length=20, node_size=3),
                Case(world_size=1, length=5),
            ),
            praise="right for every length, for a single node, and for nodes of one rank",
        ),
        "bytes": Level(
            points=2,
            cases=(
                Case(world_size=4, length=64, node_size=2, traffic=True),
                Case(world_size=4, length=64, node_size=1, traffic=True),
            ),
            praise="only 1/node_size of a flat exchange crosses between nodes, as the formula says",
        ),
    },
    hints=(
        "Three calls: reduce-scatter inside the node, all-reduce between the nodes, all-gather inside the node.",
        "After the first call each rank holds one chunk of its *node's* sum. "
        "The ranks with the same place in other nodes hold the same chunk of theirs: those are your `between` group.",
        "all_gather cannot know how long the whole was if the chunks differ in size: pass length=x.numel().",
    ),
    allowed=frozenset({"reduce_scatter", "all_reduce", "all_gather"}),
    forbidden_algorithm="hierarchical",
    extra=_slow_links,
)


def _all_to_all(case: Case, seed: int) -> Puzzle:
    ranks = range(case.world_size)
    plan = [[[(source, rank)] for source in ranks] for rank in ranks]
    return Puzzle(blocks=inputs.chunks_of_all(case, seed), plan=plan)


_ALL_TO_ALL = write_exercise(
    key="02.7",
    title="all-to-all",
    arguments=inputs.own_tensor,
    puzzle=_all_to_all,
    shape=lambda case, rank: (case.world_size * inputs.shard_rows(case, rank), *case.row),
    cost=lambda case: inputs.cost(case, "all_to_all", "pairwise"),
    levels=ring_levels("each rank sends (p-1)/p of its tensor in p-1 steps, as the formula says"),
    hints=(
        "In step s every rank r sends to r + s and receives from r - s (mod p): everybody has one partner to send to "
        "and one to receive from, and nobody is asked twice.",
        "You send chunks[target]. What rank `source` sends you is *its* chunk number `rank`: "
        "as long as your own chunk number `rank`, since all tensors have the same length.",
        "Keep a list of p places, put your own chunk at place rank and what came from source at place source, "
        "and torch.cat it at the end.",
    ),
)
