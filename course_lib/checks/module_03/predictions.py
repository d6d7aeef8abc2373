"""03.4: calls, bytes and latency of one step's gradients, one by one and in buckets."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import FP32
from course_lib.config import load_model
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.costs.model.parameters import model_parameters
from course_lib.hardware import load_cluster, wires
from course_lib.units import MiB

LLAMA = load_model("llama3_1_8b")
H, KV, FFN, V = LLAMA.hidden_size, LLAMA.kv_size, LLAMA.ffn_size, LLAMA.vocab_size
_LAYER = (H, H * H, KV * H, KV * H, H * H, H, FFN * H, FFN * H, FFN * H)  # norm, q k v o, norm, gate up down
BUCKET = 25 * MiB
KEMPNER = wires(load_cluster("kempner_h100"))
_ALPHA_S, _ALL_CARDS = KEMPNER.card.alpha_s, KEMPNER.network_bytes_per_s


class Replicas(NamedTuple):
    """Ranks, layers, and the parameters of a Llama with so many layers of the 8B's shape."""

    p: int
    L: int
    P: int

    @property
    def tensors(self) -> list[int]:
        """Numbers of each, in the model's order: embedding, layers, norm, head."""
        return [V * H, *_LAYER * self.L, H, V * H]

    @property
    def calls(self) -> int:
        """All-reduces of a step, one for each tensor."""
        return len(self.tensors)

    @property
    def buckets(self) -> int:
        """All-reduces of a step with buckets of 25 MiB."""
        return len(fill_buckets(self.tensors[::-1], bucket_bytes=BUCKET, itemsize=FP32))

    @property
    def sent(self) -> float:
        """Bytes that each rank sends: a ring's."""
        return 2 * (self.p - 1) / self.p * FP32 * self.P

    def latency(self, calls: int) -> float:
        """Seconds of alpha in so many ring all-reduces."""
        return calls * 2 * (self.p - 1) * _ALPHA_S


def given(seed: int) -> Replicas:
    """8 ranks in two nodes and the 8B itself unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    p, layers = (8, LLAMA.n_layers) if seed == 0 else (draw.choice((16, 32, 64)), draw.choice((16, 24, 40)))
    return Replicas(p, layers, model_parameters(replace(LLAMA, n_layers=layers)))


ONCE = "that is all gradients once; a ring sends 2(p-1)/p of them"
_fixed = partial(Ask, collective=False)

_STEP = NumberExercise(
    key="03.4",
    title="bytes and calls of a step",
    given=given,
    ranks=lambda g: g.p,
    levels={
        "naive": Group(2, (
            _fixed("naive_calls", "calls", lambda g: g.calls, {
                "those are the layers alone; the embedding, the last norm and the head have gradients too":
                    lambda g: 9 * g.L,
                "a norm has a weight too": lambda g: 7 * g.L + 2,
                "one for each number? One call averages a whole tensor": lambda g: g.P,
                "that is one for each layer, and a layer has 9 tensors": lambda g: g.L,
            }),
            Ask("naive_rank_sends", "bytes", lambda g: g.sent, {
                ONCE: lambda g: FP32 * g.P,
                "that counts numbers; one of fp32 has 4 bytes": lambda g: g.sent / FP32,
                "that is one phase of two; after the reduce-scatter an all-gather sends as much again":
                    lambda g: g.sent / 2,
            }),
        ), "right. An all-reduce for each tensor, and 2(p-1)/p of 4 bytes for each parameter"),
        "buckets": Group(2, (
            _fixed("bucket_calls", "calls", lambda g: g.buckets, {
                "those are all bytes over 25 MiB; but a tensor is never cut, however large it is":
                    lambda g: -(-FP32 * g.P // BUCKET),
                "that is one for each tensor; but k and v share a bucket, and a norm joins its neighbour":
                    lambda g: g.calls,
                "those are the layers alone; the head and the embedding fill buckets too": lambda g: 6 * g.L,
                "one too many: the norm of the first layer comes last, and does not stay alone; the embedding joins it":
                    lambda g: 6 * g.L + 3,
                "one too few: the head fills a bucket, and so does the embedding, with a norm before it":
                    lambda g: 6 * g.L + 1,
                "a bucket is full at 25 MiB *or more*: k and v share one, 32 MiB in all": lambda g: 7 * g.L + 2,
            }),
            _fixed("largest_bucket", "bytes", FP32 * (V * H + H), {
                "a tensor is never cut: a bucket can be far larger than its limit": BUCKET,
                "nearly: one of the two tables is not alone in its bucket": FP32 * V * H,
                "that is a matrix of a layer; the tables of V rows are larger": FP32 * FFN * H,
            }),
            Ask("bucket_rank_sends", "bytes", lambda g: g.sent, {ONCE: lambda g: FP32 * g.P}),
        ), "right. Fewer calls, not one byte less; and a bucket that a table joins is larger than the table"),
        "time": Group(2, (
            Ask("naive_latency", "s", lambda g: g.latency(g.calls), {
                "alpha is paid in each of a ring's 2(p-1) steps": lambda g: g.calls * _ALPHA_S,
                "a ring has two phases of p-1 steps each": lambda g: g.latency(g.calls) / 2,
            }),
            Ask("bucket_latency", "s", lambda g: g.latency(g.buckets), {
                "alpha is paid in each of 2(p-1) steps": lambda g: g.buckets * _ALPHA_S,
            }),
            Ask("bandwidth_time", "s", lambda g: g.sent / _ALL_CARDS, {
                ONCE: lambda g: FP32 * g.P / _ALL_CARDS,
                "that is a textbook's ring, which leaves a node through one card. This one takes all of them":
                    lambda g: g.sent / KEMPNER.card.bandwidth_bytes_per_s,
                "inside a node? The ring goes through several nodes, and their cards set its pace":
                    lambda g: g.sent / KEMPNER.inside_bytes_per_s,
            }, tolerance=1e-3),
        ), "right: a third of the latency is saved. What the bytes take is not, and overlap has to hide it"),
    },
    hints=(
        "Count the tensors of one layer in the table. Then do not forget the three that are outside of the layers.",
        "A ring all-reduce sends 2(p-1)/p of its tensor, however long that is. So all of them together send "
        "2(p-1)/p of all 4 * P bytes, and it does not matter how they are packed.",
        "For the buckets go down the table with a pencil. A tensor of 25 MiB or more fills the bucket that it "
        "joins, also if a norm is in it already. Only v and k are smaller, and together they have 32 MiB. How many "
        "buckets does one layer fill?",
        "The norm at the end of a layer fills nothing. It waits for what comes next, which is the next layer's "
        "`down`, or in the end the embedding. So there is a bucket for the head, there are those of the layers, and "
        "there is one for that last norm with the embedding.",
        "A ring all-reduce has 2(p-1) steps, and each of them pays KEMPNER.card.alpha_s once. So the latency is the "
        "number of calls times 2 * (p - 1) * KEMPNER.card.alpha_s. For the bytes all four cards of a node work side by "
        "side.",
    ),
)  # fmt: skip
