"""03.4: calls, bytes and latency of one step's gradients, one by one and in buckets."""

from __future__ import annotations

import random
from dataclasses import replace

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.config import load_model
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.costs.model.parameters import model_parameters
from course_lib.hardware import INFINIBAND
from course_lib.units import MiB

LLAMA = load_model("llama3_1_8b")
H, KV, FFN, V = LLAMA.hidden_size, LLAMA.kv_size, LLAMA.ffn_size, LLAMA.vocab_size
LAYER = (H, H * H, KV * H, KV * H, H * H, H, FFN * H, FFN * H, FFN * H)  # norm, q k v o, norm, gate up down
FP32 = 4
BUCKET = 25 * MiB


def given(seed: int) -> Given:
    """Ranks, layers, and the parameters of a Llama with so many layers of the 8B's shape."""
    draw = random.Random(seed)
    p, layers = (4, LLAMA.n_layers) if seed == 0 else (draw.choice((8, 16, 64)), draw.choice((16, 24, 40)))
    return p, layers, model_parameters(replace(LLAMA, n_layers=layers))


def lengths(layers: int) -> list[int]:
    """All tensors in the model's order: embedding, layers, norm, head."""
    return [V * H, *LAYER * layers, H, V * H]


def buckets(layers: float, *, reverse: bool = True) -> int:
    """All-reduces of a step with buckets of 25 MiB."""
    order = lengths(int(layers))
    return len(fill_buckets(order[::-1] if reverse else order, bucket_bytes=BUCKET, itemsize=FP32))


def sent(p: float, parameters: float) -> float:
    """Bytes that each rank sends: a ring's."""
    return 2 * (p - 1) / p * FP32 * parameters


def latency(p: float, calls: float) -> float:
    """Seconds of alpha in so many ring all-reduces."""
    return calls * 2 * (p - 1) * INFINIBAND.alpha_s


STEP = NumberExercise(
    key="03.4",
    title="bytes and calls of a step",
    given=given,
    world_size=lambda p, L, P: int(p),
    levels={"naive": 2, "buckets": 2, "time": 2},
    questions=(
        Question(
            name="naive_calls",
            level="naive",
            unit="calls",
            collective=False,
            answer=lambda p, L, P: len(lengths(int(L))),
            typical=(
                (lambda p, L, P: 9 * L, "the layers alone; embedding, last norm and head have gradients too"),
                (lambda p, L, P: 7 * L + 2, "a norm has a weight too"),
                (lambda p, L, P: P, "one for each number? One call averages a whole tensor"),
                (lambda p, L, P: L, "one for each layer; a layer has 9 tensors"),
            ),
        ),
        Question(
            name="naive_rank_sends",
            level="naive",
            unit="bytes",
            answer=lambda p, L, P: sent(p, P),
            typical=(
                (lambda p, L, P: FP32 * P, "the gradients once: a ring sends 2(p-1)/p of them"),
                (lambda p, L, P: sent(p, P) / FP32, "that counts numbers; one of fp32 has 4 bytes"),
                (lambda p, L, P: sent(p, P) / 2, "two phases: reduce-scatter, then all-gather"),
            ),
        ),
        Question(
            name="bucket_calls",
            level="buckets",
            unit="calls",
            collective=False,
            answer=lambda p, L, P: buckets(L),
            typical=(
                (
                    lambda p, L, P: -(-FP32 * P // BUCKET),
                    "all bytes / 25 MiB: but a tensor is never cut, however large it is",
                ),
                (lambda p, L, P: 9 * L + 3, "one for each tensor; k and v share a bucket, a norm joins its neighbour"),
                (lambda p, L, P: 6 * L, "the layers alone; the head and the embedding fill buckets too"),
                (lambda p, L, P: 7 * L + 2, "a bucket is full at 25 MiB *or more*: k and v share one, 32 MiB in all"),
            ),
        ),
        Question(
            name="largest_bucket",
            level="buckets",
            unit="bytes",
            collective=False,
            answer=lambda p, L, P: FP32 * (V * H + H),
            typical=(
                (lambda p, L, P: BUCKET, "a tensor is never cut: a bucket can be far larger than its limit"),
                (lambda p, L, P: FP32 * V * H, "nearly: one of the two tables is not alone in its bucket"),
                (lambda p, L, P: FP32 * FFN * H, "that is a matrix of a layer; the tables of V rows are larger"),
            ),
        ),
        Question(
            name="bucket_rank_sends",
            level="buckets",
            unit="bytes",
            answer=lambda p, L, P: sent(p, P),
            typical=((lambda p, L, P: FP32 * P, "the gradients once: a ring sends 2(p-1)/p of them"),),
        ),
        Question(
            name="naive_latency",
            level="time",
            unit="s",
            answer=lambda p, L, P: latency(p, len(lengths(int(L)))),
            typical=(
                (lambda p, L, P: (9 * L + 3) * INFINIBAND.alpha_s, "alpha is paid in each of a ring's 2(p-1) steps"),
                (lambda p, L, P: latency(p, 9 * L + 3) / 2, "two phases of p-1 steps each"),
            ),
        ),
        Question(
            name="bucket_latency",
            level="time",
            unit="s",
            answer=lambda p, L, P: latency(p, buckets(L)),
            typical=((lambda p, L, P: buckets(L) * INFINIBAND.alpha_s, "alpha is paid in each of 2(p-1) steps"),),
        ),
        Question(
            name="bandwidth_time",
            level="time",
            unit="s",
            tolerance=1e-3,
            answer=lambda p, L, P: sent(p, P) / INFINIBAND.bandwidth_bytes_per_s,
            typical=(
                (
                    lambda p, L, P: FP32 * P / INFINIBAND.bandwidth_bytes_per_s,
                    "the gradients once: a ring sends 2(p-1)/p of them",
                ),
            ),
        ),
    ),
    praise={
        "naive": "right. An all-reduce for each tensor, and 2(p-1)/p of 4 bytes for each parameter",
        "buckets": "right. Fewer calls, not one byte less; and a bucket is as large as its largest tensor",
        "time": "right: a third of the latency is saved; most of the time is bandwidth, and overlap alone hides that",
    },
    hints=(
        "Count the tensors of a layer in the table, and do not forget the three outside of the layers.",
        "A ring all-reduce sends 2(p-1)/p of its tensor, whatever that is: the sum over all tensors does not "
        "depend on how they are packed.",
        "Buckets: go down the table with a pencil. A tensor of 25 MiB or more fills the bucket that it joins. "
        "The norm after `q` joins the next layer's `down`. How many buckets are full at the end of each layer?",
        "An all-reduce by ring has 2(p-1) steps, and each pays INFINIBAND.alpha_s once.",
    ),
)
