"""12.2: what nccl-tests must show on given wires, and what it shows where some of them are ill."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise

_GPUS = 8  # of a node
_BITS = 8
_SLOW = {400: 100, 200: 50, 100: 40}  # Gbit/s of a card that came up at another speed


class _Cluster(NamedTuple):
    """Nodes with their cards, in Gbit/s; an all-reduce of S bytes; and what one test of it has taken."""

    nodes: int
    gpus: int
    cards: int
    gbit: int
    S: int
    slow_gbit: int
    seen_ms: float

    @property
    def ranks(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus

    @property
    def factor(self) -> float:
        """How often the whole tensor a GPU sends, in a ring over all ranks: busbw over algbw."""
        return 2 * (self.ranks - 1) / self.ranks

    @property
    def card(self) -> float:
        """GB/s of one of them."""
        return self.gbit / _BITS

    @property
    def bus(self) -> float:
        """GB/s of all rings, one for each card of a node."""
        return self.cards * self.card

    @property
    def algorithm(self) -> float:
        """GB/s of the tensor itself."""
        return self.bus / self.factor

    @property
    def ms(self) -> float:
        """Of the all-reduce, without latencies."""
        return self.S / 1e6 / self.algorithm

    @property
    def slow(self) -> float:
        """GB/s of the card that came up at another speed."""
        return self.slow_gbit / _BITS

    @property
    def seen(self) -> float:
        """Busbw of the test that was run, in GB/s."""
        return self.S / 1e6 / self.seen_ms * self.factor

    @property
    def left(self) -> int:
        """How many cards of a node have carried it."""
        return round(self.seen / self.card)


def _given(seed: int) -> _Cluster:
    """Four nodes with eight cards each, unless an instructor asks for others."""
    draw = random.Random(seed)
    nodes, cards, gbit, size, left = 4, 8, 400, 2**32, 5
    if seed != 0:
        nodes, cards, gbit = draw.choice((3, 5, 6, 16)), draw.choice((4, 8)), draw.choice((100, 200, 400))
        size, left = draw.choice((2**31, 2**33)), draw.choice((3, 6, 7)) if cards == 8 else 3
    found = _Cluster(nodes, _GPUS, cards, gbit, size, _SLOW[gbit], 1.0)
    return found._replace(seen_ms=round(found.ms * cards / left, 3))


_BOTH = "that is algbw. busbw is what a wire carries: 2 (n - 1) / n times as much"

_WIRES = NumberExercise(
    key="12.2",
    title="what must the acceptance test show?",
    given=_given,
    levels={
        "healthy": Group(3, (
            Ask("card_gb", "GB/s", lambda g: g.card, {
                "those are bits. A byte has eight of them": lambda g: g.gbit,
                "the other way round: eight bits are one byte": lambda g: g.gbit * _BITS,
                "that is all cards of a node. One of them is asked": lambda g: g.bus,
            }, collective=False),
            Ask("factor", "", lambda g: g.factor, {
                "that is once round the ring. An all-reduce goes round twice": lambda g: g.factor / 2,
                "with n the nodes? Every GPU is a rank": lambda g: 2 * (g.nodes - 1) / g.nodes,
                "with n the GPUs of one node? Every GPU of all nodes is a rank": lambda g: 2 * (g.gpus - 1) / g.gpus,
                "2 is the limit for very many ranks": 2.0,
                "turned round: busbw is the larger one": lambda g: 1 / g.factor,
            }, collective=False),
            Ask("busbw_gb", "GB/s", lambda g: g.bus, {
                "that is one card. There is a ring for each card of a node, and they run at the same time": (
                    lambda g: g.card
                ),
                "those are bits. A byte has eight of them": lambda g: g.cards * g.gbit,
                "the cards of all nodes? Each ring leaves every node, so the nodes' cards carry the same bytes": (
                    lambda g: g.bus * g.nodes
                ),
                _BOTH: lambda g: g.bus / g.factor,
            }, follows=lambda own, g: g.cards * own["card_gb"], collective=False),
            Ask("algbw_gb", "GB/s", lambda g: g.algorithm, {
                "that is busbw. The tensor itself is reduced at less: over 2 (n - 1) / n": lambda g: g.bus,
                "multiplied? The tensor itself is reduced at less than what the wires carry": (
                    lambda g: g.bus * g.factor
                ),
                "over 2? That is for very many ranks. Here it is 2 (n - 1) / n": lambda g: g.bus / 2,
            }, follows=lambda own, g: own["busbw_gb"] / own["factor"], collective=False),
            Ask("time_ms", "ms", lambda g: g.ms, {
                "with busbw? The time is that of the tensor itself, over algbw": lambda g: g.ms / g.factor,
                "those are seconds": lambda g: g.ms / 1e3,
                "those are microseconds, as nccl-tests prints them. Milliseconds are asked": lambda g: g.ms * 1e3,
                "GB/s are of 10**9 bytes, in nccl-tests too; these are of 2**30": lambda g: g.ms * 1e9 / 2**30,
            }, follows=lambda own, g: g.S / 1e6 / own["algbw_gb"], collective=False),
        ), "right: busbw is the wires' own speed, however many GPUs there are, so a data sheet can be beside it"),
        "ill": Group(3, (
            Ask("one_card_gb", "GB/s", lambda g: g.card, {
                _BOTH: lambda g: g.card / g.factor,
                "that is as if all cards were in use. One is": lambda g: g.bus,
                "that is as if one were missing. One is left": lambda g: (g.cards - 1) * g.card,
                "those are bits. A byte has eight of them": lambda g: g.gbit,
            }, follows=lambda own, g: own["card_gb"], collective=False),
            Ask("slow_gb", "GB/s", lambda g: g.cards * g.slow, {
                "that is the sum of all cards' speeds. But each ring gets an equal share of the tensor, and the "
                "all-reduce ends with the slowest ring": lambda g: (g.cards - 1) * g.card + g.slow,
                "that is the slow card alone. The other rings carry as much in the same time": lambda g: g.slow,
                "as before? The ring over the slow card needs longer, and the others wait for it": lambda g: g.bus,
                "that is without the slow card. It is still in use": lambda g: (g.cards - 1) * g.card,
                _BOTH: lambda g: g.cards * g.slow / g.factor,
            }, collective=False),
            Ask("pair_gb", "GB/s", lambda g: g.slow, {
                "over the factor of all GPUs? This test has two ranks: 2 (2 - 1) / 2 = 1": lambda g: g.slow / g.factor,
                "half of it? With two ranks the factor is 2 (2 - 1) / 2 = 1": lambda g: g.slow / 2,
                "that is a healthy card. This pair uses the slow one": lambda g: g.card,
                "those are bits. A byte has eight of them": lambda g: g.slow_gbit,
                "that is all cards of a node. Here one GPU of each node is in the test": lambda g: g.cards * g.slow,
            }, collective=False),
        ), "right: one slow card slows all of them down. The pairs tell which one it is"),
        "seen": Group(2, (
            Ask("seen_gb", "GB/s", lambda g: g.seen, {
                _BOTH: lambda g: g.seen / g.factor,
                "over 2 (n - 1) / n? busbw is larger than algbw": lambda g: g.seen / g.factor**2,
                "in MB/s? GB/s are asked": lambda g: g.seen * 1e3,
            }, follows=lambda own, g: g.S / 1e6 / g.seen_ms * own["factor"], collective=False, tolerance=1e-4),
            Ask("seen_cards", "cards", lambda g: g.left, {
                "that is how many are missing": lambda g: g.cards - g.left,
                "with algbw? Compare busbw with what one card carries": lambda g: g.left / g.factor,
                "those are all that a node has": lambda g: g.cards,
            }, follows=lambda own, g: own["seen_gb"] / own["card_gb"], collective=False, tolerance=1e-3),
        ), "right: a node has lost cards, and no program has complained"),
    },
    hints=(
        "A data sheet counts a card in bits a second, nccl-tests counts in bytes a second.",
        "busbw = algbw · 2 (n - 1) / n, with n all ranks. It is what each wire of a ring carries. NCCL lays one ring "
        "for each card of a node, each over its own card, and gives each an equal part of the tensor.",
        "An all-reduce has ended when its slowest ring has. So if one ring runs at a quarter, how long do the others "
        "wait?",
        "With two ranks 2 (n - 1) / n is 1: algbw and busbw are the same number.",
        "From a time: algbw = S / time, then busbw. How many cards is that?",
    ),
)  # fmt: skip
