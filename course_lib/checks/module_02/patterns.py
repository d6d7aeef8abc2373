"""02.5 to 02.7: a tree, two levels of links, and all pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import Case, Level
from course_lib.checks.module_02 import inputs
from course_lib.checks.module_02.ring import ring_levels
from course_lib.comm.ledger import Ledger
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
        "Let everybody who has the tensor pass it on. Draw it for src = 0: after one step two ranks have the "
        "tensor, then four, then eight.",
        "Number the ranks from the source: me = (rank - src) % world_size. Then the source is number 0, whichever "
        "rank it is, and those who have the tensor are numbers 0, 1, 2, ... without a gap.",
        "Let distance be 1, 2, 4, ... as long as it is less than world_size. Everybody with me < distance sends to "
        "number me + distance, if there is one. Everybody with distance <= me < 2 * distance receives from number "
        "me - distance.",
        "comm.send wants a rank, so turn the number back into one: comm.send(x, (me + distance + src) % "
        "world_size), and on the other side comm.recv(x, (me - distance + src) % world_size). Begin with x = "
        "x.clone(), because the input must not change.",
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


def _sums(case: Case, seed: int) -> Puzzle:
    puzzle = inputs.everything_everywhere(case, seed, chunks=case.node_size)
    return replace(puzzle, mixed="is each call given its group?")


def _was_it_kept(case: Case, book: Ledger, reason: str) -> str:
    """Ranks are missing, though their numbers came over from the other nodes."""
    crossed = bytes_between_nodes(book.of("all_reduce").matrix(), case.node_size)
    if not crossed or "missing" not in reason:
        return ""
    return "; comm.all_reduce returns the sum and leaves its input as it was: did you keep what it returned?"


_HIERARCHICAL = write_exercise(
    key="02.6",
    title="hierarchical all-reduce",
    arguments=_node_groups,
    puzzle=_sums,
    also=_was_it_kept,
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
        "It takes three calls. The first and the last of them stay inside the node, so only the second one crosses. "
        "What is the least that each rank can bring to it?",
        "comm.reduce_scatter(x, group=inside) leaves each rank one chunk of its *node's* sum. The ranks with the "
        "same place in the other nodes have the same chunk of theirs, and they are your `between` group. So add up "
        "that one chunk among them.",
        "Now every rank has one chunk of the whole sum, and its node has all of them. comm.all_gather(chunk, "
        "length=len(x), group=inside) puts them together. It has to be told the length, because chunks may differ "
        "by one row.",
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
        "In step s every rank r sends to r + s and receives from r - s, both modulo p. So everybody has one partner "
        "each way, and nobody is asked by two at once.",
        "You send chunks[target]. What comes from `source` is *its* chunk number `rank`. All tensors are equally "
        "long, so that one is as long as your own chunk number `rank`, and torch.empty_like(chunks[rank]) has room "
        "for it.",
        "Keep a list `result` of p places, with your own chunk at place rank and such an empty tensor at all "
        "others. In each step start comm.irecv(result[source], source) and comm.isend(chunks[target], target), and "
        "wait for both. At the end return torch.cat(result).",
    ),
)
