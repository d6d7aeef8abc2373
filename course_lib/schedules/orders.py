"""In which order each rank computes, by schedule. Messages are added by `messages`.

Each function gives the order of one rank, from the number of ranks p and of micro-batches m.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.schedules.instructions import Backward, BackwardInput, BackwardWeight, Compute, Forward


def gpipe(rank: int, p: int, m: int) -> Iterator[Compute]:
    """All forward passes, then all backward passes; the activations of all m micro-batches pile up.

    Source: Huang et al. 2019, GPipe, section 2.3.
    """
    for k in range(m):
        yield Forward(rank, k)
    for k in range(m):
        yield Backward(rank, k)


def one_f_one_b(rank: int, p: int, m: int) -> Iterator[Compute]:
    """Forward until the first gradient can come back, then one forward, one backward; the bubble stays GPipe's.

    Source: Narayanan et al. 2019, PipeDream, section 3.2; with the flush of Narayanan et al. 2021, section 2.2.
    """
    # A gradient first has to come back from the last rank. Until then each rank works ahead, one forward for each rank
    # that comes after it.
    ahead = min(p - rank - 1, m)
    for k in range(ahead):
        yield Forward(rank, k)
    for k in range(m):
        if k + ahead < m:
            yield Forward(rank, k + ahead)
        yield Backward(rank, k)


def interleaved(rank: int, p: int, m: int, v: int) -> Iterator[Compute]:
    """1F1B over v stages on each rank, p micro-batches at a time: 1/v of the bubble, v times the messages.

    Source: Narayanan et al. 2021, section 2.2, and Megatron-LM's order of chunks.
    """

    def chunk_and_microbatch(step: int) -> tuple[int, int]:
        # A group of p micro-batches goes through the rank's first stage, then through its second, and so on.
        group, inside = divmod(step, p * v)
        chunk, number = divmod(inside, p)
        return chunk, group * p + number

    def forward(step: int) -> Compute:
        chunk, microbatch = chunk_and_microbatch(step)
        return Forward(chunk * p + rank, microbatch)

    def backward(step: int) -> Compute:
        chunk, microbatch = chunk_and_microbatch(step)
        last_first = v - 1 - chunk
        return Backward(last_first * p + rank, microbatch)

    # To the end of the pipe and back, and before that all micro-batches of a group through all stages but the last.
    ahead = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
    for step in range(ahead):
        yield forward(step)
    for step in range(m * v):
        if step + ahead < m * v:
            yield forward(step + ahead)
        yield backward(step)


def zero_bubble(rank: int, p: int, m: int) -> Iterator[Compute]:
    """ZB-H1: 1F1B, but gradients of weights wait: rank i lags i micro-batches with them, and fills its tail with them.

    The input's gradients then run back through the pipeline without a pause, with 1F1B's activations.
    Source: Qi et al. 2023, Zero bubble pipeline parallelism, section 2.
    """
    ahead = min(p - rank - 1, m)
    for k in range(ahead):
        yield Forward(rank, k)
    for k in range(m):
        if k + ahead < m:
            yield Forward(rank, k + ahead)
        yield BackwardInput(rank, k)
        if k >= rank:
            yield BackwardWeight(rank, k - rank)
    # Nothing comes in any more: the weights' gradients that waited fill what was the bubble.
    for k in range(max(0, m - rank), m):
        yield BackwardWeight(rank, k)
