"""02.10: two claims from real slides, each with one wrong number."""

from __future__ import annotations

import random

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.units import GB


def given(seed: int) -> Given:
    """p ranks, M bytes held by each of them, and the bandwidth in bytes per second."""
    if seed == 0:
        return 8, 1 * GB, 50 * GB
    draw = random.Random(seed)
    return draw.choice((4, 8, 16, 32)), draw.choice((1, 2, 3)) * GB, draw.choice((25, 50, 100)) * GB


LINKS_PER_GPU, ONE_LINK, GPUS = 18, 25, 4  # H100: NVLink 4, GB/s one way; GPUs of the workshop's node

CLAIMS = NumberExercise(
    key="02.10",
    title="find the wrong number",
    given=given,
    world_size=lambda p, M, B: int(p),
    levels={"all-gather": 2, "nvlink": 3},
    questions=(
        Question(
            name="time_on_n_ranks",
            level="all-gather",
            unit="s",
            tolerance=0.001,
            answer=lambda p, M, B: (p - 1) * M / B,
            typical=(
                (lambda p, M, B: M / B, "that is the slide's bound; count what one rank must receive"),
                (
                    lambda p, M, B: (p - 1) / p * M / B,
                    "that is right if M is the *whole* tensor; here each rank holds M",
                ),
                (lambda p, M, B: p * M / B, "a rank has its own part already"),
            ),
        ),
        Question(
            name="time_on_2n_ranks",
            level="all-gather",
            unit="s",
            tolerance=0.001,
            answer=lambda p, M, B: (2 * p - 1) * M / B,
            typical=(
                (lambda p, M, B: (p - 1) * M / B, "as on p ranks? Each new rank brings M bytes that all must receive"),
                (lambda p, M, B: 2 * (p - 1) * M / B, "not quite twice: p ranks receive p-1 parts, 2p ranks 2p-1"),
                (lambda p, M, B: M / B, "that is the slide's bound; count what one rank must receive"),
            ),
        ),
        Question(
            name="links_per_pair",
            level="nvlink",
            unit="links",
            collective=False,
            answer=lambda p, M, B: LINKS_PER_GPU / (GPUS - 1),
            typical=(
                (lambda p, M, B: 3, "75 GB/s would be 3 links of 25 GB/s; a GPU has 18 links for 3 others"),
                (lambda p, M, B: 18 / 4, "a GPU has no link to itself: 3 others share the 18"),
            ),
        ),
        Question(
            name="pair_one_way",
            level="nvlink",
            unit="GB/s",
            collective=False,
            answer=lambda p, M, B: ONE_LINK * LINKS_PER_GPU / (GPUS - 1),
            typical=(
                (lambda p, M, B: 75, "that is the slide's number: it belongs to 3 links; how many does a pair have?"),
                (lambda p, M, B: 300, "that counts both directions"),
                (lambda p, M, B: 450, "that is what one GPU sends to all three others"),
            ),
        ),
        Question(
            name="one_gpu_both_ways",
            level="nvlink",
            unit="GB/s",
            collective=False,
            answer=lambda p, M, B: 2 * ONE_LINK * LINKS_PER_GPU,
            typical=((lambda p, M, B: 450, "that is one direction; the data sheet counts both"),),
        ),
        Question(
            name="whole_node_both_ways",
            level="nvlink",
            unit="GB/s",
            collective=False,
            answer=lambda p, M, B: ONE_LINK * LINKS_PER_GPU * GPUS,
            typical=(
                (lambda p, M, B: 900, "900 is one GPU's links, both ways; the slide counts it as the whole node's"),
                (lambda p, M, B: 3600, "each link has two ends: that counts it twice"),
            ),
        ),
    ),
    praise={
        "all-gather": "right. M/B holds if M is the whole tensor; if each rank brings M, the time grows with the ranks",
        "nvlink": "right. 75 GB/s is half of what a pair has, and 900 GB/s belongs to one GPU: the node has twice that",
    },
    hints=(
        "All-gather: before, a rank holds its own part of M bytes; after, it holds p parts. "
        "What must come in through its port?",
        "The slide's bound M/B is true if M is the *whole* tensor. If M is each rank's part, the whole is p times M.",
        "NVLink: an H100 has 18 links of 25 GB/s one way. In a node of 4 GPUs it shares them among 3 others.",
        "There are 6 pairs in a node of 4. Compare 6 pairs, both ways, with the 900 GB/s of the data sheet.",
    ),
)
