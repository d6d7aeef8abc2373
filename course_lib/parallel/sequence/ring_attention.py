"""Attention over a shared sequence, second way: keys and values travel round a ring.

A rank has the keys of one other rank at a time. While it computes with them they are already on their way to the next
one. In backward they go round again, and their gradients travel with them: each rank adds its term. The gradients need
one hop more than the keys, since they have to come home.
Source: Liu, Zaharia & Abbeel 2023, Ring Attention, section 3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib import comm
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.savers.attention_blocks import block, block_backward, merge_
from course_lib.sequence_cut import SequenceCut

_OPERATION = "ring_attention"  # of its hops in the ledger
_BACKWARD = 2.5  # times the work of forward: five products for two, of which one makes the scores again


def ring_attention(q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence) -> Tensor:
    """Causal attention of this rank's queries to all keys.

    Shapes: q (B, A, S/p, D), k and v (B, K, S/p, D) -> (B, A, S/p, D).
    Cost: `costs.comm.context`: p - 1 hops of keys and values forward and as many backward, with p of their gradients.
    """
    result: Tensor = Ring.apply(q, k, v, shared, shared.cut)
    return result


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence, cut: SequenceCut) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)  # what is added up p times must not be rounded p times
        grouped = q.unflatten(1, (k.shape[1], -1)).to(exact)  # (B, K, G, S/p, D)
        out = torch.zeros_like(grouped)
        lse = grouped.new_full(grouped.shape[:-1], -torch.inf)
        travelling = Travelling(torch.stack([k, v]), shared, cut)
        for source in travelling.sources():
            travelling.send_on()
            keys, values = travelling.here.to(exact)
            for queries, stretch, diagonal in cut.blocks(shared.rank, source):
                part = grouped[..., queries, :]
                same = shared.same_document(source, queries, stretch)
                one, lse_of_one = block(part, keys[:, :, stretch], values[:, :, stretch], diagonal=diagonal, same=same)
                merge_(out[..., queries, :], lse[..., queries], one, lse_of_one)
            shared.spend(cut.work(shared.rank, source), f"attention to the keys of {source}")
            travelling.arrive()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.shared, ctx.cut = shared, cut
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        shared, cut = ctx.shared, ctx.cut
        grouped, g = (x.unflatten(1, (k.shape[1], -1)).to(lse.dtype) for x in (q, gradient))
        delta = (g * out).sum(-1)
        of_q = torch.zeros_like(grouped)
        travelling = Travelling(torch.stack([k, v]), shared, cut)
        gradients = Travelling(torch.zeros_like(travelling.here), shared, cut)  # of the keys that are here
        for source in travelling.sources():
            travelling.send_on()
            keys, values = travelling.here.to(lse.dtype)
            of_keys, of_values = term = torch.zeros_like(travelling.here, dtype=lse.dtype)  # this rank's
            for queries, stretch, diagonal in cut.blocks(shared.rank, source):
                parts = (grouped[..., queries, :], keys[:, :, stretch], values[:, :, stretch], g[..., queries, :])
                same = shared.same_document(source, queries, stretch)
                terms = block_backward(*parts, lse[..., queries], delta[..., queries], diagonal=diagonal, same=same)
                of_q[..., queries, :] += terms[0]
                of_keys[:, :, stretch] += terms[1]
                of_values[:, :, stretch] += terms[2]
            shared.spend(_BACKWARD * cut.work(shared.rank, source), f"backward to the keys of {source}")
            travelling.arrive()
            # What the ranks before found of these keys was under way meanwhile. After the last step it is sent home.
            gradients.arrive()
            gradients.here += term
            gradients.send_on(home=True)
        gradients.arrive()
        return of_q.to(q.dtype).flatten(1, 2), *gradients.here, None, None


class Travelling:
    """What goes round: `here` (2, B, K, S/p, D) is that of `source`, at first of this rank itself."""

    def __init__(self, own: Tensor, shared: SharedSequence, cut: SequenceCut) -> None:
        self.here, self.shared, self.cut, self.step = own, shared, cut, 0
        self._coming: Tensor | None = None
        self._under_way: list[comm.Work] = []

    def sources(self) -> list[int]:
        """Whose keys are here in each step: they come from the rank before, so the number falls."""
        return [(self.shared.rank - step) % self.shared.size for step in range(self.shared.size)]

    def send_on(self, *, home: bool = False) -> None:
        """Begin to send what is here to the next rank. After the last step that is the way `home`, or not wanted."""
        p = self.shared.size
        self.step += 1
        if p == 1 or (self.step == p and not home):
            return
        *outer, _, D = self.here.shape
        length = self.cut.count((self.shared.rank - self.step) % p)  # ranks may have unequally many positions
        self._coming = self.here.new_empty(*outer, length, D)
        self._under_way = comm.pass_on(self.here, self._coming, operation=_OPERATION, group=self.shared.group)

    def arrive(self) -> None:
        """Wait for what `send_on` began."""
        for work in self._under_way:
            work.wait()
        if self._coming is not None:
            self.here = self._coming
        self._coming, self._under_way = None, []
