"""02.10: two claims from real slides, each with one wrong number."""

from __future__ import annotations

import random
from functools import partial
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.units import GB

LINKS, LINK, GPUS = 18, 25, 4  # H100: NVLinks of a GPU, GB/s of one, one way; GPUs of the workshop's node
PAIR = LINKS / (GPUS - 1)
BOUND = "that is the slide's bound; count what one rank must receive"


class Given(NamedTuple):
    """Ranks, bytes held by each of them, and the bandwidth in bytes per second."""

    p: int
    M: int
    B: int

    @property
    def one_s(self) -> float:
        """Of one rank's part."""
        return self.M / self.B


def given(seed: int) -> Given:
    """8 ranks with 1 GB each at 50 GB/s unless an instructor asks for other numbers."""
    if seed == 0:
        return Given(8, 1 * GB, 50 * GB)
    draw = random.Random(seed)
    return Given(draw.choice((4, 8, 16, 32)), draw.choice((1, 2, 3)) * GB, draw.choice((25, 50, 100)) * GB)


seconds = partial(Ask, unit="s", tolerance=0.001)
_fixed = partial(Ask, collective=False)

_CLAIMS = NumberExercise(
    key="02.10",
    title="find the wrong number: two claims from real slides",
    given=given,
    ranks=lambda g: g.p,
    levels={
        "all-gather": Group(2, (
            seconds("time_on_n_ranks", answer=lambda g: (g.p - 1) * g.one_s, slips={
                BOUND: lambda g: g.one_s,
                "that is right if M is the *whole* tensor; here each rank holds M": lambda g: (g.p - 1) / g.p * g.one_s,
                "a rank has its own part already": lambda g: g.p * g.one_s,
            }),
            seconds("time_on_2n_ranks", answer=lambda g: (2 * g.p - 1) * g.one_s, slips={
                "that is the time on n ranks; each new rank brings a part more, which everybody has to receive":
                    lambda g: (g.p - 1) * g.one_s,
                "it is not quite twice as long: on n ranks n-1 parts come in, on 2n ranks 2n-1":
                    lambda g: 2 * (g.p - 1) * g.one_s,
                "each rank has its own part already": lambda g: 2 * g.p * g.one_s,
                BOUND: lambda g: g.one_s,
            }),
        ), "right. M/B holds if M is the whole tensor; if each rank brings M, the time grows with the ranks"),
        "nvlink": Group(3, (
            _fixed("links_per_pair", "links", PAIR, {
                "75 GB/s would be 3 links of 25 GB/s; a GPU has 18 links for 3 others": 3,
                "a GPU has no link to itself: 3 others share the 18": LINKS / GPUS,
            }),
            _fixed("pair_one_way", "GB/s", LINK * PAIR, {
                "that is the slide's number: it belongs to 3 links; how many does a pair have?": 75,
                "that counts both directions": 2 * LINK * PAIR,
                "that is what one GPU sends to all three others": LINK * LINKS,
            }),
            _fixed("one_gpu_both_ways", "GB/s", 2 * LINK * LINKS, {
                "that is one direction; the data sheet counts both": LINK * LINKS,
            }),
            _fixed("whole_node_both_ways", "GB/s", LINK * LINKS * GPUS, {
                "900 is one GPU's links, both ways; the slide counts it as the whole node's": 2 * LINK * LINKS,
                "each link has two ends: that counts it twice": 2 * LINK * LINKS * GPUS,
            }),
        ), "right. 75 GB/s is half of what a pair has, and 900 GB/s belongs to one GPU: the node has twice that"),
    },
    hints=(
        "Claim A: before the all-gather a rank holds its own part, and afterwards it holds the parts of all n "
        "ranks. How many bytes have to come in through its port?",
        "The slide's M/B is true if M is the *whole* tensor. Here each rank brings a part of its own, so n - 1 "
        "parts come in, one after the other, at B bytes a second. On 2n ranks it is 2n - 1 parts.",
        "Claim B: an H100 has 18 links of 25 GB/s in each direction. In a node of four GPUs it shares them among "
        "the three others, so how many links has a pair?",
        "One GPU uses all of its 18 links, and each of them in both directions. The node has 6 pairs, and each pair "
        "carries pair_one_way in both directions. Which of the two is the 900 GB/s of the data sheet?",
    ),
)  # fmt: skip
