"""04.7: bytes at a pipeline's cuts, and what data parallelism would send."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16, FP32
from course_lib.config import load_model
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.costs.model.parameters import model_parameters
from course_lib.units import GB

V = 2  # stages on each rank when they are interleaved


class StagedModel(NamedTuple):
    """Ranks, micro-batches of one sequence, its tokens, and the model's width and parameters."""

    p: int
    m: int
    S: int
    H: int
    P: int

    @property
    def message(self) -> int:
        """Bytes of one micro-batch at a cut."""
        return BF16 * self.S * self.H

    @property
    def ddp(self) -> float:
        """Bytes that each rank sends for fp32 gradients."""
        return 2 * (self.p - 1) / self.p * FP32 * self.P

    def sent(self, rank: int, stages_per_rank: int = 1) -> int:
        """Bytes that a rank sends in a step."""
        cuts = [self.message] * (self.p * stages_per_rank - 1)
        return pipeline_step(cuts, n_ranks=self.p, n_microbatches=self.m).sent_bytes[rank]


def given(seed: int) -> StagedModel:
    """The 8B on 8 ranks unless an instructor asks for other numbers."""
    if seed == 0:
        return _numbers("llama3_1_8b", 8, 32, 8192)
    draw = random.Random(seed)
    name = draw.choice(("llama3_1_8b", "llama3_1_70b"))
    return _numbers(name, draw.choice((8, 16)), draw.choice((48, 64)), draw.choice((2048, 4096, 8192)))


def _numbers(name: str, p: int, m: int, tokens: int) -> StagedModel:
    model = load_model(name)
    return StagedModel(p, m, tokens, model.hidden_size, model_parameters(model))


BOTH_ENDS = "does that count what it receives too, or 4 bytes a number?"
ONE = "that is one micro-batch; m of them pass in a step"
NUMBERS = "numbers? In bf16 each of them has 2 bytes"
MIDDLE = {
    NUMBERS: lambda g: g.m * g.message,
    "that is one way: activations go to the next rank, gradients to the one before": lambda g: g.m * g.message,
    ONE: lambda g: 2 * g.message,
    BOTH_ENDS: lambda g: 4 * g.m * g.message,
    "that is what all ranks send; a rank has two neighbours at most": lambda g: 2 * g.m * (g.p - 1) * g.message,
}

CUTS = NumberExercise(
    key="04.7",
    title="bytes at the cuts",
    given=given,  # no ranks: the slips of the one collective are told below
    levels={
        "cut": Group(2, (
            Ask("activation", "bytes", lambda g: g.message, {
                "that counts numbers; one of bf16 has 2 bytes": lambda g: g.S * g.H,
                "4 bytes a number? In bf16 it has 2": lambda g: FP32 * g.S * g.H,
                "that is one token": lambda g: BF16 * g.H,
                "the cut is between layers: all H numbers of a token pass it": lambda g: g.message / g.p,
                "that is all m micro-batches; one message has one": lambda g: g.m * g.message,
            }),
            Ask("first_rank_sends", "bytes", lambda g: g.sent(0), {
                "a gradient too? There is no rank before the first one. Or 4 bytes a number, where bf16 has 2?":
                    lambda g: 2 * g.m * g.message,
                ONE: lambda g: g.message,
                NUMBERS: lambda g: g.m * g.message / BF16,
            }, follows=lambda own, g: g.m * own["activation"]),
            Ask("middle_rank_sends", "bytes", lambda g: g.sent(1), MIDDLE,
                follows=lambda own, g: 2 * own["first_rank_sends"]),
            Ask("link_needs", "GB/s", lambda g: g.message / 1e-3 / GB, {
                "that is in gigabits; a byte has 8 of them": lambda g: 8 * g.message / 1e-3 / GB,
                "each way of a link has its own bandwidth, and one activation goes one way":
                    lambda g: 2 * g.message / 1e-3 / GB,
                NUMBERS: lambda g: g.message / BF16 / 1e-3 / GB,
                "all m do not have to pass in one millisecond, only one": lambda g: g.m * g.message / 1e-3 / GB,
            }, follows=lambda own, g: own["activation"] / 1e-3 / GB, tolerance=5e-3),
        ), "right. 2 bytes for each token and number of the width, however many layers a stage has"),
        "schedules": Group(2, (
            Ask("middle_with_1f1b", "bytes", lambda g: g.sent(1), {
                "p micro-batches are in flight at most, but all m pass the cut": lambda g: 2 * g.p * g.message,
            } | MIDDLE, follows=lambda own, g: own["middle_rank_sends"]),
            Ask("middle_interleaved", "bytes", lambda g: g.sent(1, V), {
                "each rank has two stages now, and each of them sends to another rank":
                    lambda g: 2 * g.m * g.message,
                "half of it? A smaller stage's output is as wide as before": lambda g: g.m * g.message,
                "that is the first or the last rank's; each stage of a rank in between has two neighbours":
                    lambda g: g.sent(0, V),
                BOTH_ENDS: lambda g: 8 * g.m * g.message,
                NUMBERS: lambda g: 2 * g.m * g.message,
            }, follows=lambda own, g: V * own["middle_rank_sends"]),
            Ask("messages", "messages", lambda g: 2 * g.m * (g.p - 1), {
                "that is one way, the activations": lambda g: g.m * (g.p - 1),
                "p ranks have p - 1 cuts": lambda g: 2 * g.m * g.p,
                ONE: lambda g: 2 * (g.p - 1),
                "count a message once, not at both of its ends": lambda g: 4 * g.m * (g.p - 1),
                "that is the interleaved one's; GPipe has p - 1 cuts": lambda g: 2 * g.m * (V * g.p - 1),
            }),
        ), "right. An order changes no byte; more cuts do: v stages on each rank, v times the messages"),
        "ddp": Group(2, (
            Ask("ddp_rank_sends", "bytes", lambda g: g.ddp, {
                "that is all gradients once; a ring sends 2(p-1)/p of them": lambda g: FP32 * g.P,
                "nearly: a ring sends 2(p-1)/p of them, which is not quite twice": lambda g: 2 * FP32 * g.P,
                "that counts numbers; one of fp32 has 4 bytes": lambda g: g.ddp / FP32,
                "half of it: 2 bytes a number, where fp32 has 4? Or one phase, where a ring has reduce-scatter and "
                "all-gather?": lambda g: g.ddp / 2,
                "that is what all ranks send; what one sends is asked": lambda g: g.p * g.ddp,
                "that is one p-th of it; every rank has all P gradients": lambda g: g.ddp / g.p,
                "the micro-batches' gradients are added up first, so a step has one average": lambda g: g.m * g.ddp,
            }),
            Ask("times_less", "", lambda g: g.ddp / g.sent(1), {
                "that is the other way round; how many of the pipeline's bytes fit into data parallelism's?":
                    lambda g: g.sent(1) / g.ddp,
                "compare with a rank in the middle, which sends in both directions": lambda g: g.ddp / g.sent(0),
            }, follows=lambda own, g: own["ddp_rank_sends"] / own["middle_rank_sends"], tolerance=5e-3),
        ), "right: a model's gradients are much more than what passes between its layers. But the pipeline's bytes "
           "grow with the batch, and data parallelism's do not"),
    },
    hints=(
        "A cut lies between two layers. What passes it has the shape (sequences, tokens, width). For one "
        "micro-batch these are S times H numbers, in bf16.",
        "Each micro-batch passes every cut twice: forward as an activation, and backward as a gradient of the same "
        "shape.",
        "A rank in the middle sends activations to the next rank *and* gradients to the one before. The first rank "
        "has nobody to send a gradient to. An order changes when something is sent, not what.",
        "Interleaved, the p ranks have 2p stages, and neighbouring stages lie on neighbouring ranks. So a rank in "
        "the middle sends for two stages, in both directions.",
        "Data parallelism averages by a ring, as in module 02. Each rank sends p - 1 chunks in reduce-scatter and p "
        "- 1 in all-gather, and a chunk is one p-th of all P gradients, in fp32.",
    ),
)  # fmt: skip
