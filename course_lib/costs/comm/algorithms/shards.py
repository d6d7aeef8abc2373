"""Formulas of the collectives in which each rank owns one chunk: reduce_scatter, all_gather, all_to_all.

c[r] is the size of rank r's chunk in bytes and M the sum of all. An empty chunk is not sent.
"""

from __future__ import annotations

from course_lib.costs.comm.traffic import Case, CommTime


def reduce_scatter_ring(case: Case) -> CommTime:
    """Each chunk goes once round the ring and ends, summed, on its owner: rank r passes on all but its own.

    Source: Patarasuk & Yuan 2009, section 3.
    """
    c, p, M = case.chunks, case.world_size, case.nbytes
    return CommTime(
        sent_bytes=tuple(M - c[r] for r in case.ranks),
        received_bytes=tuple(M - c[(r - 1) % p] for r in case.ranks),
        messages=tuple(_filled(c) - (c[r] > 0) for r in case.ranks),
        path=case.ring_path(),
    )


def all_gather_ring(case: Case) -> CommTime:
    """Each chunk goes once round the ring from its owner: rank r passes on all but the one r + 1 began with.

    Source: Patarasuk & Yuan 2009, section 3.
    """
    c, p, M = case.chunks, case.world_size, case.nbytes
    return CommTime(
        sent_bytes=tuple(M - c[(r + 1) % p] for r in case.ranks),
        received_bytes=tuple(M - c[r] for r in case.ranks),
        messages=tuple(_filled(c) - (c[(r + 1) % p] > 0) for r in case.ranks),
        path=case.ring_path(),
    )


def all_gather_naive(case: Case) -> CommTime:
    """Each rank sends its own chunk to every other rank."""
    c, p, M = case.chunks, case.world_size, case.nbytes
    return CommTime(
        sent_bytes=tuple((p - 1) * c[r] for r in case.ranks),
        received_bytes=tuple(M - c[r] for r in case.ranks),
        messages=tuple((p - 1) * (c[r] > 0) for r in case.ranks),
        path=case.pairwise_path(),
    )


def all_to_all_pairwise(case: Case) -> CommTime:
    """Each rank sends chunk j of its own tensor to rank j: in step s, rank r to rank r + s.

    Source: Thakur, Rabenseifner & Gropp 2005, section 3.3 (pairwise exchange).
    """
    c, p, M = case.chunks, case.world_size, case.nbytes
    return CommTime(
        sent_bytes=tuple(M - c[r] for r in case.ranks),
        received_bytes=tuple((p - 1) * c[r] for r in case.ranks),
        messages=tuple(_filled(c) - (c[r] > 0) for r in case.ranks),
        path=case.pairwise_path(),
    )


def _filled(chunks: tuple[int, ...]) -> int:
    """Number of chunks that are worth a message."""
    return sum(c > 0 for c in chunks)
