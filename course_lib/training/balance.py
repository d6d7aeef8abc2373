"""The load-balance loss of a mixture of experts: a technique that needs no ranks, since one device has it too.

It is no mean over tokens but a product of two of them, so where it is taken matters. Taken for each sequence it is the
same however sequences are spread over ranks and micro-batches; taken for each rank's batch, every layout has another.
"""

from __future__ import annotations

from torch import Tensor

from course_lib.errors import four_parts
from course_lib.models.moe import mixtures_of
from course_lib.training.setup import Setup, Technique


def balanced(factor: float) -> Technique:
    """Add `factor` times the load-balance loss of every layer to the loss, a token's mean as the loss is.

    Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.2.3.
    Raises: ValueError for a model without experts; before `tensor`, which has a loss of its own; and under `stages`,
        whose last rank alone has a loss.
    """

    def apply(setup: Setup) -> None:
        setup.begin("balanced")
        mixtures = mixtures_of(setup.model)
        if not mixtures:
            rule, way_out = "what is balanced is the load of experts", "give a MoEDecoder, or leave it out"
            raise ValueError(four_parts("balanced", f"a {type(setup.model).__name__}", rule, way_out))
        if "stages" in setup.applied or setup.local.size("pp") > 1:
            rule, way_out = "the last stage alone has a loss", "leave it out, or choose pp=1"
            raise ValueError(four_parts("balanced", f"pp={setup.local.size('pp')}", rule, way_out))
        if setup.local.size("tp") > 1 and "tensor" not in setup.applied:
            values, rule = "applied before tensor", "tensor has a loss of its own, of parts of the logits"
            raise ValueError(four_parts("balanced", values, rule, "apply it after tensor"))
        of_tokens = setup.engine.ends.loss

        def loss(output: Tensor, targets: Tensor) -> Tensor:
            uneven = [mixture.balance for mixture in mixtures if mixture.balance is not None]
            return of_tokens(output, targets) + factor * sum(uneven)

        setup.engine.ends.loss = loss

    return apply
