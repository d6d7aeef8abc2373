"""02.1: bytes, steps and seconds, before anything runs."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import FP32
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.hardware import NVLINK
from course_lib.units import MiB


class Transfer(NamedTuple):
    """Ranks, and bytes of the tensor."""

    p: int
    M: int

    @property
    def ring_bytes(self) -> float:
        """What a rank sends."""
        return 2 * (self.p - 1) * self.M / self.p

    def cost(self, operation: str, algorithm: str) -> CommTime:
        """Of an fp32 tensor."""
        return comm_time(operation, algorithm, world_size=self.p, length=self.M // 4, itemsize=4)


def given(seed: int) -> Transfer:
    """8 ranks and 64 MiB unless an instructor asks for other numbers."""
    if seed == 0:
        return Transfer(8, 64 * MiB)
    draw = random.Random(seed)
    return Transfer(draw.choice((8, 16, 32, 64)), draw.choice((16, 32, 128, 256, 512)) * MiB)


_ELEMENTS = "elements instead of bytes? One float32 has 4 bytes"

_TRAFFIC = NumberExercise(
    key="02.1",
    title="bytes, steps and seconds",
    given=given,
    ranks=lambda g: g.p,
    levels={
        "naive": Group(2, (
            Ask("naive_root_receives", "bytes", lambda g: g.cost("all_reduce", "naive").received_bytes[0], {
                "that is what one rank sends; all the others send as much to the root": lambda g: g.M,
                "the root does not send to itself": lambda g: g.p * g.M,
                _ELEMENTS: lambda g: (g.p - 1) * g.M / FP32,
                "that counts both directions; only what the root receives is asked": lambda g: 2 * (g.p - 1) * g.M,
            }),
            Ask("naive_steps", "steps", lambda g: g.cost("all_reduce", "naive").steps, {
                "a rank has one port, so the root takes the others one after the other": (2, 1),
                "that is the way in; the sums must go out again": lambda g: g.p - 1,
            }),
        )),
        "ring": Group(2, (
            Ask("ring_rank_sends", "bytes", lambda g: g.cost("all_reduce", "ring").sent_bytes[0], {
                "that is one half: reduce-scatter; the all-gather sends as much again": lambda g: g.ring_bytes / 2,
                "that is the limit for very many ranks; p ranks send 2(p-1)/p of M each": lambda g: 2 * g.M,
                "that is a whole tensor in each step, and a ring sends one chunk, M/p": lambda g: 2 * (g.p - 1) * g.M,
                "that is one chunk, one step; how many steps are there?": lambda g: g.M / g.p,
                _ELEMENTS: lambda g: g.ring_bytes / FP32,
            }),
            Ask("ring_steps", "steps", lambda g: g.cost("all_reduce", "ring").steps, {
                "that is one half; reduce-scatter and all-gather take p-1 steps each": lambda g: g.p - 1,
                "the last step round the ring would bring a chunk back to where it was": lambda g: 2 * g.p,
            }),
        )),
        "tree": Group(2, (
            Ask("tree_steps", "steps", lambda g: g.cost("broadcast", "tree").steps, {
                "that is the star, in which the root alone sends; in a tree those who have received help":
                    lambda g: g.p - 1,
            }),
            Ask("tree_root_sends", "bytes", lambda g: g.cost("broadcast", "tree").sent_bytes[0], {
                "that is one step; the root sends to another rank in every step": lambda g: g.M,
                _ELEMENTS: lambda g: g.cost("broadcast", "tree").sent_bytes[0] / FP32,
                "that is the star: in a tree the receivers send most of it": lambda g: (g.p - 1) * g.M,
                "the root sends once in every step; how many steps are there?": lambda g: 2 * g.M,
            }),
        )),
        "time": Group(2, (
            Ask("ring_time", "s", lambda g: g.cost("all_reduce", "ring").time_s(NVLINK), {
                "the latency alpha of each step is missing": lambda g: g.ring_bytes / NVLINK.bandwidth_bytes_per_s,
                "alpha is paid in every step, not once": lambda g: NVLINK.time_s(g.ring_bytes),
            }, tolerance=1e-3),
            Ask("ring_time_of_4_bytes", "s", lambda g: 2 * (g.p - 1) * NVLINK.time_s(4), {
                "that is one message; the ring waits for 2(p-1) of them in a row": NVLINK.time_s(4),
            }, tolerance=1e-3),
        )),
    },
    hints=(
        "Draw four ranks first. Cut the tensor into four chunks, and write beside each step who sends what to whom. "
        "Then put p in place of 4.",
        "In the naive way p - 1 tensors come in to the root, one after the other. Then the sum goes out to p - 1 "
        "ranks in the same way. How many steps is that?",
        "The ring goes round twice, p - 1 steps to sum and p - 1 steps to hand out. In each of them every rank "
        "sends one chunk, and a chunk has M / p bytes.",
        "In the tree the number of ranks that have the tensor doubles in each step, so it takes log2(p) steps. The "
        "root has the tensor from the beginning, so it sends in every one of them.",
        "A step takes NVLINK.time_s(nbytes), which is alpha and then the bytes over the bandwidth. So ring_time is "
        "ring_steps * NVLINK.time_s(M / p). A single number cannot be cut any further, and still takes every step.",
    ),
)  # fmt: skip
