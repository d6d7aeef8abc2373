"""06.7: what a step of each strategy sends, and in how many calls."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_06.llama import BLOCK, LLAMA, ROOT
from course_lib.costs.comm.sharding import SentNumbers, sent_numbers
from course_lib.costs.model.strategies import DataParallel


class Units(NamedTuple):
    """L blocks of so many numbers and the root's, on p GPUs; s of them in a node; m micro-batches."""

    L: int
    block: int
    root: int
    p: int
    s: int
    m: int

    @property
    def whole(self) -> int:
        """Bytes of all weights, or gradients, in bf16."""
        return BF16 * (self.L * self.block + self.root)

    @property
    def twice(self) -> int:
        """Bytes of what FULL_SHARD gathers in a micro-batch: blocks twice, the root once."""
        return self.whole + BF16 * self.L * self.block

    def part(self, ranks: int) -> float:
        """What a ring over so many ranks sends of each byte in one phase."""
        return (ranks - 1) / ranks

    def sends(self, strategy: DataParallel, m: int = 1) -> SentNumbers:
        """Bytes that a rank sends in a step: inside the run of ranks that share a row, and across the runs."""
        found = sent_numbers(
            strategy,
            self.L * self.block + self.root,
            world_size=self.p,
            shards=self.s if strategy == "HYBRID_SHARD" else None,
            root=self.root,
            microbatches=m,
        )
        return SentNumbers(*(BF16 * one for one in found))

    @property
    def full(self) -> float:
        """FULL_SHARD's, in one micro-batch."""
        return self.sends("FULL_SHARD").inside


def units(seed: int) -> Units:
    """The 8B on four nodes of 8, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    if seed == 0:
        return Units(LLAMA.n_layers, BLOCK, ROOT, 32, 8, 4)
    return Units(draw.choice((24, 40)), BLOCK, ROOT, draw.choice((32, 64)), 8, draw.choice((3, 5)))


_TWO_PHASES = "an all-reduce has two phases, a reduce-scatter and an all-gather"
_FORWARD_ONLY = "the blocks are gathered once more in backward"
_NUMBERS = "numbers? In bf16 each of them has 2 bytes"
_ROOT_TWICE = "the root stays whole from forward to backward, so it is gathered once"

_SENDS = NumberExercise(
    key="06.7",
    title="calls and bytes of each strategy",
    given=units,
    ranks=lambda g: g.p,
    levels={
        "whole": Group(1, (
            Ask("ddp_sends", "bytes", lambda g: g.sends("DDP").across, {
                f"half of it: {_TWO_PHASES}. Or numbers, where one of bf16 has 2 bytes?": (
                    lambda g: g.part(g.p) * g.whole
                ),
                "a ring sends 2(p-1)/p of the gradients, not quite twice": lambda g: 2 * g.whole,
                "4 bytes a number? Here gradients are bf16, of 2": lambda g: 4 * g.part(g.p) * g.whole,
                "without the root? DDP averages its gradients too": lambda g: 2 * g.part(g.p) * BF16 * g.L * g.block,
            }, collective=False),
            Ask("zero_2_sends", "bytes", lambda g: g.sends("ZeRO-2").inside, {
                "that is the reduce-scatter alone; after the optimizer's step the weights are gathered": (
                    lambda g: g.part(g.p) * g.whole
                ),
                _NUMBERS: lambda g: g.sends("ZeRO-2").inside / BF16,
                "an all-reduce *and* an all-gather? A reduce-scatter is half an all-reduce": (
                    lambda g: 3 * g.part(g.p) * g.whole
                ),
                "only 1/p of it? A rank keeps a piece and still passes on the others'": lambda g: 2 * g.whole / g.p,
            }, follows=lambda own, g: own["ddp_sends"], collective=False),
            Ask("zero_2_calls", "calls", lambda g: 2 * (g.L + 1), {
                "one kind of them alone: each unit is reduced once and gathered once": lambda g: g.L + 1,
                "the root is a unit too": (lambda g: 2 * g.L, lambda g: g.L),
                "ZeRO-2 never gathers in forward or backward: its weights are whole": lambda g: 3 * (g.L + 1),
            }, collective=False),
        ), "right: ZeRO-2 sends not one byte more than DDP. It takes the all-reduce apart and updates in between"),
        "full": Group(2, (
            Ask("full_gathers", "all-gathers", lambda g: 2 * g.L + 1, {
                _FORWARD_ONLY: lambda g: g.L + 1,
                _ROOT_TWICE: lambda g: 2 * (g.L + 1),
                "the root has weights too, and is gathered once": lambda g: 2 * g.L,
            }, collective=False),
            Ask("full_scatters", "reduce-scatters", lambda g: g.L + 1, {
                "the root has gradients too": lambda g: g.L,
                "each unit's gradients are reduced once, in backward": (lambda g: 2 * g.L + 1, lambda g: 2 * (g.L + 1)),
            }, collective=False),
            Ask("full_sends", "bytes", lambda g: g.full, {
                f"three times all of it? {_ROOT_TWICE[0].upper()}{_ROOT_TWICE[1:]}": (
                    lambda g: 3 * g.part(g.p) * g.whole
                ),
                f"as much as DDP? {_FORWARD_ONLY[0].upper()}{_FORWARD_ONLY[1:]}": lambda g: 2 * g.part(g.p) * g.whole,
                "the gathers alone: the gradients' reduce-scatter comes on top": lambda g: g.part(g.p) * g.twice,
                _NUMBERS: lambda g: g.full / BF16,
                "a ring sends (p-1)/p in one phase": (lambda g: g.twice + g.whole, lambda g: 3 * g.whole),
                "without the root? It is gathered and reduced once": lambda g: 3 * g.part(g.p) * BF16 * g.L * g.block,
                f"the gradients were all-reduced, where a reduce-scatter is enough: {_TWO_PHASES}": (
                    lambda g: g.part(g.p) * (g.twice + 2 * g.whole)
                ),
            }, collective=False),
        ), "right: nearly half as much again as DDP, for blocks that are gathered a second time"),
        "hybrid": Group(1, (
            Ask("hybrid_inside", "bytes", lambda g: g.sends("HYBRID_SHARD").inside, {
                "that is FULL_SHARD over all GPUs; inside a node s ranks share": lambda g: g.full,
                _ROOT_TWICE: lambda g: 3 * g.part(g.s) * g.whole,
                _NUMBERS: lambda g: g.sends("HYBRID_SHARD").inside / BF16,
                "inside a node it gathers and reduces as FULL_SHARD does": lambda g: 2 * g.part(g.s) * g.whole,
            }, collective=False),
            Ask("hybrid_across", "bytes", lambda g: g.sends("HYBRID_SHARD").across, {
                "whole gradients? A rank has reduced a piece, an s-th of the gradients, and only that crosses": (
                    lambda g: 2 * g.part(g.p // g.s) * g.whole
                ),
                f"half of it: {_TWO_PHASES}": lambda g: g.sends("HYBRID_SHARD").across / 2,
                _NUMBERS: lambda g: g.sends("HYBRID_SHARD").across / BF16,
                "a ring over the p/s nodes sends 2(r-1)/r of the piece, with r = p/s": (
                    lambda g: 2 * g.whole / g.s, lambda g: g.whole / g.s
                ),
                "the piece is 1/s of the gradients, and the ring has p/s ranks": (
                    lambda g: 2 * g.part(g.p) * g.whole / g.s, lambda g: 2 * g.part(g.p // g.s) * g.whole / g.p
                ),
            }, collective=False),
        ), "right: between the nodes only pieces of gradients travel, and no weight ever does"),
        "micro-batches": Group(1, (
            Ask("ddp_accumulated", "bytes", lambda g: g.sends("DDP", g.m).across, {
                "DDP adds up on each rank under no_sync(), and averages once": (
                    lambda g: 2 * g.m * g.part(g.p) * g.whole
                ),
                _NUMBERS: lambda g: g.sends("DDP", g.m).across / BF16,
            }, follows=lambda own, g: own["ddp_sends"], collective=False),
            Ask("full_accumulated", "bytes", lambda g: g.sends("FULL_SHARD", g.m).inside, {
                "once for all micro-batches? Weights are freed, and there is no room for whole gradients": (
                    lambda g: g.full
                ),
                "the gradients are reduced in every micro-batch as well, since nobody has room for whole ones": (
                    lambda g: g.part(g.p) * (g.m * g.twice + g.whole)
                ),
                _NUMBERS: lambda g: g.sends("FULL_SHARD", g.m).inside / BF16,
                "the weights are gathered anew in every micro-batch": (
                    lambda g: g.part(g.p) * (g.twice + g.m * g.whole)
                ),
            }, follows=lambda own, g: g.m * own["full_sends"], collective=False),
        ), "right. Accumulation is free for DDP, and FULL_SHARD pays for every micro-batch"),
    },
    hints=(
        "A ring all-gather or reduce-scatter sends (p-1)/p of the whole, an all-reduce 2(p-1)/p.",
        "ZeRO-2 reduce-scatters each unit's gradients, lets the optimizer work, and all-gathers each unit's weights.",
        "FULL_SHARD gathers a block for forward, frees it, gathers it again for backward, and reduce-scatters its "
        "gradients. The root is needed from the first layer to the last and back, so it stays.",
        "HYBRID_SHARD does that among the s GPUs of a node. Then each rank has the node's average of 1/s of the "
        "gradients, which is all-reduced among the p/s ranks that have the same piece.",
    ),
)  # fmt: skip
