"""Formulas of the all-reduce algorithms; most are two simpler collectives, one after the other.

c[r] is the size of chunk r in bytes and M the sum of all. An empty chunk is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.costs.comm.algorithms import rooted
from course_lib.costs.comm.algorithms.shards import all_gather_ring, reduce_scatter_ring
from course_lib.costs.comm.traffic import Case, CommTime, Step
from course_lib.split import split_sizes


def naive(case: Case) -> CommTime:
    """Everybody sends to rank 0, which sums and sends the sum to everybody."""
    star = rooted.star(case)
    return rooted.reduce(case, star) + rooted.broadcast(case, star)


def tree(case: Case) -> CommTime:
    """Reduce to rank 0 and broadcast from it, both along the binomial tree."""
    binomial = rooted.binomial(case)
    return rooted.reduce(case, binomial) + rooted.broadcast(case, binomial)


def ring(case: Case) -> CommTime:
    """Reduce-scatter, then all-gather: rank r sends 2M - c[r] - c[r + 1] in 2(p - 1) steps.

    Source: Patarasuk & Yuan 2009.
    """
    return reduce_scatter_ring(case) + all_gather_ring(case)


def recursive_doubling(case: Case) -> CommTime:
    """The whole tensor with partners at distance 1, 2, 4, ...: M log2 p bytes in log2 p steps.

    Source: Thakur, Rabenseifner & Gropp 2005, section 4.1.
    """
    q, distances = _power_of_two(case)
    path = [_exchange(case, d, case.nbytes) for d in distances]
    return _folded(case, [case.nbytes * len(path)] * q, [len(path)] * q, path)


def halving_doubling(case: Case) -> CommTime:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling: 2(M - c[r]) in 2 log2 p steps
    when p is a power of two and divides the length.

    Source: Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005, section 4.2.
    """
    q, distances = _power_of_two(case)
    chunks = [size * case.itemsize for size in split_sizes(case.length, q)]

    def block(r: int, d: int) -> int:  # bytes of the aligned block of d chunks that holds chunk r
        start = r - r % d
        return sum(chunks[start : start + d])

    # Halving sends the partner's block and doubling sends one's own, at each distance.
    blocks = [[block(r ^ d, d) for d in distances] + [block(r, d) for d in distances] for r in range(q)]
    doubling = [_exchange(case, d, block(0, d)) for d in distances]
    return _folded(
        case,
        sent=[sum(sizes) for sizes in blocks],
        messages=[sum(size > 0 for size in sizes) for sizes in blocks],
        path=doubling[::-1] + doubling,
    )


def hierarchical(case: Case) -> CommTime:
    """Ring reduce-scatter inside each node, ring all-reduce of each shard between the ranks of equal place in
    their nodes, ring all-gather inside each node."""
    node_size = case.node_size or case.world_size
    nodes = case.world_size // node_size
    inside = Case(world_size=node_size, length=case.length, itemsize=case.itemsize)
    between = [
        ring(Case(world_size=nodes, length=shard, itemsize=case.itemsize, node_size=1))
        for shard in split_sizes(case.length, node_size)
    ]
    return (
        _in_every_node(reduce_scatter_ring(inside), nodes)
        + _across_nodes(between)
        + _in_every_node(all_gather_ring(inside), nodes)
    )


def _in_every_node(cost: CommTime, nodes: int) -> CommTime:
    """The same traffic in each node; rank r has place r mod node_size."""
    return CommTime(
        sent_bytes=cost.sent_bytes * nodes,
        received_bytes=cost.received_bytes * nodes,
        messages=cost.messages * nodes,
        path=cost.path,
    )


def _across_nodes(costs: Sequence[CommTime]) -> CommTime:
    """Traffic of one group per place, `costs[place]`, at the same time; rank r is in node r // node_size."""
    return CommTime(
        sent_bytes=_interleave([cost.sent_bytes for cost in costs]),
        received_bytes=_interleave([cost.received_bytes for cost in costs]),
        messages=_interleave([cost.messages for cost in costs]),
        path=costs[0].beside(len(costs)).path,  # the first shard is the largest
    )


def _interleave(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(value for node in zip(*rows, strict=True) for value in node)


def _power_of_two(case: Case) -> tuple[int, list[int]]:
    """The largest power of two q <= p, and the distances 1, 2, 4, ..., q / 2."""
    rounds = case.world_size.bit_length() - 1
    return 1 << rounds, [1 << k for k in range(rounds)]


def _exchange(case: Case, distance: int, nbytes: int) -> Step:
    """Each of the q ranks sends to and receives from its partner at `distance`."""
    q, _ = _power_of_two(case)
    return case.step(nbytes, [(r, r ^ distance) for r in range(q)])


def _folded(case: Case, sent: list[int], messages: list[int], path: list[Step]) -> CommTime:
    """Cost of an exchange among q ranks, in which each receives what it sends, with the others folded in.

    Rank q + i hands its tensor to rank i before the exchange and gets the result from rank i after it.
    """
    q, p = len(sent), case.world_size
    partners = [(q + i, i) for i in range(p - q)]
    fold = [case.step(case.nbytes, partners)] if partners else []
    extra = [1] * len(partners) + [0] * (q - len(partners)) + [1] * len(partners)  # messages of each rank
    traffic = tuple(n + case.nbytes * e for n, e in zip(sent + [0] * (p - q), extra, strict=True))
    return CommTime(
        sent_bytes=traffic,
        received_bytes=traffic,
        messages=tuple(n + e for n, e in zip(messages + [0] * (p - q), extra, strict=True)),
        path=tuple(fold + path + fold),
    )
