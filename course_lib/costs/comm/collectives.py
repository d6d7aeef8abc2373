"""Exact bytes, messages and steps of every collective and algorithm, without running any of them.

The rules below are what `course_lib.comm` runs and what these formulas count; tests hold the two together.
p ranks, M bytes in the whole tensor; chunk r belongs to rank r, sized as `torch.tensor_split` does; `root` is
`src` or `dst`. An empty chunk is not sent and is not a message.

    operation       algorithm            what rank r does
    broadcast       naive                root sends M to each other rank, one after the other
                    tree                 binomial tree; v = (r - root) mod p receives from v - lowbit(v), then
                                         sends to v + d for every power of two d < lowbit(v), the largest
                                         first, with v + d < p (root: every power of two d < p)
    reduce          naive, tree          the same edges as broadcast, towards the root
    scatter         naive                root sends chunk j to rank j, one after the other
                    tree                 the edges of broadcast; the message to v holds the chunks of
                                         v .. v + lowbit(v) - 1, clipped to p, as one
    gather          naive, tree          the same edges and messages as scatter, towards the root
    all_gather      naive                sends its chunk to every other rank
                    ring                 p - 1 times to r + 1: first its own chunk, then what just came
    reduce_scatter  naive                sends chunk j to rank j, and sums what comes
                    ring                 p - 1 times to r + 1: first chunk r - 1, then what just came plus its
                                         own part; chunk r comes last and stays
    all_to_all      pairwise             in step s = 1 .. p - 1 sends chunk r + s to rank r + s
    barrier         dissemination        in step k sends one token (1 byte) to r + 2^k, ceil(log2 p) steps
    all_reduce      naive                naive reduce to rank 0, naive broadcast from it
                    tree                 tree reduce to rank 0, tree broadcast from it
                    ring                 ring reduce_scatter, ring all_gather (of the flattened tensor)
                    recursive_doubling   exchanges M with r xor 1, r xor 2, r xor 4, ...           (fold-in)
                    halving_doubling     on q chunks: exchanges halves with r xor q/2, ..., r xor 1, keeping
                                         the half with chunk r; then blocks with r xor 1, ..., r xor q/2
                                                                                                   (fold-in)
                    hierarchical         ring reduce_scatter among the node_size ranks of its node, ring
                                         all_reduce of that shard among the ranks of equal r mod node_size,
                                         ring all_gather in its node; node of r = r // node_size

Fold-in: with q the largest power of two <= p, rank q + i first sends M to rank i, waits while the q ranks
exchange, and receives M, the result, from rank i.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from course_lib.costs.comm.algorithms import all_reduce, rooted, shards
from course_lib.costs.comm.traffic import Case, CommTime
from course_lib.errors import four_parts

_Formula = Callable[[Case], CommTime]


def _rooted(formula: Callable[[Case, rooted.Tree], CommTime]) -> dict[str, _Formula]:
    """The star and the binomial variant of a collective that has a root."""
    return {
        "naive": lambda case: formula(case, rooted.star(case)),
        "tree": lambda case: formula(case, rooted.binomial(case)),
    }


def _barrier(case: Case) -> CommTime:
    """Dissemination: after step k, each rank knows of 2^(k + 1) ranks.

    Source: Hensgen, Finkel & Manber 1988.
    """
    p, token = case.world_size, case.nbytes
    distances = [1 << k for k in range((p - 1).bit_length())]
    rounds = len(distances)
    return CommTime(
        sent_bytes=(rounds * token,) * p,
        received_bytes=(rounds * token,) * p,
        messages=(rounds,) * p,
        path=tuple(case.step(token, [(r, (r + d) % p) for r in case.ranks]) for d in distances),
    )


_FORMULAS: dict[str, dict[str, _Formula]] = {
    "broadcast": _rooted(rooted.broadcast),
    "reduce": _rooted(rooted.reduce),
    "scatter": _rooted(rooted.scatter),
    "gather": _rooted(rooted.gather),
    "all_gather": {"naive": shards.all_gather_naive, "ring": shards.all_gather_ring},
    # What travels is the same as in all_to_all; reduce_scatter sums it on arrival.
    "reduce_scatter": {"naive": shards.all_to_all_pairwise, "ring": shards.reduce_scatter_ring},
    "all_to_all": {"pairwise": shards.all_to_all_pairwise},
    "barrier": {"dissemination": _barrier},
    "all_reduce": {
        "naive": all_reduce.naive,
        "ring": all_reduce.ring,
        "tree": all_reduce.tree,
        "recursive_doubling": all_reduce.recursive_doubling,
        "halving_doubling": all_reduce.halving_doubling,
        "hierarchical": all_reduce.hierarchical,
    },
}
_ROOTED = ("broadcast", "reduce", "scatter", "gather")
ALGORITHMS = {operation: tuple(formulas) for operation, formulas in _FORMULAS.items()}


def comm_time(
    operation: str,
    algorithm: str,
    *,
    world_size: int,
    length: int,
    itemsize: int,
    root: int = 0,
    node_size: int | None = None,
) -> CommTime:
    """Traffic of one collective by rank, and its alpha-beta time.

    `length` counts what is split (elements, or rows of dim 0) in the whole tensor, and `itemsize` is the bytes
    of one of them; a barrier has length 1 and itemsize 1. `root` matters to the operations that have one. With
    `node_size`, ranks fill nodes in order, and steps between nodes are marked.

    Raises: ValueError for an unknown name or a value out of range.
    """
    _check_names(operation, algorithm)
    call = f"comm_time {operation} {algorithm}"
    _check_sizes(call, world_size=world_size, length=length, itemsize=itemsize)
    _check_nodes(call, algorithm, world_size, node_size)
    if operation in _ROOTED:
        _check_root(call, root, world_size)
    return _FORMULAS[operation][algorithm](
        Case(
            world_size=world_size,
            length=length,
            itemsize=itemsize,
            root=root if operation in _ROOTED else 0,
            node_size=node_size,
        )
    )


def _check_names(operation: str, algorithm: str) -> None:
    refuse = partial(four_parts, "comm_time")
    if operation not in _FORMULAS:
        raise ValueError(
            refuse(f"operation={operation!r}", "not a known operation", f"choose one of {', '.join(ALGORITHMS)}")
        )
    if algorithm not in _FORMULAS[operation]:
        raise ValueError(
            refuse(
                f"algorithm={algorithm!r}",
                f"{operation} has no such algorithm",
                f"choose one of {', '.join(ALGORITHMS[operation])}",
            )
        )


def _check_sizes(call: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(four_parts(call, f"{name}={size}", f"{name} is positive", f"give {name} >= 1"))


def _check_root(call: str, root: int, world_size: int) -> None:
    if not 0 <= root < world_size:
        raise ValueError(
            four_parts(
                call,
                f"root={root}, world_size={world_size}",
                "the root is a rank",
                f"choose root in 0..{world_size - 1}",
            )
        )


def _check_nodes(call: str, algorithm: str, world_size: int, node_size: int | None) -> None:
    """A hierarchy's nodes are alike; of others the last may have ranks left over."""
    if algorithm != "hierarchical":
        if node_size is not None and node_size < 1:
            raise ValueError(four_parts(call, f"node_size={node_size}", "a node has ranks", "give node_size >= 1"))
        return
    if node_size is None or node_size < 1 or world_size % node_size:
        choices = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise ValueError(
            four_parts(
                call,
                f"node_size={node_size}, world_size={world_size}",
                "all nodes hold the same number of ranks",
                f"choose node_size in {choices}",
            )
        )
