"""Attention over a shared sequence, third way: for attention alone the ranks share heads instead of positions.

Heads do not look at each other. So an all-to-all gives each rank all positions of some heads, attention there is that
of one device, and another all-to-all gives the positions back. Each rank then has at least one head of queries; where
there are fewer heads of keys than ranks, several ranks get the same one, and its gradient is the sum of theirs.
Source: Jacobs et al. 2023, DeepSpeed-Ulysses, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.models.decoder import causal
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.tensors.conjugate import conjugate
from course_lib.sequence_cut import SequenceCut
from course_lib.split import split_sizes

Spans = Sequence[range]  # by rank, which heads it has


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence) -> Tensor:
    """Causal attention of this rank's queries to all keys.

    Shapes: q (B, A, S/p, D), k and v (B, K, S/p, D) -> (B, A, S/p, D); inside, all positions of A/p heads.
    Cost: `costs.comm.context`: an all-to-all of queries, one of keys and values, one of the output; backward the same.
    Raises: ValueError for more ranks than heads.
    """
    check_heads(q.shape[1], shared.size)
    of_queries = _spans(q.shape[1], shared.size)
    of_keys = _spans_of_keys(of_queries, q.shape[1] // k.shape[1])
    turn = _Turn(shared, shared.cut)
    all_q = turn.to_heads(q, of_queries)
    all_k, all_v = turn.to_heads(torch.cat([k, v], -1), of_keys).chunk(2, -1)
    mine, first, group = of_queries[shared.rank], of_keys[shared.rank].start, q.shape[1] // k.shape[1]
    reads = [head // group - first for head in mine]  # the head of keys here, for each of this rank's queries
    if len(set(map(reads.count, reads))) > 1:  # it begins or ends in the midst of a group: a head for each, then
        all_k, all_v = all_k[:, reads], all_v[:, reads]
    attention = causal if shared.documents is None else shared.documents.attention
    mixed = attention(all_q, all_k, all_v)
    shared.spend(SequenceCut(shared.cut.length, 1).work(0) * len(mine) / q.shape[1], "attention of some heads")
    return turn.to_positions(mixed, of_queries)


def check_heads(heads: int, ranks: int) -> None:
    """Refuse more ranks than heads: the last one would have nothing to compute."""
    if heads < ranks:
        values, rule = f"{heads} heads of queries, {ranks} ranks", "every rank has a head"
        raise ValueError(four_parts("ulysses", values, rule, f"choose cp <= {heads}, or the ring"))


def _spans(heads: int, ranks: int) -> Spans:
    """Which heads each rank has, as `torch.tensor_split` cuts.

    >>> _spans(5, 2)
    [range(0, 3), range(3, 5)]
    """
    ends = [0, *accumulate(split_sizes(heads, ranks))]
    return [range(start, end) for start, end in zip(ends, ends[1:], strict=False)]


def _spans_of_keys(of_queries: Spans, group: int) -> Spans:
    """Which heads of keys the ranks' queries read, `group` queries each.

    >>> _spans_of_keys(_spans(4, 4), 2)
    [range(0, 1), range(0, 1), range(1, 2), range(1, 2)]
    """
    return [range(heads.start // group, (heads.stop - 1) // group + 1) for heads in of_queries]


class _Turn:
    """Positions against heads, and back; each is the other's backward."""

    def __init__(self, shared: SharedSequence, cut: SequenceCut) -> None:
        self.shared, self.cut = shared, cut

    def to_heads(self, x: Tensor, heads: Spans) -> Tensor:
        """(B, A, S/p, D) -> (B, A/p, S, D), positions in the sequence's own order."""
        return conjugate(x, forward=lambda x: self._to_heads(x, heads), backward=lambda g: self._to_positions(g, heads))

    def to_positions(self, x: Tensor, heads: Spans) -> Tensor:
        """(B, A/p, S, D) -> (B, A, S/p, D)."""
        return conjugate(x, forward=lambda x: self._to_positions(x, heads), backward=lambda g: self._to_heads(g, heads))

    def _to_heads(self, x: Tensor, heads: Spans) -> Tensor:
        B, _, _, D = x.shape
        mine = len(heads[self.shared.rank])
        shapes = [(B, mine, self.cut.count(rank), D) for rank in range(self.shared.size)]
        outgoing = [x[:, span.start : span.stop] for span in heads]
        found = comm.all_to_all_uneven(outgoing, shapes, group=self.shared.group)
        return torch.cat(found, 2)[:, :, self.cut.natural()]

    def _to_positions(self, x: Tensor, heads: Spans) -> Tensor:
        B, _, _, D = x.shape
        here = self.cut.count(self.shared.rank)
        shapes = [(B, len(span), here, D) for span in heads]
        outgoing = [x[:, :, self.cut.positions(rank)] for rank in range(self.shared.size)]
        found = comm.all_to_all_uneven(outgoing, shapes, group=self.shared.group)
        whole = x.new_zeros(B, heads[-1].stop, here, D)
        for span, part in zip(heads, found, strict=True):
            whole[:, span.start : span.stop] += part  # of a head of keys that several ranks had, the sum
        return whole
