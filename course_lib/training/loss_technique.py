"""The technique of a loss in pieces: logits of some tokens at a time, whoever shares the head's words or tokens.

trainer = Trainer(model, config, mesh=make_mesh(tp=2), apply=(tensor(), recompute(), chunked_loss(8)))
"""

from __future__ import annotations

import torch.nn.functional as F

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.parallel.tensors.layers import ColumnParallelLinear
from course_lib.savers.chunked_loss import ChunkedLoss, Way
from course_lib.training.parts_here import head_here
from course_lib.training.setup import Setup, Technique

_NAME = "chunked_loss"


def chunked_loss(pieces: int) -> Technique:
    """Make the loss of so many pieces of a micro-batch, so that logits of one of them exist at a time.

    It takes the loss that the ranks have by then: after `tensor` that of a vocabulary of which each has some words.
    Cost: `costs.model.checkpointing` in bytes; in messages those of the loss a second time, for each piece.
    Raises: ValueError for less than one piece, and for another model than a `Decoder`.
    """

    def apply(setup: Setup) -> None:
        setup.begin(_NAME)
        if not isinstance(setup.skeleton, Decoder):
            values, rule = f"a {type(setup.skeleton).__name__}", "what its head gives must go into the loss as it is"
            raise ValueError(four_parts(_NAME, values, rule, "give a Decoder, or leave it out"))
        head = head_here(setup)
        if head is not None:
            parts: dict[str, Way] = {}
            if isinstance(head, ColumnParallelLinear) and not head.gathered:
                column = head
                parts["enter"] = column.region.enter
                parts["logits"] = lambda hidden: F.linear(hidden, column.weight, column.bias)
            setup.engine.ends.loss = ChunkedLoss(head, pieces, setup.engine.ends.loss, **parts)

    return apply
