"""10.1: what a rank sends by all-reduce, gossip, local steps, top-k, dice and factors, and which way loses."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16

_PLACE = 4  # bytes
_RING, _TOP, _DICE = 1, 2, 3  # the methods, as the text numbers them
_SIDES = ((2048, 8192), (4096, 11008), (5120, 13824), (3072, 8192))


class _Wire(NamedTuple):
    """Ranks; matrices of a gradient, and their sides; one number in k; bits and bucket; columns; steps alone."""

    n: int
    L: int
    a: int
    b: int
    k: int
    bits: int
    bucket: int
    r: int
    H: int

    @property
    def P(self) -> int:
        """Numbers of the gradient."""
        return self.L * self.a * self.b

    def ring(self, numbers: float) -> float:
        """Bytes that a rank sends in a ring all-reduce of so many numbers."""
        return 2 * (self.n - 1) / self.n * numbers * BF16

    @property
    def whole(self) -> float:
        """An all-reduce of the gradient."""
        return self.ring(self.P)

    @property
    def message(self) -> float:
        """Values and places."""
        return self.P / self.k * (BF16 + _PLACE)

    @property
    def top(self) -> float:
        """Every rank's message to all others."""
        return (self.n - 1) * self.message

    @property
    def coded(self) -> float:
        """Bytes of a quantised gradient."""
        return self.P * self.bits / 8 + self.P / self.bucket * BF16

    @property
    def dice(self) -> float:
        """That to all others."""
        return (self.n - 1) * self.coded

    @property
    def factors(self) -> int:
        """Numbers of both factors of all matrices."""
        return self.L * self.r * (self.a + self.b)

    @property
    def break_even(self) -> int:
        """The smallest number of ranks at which top-k sends more than the all-reduce: n > 2 k 2 / (2 + 4)."""
        return 2 * self.k * BF16 // (BF16 + _PLACE) + 1

    @property
    def most(self) -> int:
        """The method that sends most."""
        sent = {_RING: self.whole, _TOP: self.top, _DICE: self.dice}
        return max(sent, key=lambda method: sent[method])


def _given(seed: int) -> _Wire:
    """7 billion numbers on 64 ranks, top-1 % and rank 4, unless an instructor asks for others."""
    if seed == 0:
        return _Wire(n=64, L=200, a=4096, b=8192, k=100, bits=4, bucket=512, r=4, H=50)
    draw = random.Random(seed)
    a, b = draw.choice(_SIDES)
    return _Wire(
        n=draw.choice((4, 8, 16, 32, 128, 256)), L=200 * draw.randint(1, 3), a=a, b=b,
        k=draw.choice((10, 20, 50, 200)), bits=draw.choice((2, 4, 8)), bucket=draw.choice((128, 256, 1024)),
        r=draw.choice((2, 8, 32)), H=draw.choice((10, 20, 100, 500)),
    )  # fmt: skip


_TWO_HALVES = "an all-reduce has two halves, and each sends (n - 1) / n of the bytes"
_TWO_BYTES = "those are numbers, of two bytes each"
_GATHERED = (
    "that is an all-reduce, which adds up on the way. But these messages do not add up: each of them goes to all others"
)
_ONE_MESSAGE = "that is one message, to one rank. All others need it as well"
_NORMS = "each bucket's norm travels too, in two bytes"
_SIGN = "the sign is in `bits` already"
_OWN = "a rank's own message need not travel to itself"

_FIVE = NumberExercise(
    key="10.1",
    title="what a rank sends, and who loses",
    given=_given,
    levels={
        "whole": Group(1, (
            Ask("ring_bytes", "bytes", lambda g: g.whole, {
                _TWO_HALVES: lambda g: g.whole / 2,
                _TWO_BYTES: lambda g: g.whole / BF16,
                "a rank keeps its own part in each half: (n - 1) / n": lambda g: 2 * g.P * BF16,
                "the whole gradient to each of the others? In a ring only n-ths of it travel": (
                    lambda g: (g.n - 1) * g.P * BF16
                ),
                "the gradient is there in bf16, two bytes a number, not four": lambda g: 2 * g.whole,
            }, collective=False),
            Ask("peer_bytes", "bytes", lambda g: g.P * BF16, {
                _TWO_BYTES: lambda g: g.P,
                "to two neighbours? One peer is asked": lambda g: 2 * g.P * BF16,
                "to one rank, and it sends nothing on: no n is in it": lambda g: (g.n - 1) / g.n * g.P * BF16,
            }, collective=False),
            Ask("local_bytes", "bytes", lambda g: g.whole / g.H, {
                "that is what a round sends. On average over its H steps": lambda g: g.whole,
                "times H? Fewer exchanges send less": lambda g: g.whole * g.H,
                _TWO_HALVES: lambda g: g.whole / 2 / g.H,
                "the weights take as many bytes as the gradient, and are all-reduced": lambda g: g.P * BF16 / g.H,
            }, follows=lambda own, g: own["ring_bytes"] / g.H, collective=False),
        ), "right: one peer saves no more than half of the bytes, and local steps save as much as you dare"),
        "gathered": Group(3, (
            Ask("message_bytes", "bytes", lambda g: g.message, {
                "values alone? Nobody knows where they belong": lambda g: g.P / g.k * BF16,
                "a place has four bytes, and two reach no further than 65,535": lambda g: g.P / g.k * 2 * BF16,
                "a place has four bytes, and a value two": (lambda g: g.P / g.k * 8, lambda g: g.P / g.k * 10),
                "those are numbers": lambda g: g.P / g.k,
                "a place for every number? Only those that are sent have one": (
                    lambda g: g.P / g.k * BF16 + g.P * _PLACE
                ),
            }, collective=False),
            Ask("top_bytes", "bytes", lambda g: g.top, {
                _ONE_MESSAGE: lambda g: g.message,
                _OWN: lambda g: g.n * g.message,
                _GATHERED: lambda g: 2 * (g.n - 1) / g.n * g.message,
                "(n - 1) / n is of what all messages come to together. They are n times as much": (
                    lambda g: (g.n - 1) / g.n * g.message
                ),
                "values alone? Their places travel too": lambda g: (g.n - 1) * g.P / g.k * BF16,
            }, follows=lambda own, g: (g.n - 1) * own["message_bytes"], collective=False),
            Ask("top_share", "", lambda g: g.top / g.whole, {
                "in percent? The share itself is asked, and 1 is as much as way 1 sends": (
                    lambda g: 100 * g.top / g.whole
                ),
                "upside down: of the all-reduce's bytes": lambda g: g.whole / g.top,
                "that is the share of the gradient's numbers, and the bytes on the wire are asked": lambda g: 1 / g.k,
                "of the gradient's bytes? Of what the all-reduce sends": lambda g: g.top / (g.P * BF16),
            }, follows=lambda own, g: own["top_bytes"] / own["ring_bytes"], collective=False),
            Ask("break_even", "ranks", lambda g: g.break_even, {
                "the all-reduce still sends as much or more there. One rank more": lambda g: g.break_even - 1,
                "that is without the bytes of the places": lambda g: 2 * g.k + 1,
                "an all-reduce sends the gradient nearly twice: 2 (n - 1) / n": lambda g: g.k // 3 + 1,
                "one number in k does not mean k ranks: count the bytes of both": lambda g: g.k,
            }, collective=False),
        ), "right: what does not add up on the way has to reach everybody, and that grows with the ranks"),
        "others": Group(2, (
            Ask("drawn_bytes", "bytes", lambda g: g.ring(g.P / g.k), {
                "the places need not travel: all ranks draw the same": (
                    lambda g: g.ring(g.P / g.k) * (1 + _PLACE / BF16), lambda g: g.top
                ),
                "gathered? All ranks have the same places, so their values add up": (
                    lambda g: (g.n - 1) * g.P / g.k * BF16
                ),
                _TWO_HALVES: lambda g: g.ring(g.P / g.k) / 2,
                _TWO_BYTES: lambda g: g.ring(g.P / g.k) / BF16,
                "one message? It is all-reduced": lambda g: g.P / g.k * BF16,
            }, collective=False),
            Ask("factor_bytes", "bytes", lambda g: g.ring(g.factors), {
                "one factor alone? A matrix has two, a x r and b x r": (
                    lambda g: g.ring(g.L * g.r * g.a), lambda g: g.ring(g.L * g.r * g.b)
                ),
                "that is one matrix. There are L": lambda g: g.ring(g.factors / g.L),
                "gathered? Factors are linear in the gradient, so they are all-reduced": (
                    lambda g: (g.n - 1) * g.factors * BF16
                ),
                _TWO_HALVES: lambda g: g.ring(g.factors) / 2,
                _TWO_BYTES: lambda g: g.ring(g.factors) / BF16,
                "that is for one column": lambda g: g.ring(g.factors / g.r),
            }, collective=False),
            Ask("coded_bytes", "bytes", lambda g: g.dice, {
                _ONE_MESSAGE: lambda g: g.coded,
                _OWN: lambda g: g.n * g.coded,
                _GATHERED: lambda g: 2 * (g.n - 1) / g.n * g.coded,
                _NORMS: lambda g: (g.n - 1) * g.P * g.bits / 8,
                _SIGN: lambda g: (g.n - 1) * (g.coded + g.P / 8),
                f"{_SIGN}. And {_NORMS}": lambda g: (g.n - 1) * g.P * (g.bits + 1) / 8,
                "a byte has eight bits": (
                    lambda g: (g.n - 1) * (g.P * g.bits + g.P / g.bucket * BF16), lambda g: 8 * g.dice
                ),
            }, collective=False),
            Ask("sends_most", "", lambda g: g.most, {
                "one of the others sends more": lambda g: g.most % 3 + 1,
                "another one sends more": lambda g: (g.most + 1) % 3 + 1,
            }, choice=True, collective=False),
        ), "right: what adds up on the way is cheap on any number of ranks, whatever else it loses"),
    },
    hints=(
        "A ring all-reduce of M bytes: a rank sends 2 (n - 1) / n times M, M being those of the whole gradient, two "
        "bytes a number.",
        "All-gather: what each rank has goes round the ring to all others. So a rank sends n - 1 messages, its own and "
        "those that it passes on.",
        "Top-k: a message has P / k values of 2 bytes, and as many places of 4. Break-even: (n - 1) 6 P / k is more "
        "than 2 (n - 1) / n times 2 P as soon as n is more than 4 k / 6.",
        "Which can be all-reduced? Values at the same places on all ranks can, and factors can. Values at other "
        "places, and steps of other norms, cannot: they are gathered.",
    ),
)  # fmt: skip
