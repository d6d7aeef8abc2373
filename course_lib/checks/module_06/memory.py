"""06.4: what a GPU remembers from step to step under each stage of ZeRO."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise, Slips
from course_lib.checks.module_06.llama import LARGE, LLAMA
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import state_bytes
from course_lib.units import GB, GiB


class Memory(NamedTuple):
    """The paper's model of P parameters on N GPUs; a Llama's Q on n, and the memory of one of these in GB."""

    P: int
    N: int
    Q: int
    n: int
    budget: int

    def paper(self, stage: int) -> float:
        """GB in a row of the paper's table: 2, 2 and 12 bytes."""
        return state_bytes(self.P, find_convention("zero"), zero_stage=stage, shards=self.N).total / GB

    def llama(self, stage: int, fp32_gradients: bool = False) -> float:
        """GB on each of n GPUs."""
        convention = find_convention("megatron" if fp32_gradients else "zero")
        return state_bytes(self.Q, convention, zero_stage=stage, shards=self.n).total / GB

    def first(self, fp32_gradients: bool = False) -> int:
        """The first stage that fits, 4 if none does."""
        return next((stage for stage in range(4) if self.llama(stage, fp32_gradients) <= self.budget), 4)

    @property
    def stage(self) -> int:
        """With bf16 gradients."""
        return self.first()


_FITS = (  # a Llama, GPUs, and GB of one: none of them is enough for fp32 gradients at the same stage
    (LLAMA, 8, 48),
    (LLAMA, 16, 40),
    (LLAMA, 16, 24),
    (LLAMA, 4, 48),
    (LARGE, 24, 48),
    (LARGE, 48, 24),
)


def memory(seed: int) -> Memory:
    """The paper's 7.5 billion on 64, and the 8B on 8; other sizes for another seed."""
    draw = random.Random(seed)
    P, N = (7_500_000_000, 64) if seed == 0 else (draw.choice((4, 10, 15)) * 10**9, draw.choice((32, 128)))
    model, n, budget = (LLAMA, 8, 32) if seed == 0 else draw.choice(_FITS)
    return Memory(P, N, model_parameters(model), n, budget)


_TWO_MORE = "every fp32 gradient takes 2 bytes more than one of bf16"


def _in_other_units(gb: Callable[[Memory], float]) -> Slips:
    """What is said of an amount that is not in GB."""
    return {
        "in bytes? Here GB are asked, of 10^9 bytes": lambda g: gb(g) * GB,
        "those are GiB. Here GB are asked, of 10^9 bytes": lambda g: gb(g) * GB / GiB,
    }


_STAGES = NumberExercise(
    key="06.4",
    title="what a GPU remembers",
    given=memory,
    levels={
        "table": Group(2, (
            Ask("ddp_gb", "GB", lambda g: g.paper(0), {
                "14 bytes a parameter? There are gradients too, of 2": lambda g: 14 * g.P / GB,
                "weights and gradients alone? The optimizer has 12 bytes for each parameter": lambda g: 4 * g.P / GB,
                "the optimizer alone? Weights and gradients take 2 bytes each": lambda g: 12 * g.P / GB,
                "with DDP nothing is shared out": lambda g: 16 * g.P / g.N / GB,
                **_in_other_units(lambda g: g.paper(0)),
            }),
            Ask("zero_1_gb", "GB", lambda g: g.paper(1), {
                "everything was shared out; ZeRO-1 shares the optimizer's 12 bytes alone": lambda g: g.paper(3),
                "the gradients were shared out as well, which ZeRO-2 does": lambda g: g.paper(2),
                "those are whole weights and gradients; a p-th of the optimizer's states comes on top": (
                    lambda g: 4 * g.P / GB
                ),
                "the fp32 weights belong to the optimizer: 12 bytes are shared out, not 8": (
                    lambda g: (8 * g.P + 8 * g.P / g.N) / GB
                ),
                **_in_other_units(lambda g: g.paper(1)),
            }),
            Ask("zero_2_gb", "GB", lambda g: g.paper(2), {
                "the gradients are shared out as well in ZeRO-2, 2 + 12 bytes": lambda g: g.paper(1),
                "the weights stay whole in ZeRO-2": lambda g: g.paper(3),
                "those are the whole weights; a p-th of the rest comes on top": lambda g: 2 * g.P / GB,
                "which two bytes stay whole? Weights or gradients, not both and not neither": (
                    lambda g: 14 * g.P / g.N / GB
                ),
                **_in_other_units(lambda g: g.paper(2)),
            }),
            Ask("zero_3_gb", "GB", lambda g: g.paper(3), {
                "all 16 bytes are shared out": (lambda g: 14 * g.P / g.N / GB, lambda g: 12 * g.P / g.N / GB),
                "that is of all GPUs together": lambda g: 16 * g.P / GB,
                "the weights are shared out as well in ZeRO-3": lambda g: g.paper(2),
                **_in_other_units(lambda g: g.paper(3)),
            }),
        ), "right: what was the same on every GPU is there once, first 12 bytes of 16, then 14, then all"),
        "gradients": Group(2, (
            Ask("llama_1_gb", "GB", lambda g: g.llama(1, True), {
                "that is with bf16 gradients; fp32 ones take 4 bytes, whole in ZeRO-1": lambda g: g.llama(1),
                "the gradients were shared out, which ZeRO-2 does": lambda g: g.llama(2, True),
                f"{_TWO_MORE}, and in ZeRO-1 they are whole": lambda g: (4 * g.Q + 14 * g.Q / g.n) / GB,
                **_in_other_units(lambda g: g.llama(1, True)),
            }),
            Ask("llama_2_gb", "GB", lambda g: g.llama(2, True), {
                "that is with bf16 gradients; a p-th of fp32 ones is 4 bytes / p": lambda g: g.llama(2),
                "the gradients are shared out in ZeRO-2": lambda g: g.llama(1, True),
                "the weights stay whole in ZeRO-2": lambda g: g.llama(3, True),
                "bf16 weights take 2 bytes; fp32 is for the gradients": (
                    lambda g: (4 * g.Q + 16 * g.Q / g.n) / GB
                ),
                **_in_other_units(lambda g: g.llama(2, True)),
            }),
            Ask("llama_3_gb", "GB", lambda g: g.llama(3, True), {
                "that is with bf16 gradients, 16 bytes a parameter; here it is 18": lambda g: g.llama(3),
                "the weights are shared out as well in ZeRO-3": lambda g: g.llama(2, True),
                "20 bytes? Weights 2, gradients 4, optimizer 12": lambda g: 20 * g.Q / g.n / GB,
                **_in_other_units(lambda g: g.llama(3, True)),
            }),
        ), "right. The further the sharing goes, the less two more bytes matter"),
        "choice": Group(1, (
            Ask("stage", "", lambda g: g.stage, {
                "with fp32 gradients? In this row they are bf16, as the weights are": lambda g: g.first(True),
                "it fits, but an earlier stage does as well, which is simpler": lambda g: g.stage + 1,
                "that does not fit yet": lambda g: g.stage - 1,
            }, choice=True),
            Ask("floor_gb", "GB", lambda g: 2 * g.Q / GB, {
                "nothing? In ZeRO-2 the weights are whole on every GPU": 0,
                "the gradients are shared out as well in ZeRO-2": lambda g: 4 * g.Q / GB,
                "that is on n GPUs; with more and more of them a share goes to nothing": lambda g: g.llama(2),
                **_in_other_units(lambda g: 2 * g.Q / GB),
            }),
        ), "right. What stays whole is a floor, and no number of GPUs takes you below it"),
    },
    hints=(
        "Bytes of each parameter: 2 for a bf16 weight, 2 for a bf16 gradient, and 12 that the optimizer alone reads, "
        "which are an fp32 weight and two fp32 moments.",
        "ZeRO-1 shares out the 12, ZeRO-2 also the gradients' 2, ZeRO-3 also the weights' 2. What is not shared out "
        "every GPU has whole: ZeRO-1 keeps 4 bytes whole and an N-th of the other 12.",
        "With fp32 gradients it is 2, 4 and 12.",
        "In a sum such as 2 + 14 / n, let n grow: which part stays?",
    ),
)  # fmt: skip
