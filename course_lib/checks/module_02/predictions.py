"""02.1: bytes, steps and seconds, before anything runs."""

from __future__ import annotations

import random

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.hardware import NVLINK
from course_lib.units import MiB


def given(seed: int) -> Given:
    """p ranks and M bytes; 8 ranks and 64 MiB unless an instructor asks for other numbers."""
    if seed == 0:
        return 8, 64 * MiB
    draw = random.Random(seed)
    return draw.choice((4, 8, 16, 32)), draw.choice((16, 32, 128, 256, 512)) * MiB


def _cost(operation: str, algorithm: str, p: float, nbytes: float) -> CommTime:
    return comm_time(operation, algorithm, world_size=int(p), length=int(nbytes) // 4, itemsize=4)


TRAFFIC = NumberExercise(
    key="02.1",
    title="predict bytes, steps and seconds",
    given=given,
    world_size=lambda p, M: int(p),
    levels={"naive": 2, "ring": 2, "tree": 2, "time": 2},
    questions=(
        Question(
            name="naive_root_receives",
            level="naive",
            unit="bytes",
            answer=lambda p, M: _cost("all_reduce", "naive", p, M).received_bytes[0],
            typical=(
                (lambda p, M: M, "that is what one rank sends; all the others send as much to the root"),
                (lambda p, M: p * M, "the root does not send to itself"),
                (lambda p, M: 2 * (p - 1) * M, "that counts both directions; only what the root receives is asked"),
            ),
        ),
        Question(
            name="naive_steps",
            level="naive",
            unit="steps",
            answer=lambda p, M: _cost("all_reduce", "naive", p, M).steps,
            typical=(
                (lambda p, M: 2, "one port per rank: the root takes the others one after the other"),
                (lambda p, M: p - 1, "that is the way in; the sums must go out again"),
                (lambda p, M: 1, "one port per rank: the root takes the others one after the other"),
            ),
        ),
        Question(
            name="ring_rank_sends",
            level="ring",
            unit="bytes",
            answer=lambda p, M: _cost("all_reduce", "ring", p, M).sent_bytes[0],
            typical=(
                (lambda p, M: (p - 1) * M // p, "that is one half: reduce-scatter; the all-gather sends as much again"),
                (lambda p, M: 2 * M, "the bound for very many ranks; p ranks send 2(p-1)/p of M"),
                (lambda p, M: 2 * (p - 1) * M, "a whole tensor in each step; a ring sends one chunk, M/p"),
                (lambda p, M: M // p, "that is one chunk, one step; how many steps are there?"),
            ),
        ),
        Question(
            name="ring_steps",
            level="ring",
            unit="steps",
            answer=lambda p, M: _cost("all_reduce", "ring", p, M).steps,
            typical=(
                (lambda p, M: p - 1, "that is one half; reduce-scatter and all-gather take p-1 steps each"),
                (lambda p, M: 2 * p, "the last step round the ring would bring a chunk back to where it was"),
            ),
        ),
        Question(
            name="tree_steps",
            level="tree",
            unit="steps",
            answer=lambda p, M: _cost("broadcast", "tree", p, M).steps,
            typical=((lambda p, M: p - 1, "that is the star: the root alone sends. In a tree receivers help"),),
        ),
        Question(
            name="tree_root_sends",
            level="tree",
            unit="bytes",
            answer=lambda p, M: _cost("broadcast", "tree", p, M).sent_bytes[0],
            typical=(
                (lambda p, M: M, "that is one step; the root sends to another rank in every step"),
                (lambda p, M: (p - 1) * M, "that is the star: in a tree the receivers send most of it"),
                (lambda p, M: 2 * M, "the root sends once in every step; how many steps are there?"),
            ),
        ),
        Question(
            name="ring_time",
            level="time",
            unit="s",
            tolerance=0.01,
            answer=lambda p, M: _cost("all_reduce", "ring", p, M).time_s(NVLINK),
            typical=(
                (
                    lambda p, M: 2 * (p - 1) * M / p / NVLINK.bandwidth_bytes_per_s,
                    "the latency alpha of each step is missing",
                ),
                (lambda p, M: NVLINK.time_s(2 * (p - 1) * M / p), "alpha is paid in every step, not once"),
            ),
        ),
        Question(
            name="ring_time_of_4_bytes",
            level="time",
            unit="s",
            tolerance=0.01,
            answer=lambda p, M: 2 * (p - 1) * NVLINK.time_s(4),
            typical=(
                (lambda p, M: NVLINK.time_s(4), "that is one message; the ring waits for 2(p-1) of them in a row"),
            ),
        ),
    ),
    hints=(
        "Draw p = 4 first. Cut the tensor into 4 chunks and write down who sends what in each step.",
        "Naive: p-1 tensors come in to the root, one after the other, and p-1 sums go out.",
        "Ring: p-1 steps of reduce-scatter and p-1 of all-gather, and each sends one chunk of M/p bytes.",
        "Tree: the number of ranks that have the tensor doubles in each step, so log2(p) steps; the root sends in all.",
        "A step costs alpha + bytes/bandwidth: NVLINK.time_s(nbytes). A tensor of 4 bytes still takes every step.",
    ),
)
