"""04.7: bytes at a pipeline's cuts, and what data parallelism would send."""

from __future__ import annotations

import random

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.config import load_model
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.costs.model.parameters import model_parameters

BF16, FP32 = 2, 4
V = 2  # stages on each rank when they are interleaved


def given(seed: int) -> Given:
    """Ranks, micro-batches of one sequence, its tokens, and the model's width and parameters."""
    if seed == 0:
        return _numbers("llama3_1_8b", 8, 32, 8192)
    draw = random.Random(seed)
    name = draw.choice(("llama3_1_8b", "llama3_1_70b"))
    return _numbers(name, draw.choice((8, 16)), draw.choice((48, 64)), draw.choice((2048, 4096, 8192)))


def _numbers(name: str, p: int, m: int, tokens: int) -> Given:
    model = load_model(name)
    return p, m, tokens, model.hidden_size, model_parameters(model)


def sent(p: float, m: float, S: float, H: float, *, stages_per_rank: int = 1) -> tuple[int, ...]:
    """Bytes that each rank sends in a step."""
    cuts = int(p) * stages_per_rank - 1
    return pipeline_step([int(BF16 * S * H)] * cuts, n_ranks=int(p), n_microbatches=int(m)).sent_bytes


def message(p: float, m: float, S: float, H: float, P: float) -> float:
    """Bytes of one micro-batch at a cut."""
    return BF16 * S * H


def ddp(p: float, m: float, S: float, H: float, P: float) -> float:
    """Bytes that each rank sends for fp32 gradients."""
    return 2 * (p - 1) / p * FP32 * P


ONE_WAY = "that is one way: activations go to the next rank, gradients to the one before"
BOTH_ENDS = "that counts what it receives too, or sends in fp32"
HALF = "half of it: 2 bytes a number, where fp32 has 4? Or one phase, where a ring has reduce-scatter and all-gather?"
MIDDLE_SLIPS = (
    (lambda p, m, S, H, P: m * message(p, m, S, H, P), ONE_WAY),
    (lambda p, m, S, H, P: 2 * message(p, m, S, H, P), "that is one micro-batch; m of them pass in a step"),
    (lambda p, m, S, H, P: 4 * m * message(p, m, S, H, P), BOTH_ENDS),
    (
        lambda p, m, S, H, P: 2 * m * (p - 1) * message(p, m, S, H, P),
        "that is what all ranks send; a rank has two neighbours at most",
    ),
)

CUTS = NumberExercise(
    key="04.7",
    title="bytes at the cuts",
    given=given,
    world_size=lambda p, m, S, H, P: 0,  # the slips of the one collective are told below
    levels={"cut": 2, "schedules": 2, "ddp": 2},
    questions=(
        Question(
            name="activation",
            level="cut",
            unit="bytes",
            answer=message,
            typical=(
                (lambda p, m, S, H, P: S * H, "that counts numbers; one of bf16 has 2 bytes"),
                (lambda p, m, S, H, P: FP32 * S * H, "4 bytes a number? In bf16 it has 2"),
                (lambda p, m, S, H, P: BF16 * H, "that is one token"),
                (lambda p, m, S, H, P: BF16 * S * H / p, "the cut is between layers: all H numbers of a token pass it"),
                (lambda p, m, S, H, P: BF16 * m * S * H, "that is all m micro-batches; one message has one"),
            ),
        ),
        Question(
            name="first_rank_sends",
            level="cut",
            unit="bytes",
            answer=lambda p, m, S, H, P: sent(p, m, S, H)[0],
            follows=lambda own, p, m, *_: m * own["activation"],
            typical=(
                (
                    lambda p, m, S, H, P: 2 * m * message(p, m, S, H, P),
                    "a gradient too? There is no rank before the first one. Or 4 bytes a number, where bf16 has 2?",
                ),
                (message, "that is one micro-batch; m of them pass in a step"),
            ),
        ),
        Question(
            name="middle_rank_sends",
            level="cut",
            unit="bytes",
            answer=lambda p, m, S, H, P: sent(p, m, S, H)[1],
            follows=lambda own, *_: 2 * own["first_rank_sends"],
            typical=MIDDLE_SLIPS,
        ),
        Question(
            name="middle_with_1f1b",
            level="schedules",
            unit="bytes",
            answer=lambda p, m, S, H, P: sent(p, m, S, H)[1],
            follows=lambda own, *_: own["middle_rank_sends"],
            typical=(
                (
                    lambda p, m, S, H, P: 2 * p * message(p, m, S, H, P),
                    "p micro-batches are in flight at most, but all m pass the cut",
                ),
                *MIDDLE_SLIPS,
            ),
        ),
        Question(
            name="middle_interleaved",
            level="schedules",
            unit="bytes",
            answer=lambda p, m, S, H, P: sent(p, m, S, H, stages_per_rank=V)[1],
            follows=lambda own, *_: V * own["middle_rank_sends"],
            typical=(
                (
                    lambda p, m, S, H, P: 2 * m * message(p, m, S, H, P),
                    "each rank has two stages now, and each of them hands on to another rank",
                ),
                (
                    lambda p, m, S, H, P: m * message(p, m, S, H, P),
                    "half of it? A smaller stage's output is as wide as before",
                ),
                (
                    lambda p, m, S, H, P: sent(p, m, S, H, stages_per_rank=V)[0],
                    "that is the first or the last rank's; each stage of a rank in between has two neighbours",
                ),
                (lambda p, m, S, H, P: 8 * m * message(p, m, S, H, P), BOTH_ENDS),
            ),
        ),
        Question(
            name="messages",
            level="schedules",
            unit="messages",
            answer=lambda p, m, S, H, P: 2 * m * (p - 1),
            typical=(
                (lambda p, m, S, H, P: m * (p - 1), "that is one way, the activations"),
                (lambda p, m, S, H, P: 2 * m * p, "p ranks have p - 1 cuts"),
                (lambda p, m, S, H, P: 2 * (p - 1), "that is one micro-batch; m of them pass in a step"),
                (lambda p, m, S, H, P: 4 * m * (p - 1), "count a message once, not at both of its ends"),
                (lambda p, m, S, H, P: 2 * m * (V * p - 1), "that is the interleaved one's; GPipe has p - 1 cuts"),
            ),
        ),
        Question(
            name="ddp_rank_sends",
            level="ddp",
            unit="bytes",
            answer=ddp,
            typical=(
                (lambda p, m, S, H, P: FP32 * P, "the gradients once: a ring sends 2(p-1)/p of them"),
                (lambda p, m, S, H, P: 2 * FP32 * P, "nearly: a ring sends 2(p-1)/p of them, which is not quite twice"),
                (lambda p, m, S, H, P: ddp(p, m, S, H, P) / FP32, "that counts numbers; one of fp32 has 4 bytes"),
                (lambda p, m, S, H, P: ddp(p, m, S, H, P) / 2, HALF),
                (lambda p, m, S, H, P: p * ddp(p, m, S, H, P), "that is what all ranks send; what one sends is asked"),
                (lambda p, m, S, H, P: ddp(p, m, S, H, P) / p, "that is one p-th: every rank has all P gradients"),
                (lambda p, m, S, H, P: m * ddp(p, m, S, H, P), "micro-batches are added up first: one average a step"),
            ),
        ),
        Question(
            name="times_less",
            level="ddp",
            unit="",
            tolerance=5e-3,
            answer=lambda p, m, S, H, P: ddp(p, m, S, H, P) / sent(p, m, S, H)[1],
            follows=lambda own, *_: own["ddp_rank_sends"] / own["middle_rank_sends"],
            typical=(
                (lambda p, m, S, H, P: sent(p, m, S, H)[1] / ddp(p, m, S, H, P), "the other way round"),
                (
                    lambda p, m, S, H, P: ddp(p, m, S, H, P) / sent(p, m, S, H)[0],
                    "compare with a rank in the middle, which sends in both directions",
                ),
            ),
        ),
    ),
    praise={
        "cut": "right. 2 bytes for each token and number of the width, however many layers a stage has",
        "schedules": "right. An order changes no byte; more cuts do: v stages on each rank, v times the messages",
        "ddp": "right: a model's gradients are much more than what passes between its layers. But the pipeline's bytes "
        "grow with the batch, and data parallelism's do not",
    },
    hints=(
        "A cut lies between two layers. What passes it has the shape (sequences, tokens, width), in bf16.",
        "Each micro-batch passes every cut twice: forward as an activation, backward as a gradient of the same shape.",
        "A rank in the middle sends forward *and* backward. The first one has nobody to send a gradient to.",
        "Interleaved, the p ranks have 2p stages and 2p - 1 cuts, and neighbouring stages lie on neighbouring ranks.",
        "Data parallelism averages by a ring (module 02): each rank sends p - 1 chunks in reduce-scatter and p - 1 in "
        "all-gather. A chunk is one p-th of all gradients, in fp32.",
    ),
)
