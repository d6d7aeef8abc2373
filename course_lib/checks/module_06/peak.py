"""06.8: which units are whole at the worst instant, and which policy fits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise, Slips
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_06.llama import LARGE, LLAMA, numbers_of
from course_lib.units import GB, GiB


class _Wholes(NamedTuple):
    """Numbers of a small model's blocks and of its root; a Llama's blocks, block and root, and GB for what is whole."""

    sizes: tuple[int, ...]
    root: int
    L: int
    block: int
    outer: int
    budget: float

    @property
    def ahead(self) -> int:
        """The largest two neighbours."""
        return max(one + other for one, other in pairwise(self.sizes))

    @property
    def beside_the_largest(self) -> tuple[int, int]:
        """The two neighbours of the largest block."""
        place = self.sizes.index(max(self.sizes))
        return self.sizes[place - 1], self.sizes[place + 1]

    def most(self, units: int, room: float) -> int:
        """Blocks in a unit, of which so many are whole at once in the room of so many numbers; none if none fits."""
        return max((n for n in range(1, self.L + 1) if units * n * self.block <= room), default=0)

    def fitting(self, units: int, *, in_bytes: int = BF16, gb: int = GB, root: bool = True) -> int:
        """The same, where all units have equally many blocks; by these slips' bytes of a number, GB, and root."""
        room = self.budget * gb / in_bytes - self.outer * root
        return max((n for n in range(1, self.most(units, room) + 1) if self.L % n == 0), default=0)

    def unequal(self, units: int) -> int:
        """As many as fit, whether or not they divide all blocks."""
        return self.most(units, self.budget * GB / BF16 - self.outer)

    def smaller(self, units: int) -> int:
        """The next smaller number of blocks that would do."""
        return max(n for n in range(1, self.fitting(units)) if self.L % n == 0)


_POLICIES = ((LLAMA, 8.8), (LLAMA, 15.9), (LARGE, 17.5), (LARGE, 30.5), (LARGE, 37.5), (LARGE, 71.0))


def _wholes(seed: int) -> _Wholes:
    """Other sizes for another seed; the largest block never stands beside the second largest.

    The budgets are a little less than the next larger units take: so root, GiB and divisors all make a difference.
    """
    draw = random.Random(seed)
    unit = 1 if seed == 0 else draw.choice((3, 7, 10))
    sizes = tuple(unit * n for n in (40, 50, 20, 90, 10, 60, 80))
    model, budget = (LLAMA, 5.5) if seed == 0 else draw.choice(_POLICIES)
    return _Wholes(sizes, 35 * unit, model.n_layers, *numbers_of(model), budget)


def _fits_not(units: int) -> Slips:
    """What is said of a number of blocks by which a budget is exceeded."""
    return {
        "that fits without the root, which is whole as well": lambda g: g.fitting(units, root=False),
        "that fits into GiB; a GB is 10^9 bytes": lambda g: g.fitting(units, gb=GiB),
        "bytes are no numbers: in bf16 a number takes two of them": lambda g: g.fitting(units, in_bytes=1),
        _UNEQUAL: (lambda g: g.unequal(units), *_NO_DIVISORS),
        "it fits, but so does a larger unit": lambda g: g.smaller(units),
    }


_NO_DIVISORS = tuple(float(n) for n in range(1, LLAMA.n_layers) if LLAMA.n_layers % n and LARGE.n_layers % n)
_UNEQUAL = "all units have equally many blocks, and this number does not divide that of all blocks"
_WITHOUT_ROOT = "the root is whole too, from the beginning of forward to the end of backward"

_WORST = NumberExercise(
    key="06.8",
    title="the worst instant",
    given=_wholes,
    levels={
        "forward": Group(2, (
            Ask("alone", "numbers", lambda g: g.root + max(g.sizes), {
                _WITHOUT_ROOT: lambda g: max(g.sizes),
                "two blocks? Without prefetch a block is freed before the next one is gathered": (
                    lambda g: g.root + g.ahead
                ),
                "all of them? A block is freed as soon as it has computed": lambda g: g.root + sum(g.sizes),
                "that is an average block; the worst instant is the largest one's": (
                    lambda g: g.root + sum(g.sizes) / len(g.sizes)
                ),
            }),
            Ask("ahead", "numbers", lambda g: g.root + g.ahead, {
                _WITHOUT_ROOT: lambda g: g.ahead,
                "the two largest blocks are no neighbours, so they are never whole together": (
                    lambda g: g.root + sum(sorted(g.sizes)[-2:])
                ),
                "twice the largest? Its neighbour is smaller": lambda g: g.root + 2 * max(g.sizes),
                "as without prefetch? While one block computes, the next one is there already": (
                    lambda g: g.root + max(g.sizes)
                ),
                "three blocks? The one before is freed when this one begins": (
                    lambda g: g.root + max(map(sum, zip(g.sizes, g.sizes[1:], g.sizes[2:], strict=False)))
                ),
                "that is the largest block and a neighbour of it. Look at the other pairs too": (
                    lambda g: g.root + max(g.sizes) + min(g.beside_the_largest),
                    lambda g: g.root + max(g.sizes) + max(g.beside_the_largest),
                ),
            }),
            Ask("kept", "numbers", lambda g: g.root + sum(g.sizes), {
                "SHARD_GRAD_OP does not free a block after its forward": (
                    lambda g: g.root + max(g.sizes), lambda g: g.root + g.ahead
                ),
                _WITHOUT_ROOT: lambda g: sum(g.sizes),
            }),
        ), "right: the largest block, or the largest pair of neighbours, and the root"),
        "backward": Group(1, (
            Ask("with_gradients", "numbers", lambda g: g.root + 2 * max(g.sizes), {
                "the weights alone? At the end of a block's backward its whole gradients are there as well": (
                    lambda g: g.root + max(g.sizes)
                ),
                _WITHOUT_ROOT: lambda g: 2 * max(g.sizes),
                "the root is frozen, so it has no gradients": lambda g: 2 * g.root + 2 * max(g.sizes),
                "without prefetch there is one block at a time, with its weights and gradients": (
                    lambda g: g.root + 2 * g.ahead, lambda g: g.root + g.ahead + max(g.sizes)
                ),
                "a block's gradients are reduced at once, so no two blocks' are there": (
                    lambda g: g.root + max(g.sizes) + sum(g.sizes), lambda g: g.root + 2 * sum(g.sizes)
                ),
            }),
        ), "right: weights and gradients of one block, then the gradients are gone as well"),
        "policy": Group(2, (
            Ask("group_ahead", "blocks", lambda g: g.fitting(2), {
                "that fits without prefetch; with it two units are whole at once": lambda g: g.fitting(1),
                **_fits_not(2),
            }, collective=False, choice=True),
            Ask("group_alone", "blocks", lambda g: g.fitting(1), {
                "with prefetch? Without it only one unit is whole at a time": lambda g: g.fitting(2),
                "that is all blocks at once, with the root more than the budget": lambda g: g.L,
                **_fits_not(1),
            }, collective=False, choice=True),
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
