"""02.2 to 02.4: the ring, in its two halves and as a whole."""

from __future__ import annotations

import random
from typing import Any

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import Case, Level
from course_lib.checks.module_02 import inputs

EQUAL = (Case(world_size=4, length=24), Case(world_size=2, length=12))
UNEVEN = (
    Case(world_size=4, length=26),
    Case(world_size=3, length=20, dtype="int64"),
    Case(world_size=4, length=3),
    Case(world_size=3, length=7, row=(5,)),
    Case(world_size=1, length=5),
)
COUNTED = (Case(world_size=4, length=64, traffic=True), Case(world_size=3, length=60, traffic=True))


def ring_levels(target: str) -> dict[str, Level]:
    """Values on equal chunks, then every length, then the ring's traffic."""
    return {
        "values": Level(points=2, again=True, cases=EQUAL, praise="right on 4 and on 2 ranks"),
        "edges": Level(points=1, cases=UNEVEN, praise="right for every length, shape and dtype, and on 1 rank"),
        "bytes": Level(points=2, cases=COUNTED, praise=target),
    }


def one_circle(case: Case, matrix: list[list[int]]) -> str | None:
    """A ring in either direction: each rank sends to one other, and who follows the messages meets all ranks."""
    targets = [[to for to, nbytes in enumerate(row) if nbytes] for row in matrix]
    for rank, found in enumerate(targets):
        if len(found) > 1:
            others = ", ".join(map(str, found))
            return (
                f"but this is no ring: rank {rank} sends to ranks {others}; in a ring it has one neighbour to send to"
            )
    met, rank = set[int](), 0
    while rank not in met and targets[rank]:
        met.add(rank)
        rank = targets[rank][0]
    if len(met) < case.world_size > 1:
        alone = ", ".join(map(str, sorted(set(range(case.world_size)) - met)))
        return f"but this is no ring: who follows the messages from rank 0 never comes to ranks {alone}"
    return None


def _reduce_scatter(case: Case, seed: int) -> Puzzle:
    ranks = range(case.world_size)
    plan = [[[(source, rank) for source in ranks]] for rank in ranks]
    return Puzzle(blocks=inputs.chunks_of_all(case, seed), plan=plan)


def _shard(case: Case, seed: int, rank: int) -> tuple[Any, ...]:
    return case.whole(seed, 0).tensor_split(case.world_size)[rank].clone(), case.length


def _all_gather(case: Case, seed: int) -> Puzzle:
    ranks = range(case.world_size)
    blocks = [[_shard(case, seed, rank)[0].reshape(-1)] for rank in ranks]
    return Puzzle(blocks=blocks, plan=[[[(source, 0)] for source in ranks] for _ in ranks])


_REDUCE_SCATTER = write_exercise(
    key="02.2",
    title="ring reduce-scatter",
    arguments=inputs.own_tensor,
    puzzle=_reduce_scatter,
    shape=lambda case, rank: (inputs.shard_rows(case, rank), *case.row),
    cost=lambda case: inputs.cost(case, "reduce_scatter", "ring"),
    extra=one_circle,
    levels=ring_levels("each rank sends (p-1)/p of the tensor in p-1 messages, as the formula says"),
    hints=(
        "Follow a single chunk. On four ranks chunk 0 has to end on rank 0, so it starts on rank 1 and travels on "
        "to 2, 3 and 0. Every rank on its way adds its own chunk 0.",
        "Now sit down at one rank. In step s, which counts 1, 2, ..., p - 1, rank r sends chunk (r - s) % p to the "
        "right. From the left comes what rank r - 1 sends, so put r - 1 in place of r: it is chunk (r - s - 1) % p.",
        "Make an inbox as long as the chunk that comes in, which may have one row more or less than the one that "
        "you send: inbox = torch.empty_like(chunks[(rank - step - 1) % world_size]).",
        "A step is incoming = comm.irecv(inbox, left), then outgoing = comm.isend(chunks[(rank - step) % "
        "world_size], right), and then a wait() for each. After that add the inbox to your own chunk of that "
        "number. When all steps are done, return chunks[rank].",
    ),
)

_ALL_GATHER = write_exercise(
    key="02.3",
    title="ring all-gather",
    arguments=_shard,
    puzzle=_all_gather,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "all_gather", "ring"),
    extra=one_circle,
    levels=ring_levels("each rank sends (p-1)/p of the whole in p-1 messages, as the formula says"),
    hints=(
        "Nothing is added here. In the first step each rank sends its own shard to the right, and in every later "
        "one it passes on what has just come in.",
        "Make room for everything first: whole = torch.empty((length, *shard.shape[1:]), dtype=shard.dtype). The "
        "chunks = whole.tensor_split(world_size) are views, so what you receive into a chunk is in its place at "
        "once. Your own goes there by chunks[rank].copy_(shard).",
        "In step s = 1, 2, ..., p - 1 rank r sends chunks[(r - s + 1) % p] to the right, and receives into "
        "chunks[(r - s) % p] from the left. Start both, wait for both, and at the end return whole.",
    ),
)


def _rows_were_cut(case: Case, matrix: list[list[int]]) -> str | None:
    """A tensor with fewer rows than ranks, whose numbers divide equally, was not sent equally."""
    if case.length >= case.world_size or len({sum(row) for row in matrix}) == 1:
        return None
    few = f"{case.length} rows are too few for {case.world_size} ranks"
    return f"but the ranks do not send equally: {few}; cut x.reshape(-1)"


def _shapes(seed: int) -> tuple[Case, ...]:
    """Rows with one side, and with two, and none at all; a side of 1 may be among them."""
    dice = random.Random(f"shapes {seed}")
    return tuple(
        Case(
            world_size=ranks,
            length=dice.randint(1, 9),
            row=tuple(dice.choices(range(1, 7), k=sides)),
            dtype=dice.choice(("float32", "int64")),
        )
        for ranks, sides in ((4, 2), (3, 1), (2, 0), (2, 3))
    )


_ALL_REDUCE = write_exercise(
    key="02.4",
    title="ring all-reduce out of the two",
    arguments=inputs.own_tensor,
    puzzle=inputs.everything_everywhere,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "all_reduce", "ring"),
    levels={
        "values": Level(points=1, again=True, cases=EQUAL, praise="right on 4 and on 2 ranks"),
        "edges": Level(
            points=1,
            cases=(Case(world_size=3, length=3, row=(2, 4)), Case(world_size=4, length=27, dtype="bfloat16"), *UNEVEN),
            praise="right for every shape and dtype, and on 1 rank",
        ),
        "any-shape": Level(
            points=1,
            cases=(),
            drawn=_shapes,
            praise="and for shapes that nobody has told you",
        ),
        "bytes": Level(
            points=1,
            cases=(*COUNTED, Case(world_size=4, length=2, row=(16,), traffic=True)),
            praise="each rank sends 2(p-1)/p of the tensor in 2(p-1) steps, as the formula says",
        ),
    },
    hints=(
        "Reduce-scatter leaves each rank one chunk of the sum, and all-gather gives every rank all the chunks. So "
        "this is two calls, one after the other.",
        "There may be fewer rows than ranks, but there are enough numbers. So flatten before you cut: x.reshape(-1) "
        "has x.numel() of them, and that is the length which all-gather asks for.",
        "shard = ring_reduce_scatter(x.reshape(-1)) is the first half and ring_all_gather(shard, x.numel()) the "
        "second. At the end .reshape(x.shape) gives the result the shape that came in.",
    ),
    allowed=frozenset({"reduce_scatter", "all_gather"}),
    extra=_rows_were_cut,
)
