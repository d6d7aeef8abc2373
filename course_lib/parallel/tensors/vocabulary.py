"""Cross-entropy of logits of which each rank has some words: they are never put together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.comm.switches import active
from course_lib.errors import four_parts
from course_lib.parallel.tensors.conjugate import Operators


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, operators: Operators, words: range) -> Tensor:
    """-log softmax(logits)[target] of every position, in nats, equal on all ranks; 0 where the target is no word.

    `words` are those whose logits this rank has.
    Shapes: (..., V/tp), (...) int64 -> (...).
    Cost: three all-reduces of (...) in forward, nothing in backward.
    Source: Shoeybi et al. 2019, Megatron-LM, section 3 (fusing the logits with the loss).
    """
    losses: Tensor = _CrossEntropy.apply(logits, targets, operators, words)
    return losses


def check_words(operation: str, words: Tensor, vocab_size: int) -> None:
    """Raise the four-part error for a number that is no word: every rank would take it for another one's.

    In teaching mode only, since it waits for the numbers.
    """
    if not active.guard or not words.numel():
        return
    least, most = (int(word) for word in words.aminmax())
    if least < 0 or most >= vocab_size:
        wrong = least if least < 0 else most
        rule, way_out = f"the words are 0 to {vocab_size - 1}", "make the tokens by the model's own vocabulary"
        raise ValueError(four_parts(operation, f"word {wrong}", rule, way_out))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, operators: Operators, words: range) -> Tensor:
        # exp must not overflow, and all ranks must subtract the same.
        largest = operators.largest_(logits.amax(-1))  # (...)
        shifted = logits - largest.unsqueeze(-1)  # (..., V/tp)

        # The target's logit: one rank has it, the others add zero.
        mine = (targets >= words.start) & (targets < words.stop)
        place = (targets - words.start).where(mine, 0).unsqueeze(-1)
        target_logit = shifted.gather(-1, place).squeeze(-1) * mine
        target_logit = operators.summed_(target_logit)

        # The sum over all words.
        powers = shifted.exp_()
        total = operators.summed_(powers.sum(-1))

        counted = targets >= 0
        softmax = powers.div_(total.unsqueeze(-1))
        ctx.save_for_backward(softmax, place, mine, counted)
        return (total.log() - target_logit).where(counted, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, place, mine, counted = ctx.saved_tensors
        gradient = (gradient * counted).unsqueeze(-1)
        of_logits = softmax * gradient  # softmax - 1 at the target, which one rank has
        of_logits.scatter_add_(-1, place, -gradient * mine.unsqueeze(-1))
        return of_logits, None, None, None
