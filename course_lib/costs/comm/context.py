"""What context parallelism sends: one layer's attention whose queries, keys and values lie over the cp ranks.

Rank r has n_r of the S positions. B sequences, K kv heads of D numbers and w bytes a number make kv(n) = 2 B K D n w
bytes of keys and values of n positions. A query must meet the keys of all positions before it; there are three ways:

    way         forward, rank r sends      backward, rank r sends        messages of a rank
    ring        kv(S) - kv(n_{r+1})        2 kv(S) - kv(n_{r+1})         p - 1, then 2p - 1
    all-gather  kv(S) - kv(n_{r+1})        kv(S) - kv(n_r)               p - 1, then p - 1
    Ulysses     positions against heads: see `ulysses`                   3(p - 1), then 3(p - 1)

In the first two, queries and outputs stay where they are, so that the number of query heads does not matter. In the
third they travel, and with few kv heads it sends more than the others.

How the sequence is cut ("contiguous", "zigzag") changes no byte: both give a rank as many positions. All is counted in
the tensors' own dtype. A layer that is recomputed sends in backward what it sent in forward once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Literal

from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.comm.uneven import all_to_all_uneven, transposed
from course_lib.costs.model.kv_cache import kv_heads_on_rank
from course_lib.errors import four_parts
from course_lib.sequence_cut import SequenceCut
from course_lib.split import split_sizes

Pass = Literal["forward", "backward"]


def ring_attention(
    config: ModelConfig,
    cut: SequenceCut,
    *,
    batch: int,
    itemsize: int,
    when: Pass = "forward",
    tp: int = 1,
    node_size: int | None = None,
) -> CommTime:
    """Keys and values go round the ring, one message for both, and meet the queries of every rank.

    Forward takes p - 1 hops: each rank passes on its own keys and values, then what has just come, all but those that
    rank r + 1 began with, which rank r gets last. That is a ring's all-gather of which nobody keeps the whole.
    Backward lets them go round again, p - 1 hops, since nobody has kept them. Their gradients travel with them and
    grow on every rank; when the last rank has added its part they are one place short of home, so they take p hops:
    the p - 1 of an all-gather, and one more that brings rank r + 1 its own.
    Source: Liu, Zaharia & Abbeel 2023, Ring Attention, section 3.
    Raises: ValueError for a size below 1, heads that tp cannot share, or latent attention.
    """
    row = _row_bytes("ring_attention", config, batch, itemsize, tp)
    around = _round("all_gather", cut, row, node_size)
    if when == "forward" or cut.size == 1:
        return around
    return around + around + _home(around, cut, row)


def gathered_context(
    config: ModelConfig,
    cut: SequenceCut,
    *,
    batch: int,
    itemsize: int,
    when: Pass = "forward",
    tp: int = 1,
    node_size: int | None = None,
) -> CommTime:
    """Every rank gathers all keys and values before its attention, one all-gather for both.

    Every rank then finds a part of the gradient of all keys and values, and backward adds the parts up where they
    belong: a reduce-scatter. Both go round the ring, see `comm_time`. All keys and values of a layer are on each rank
    meanwhile, and nothing hides their way.
    Source: Llama Team 2024, The Llama 3 Herd of Models, section 3.3.2.
    Raises: ValueError for a size below 1, heads that tp cannot share, or latent attention.
    """
    row = _row_bytes("gathered_context", config, batch, itemsize, tp)
    return _round("all_gather" if when == "forward" else "reduce_scatter", cut, row, node_size)


def ulysses(
    config: ModelConfig,
    cut: SequenceCut,
    *,
    batch: int,
    itemsize: int,
    when: Pass = "forward",
    tp: int = 1,
    node_size: int | None = None,
) -> CommTime:
    """Before attention a rank has all heads of some positions, for it some heads of all positions.

    Rank j works on a_j heads of queries, as `torch.tensor_split` cuts those of its tp rank, and on the k_j kv heads
    that these need; of a kv head that the queries of several ranks need, each of them has a copy. Three all-to-alls:

        queries            rank r sends to rank j     a_j n_r B D w
        keys and values, in one message               2 k_j n_r B D w
        outputs            the way back               a_r n_j B D w

    so that rank r sends the sum over j != r of (a_j n_r + 2 k_j n_r + a_r n_j) B D w. Backward goes each way in
    reverse, the outputs' gradients first: the sum of (a_j n_r + a_r n_j + 2 k_r n_j) B D w. What comes home of a kv
    head from several ranks is added up there. With k_j = K/p this is (2A + 2K)/p^2 of B S D w for each of the p - 1
    others; with fewer kv heads than ranks k_j is 1, and no further rank makes the keys' messages smaller.
    Source: Jacobs et al. 2023, DeepSpeed Ulysses, section 3.
    Raises: ValueError for a size below 1, fewer heads than ranks, heads that tp cannot share, or latent attention.
    """
    kv_heads = _row_bytes("ulysses", config, batch, itemsize, tp) // (2 * batch * config.head_size * itemsize)
    heads = config.n_heads // tp
    if heads < cut.size:
        values, rule = f"{heads} heads, cp={cut.size}", "every rank has a head of queries"
        raise ValueError(four_parts("ulysses", values, rule, f"choose cp in 1..{heads}"))
    queries, keys = _heads_on_ranks(heads, kv_heads, cut.size)
    unit = batch * config.head_size * itemsize
    to_heads = [[[a * cut.count(r) * unit for a in of] for r in range(cut.size)] for of in (queries, keys)]
    q, kv = to_heads[0], [[2 * nbytes for nbytes in row] for row in to_heads[1]]
    ways = [q, kv, transposed(q)] if when == "forward" else [q, transposed(kv), transposed(q)]
    total = CommTime.nothing(cut.size)
    for sizes in ways:
        total += all_to_all_uneven(sizes, node_size=node_size)
    return total


def _heads_on_ranks(heads: int, kv_heads: int, ranks: int) -> tuple[Sequence[int], Sequence[int]]:
    """How many heads of queries each rank works on, and how many kv heads these need: A/K neighbours share one."""
    queries = split_sizes(heads, ranks)
    each = heads // kv_heads
    keys = [(last - 1) // each - first // each + 1 for first, last in pairwise([0, *accumulate(queries)])]
    return queries, keys


def _row_bytes(call: str, config: ModelConfig, batch: int, itemsize: int, tp: int) -> int:
    """Keys and values of one position: of all sequences, and of the kv heads that one of tp ranks has."""
    for name, size in (("batch", batch), ("itemsize", itemsize), ("tp", tp)):
        if size < 1:
            raise ValueError(four_parts(call, f"{name}={size}", f"{name} is positive", f"give {name} >= 1"))
    if config.latent is not None:
        rule, way_out = "keys and values are of the same size, head by head", "choose a model without latent"
        raise ValueError(four_parts(call, config.name, rule, way_out))
    return 2 * batch * kv_heads_on_rank(config, tp) * config.head_size * itemsize


def _round(operation: str, cut: SequenceCut, row_bytes: int, node_size: int | None) -> CommTime:
    return comm_time(operation, "ring", world_size=cut.size, length=cut.length, itemsize=row_bytes, node_size=node_size)


def _home(around: CommTime, cut: SequenceCut, row_bytes: int) -> CommTime:
    """A round of the gradients' `around` ring ends one rank before the owners; rank r sends rank r + 1 its own."""
    own = tuple(cut.count(rank) * row_bytes for rank in range(cut.size))
    return replace(
        around, sent_bytes=own[1:] + own[:1], received_bytes=own, messages=(1,) * cut.size, path=around.path[:1]
    )
