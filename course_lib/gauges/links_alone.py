"""The acceptance test of each link alone: an all-reduce inside each node, then one between neighbouring nodes.

A ring over all ranks is as slow as its slowest link, and does not say which one that is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from course_lib.comm.switches import settings
from course_lib.gauges.acceptance import busbw, time_rounds

_ANSWER = timedelta(seconds=60)  # a message takes seconds at most, and a link that is dead should not take half an hour


class LinkRow(NamedTuple):
    """One link. Units: bytes, bytes per second; `wrong` counts numbers of all its ranks and rounds."""

    ranks: tuple[int, ...]  # all of a node, or one of each of two
    bytes: int
    busbw: float
    wrong: int


def time_links(hosts: Sequence[str], nbytes: int, repeats: int) -> list[LinkRow]:
    """Time PyTorch's all-reduce of `nbytes` on each link of ranks that run on `hosts`; all call it and get all rows.

    Raises: RuntimeError if a link does not answer within a minute, which its own ranks get, with its ends by name.
    """
    with settings(guard=False, ledger=False):
        return [row for groups in rounds_of_links(hosts) for row in _side_by_side(groups, hosts, nbytes, repeats)]


def rounds_of_links(hosts: Sequence[str]) -> list[list[tuple[int, ...]]]:
    """Groups of ranks, round by round: each node by itself, then neighbours in the ring of nodes. One node has none.

    No node is in two pairs of a round, so that pairs do not disturb each other. The first ranks of two neighbours are a
    link, their second ranks another, and all of a pair work at once: each GPU sends through its own network card, where
    it has one, so that a slow card is seen. A ring of all ranks of both would be as slow, and not say which it is.
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    if len(nodes) == 1:
        return []
    members = [*nodes.values()]
    neighbours = zip(members, members[1:] + members[:1], strict=True)
    pairs = [[tuple(sorted(link)) for link in zip(*two, strict=False)] for two in neighbours]  # by the smaller node
    if len(members) == 2:
        pairs.pop()  # the ring's way back is its way there
    even = len(members) // 2 * 2
    parts = pairs[:even:2], pairs[1:even:2], pairs[even:]  # of an odd ring the last pair by itself
    inside = [tuple(ranks) for ranks in members if len(ranks) > 1]
    between = [[link for pair in part for link in pair] for part in parts]
    return [groups for groups in (inside, *between) if groups]


def _side_by_side(
    groups: Sequence[tuple[int, ...]], hosts: Sequence[str], nbytes: int, repeats: int
) -> Iterator[LinkRow]:
    """All of them at once. A rank that is in none has a group to itself, and keeps step with the others."""
    busy = {rank for ranks in groups for rank in ranks}
    idle = [(rank,) for rank in range(dist.get_world_size()) if rank not in busy]
    me = dist.get_rank()
    mine = next(ranks for ranks in (*groups, *idle) if me in ranks)
    with _naming(mine, hosts):
        made = {ranks: dist.new_group(list(ranks), timeout=_ANSWER) for ranks in (*groups, *idle)}
        timed = time_rounds(nbytes, repeats, made[mine])
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, timed)
    dist.destroy_process_group(made[mine])
    for ranks in groups:
        slowest = map(max, zip(*(told[rank][0] for rank in ranks), strict=True))
        rate = busbw(nbytes / statistics.median(slowest), len(ranks))
        yield LinkRow(ranks, nbytes, rate, sum(told[rank][1] for rank in ranks))


@contextmanager
def _naming(link: Sequence[int], hosts: Sequence[str]) -> Iterator[None]:
    """Say which link it was that did not answer: the backend's own error knows one address at most."""
    try:
        yield
    except RuntimeError as error:
        ends = " and ".join(f"{hosts[rank]} (rank {rank})" for rank in link)
        raise RuntimeError(f"the link between {ends} does not answer: {error}") from error
