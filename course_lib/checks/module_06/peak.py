"""06.8: which units are whole at the worst instant, and which policy fits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_06.llama import BLOCK, LLAMA, ROOT
from course_lib.units import GB


class _Wholes(NamedTuple):
    """Numbers of a small model's blocks and of its root; a Llama's blocks, block and root, and GB for what is whole."""

    blocks: tuple[int, ...]
    root: int
    L: int
    block: int
    outer: int
    budget: float

    @property
    def ahead(self) -> int:
        """The largest two neighbours."""
        return max(one + other for one, other in pairwise(self.blocks))

    @property
    def beside_the_largest(self) -> tuple[int, int]:
        """The two neighbours of the largest block."""
        place = self.blocks.index(max(self.blocks))
        return self.blocks[place - 1], self.blocks[place + 1]

    def fitting(self, units: int) -> int:
        """Blocks in a unit, of which so many are whole at once."""
        room = self.budget * GB / BF16 - self.outer
        return max(n for n in range(1, self.L + 1) if self.L % n == 0 and units * n * self.block <= room)


def _wholes(seed: int) -> _Wholes:
    """Other sizes for another seed; the largest block never stands beside the second largest."""
    draw = random.Random(seed)
    unit = 1 if seed == 0 else draw.choice((3, 7, 10))
    sizes = tuple(unit * n for n in (40, 50, 20, 90, 10, 60, 80))
    budget = 6.0 if seed == 0 else draw.choice((5.8, 10.0, 10.5))
    return _Wholes(sizes, 35 * unit, LLAMA.n_layers, BLOCK, ROOT, budget)


_NO_DIVISORS = tuple(float(n) for n in range(1, LLAMA.n_layers) if LLAMA.n_layers % n)
_UNEQUAL = "all units have equally many blocks, and this number does not divide that of all blocks"
_WITHOUT_ROOT = "the root is whole too, from the beginning of forward to the end of backward"

_WORST = NumberExercise(
    key="06.8",
    title="the worst instant",
    given=_wholes,
    levels={
        "forward": Group(2, (
            Ask("alone", "numbers", lambda g: g.root + max(g.blocks), {
                _WITHOUT_ROOT: lambda g: max(g.blocks),
                "two blocks? Without prefetch a block is freed before the next one is gathered": (
                    lambda g: g.root + g.ahead
                ),
                "all of them? A block is freed as soon as it has computed": lambda g: g.root + sum(g.blocks),
                "that is an average block; the worst instant is the largest one's": (
                    lambda g: g.root + sum(g.blocks) / len(g.blocks)
                ),
            }),
            Ask("ahead", "numbers", lambda g: g.root + g.ahead, {
                _WITHOUT_ROOT: lambda g: g.ahead,
                "the two largest blocks are no neighbours, so they are never whole together": (
                    lambda g: g.root + sum(sorted(g.blocks)[-2:])
                ),
                "twice the largest? Its neighbour is smaller": lambda g: g.root + 2 * max(g.blocks),
                "as without prefetch? While one block computes, the next one is there already": (
                    lambda g: g.root + max(g.blocks)
                ),
                "three blocks? The one before is freed when this one begins": (
                    lambda g: g.root + max(map(sum, zip(g.blocks, g.blocks[1:], g.blocks[2:], strict=False)))
                ),
                "that is the largest block and a neighbour of it. Look at the other pairs too": (
                    lambda g: g.root + max(g.blocks) + min(g.beside_the_largest),
                    lambda g: g.root + max(g.blocks) + max(g.beside_the_largest),
                ),
            }),
            Ask("kept", "numbers", lambda g: g.root + sum(g.blocks), {
                "SHARD_GRAD_OP does not free a block after its forward": (
                    lambda g: g.root + max(g.blocks), lambda g: g.root + g.ahead
                ),
                _WITHOUT_ROOT: lambda g: sum(g.blocks),
            }),
        ), "right: the largest block, or the largest pair of neighbours, and the root"),
        "backward": Group(1, (
            Ask("with_gradients", "numbers", lambda g: g.root + 2 * max(g.blocks), {
                "the weights alone? At the end of a block's backward its whole gradients are there as well": (
                    lambda g: g.root + max(g.blocks)
                ),
                _WITHOUT_ROOT: lambda g: 2 * max(g.blocks),
                "the root is frozen, so it has no gradients": lambda g: 2 * g.root + 2 * max(g.blocks),
                "without prefetch there is one block at a time, with its weights and gradients": (
                    lambda g: g.root + 2 * g.ahead, lambda g: g.root + g.ahead + max(g.blocks)
                ),
                "a block's gradients are reduced at once, so no two blocks' are there": (
                    lambda g: g.root + max(g.blocks) + sum(g.blocks), lambda g: g.root + 2 * sum(g.blocks)
                ),
            }),
        ), "right: weights and gradients of one block, then the gradients are gone as well"),
        "policy": Group(2, (
            Ask("group_ahead", "blocks", lambda g: g.fitting(2), {
                "that fits without prefetch; with it two units are whole at once": lambda g: g.fitting(1),
                "it fits, but so does a larger unit": lambda g: g.fitting(2) / 2,
                "over the budget, even with one unit at a time": lambda g: 2 * g.fitting(1),
                _UNEQUAL: _NO_DIVISORS,
            }, collective=False),
            Ask("group_alone", "blocks", lambda g: g.fitting(1), {
                "it fits, but so does a larger unit: without prefetch only one is whole at a time": (
                    lambda g: g.fitting(1) / 2
                ),
                "that is all blocks at once, with the root more than the budget": lambda g: g.L,
                "over the budget: the root takes its part of it as well": lambda g: 2 * g.fitting(1),
                _UNEQUAL: _NO_DIVISORS,
            }, collective=False),
            Ask("gathers", "all-gathers", lambda g: 2 * g.L // g.fitting(2) + 1, {
                "that is forward alone: each unit is gathered again in backward": lambda g: g.L // g.fitting(2) + 1,
                "the root is gathered once, not twice": lambda g: 2 * (g.L // g.fitting(2) + 1),
                "the root is gathered too": lambda g: 2 * g.L // g.fitting(2),
                "as with a unit for each block? There are several blocks in a unit": lambda g: 2 * g.L + 1,
            }, follows=lambda own, g: 2 * g.L / own["group_ahead"] + 1, collective=False),
        ), "right. Large units mean fewer and longer messages, and more that is whole at once"),
    },
    hints=(
        "Draw a line of time. Which blocks are whole while block 3 computes, if the next one is gathered already?",
        "With prefetch the sum of two neighbours counts, and the largest pair need not hold the largest block.",
        "At the end of a block's backward its weights are still whole and its gradients are complete.",
        "budget / 2 bytes are the numbers that may be whole. Take away the root. With prefetch two units share the "
        "rest, and the number of blocks in a unit divides the number of all blocks.",
    ),
)  # fmt: skip
