"""09.1: what a rank sends for one layer's attention, if keys and values go round, are gathered, or change for heads."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16

_RING, _GATHER, _ULYSSES = 1, 2, 3  # the ways, as the text numbers them
# ranks, query heads, kv heads, and fewer kv heads than ranks: which way sends least differs between them
_SHAPES = (
    (8, 32, 8, 2), (8, 64, 8, 2), (16, 32, 16, 4), (4, 32, 8, 2), (16, 64, 16, 2), (8, 32, 16, 4), (4, 16, 8, 2)
)  # fmt: skip


class _Text(NamedTuple):
    """Query heads, kv heads, fewer kv heads, numbers of a head, positions of the one sequence, ranks."""

    A: int
    K: int
    few: int
    D: int
    S: int
    p: int

    @property
    def kv(self) -> int:
        """Bytes of all keys and values of a layer."""
        return 2 * self.K * self.D * self.S * BF16

    @property
    def hops(self) -> float:
        """Bytes of p - 1 parts of them."""
        return (self.p - 1) / self.p * self.kv

    @property
    def ring_back(self) -> float:
        """Keys and values p - 1 hops, and their gradients p hops."""
        return self.hops + self.kv

    @property
    def ring(self) -> float:
        """Forward and backward."""
        return self.hops + self.ring_back

    @property
    def gather(self) -> float:
        """Forward and backward."""
        return 2 * self.hops

    def exchanged(self, heads: float) -> float:
        """Bytes of so many heads of a rank's positions, without those that stay where they are."""
        return (self.p - 1) / self.p * heads * self.D * self.S / self.p * BF16

    @property
    def change(self) -> float:
        """By Ulysses in forward: queries and output, keys and values; a kv head is never cut, so it may be copied."""
        return self.exchanged(2 * self.A + 2 * max(self.K, self.p))

    @property
    def ulysses(self) -> float:
        """Forward and backward."""
        return 2 * self.change

    @property
    def least(self) -> int:
        """The way that sends least."""
        sent = {_RING: self.ring, _GATHER: self.gather, _ULYSSES: self.ulysses}
        return min(sent, key=lambda way: sent[way])

    @property
    def fewer(self) -> _Text:
        """The same model with fewer kv heads."""
        return self._replace(K=self.few)


def _given(seed: int) -> _Text:
    """The 8B's heads and Llama 3's longest text on 8 ranks, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    (p, A, K, few), D, S = _SHAPES[0], 128, 131072
    if seed != 0:
        (p, A, K, few), D, S = draw.choice(_SHAPES), draw.choice((64, 128)), draw.choice((32768, 65536, 131072))
    return _Text(A, K, few, D, S, p)


_NUMBERS = "with numbers in place of bytes? In bf16 each has two"
_OWN = "all p parts? A rank's own part need not come to it, so p - 1 travel"
_ONE_HOP = "that is one part. A rank also passes on what it has got from others: p - 1 parts in all"
_SUMMED = "that is what an all-reduce sends. Here nothing is added up on the way, so once round is enough"
_HOME = (
    "nearly. After p - 1 hops a gradient has met all queries, but it is at the neighbour of its owner: it needs one "
    "hop more than keys and values"
)
_ENOUGH = "whole keys and values were kept in forward, so in backward only gradients travel, once: by a reduce-scatter"

_SENT = NumberExercise(
    key="09.1",
    title="what three ways send",
    given=_given,
    levels={
        "forward": Group(2, (
            Ask("kv_bytes", "bytes", lambda g: g.kv, {
                "half of it: keys without values, or numbers, where one of bf16 has two bytes": lambda g: g.kv / 2,
                "with the query heads? Keys and values have K": lambda g: g.kv * g.A / g.K,
                "that is one rank's part. The whole sequence is asked": lambda g: g.kv / g.p,
                "four bytes each? bf16 has two": lambda g: 2 * g.kv,
            }, collective=False),
            Ask("ring_forward", "bytes", lambda g: g.hops, {
                _OWN: lambda g: g.kv,
                _ONE_HOP: lambda g: g.kv / g.p,
                _SUMMED: lambda g: 2 * g.hops,
                "p - 1 times all of it? In each hop a rank passes on one part": lambda g: g.p * g.hops,
                _NUMBERS: lambda g: g.hops / BF16,
            }, follows=lambda own, g: (g.p - 1) / g.p * own["kv_bytes"], collective=False),
            Ask("gather_forward", "bytes", lambda g: g.hops, {
                _OWN: lambda g: g.kv,
                _ONE_HOP: lambda g: g.kv / g.p,
                _SUMMED: lambda g: 2 * g.hops,
                "p - 1 times all of it? In each hop a rank passes on one part": lambda g: g.p * g.hops,
                _NUMBERS: lambda g: g.hops / BF16,
            }, follows=lambda own, g: own["ring_forward"], collective=False),
            Ask("ulysses_forward", "bytes", lambda g: g.change, {
                "without the output? It is cut by heads afterwards, and has to change back": (
                    lambda g: g.exchanged(g.A + 2 * g.K)
                ),
                "that is all ranks together. A rank has S / p positions to give away": lambda g: g.p * g.change,
                "a rank keeps what belongs to its own heads: of p parts p - 1 travel": (
                    lambda g: g.p / (g.p - 1) * g.change
                ),
                "keys and values have K heads each, and queries and output A": (
                    lambda g: g.exchanged(4 * g.A), lambda g: g.exchanged(2 * g.A + g.K)
                ),
                "queries and output change as well: to compute a head, a rank needs all of it": (
                    lambda g: g.exchanged(2 * g.K)
                ),
                _NUMBERS: lambda g: g.change / BF16,
            }, collective=False),
        ), "right: ring and all-gather send the same parts, and Ulysses a p-th of more tensors"),
        "backward": Group(2, (
            Ask("ring_backward", "bytes", lambda g: g.ring_back, {
                "that is forward once more. The gradients of keys and values travel too": lambda g: g.hops,
                _HOME: lambda g: 2 * g.hops,
                "p hops are for gradients, which have to come home. Keys and values need p - 1": lambda g: 2 * g.kv,
                "those are the gradients alone. A rank has kept only its own keys and values, so all others come round "
                "again": lambda g: g.kv,
                _NUMBERS: lambda g: g.ring_back / BF16,
            }, follows=lambda own, g: own["ring_forward"] + own["kv_bytes"], collective=False),
            Ask("gather_backward", "bytes", lambda g: g.hops, {
                _ENOUGH: lambda g: 2 * g.hops,
                "one hop more is for a ring, where gradients travel with keys and values. A reduce-scatter ends at the "
                "owner": lambda g: g.kv,
                "nothing? A key has a gradient from the queries of every rank, and they add up": 0.0,
                _NUMBERS: lambda g: g.hops / BF16,
            }, follows=lambda own, g: own["gather_forward"], collective=False),
            Ask("ulysses_backward", "bytes", lambda g: g.change, {
                "twice as much? Each exchange of forward is made once, the other way round": lambda g: 2 * g.change,
                "the gradient of the output changes too: forward ended with an exchange, so backward begins with one": (
                    lambda g: g.exchanged(g.A + 2 * g.K)
                ),
                _NUMBERS: lambda g: g.change / BF16,
            }, follows=lambda own, g: own["ulysses_forward"], collective=False),
            Ask("least", "", lambda g: g.least, {
                "its backward alone sends more than forward and backward of an all-gather": _RING,
                "add up forward and backward of each way, and compare": lambda g: _GATHER + _ULYSSES - g.least,
            }, choice=True, collective=False),
        ), "right: a ring sends most. What it buys is that no rank ever has all keys, and that hops hide"),
        "few": Group(2, (
            Ask("few_ring", "bytes", lambda g: g.fewer.ring, {
                "that is forward alone": lambda g: g.fewer.hops,
                "that is backward alone": lambda g: g.fewer.ring_back,
                _HOME: lambda g: 3 * g.fewer.hops,
                "that is with K kv heads. There are fewer now": lambda g: g.ring,
            }, follows=lambda own, g: g.few / g.K * (own["ring_forward"] + own["ring_backward"]), collective=False),
            Ask("few_gather", "bytes", lambda g: g.fewer.gather, {
                "that is forward alone": lambda g: g.fewer.hops,
                "that is with K kv heads. There are fewer now": lambda g: g.gather,
            }, follows=lambda own, g: g.few / g.K * (own["gather_forward"] + own["gather_backward"]), collective=False),
            Ask("few_ulysses", "bytes", lambda g: g.fewer.ulysses, {
                "a part of a kv head for each rank? A rank needs all of the head that its queries read, so each gets "
                "one, and a head goes to several ranks": lambda g: 2 * g.exchanged(2 * g.A + 2 * g.few),
                "that is forward alone": lambda g: g.fewer.change,
                "all of these kv heads to every rank? It needs the one that its own queries read": (
                    lambda g: 2 * g.exchanged(2 * g.A + 2 * g.few * g.p)
                ),
            }, collective=False),
            Ask("least_few", "", lambda g: g.fewer.least, {
                "its backward alone sends more than forward and backward of an all-gather": _RING,
                "compare few_gather and few_ulysses": lambda g: _GATHER + _ULYSSES - g.fewer.least,
            }, choice=True, collective=False),
        ), "right: Ulysses sends queries and output as well, and below p kv heads it saves nothing more"),
    },
    hints=(
        "Keys and values of all S positions: 2 tensors, K heads, D numbers, two bytes each. A rank has a p-th of them.",
        "Ring and all-gather: until all parts have been on all ranks, each rank has passed on p - 1 parts.",
        "Ulysses: before, a rank has all heads of S / p positions. After, it has a p-th of the heads of all positions. "
        "Of each tensor it keeps a p-th of what it had, and sends the rest. Which four tensors change?",
        "Backward of the ring: keys and values go round as in forward. A gradient starts at zero with its keys, and it "
        "must end where they belong. Count the hops for p = 2.",
        "Fewer kv heads than ranks: A / p query heads of a rank read one kv head. So p heads of keys are sent in all, "
        "some of them to several ranks.",
    ),
)  # fmt: skip
