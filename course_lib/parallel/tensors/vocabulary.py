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
        values, rule = f"word {least if least < 0 else most}", f"the words are 0 to {vocab_size - 1}"
        raise ValueError(four_parts(operation, values, rule, "make the tokens by the model's own vocabulary"))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, operators: Operators, words: range) -> Tensor:
        largest = operators.largest_(logits.amax(-1))  # exp must not overflow
        shifted = logits - largest.unsqueeze(-1)
        mine = (targets >= words.start) & (targets < words.stop)
        place = (targets - words.start).where(mine, 0).unsqueeze(-1)
        target_logit = operators.summed_(shifted.gather(-1, place).squeeze(-1) * mine)
        powers = shifted.exp_()
        total = operators.summed_(powers.sum(-1))
        counted = targets >= 0
        ctx.save_for_backward(powers.div_(total.unsqueeze(-1)), place, mine, counted)
        return (total.log() - target_logit).where(counted, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, place, mine, counted = ctx.saved_tensors
        gradient = (gradient * counted).unsqueeze(-1)
        return (softmax * gradient).scatter_add_(-1, place, -gradient * mine.unsqueeze(-1)), None, None, None
